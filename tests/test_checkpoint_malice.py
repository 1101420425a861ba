"""Malicious metadata of checkpoints: one sentence, and nothing is executed."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from jaxrl.algorithm import Algorithm
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.callbacks import Callbacks
from jaxrl.cli.app import app
from jaxrl.config.base import get_algorithm_config
from jaxrl.config.coerce import accepts_objects
from jaxrl.config.fields import Setting
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import list_algorithms
from jaxrl.config.serialize import REGISTERED_DATACLASSES, deserialize_config
from jaxrl.config.sweep import make_lanes
from jaxrl.envs.registry import make_any
from jaxrl.errors import CheckpointError, JaxrlError
from jaxrl.modules.rl_module import RLModule
from jaxrl.runs.checkpoint import read_metadata
from jaxrl.runs.host_state import resolve_trust
from jaxrl.serve.jax_backend import load_backend
from jaxrl.sweeps.population import Population
from jaxrl.sweeps.trials import Trials
from tests.saved_states import METADATA, forged, loaded, save_two

EVIL = "evil_module_of_a_stranger"
"""A module that says, by a file, that it was imported or that something of it was called."""

SOURCE = """
import pathlib
pathlib.Path(__file__).with_name("EXECUTED").touch()
def f(*args, **kwargs):
    pathlib.Path(__file__).with_name("EXECUTED").touch()
