"""Damaged checkpoints and malicious ones: the exact state or one sentence, and nothing is executed."""

import copy
import dataclasses
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.deserialize import deserialize_config
from jaxrl.config.serialize import serialize_config
from jaxrl.errors import CheckpointError, JaxrlError
from jaxrl.runs.checkpoint import (
    CheckpointWriter,
    fill,
    find_first_difference,
    is_own,
    read_leaves,
    read_metadata,
)
from jaxrl.runs.checkpoint.manifest import MANIFEST, write_manifest
from jaxrl.runs.host_state import (
    RunMetadata,
    check_metadata,
    make_checkpoint_metadata,
    resolve_trust,
)
from jaxrl.runs.manifest import Session
from tests.helpers import assert_equal, small

METADATA = "metadata/metadata"
ENV_STEPS = "num_env_steps_sampled_lifetime"
COUNTS: dict[str, Any] = {
    "num_sub_env_restarts": 1,
    "num_env_runner_restarts": 0,
    "env_steps": [64, 64],
    "ledger": {
        "received": 9,
        "trained": 6,
        "queued": 1,
        "discarded": {"stale": 2},
        "maybe_lost": 3,
    },
    "logged": {
        "a/mean": {"reduce": "mean", "window": None, "data": [4.5, 3]},
        "a/last": {"reduce": "max", "window": 3, "data": [1.0, 2.0]},
        "ema": {"reduce": "ema", "window": None, "ema_coeff": 0.1, "data": [1.0, 0.9, 0.1]},
        "all": {"reduce": "percentiles", "window": None, "percentiles": [0, 50], "data": [1.0]},
        "item": {"reduce": "item", "window": None, "data": [["of", "any", None]]},
        "sum": {"reduce": "lifetime_sum", "window": None, "data": [7.0]},
    },
    "weights_version": 2,
}
"""Counts of runners on the host, and values that callbacks log."""
STATE = {
    "weights": np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32),
    "count": np.asarray(7, np.int32),
    "done": np.asarray([True, False]),
    "key": jax.random.key(3),
}


def metadata(iteration: int) -> dict[str, Any]:
    """Return the content of a run's checkpoint beside its leaves."""
    config = PPOConfig().environment("CartPole-v1", env_config={"gravity": 9.0})
    config.training(lr=[[0, 1e-3], [1000, 0.0]], gamma=0.9)
    host = RunMetadata(
        iteration=iteration,
        time_total_s=1.5,
        last_result={"training_iteration": iteration, ENV_STEPS: 128, "num": {"x": 33.16}},
        runner_counts=copy.deepcopy(COUNTS),
    )
    session = Session(config, jax.devices()[:1]).describe()
    return make_checkpoint_metadata(config, host, 128 * iteration, session)


def loaded(path: Path, trust: Any = None) -> Any:
    """Load what a run would go on with, without building it; comparisons are of JSON and bytes."""
    document = read_metadata(path)
    check_metadata(document, path)
    config = deserialize_config(document["config"], trust=resolve_trust(path, trust))
    host = RunMetadata.from_metadata(document)
    leaves = read_leaves(path, document)
    problem = find_first_difference(STATE, leaves)
    if problem is not None:
        raise CheckpointError(problem)
    state = fill(STATE, leaves)
    arrays = {n: np.asarray(x).tobytes() for n, x in state.items() if n != "key"}
    key = jax.random.key_data(state["key"]).tolist()
    return arrays, key, host, json.dumps(serialize_config(config), sort_keys=True)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """An older and a newer checkpoint."""
    folder = tmp_path_factory.mktemp("checkpoints")
    with_other = {**STATE, "count": np.asarray(8, np.int32), "weights": STATE["weights"] + 1}
    writer = CheckpointWriter(folder)
    return [writer.save(3, with_other, metadata(3)), writer.save(4, STATE, metadata(4))]


def outcome(path: Path) -> tuple[Any, str | None]:
    """Return what is loaded, or the sentence why nothing is."""
    try:
        return loaded(path), None
    except CheckpointError as error:
        return None, str(error)


def files_of(checkpoint: Path) -> list[Path]:
    return sorted(path for path in checkpoint.rglob("*") if path.is_file())


def flip(path: Path, rng: random.Random, other: Path) -> str:
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(content))
    return path.name


def truncate(path: Path, rng: random.Random, other: Path) -> str:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))])
    return path.name


def lengthen(path: Path, rng: random.Random, other: Path) -> str:
    path.write_bytes(path.read_bytes() + rng.randbytes(1 + rng.randrange(9)))
    return path.name


def lose(path: Path, rng: random.Random, other: Path) -> str:
    path.unlink()
    return path.name


def add(path: Path, rng: random.Random, other: Path) -> str:
    added = path.with_name(f"added{rng.randrange(99)}")
    added.write_bytes(b"x")
    return added.name


def swap(path: Path, rng: random.Random, other: Path) -> str:
    """Take the file of the other checkpoint, or another one of this."""
    source = other if other.exists() and rng.random() < 0.7 else rng.choice(files_of(path.parent))
    path.write_bytes(source.read_bytes())
    return path.name


DAMAGES = (flip, flip, flip, flip, truncate, truncate, lengthen, lose, add, swap, swap, swap)


@pytest.mark.parametrize(
    "number", [60, pytest.param(300, marks=pytest.mark.slow)], ids=["sample", "all"]
)
def test_damage_is_one_sentence_that_names_the_file(
    number: int, two: list[Path], tmp_path: Path
) -> None:
    older, newer = two
    want, outcomes = loaded(newer), Counter[str]()
    damaged = tmp_path / "run" / newer.name
    shutil.copytree(older, damaged.with_name(older.name))
    rng = random.Random(number)
    for case in range(number):
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(newer, damaged)
        damage = DAMAGES[case % len(DAMAGES)]
        victim = rng.choice(files_of(damaged))
        touched = damage(victim, rng, older / victim.relative_to(damaged))
        got, sentence = outcome(damaged)
        if sentence is None:
            assert got == want, (damage.__name__, victim)
        else:
            assert "\n" not in sentence
            assert "its file " in sentence
            assert touched in sentence or (damage is swap and touched == MANIFEST)
            assert f"The previous one is {damaged.with_name(older.name)}" in sentence
        outcomes[f"{damage.__name__:9} {'exact' if sentence is None else 'one sentence'}"] += 1
    assert loaded(damaged.with_name(older.name)) != want
    print("", *(f"{n:4} {what}" for what, n in sorted(outcomes.items())), sep="\n")
    assert sum(n for what, n in outcomes.items() if "sentence" in what) >= 0.9 * number


def test_whoever_wrote_it_is_known_by_a_signature(
    two: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_own(two[0])
    assert resolve_trust(two[0], None).everything
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    assert not is_own(two[0])  # there is no key here, and asking makes none
    assert not (tmp_path / "of another user").exists()
    path = CheckpointWriter(tmp_path / "own").save(1, STATE, metadata(1))
    assert is_own(path)
    key = tmp_path / "of another user" / "jaxrl" / "signing_key"
    assert key.stat().st_mode & 0o077 == 0
    key.chmod(0o644)  # others may have read it
    assert not is_own(path)


# --- malicious metadata ---

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
        "on_algorithm_init": paths_to("jaxrl.runs.checkpoint.writer:shutil.rmtree")
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
}