class E:
    __init__ = f
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An older and a newer checkpoint."""
    return save_two(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture
def sentinel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that must not appear."""
    (tmp_path / f"{EVIL}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "EXECUTED"
    sys.modules.pop(EVIL, None)


def call(path: str, **fields: Any) -> dict[str, Any]:
    return {"__dataclass__": path, "fields": fields}


def paths_to(name: str) -> Any:
    return {"__import__": name}


TOUCH = "touch EXECUTED"
SYSTEM = call("os:system", command=TOUCH)
POPEN = call("subprocess:Popen", args=["touch", "EXECUTED"])
IMPORTED = paths_to(f"{EVIL}:f")
OBJECT = paths_to(f"{EVIL}:E")
BOMB: dict[str, Any] = {"shape": [10**12], "dtype": "float32", "crc32": 0}

SETTINGS: dict[str, Any] = {
    "a shell in lr": {"lr": SYSTEM},
    "a process in lr": {"lr": POPEN},
    "a shell in gamma": {"gamma": SYSTEM},
    "a shell in a schedule": {"lr": [[0, SYSTEM]]},
    "a shell in a tuple": {"clip_rewards": {"__tuple__": [SYSTEM, 1]}},
    "a shell in env_config": {"env_config": {"a": {"b": [SYSTEM]}}},
    "a shell in model_config": {"model_config": SYSTEM},
    "a shell in a known dataclass": {
        "model_config": call("jaxrl.modules.model_config:DefaultModelConfig", fcnet_hiddens=SYSTEM)
    },
    "a shell in a spec": {
        "rl_module_spec": call("jaxrl.modules.rl_module:RLModuleSpec", module_class=SYSTEM)
    },
    "a module's class that is none": {
        "rl_module_spec": call(
            "jaxrl.modules.rl_module:RLModuleSpec", module_class=paths_to("subprocess:Popen")
        )
    },
    "a shell in a marker": {"lr": call("jaxrl.config.sweep:Marker", kind="grid", values=[SYSTEM])},
    "a shell in a scheduler": {"scheduler": SYSTEM},
    "a class that is no dataclass": {"model_config": call("pathlib:Path", a=1)},
    "a module in gamma": {"gamma": IMPORTED},
    "a class in gamma": {"gamma": OBJECT},
    "a function as lr": {"lr": IMPORTED},
    "a function as optimizer": {"optimizer": paths_to("os:system")},
    "a function as env": {"env": IMPORTED},
    "a class as env": {"env": OBJECT},
    "an imported class as env": {"env": paths_to("subprocess:Popen")},
    "an imported function as env": {"env": paths_to("subprocess:call")},
    "a function path as env": {"env": f"{EVIL}:f"},
    "a dotted path as env": {"env": f"{EVIL}.E"},
    "sys.exit as env": {"env": "sys:exit"},
    "os.system as env": {"env": "os:system", "env_config": {"command": TOUCH}},
    "gymnasium's module": {"env": f"gymnasium:{EVIL}:CartPole-v1"},
    "gymnasium's module, bare": {"env": f"{EVIL}:CartPole-v1"},
    "an env to wrap": {
        "env": "jaxrl.envs.faults:FaultyEnv",
        "env_config": {"env": f"{EVIL}:E"},
    },
    "an env in a grid": {
        "env": call("jaxrl.config.sweep:Marker", kind="grid", values=["CartPole-v1", f"{EVIL}:E"])
    },
    "an env of Tune's": {"env": {"grid_search": [f"{EVIL}:E"]}},
    "an env of evaluation": {"evaluation_config": {"env": f"{EVIL}:E"}},
    "a class in evaluation": {"evaluation_config": {"env": OBJECT}},
    "a callback": {"on_checkpoint_loaded": IMPORTED},
    "a callback by its path": {"on_algorithm_init": f"{EVIL}:f"},
    "a callback that is imported": {"on_algorithm_init": paths_to("os:abort")},
    "a callback through jaxrl": {
        "on_algorithm_init": paths_to("jaxrl.runs.checkpoint:shutil.rmtree")
    },
    "callbacks": {"callbacks_class": [f"{EVIL}:E"]},
    "callbacks under the old name": {"callbacks": f"{EVIL}:E"},
    "callbacks that are none": {"callbacks_class": paths_to("subprocess:Popen")},
    "a group of settings": {"callbacks": {"on_algorithm_init": f"{EVIL}:f"}},
    "another group": {"learners": {"learner_class": f"{EVIL}:E"}},
    "a learner": {"learner_class": f"{EVIL}:E"},
    "a learner that is none": {"learner_class": paths_to("subprocess:Popen")},
    "a runner": {"env_runner_cls": OBJECT},
    "a connector": {"env_to_module_connector": IMPORTED},
    "an evaluation": {"custom_evaluation_function": f"{EVIL}:f"},
    "a check": {"validate_env": f"{EVIL}:f"},
    "the command line": {"env": "jaxrl.cli.__main__:main"},
    "a path that is no string": {"learner_class": {"__import__": ["os", "system"]}},
    "a space of objects": {
        "observation_space": {"__space__": {"kind": "Box", "low": [0], "high": [1], "dtype": "O"}}
    },
    "a space of junk": {
        "observation_space": {
            "__space__": {"kind": "Box", "low": [["a"]], "high": 1, "dtype": "float32"}
        }
    },
    "a space of no kind": {"action_space": {"__space__": {"kind": "os:system"}}},
    "a space of a terabyte": {
        "observation_space": {"__space__": {"kind": "MultiBinary", "n": 10**12}}
    },
    "a number that is none": {"gamma": {"__float__": "os"}},
    "deeper than any": {"env_config": json.loads('{"a":' * 400 + "1" + "}" * 400)},
}


def in_settings(settings: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["config"]["settings"].update(settings)


def in_config(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["config"].update(entries)


def in_document(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(entries)


def in_leaf(**entries: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["leaves"]["weights"].update(entries)


def without(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.pop(name)


MALICIOUS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{name: in_settings(settings) for name, settings in SETTINGS.items()},
    "algo is a shell": in_config(algo="os:system"),
    "algo of a module": in_config(algo=f"{EVIL}:E"),
    "algo is a class": in_config(algo="subprocess:Popen"),
    "algo is a list": in_config(algo=[1]),
    "algo_class is a shell": in_config(algo_class=SYSTEM),
    "algo_class of a module": in_config(algo_class=OBJECT),
    "algo_class is a string": in_config(algo_class=f"{EVIL}:E"),
    "settings are a list": in_config(settings=[1]),
    "explicit settings are a number": in_config(explicit_settings=5),
    "explicit settings of lists": in_config(explicit_settings=[[1]]),
    "config is a list": in_document(config=[]),
    "4 TB": in_leaf(**BOMB),
    "4 TB in another leaf": lambda document: document["leaves"].update(more=BOMB),
    "a negative shape": in_leaf(shape=[-1]),
    "a shape of floats": in_leaf(shape=[1e9]),
    "a shape of many axes": in_leaf(shape=[1] * 100),
    "no dtype": in_leaf(dtype="nonsense"),
    "objects": in_leaf(dtype="object"),
    "a structure": in_leaf(dtype="i4,f4"),
    "a dtype that is a number": in_leaf(dtype=5),
    "leaves are a list": in_document(leaves=[1]),
    "a leaf is a list": lambda document: document["leaves"].update(weights=[1]),
    "leaves of nothing": in_document(leaves={}),
    "no host": without("host"),
    "no config": without("config"),
    "no versions": without("versions"),
    "no not_saved": without("not_saved"),
    "a host with more": lambda document: document["host"].update(evil=1),
    "a host that is a list": in_document(host=[1]),
    "an iteration of words": lambda document: document["host"].update(iteration="9"),
    "an iteration below 0": lambda document: document["host"].update(iteration=-9),
    "steps of words": in_document(env_steps=[1]),
    "versions of numbers": in_document(versions={"jax": 1}),
    "devices that are a list": in_document(devices=[1]),
    "a device without a number": in_document(devices={"platform": "cpu", "count": None}),
    "a thousand million devices": in_document(
        devices={"platform": "cpu", "count": 10**9, "available": 1}
    ),
    "fewer devices than none": in_document(num_devices=-1),
    "as many devices": in_document(num_devices=10**9),
    "options that are a list": in_document(jax_options=[1]),
}


def test_malicious_metadata_execute_nothing(
    two: list[Path], tmp_path: Path, sentinel: Path
) -> None:
    assert len(MALICIOUS) >= 60
    environment, want = dict(os.environ), loaded(two[1])
    assert loaded(forged(tmp_path, two[1], lambda _: None)) == want  # what nobody changed loads
    refused: dict[str, str] = {}
    for name, change in MALICIOUS.items():
        path = forged(tmp_path, two[1], change)
        with pytest.raises(JaxrlError) as caught:
            loaded(path)
        refused[name] = str(caught.value)
        assert not sentinel.exists(), name
        assert EVIL not in sys.modules, name
    assert dict(os.environ) == environment
    for name, sentence in refused.items():
        print(f"{name:32} {sentence}")
        assert "\n" not in sentence, name
        assert len(sentence) < 700, name


def test_what_is_trusted_is_imported_and_what_is_called_is_still_held_to_its_kind(
    two: list[Path], tmp_path: Path, sentinel: Path
) -> None:
    path = forged(tmp_path, two[1], in_settings(SETTINGS["a callback"]))
    with pytest.raises(CheckpointError, match=rf"trust=\['{EVIL}'\] \(on the command line --trust"):
        loaded(path)
    with pytest.raises(CheckpointError, match="would import"):
        loaded(path, trust=["another_package"])
    assert not sentinel.exists()
    loaded(path, trust=EVIL)
    assert sentinel.exists()
    sentinel.unlink()
    for case in (
        "a shell in lr",
        "callbacks that are none",
        "a class as env",
        "a learner that is none",
    ):
        with pytest.raises(JaxrlError):
            loaded(forged(tmp_path, two[1], in_settings(SETTINGS[case])), trust=True)
    assert not sentinel.exists()


def test_what_the_caller_gives_is_the_callers(sentinel: Path) -> None:
    saved = {"algo": "PPO", "settings": {"env": "CartPole-v1", "callbacks_class": f"{EVIL}:E"}}
    config = deserialize_config(saved, {"callbacks": "jaxrl.callbacks:Callbacks"})
    assert config.callbacks_class is Callbacks
    assert not sentinel.exists()
    config = deserialize_config(saved, {"callbacks_class": None, "env_task_fn": f"{EVIL}:f"})
    assert config.env_task_fn is sys.modules[EVIL].f
    copied = config.copy()
    with pytest.raises(CheckpointError, match="would import"):
        copied.callbacks(on_episode_end=f"{EVIL}_of_another:f")


def test_settings_that_act_by_themselves_are_left_out(
    two: list[Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    acting = {
        "results_dir": str(tmp_path / "elsewhere"),
        "compilation_cache_dir": str(tmp_path / "machine code"),
        "extra_python_environs_for_driver": {"PATH": "/evil"},
        "extra_python_environs_for_worker": {"LD_PRELOAD": "/evil.so"},
        "loggers": ["json", "wandb"],
        "gamma": 0.5,
    }
    path = forged(tmp_path, two[1], in_settings(acting))
    document = read_metadata(path)
    config = deserialize_config(document["config"], trust=resolve_trust(path, None))
    for name in acting.keys() - {"gamma"}:
        assert config[name] == PPOConfig()[name], name
        assert name in caplog.text
    assert config.gamma == 0.5
    assert "trust=True" in caplog.text
    everything = deserialize_config(document["config"], trust=resolve_trust(path, True))
    assert {name: everything[name] for name in acting} == acting
    given = deserialize_config(
        document["config"], {"results_dir": "mine"}, trust=resolve_trust(path, None)
    )
    assert given.results_dir == "mine"


SPEC = "jaxrl.config.settings.multi_agent:PolicySpec"
RL_SPEC = "jaxrl.modules.rl_module:RLModuleSpec"
MULTI_SPEC = "jaxrl.modules.rl_module:MultiRLModuleSpec"
MARKER = "jaxrl.config.markers:Marker"


def grid_of(value: Any) -> dict[str, Any]:
    return call(MARKER, kind="grid", values=[value])


def group_of(config: Any, name: str) -> str:
    return GROUP_METHODS[config.get_name_table().group_by_setting[name]]


VALUES: dict[str, Any] = {
    "a path": f"{EVIL}:E",
    "a dotted path": f"{EVIL}.E",
    "a function's path": f"{EVIL}:f",
    "an import": paths_to(f"{EVIL}:E"),
    "a list": [f"{EVIL}:E"],
    "a type": {"type": f"{EVIL}:E"},
    "an entry": {"p0": f"{EVIL}:E"},
    "an env": {"env": f"{EVIL}:E"},
    "an env in an env": {"env_config": {"env": [f"{EVIL}:E"]}},
    "a grid": grid_of(f"{EVIL}:E"),
    "a grid of Tune's": {"grid_search": [f"{EVIL}:E"]},
    "a grid of types": {"type": {"grid_search": [f"{EVIL}:E"]}},
}
"""Values that name a stranger's module."""
INNER_VALUES = ("a path", "an import", "a grid of Tune's")
"""Those that are tried at the places inside of other settings."""


def places(config: Any, name: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Settings of a checkpoint that hold a setting, in each place that holds others."""
    own = {name: value}
    inner = {group_of(config, name): own}
    yield "at the top", own
    for place, held in (("", own), (" in its group", inner)):
        yield f"in evaluation_config{place}", {"evaluation_config": held}
        yield (
            f"in evaluation_config of evaluation_config{place}",
            {"evaluation_config": {"evaluation_config": held}},
        )
        yield f"of a module{place}", {"algorithm_config_overrides_per_module": {"p0": held}}
        yield f"in a policy{place}", {"policies": {"p0": call(SPEC, config=held)}}
        yield f"in a tuple of a policy{place}", {"policies": {"p0": [None, None, None, held]}}
    yield "in a grid of evaluation_config", {"evaluation_config": grid_of(own)}
    yield "in a grid of a module", {"algorithm_config_overrides_per_module": {"p0": grid_of(own)}}
    yield "in a stage", {"curriculum": [{"task": own, "until": 5}]}
    yield "in a model", {"model_config": own}
    yield "in a spec", {"rl_module_spec": call(RL_SPEC, model_config=own)}
    yield (
        "in a spec of several",
        {"rl_module_spec": call(MULTI_SPEC, rl_module_specs={"p0": value})},
    )
    yield (
        "in a mutation",
        {"seeds": 4, "scheduler": {"type": "PBT", "hyperparam_mutations": {name: [value]}}},
    )


def list_settings() -> dict[str, tuple[str, Setting]]:
    """The settings of all algorithms that take objects, with the first algorithm that has each."""
    found: dict[str, tuple[str, Setting]] = {}
    for algo in ("PPO", *list_algorithms()):
        table = get_algorithm_config(algo).get_name_table()
        for name in table.group_by_setting:
            setting = table.get_setting(name)
            if setting.import_path or accepts_objects(setting.annotation):
                found.setdefault(name, (algo, setting))
    return found


def stranger_configs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Algorithms and settings that name a stranger's module, by all settings at all places.

    Of settings that are declared alike, such as the hooks, one has all values, others a path alone.
    """
    declared: set[str] = set()
    for name, (algo, setting) in list_settings().items():
        config, declaration = (
            get_algorithm_config(algo),
            f"{setting.annotation}{setting.import_path}",
        )
        for kind, value in VALUES.items():
            for place, settings in places(config, name, value):
                is_first = place in ("at the top", "in evaluation_config")
                is_tried = is_first or (setting.import_path and kind in INNER_VALUES)
                if is_tried and (kind == "a path" or declaration not in declared):
                    yield f"{name} {place}: {kind}", algo, settings
        declared.add(declaration)
    for path in REGISTERED_DATACLASSES:
        module, _, cls = path.partition(":")
        for held in dataclasses.fields(getattr(importlib.import_module(module), cls)):
            value = call(path, **{held.name: f"{EVIL}:E"})
            for name in ("rl_module_spec", "policies", "league", "mapping", "scheduler"):
                own = {"p0": value} if name in ("policies", "mapping") else value
                yield f"{held.name} of {cls} as {name}", "PPO", {name: own}


def use(config: Any) -> None:
    """Derive all that a run derives from a config before it compiles anything."""
    for derive in (
        config.validate,
        config.prepare,
        config.plan,
        config.get_evaluation_config_object,
        config.get_multi_rl_module_spec,
        config.get_rl_module_spec,
        config.get_training_by_module,
        lambda: config.get_module_config("p0"),
        lambda: make_any(config.env, config.env_config),
        lambda: [lane.config.validate() for lane in make_lanes(config)],
    ):
        with contextlib.suppress(Exception):  # of which a run stops at the first
            derive()


class Finder:
    """Recorder of the modules that are looked for, by any kind of import."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        self.names.append(name)


@pytest.fixture
def finder(monkeypatch: pytest.MonkeyPatch) -> Finder:
    """The imports of a test."""
    finder = Finder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    return finder


SEVERAL = {"env": "TwoStep-v0", "mapping": {"agent_0": "p0", "agent_1": "p1"}}


def test_no_name_at_any_place_imports_anything(sentinel: Path, finder: Finder) -> None:
    assert importlib.util.find_spec(EVIL) is not None  # it could be imported
    finder.names.clear()
    tried = used = 0
    for name, algo, settings in stranger_configs():
        is_of_modules = settings.keys() & {"algorithm_config_overrides_per_module", "policies"}
        base = SEVERAL if is_of_modules else {"env": "CartPole-v1"}
        tried += 1
        try:
            config = deserialize_config({"algo": algo, "settings": {**base, **settings}})
        except JaxrlError:
            config = None
        if config is not None:
            used += 1
            use(config)
        assert EVIL not in finder.names, name
        assert not sentinel.exists(), name
    print(f"{tried} tried, {used} of them used")
    assert len(list_settings()) > 32
    assert tried > 1_000
    assert used > 300


DOORS: dict[str, Callable[[Path], Any]] = {
    "Algorithm": Algorithm.from_checkpoint,
    "a module": RLModule.from_checkpoint,
    "the modules alone": lambda path: Algorithm.from_checkpoint(path, policy_ids=["p0"]),
    "serve": lambda path: load_backend(path, max_batch=2),
    "a sweep": lambda path: Population.from_checkpoint(path.parent),
    "trials": lambda path: Trials.from_checkpoint(
        path.parents[2] / "trials", run_folder=cast(Any, None)
    ),
    "evaluate": lambda path: command("evaluate", path),
    "evaluate a number of steps": lambda path: command("evaluate", path, "--steps", "8"),
    "resume a sweep": lambda path: command("resume", path.parents[2] / "trials", "--steps", "99"),
    "resume": lambda path: command("resume", path, "--stop", '{"training_iteration": 9}'),
    "export": lambda path: command("export", path, "--out", path.parent / "exported"),
    "record": lambda path: command("record", path, "--output", path.parent / "recorded"),
    "compile-report": lambda path: command("compile-report", path.parent.parent),
    "replay": lambda path: command("replay", path.parent.parent),
}
"""Ways to read a checkpoint, a sweep beside it, or the run that it is in."""

NAMED: dict[str, dict[str, Any]] = {
    "callbacks of evaluations": {"evaluation_config": {"callbacks_class": f"{EVIL}:E"}},
    "an environment of evaluations": {"evaluation_config": {"env": f"{EVIL}:E"}},
    "an environment in one": {"env_config": {"env_config": {"env": f"{EVIL}:E"}}},
    "a function": {"env_task_fn": f"{EVIL}:f"},
    "a module": {
        **SEVERAL,
        "env_config": {},
        "algorithm_config_overrides_per_module": {"p0": {"rl_module_spec": f"{EVIL}:E"}},
    },
    "a lane": {"network": {"grid_search": [f"{EVIL}:f"]}},
}


def command(name: str, *arguments: object) -> None:
    """Run a command in this process, and raise its error."""
    done = CliRunner().invoke(app, [name, *map(str, arguments)], prog_name="jaxrl")
    assert done.exit_code != 0, done.output
    sentence = " ".join(done.output.split())
    raise JaxrlError(sentence)


@pytest.mark.parametrize("named", NAMED)
def test_no_door_imports_a_name(
    named: str, two: list[Path], tmp_path: Path, sentinel: Path, finder: Finder
) -> None:
    run = tmp_path / "run"
    path = forged(run / "checkpoints", two[1], in_settings(NAMED[named]))
    config = json.loads((path / METADATA).read_text())["config"]
    (tmp_path / "trials").mkdir()
    for folder in (run, tmp_path / "trials"):
        information = {"id": "x", "stop": None, "params_signature": "0" * 64}
        (folder / "params.json").write_text(json.dumps(config))
        (folder / "run.json").write_text(json.dumps(information))
    sweep = {"sweep_version": 1, "algorithm": "PPO", "config": config, "not_saved": []}
    sweep |= {"training_iteration": 4, "diverged": {}, "swept": [], "values": None}
    (path.parent / "sweep.json").write_text(json.dumps(sweep))
    (tmp_path / "trials" / "sweep.json").write_text(json.dumps({**sweep, "trials": True}))
    importlib.invalidate_caches()
    for door, opens in DOORS.items():
        with pytest.raises(JaxrlError) as caught:
            opens(path)
        assert EVIL not in finder.names, door
        assert not sentinel.exists(), door
        assert EVIL in str(caught.value), door