def forged(folder: Path, base: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """A checkpoint with other metadata, under digests that match, as a stranger would write it."""
    path = folder / base.name
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    document = copy.deepcopy(json.loads((path / METADATA).read_text()))
    change(document)
    (path / METADATA).write_text(json.dumps(document))
    (path / MANIFEST).unlink()
    with pytest.MonkeyPatch.context() as stranger:
        stranger.setenv("XDG_STATE_HOME", str(folder / "of a stranger"))
        stranger.setattr(
            "jaxrl.runs.checkpoint.manifest.flush", lambda path: None
        )  # only for speed
        write_manifest(path, None)
    return path


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


# --- wrong types in what a run remembers on the host ---

VALUES: tuple[Any, ...] = (None, True, "9", 9.5, -1, 9, 10**400, [], [1], ["a"], {}, {"a": "b"})
"""Values of every type that JSON has."""

RIGHT: dict[str, tuple[Any, ...]] = {
    "iteration": (9,),
    "time_total_s": (9.5, 9),
    "actions_drawn": (9,),
    "last_evaluation": ({}, {"a": "b"}),
    "runner_counts": ({},),
    "last_result": ({},),
    "runner_counts.num_sub_env_restarts": (9,),
    "runner_counts.num_env_runner_restarts": (9,),
    "runner_counts.env_steps": ([], [1]),
    "runner_counts.ledger": ({},),
    "runner_counts.logged": ({},),
    "runner_counts.weights_version": (9,),
    "runner_counts.ledger.received": (9,),
    "runner_counts.ledger.trained": (),
    "runner_counts.ledger.queued": (),
    "runner_counts.ledger.discarded": (),
    "runner_counts.ledger.maybe_lost": (9,),
    "runner_counts.logged.sum": (),
    "runner_counts.logged.sum.reduce": (),
    "runner_counts.logged.sum.window": (None,),
    "runner_counts.logged.sum.data": ([1],),
    "runner_counts.logged.a/mean.data": (),
    "runner_counts.logged.a/last.window": (9, 10**400),
    "runner_counts.logged.ema.ema_coeff": (9.5, -1, 9, 10**400),
    "runner_counts.logged.all.percentiles": ([], [1]),
    "runner_counts.logged.item.data": ([1], ["a"]),
    "last_result.training_iteration": (9,),
    "last_result.num_env_steps_sampled_lifetime": (9,),
    "last_result.env_runners": ({},),
    "last_result.num": (None, True, 9.5, -1, 9, {}),
    "last_evaluation.env_runners": ({}, {"a": "b"}),
    "last_evaluation.training_iteration": (9,),
}
"""Values among them that fields may have, and what is in fields; nothing else."""


def within(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *above, name = path.split(".")
        place = document["host"]
        for part in above:
            place = place[part]
        place[name] = copy.deepcopy(value)

    return change


def test_every_field_is_here() -> None:
    fields = {field.name for field in dataclasses.fields(RunMetadata)}
    assert {path for path in RIGHT if "." not in path} == fields
    for path, names in (("runner_counts", COUNTS), ("runner_counts.ledger", COUNTS["ledger"])):
        assert {p.rpartition(".")[2] for p in RIGHT if p.rpartition(".")[0] == path} == names.keys()


@pytest.mark.parametrize("path", RIGHT)
def test_a_field_of_another_type_is_one_sentence(
    path: str, two: list[Path], tmp_path: Path
) -> None:
    for value in VALUES:
        checkpoint = forged(tmp_path, two[1], within(path, value))
        try:
            loaded(checkpoint)
        except CheckpointError as error:
            assert not any(right == value and type(right) is type(value) for right in RIGHT[path])
            sentence = str(error)
            assert "\n" not in sentence
            assert len(sentence) < 400
            assert f"host.{path.split('.')[0]}" in sentence, (value, sentence)
        else:
            assert any(right == value and type(right) is type(value) for right in RIGHT[path]), (
                value
            )


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("runner_counts.more", 1),
        ("runner_counts.ledger.more", 1),
        ("runner_counts.ledger.received", 10),  # does not balance
        (
            "runner_counts.logged.a",
            {"reduce": "sum", "window": None, "data": [1.0]},
        ),  # a and a/mean
        ("runner_counts.logged.x", {"reduce": "sum", "window": None, "data": [1.0], "more": 1}),
        ("runner_counts.logged.x", {"reduce": "mean", "window": None, "data": [1.0, 0]}),
        ("runner_counts.logged.x", {"reduce": "max", "window": 2, "data": []}),
        ("last_result.env_runners", {"episode_return_mean": "x"}),
        ("last_evaluation.env_runners", {"episode_return_mean": [1]}),
        ("last_result", {"env_runners": {}}),  # of no iteration
    ],
)
def test_what_is_of_the_right_types_and_makes_no_sense(
    path: str, value: Any, two: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=rf"host\.{path.split('.')[0]}"):
        loaded(forged(tmp_path, two[1], within(path, value)))


def test_a_run_on_the_host_answers_before_anything_has_changed(tmp_path: Path) -> None:
    config = small("IMPALA", broadcast_interval=3).env_runners(placement="host")
    with config.debugging(loggers=[]).build() as algorithm:
        algorithm.train()
        before = algorithm.get_state()
        saved = Path(algorithm.save(tmp_path / "own"))
        counts = before["metadata"]["host"]["runner_counts"]
        assert counts.keys() <= COUNTS.keys()
        assert "weights_version" in counts
        algorithm.train()
        now = algorithm.get_state()
        for path, value in (
            ("runner_counts", [1]),
            ("runner_counts", {}),  # without the version of the weights that are acted with
            ("runner_counts.num_sub_env_restarts", "x"),
            ("runner_counts.weights_version", None),
            ("last_result", {"training_iteration": "1"}),
        ):
            with pytest.raises(CheckpointError, match=r"host\.(runner_counts|last_result)"):
                algorithm.restore(forged(tmp_path, saved, within(path, value)))
            assert_equal(algorithm.get_state()["train_state"], now["train_state"])
        odd = {"a": "b", "env_runners": {"x": ["y"]}, "videos": 5}
        algorithm.restore(forged(tmp_path, saved, within("last_evaluation", odd)))
        assert algorithm.train()["training_iteration"] == 2
        algorithm.save(tmp_path / "again")
