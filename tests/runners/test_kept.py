"""Programs that are found without being traced: when they are, when not, and that they are the same."""

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Callbacks, PPOConfig, PQNConfig, RLModule, register_env
from jaxrl.algorithms.ppo import PPOLearner
from jaxrl.assembly.assemble import assemble_run
from jaxrl.envs.classic.cartpole import CartPole
from jaxrl.loggers.sinks import read_results
from jaxrl.runtime import commands
from jaxrl.runtime import kept_programs as kept
from jaxrl.runtime.kept_programs import ProgramCache, open_program_cache, snapshot_code
from jaxrl.runtime.program import Program
from tests.helpers import small, without_times

FACTOR = 2 + time.time_ns() % 10**6
"""Constant of a program that no earlier run left in JAX's cache."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A command with a folder of its own, and JAX's cache on as in a user's process."""
    monkeypatch.setitem(commands._process_state, "command", True)
    names = ("jax_enable_compilation_cache", "jax_compilation_cache_dir")
    before = {name: jax.config.values[name] for name in names}
    jax.config.update("jax_enable_compilation_cache", True)
    yield tmp_path / "cache"
    for name, value in before.items():
        jax.config.update(name, value)


def of_config(config: Any, folder: Path) -> ProgramCache | None:
    return open_program_cache(config.debugging(compilation_cache_dir=str(folder)))


def folder_of(config: Any) -> Path | None:
    cache = open_program_cache(config)
    assert cache is not None
    return cache._folder


def made(folder: Path, config: str | None = "config") -> ProgramCache:
    folder.mkdir(exist_ok=True)
    return ProgramCache(folder, config=config, machine="machine")


def joined(program: Program, *args: Any) -> Any:
    """Call a program and wait until it is kept."""
    result = program(*args)
    for thread in threading.enumerate():
        if thread.name == "jaxrl-keep":
            thread.join()
    return result


ANEW = int.from_bytes(os.urandom(3)) / 2**24
"""Constant by which no earlier process has left a program in JAX's own cache."""


def qr(x: Any) -> Any:
    return {"q": jnp.linalg.qr(x)[0], "sum": x.sum() + ANEW}


def test_another_process_reads_it_without_tracing(tmp_path: Path) -> None:
    x = jnp.arange(4.0).reshape(2, 2)
    first = Program("qr", qr, program_cache=made(tmp_path))
    expected = joined(first, x)

    def never(x: Any) -> Any:
        raise AssertionError("traced")

    second = Program("qr", never, program_cache=made(tmp_path))
    result = second(x)
    np.testing.assert_array_equal(result["q"], expected["q"])
    figures = second.compile_stats[-1]
    assert figures.cache_hit
    assert figures.trace_s == figures.lower_s == 0.0
    assert figures.flops == first.compile_stats[-1].flops


def double(cache: ProgramCache, factor: int = FACTOR) -> Program:
    return Program("double", lambda x: x * factor, program_cache=cache)


def test_other_arguments_are_another_program(tmp_path: Path) -> None:
    joined(double(made(tmp_path)), jnp.ones(3))
    other = double(made(tmp_path))
    assert other(jnp.ones(4)).shape == (4,)
    assert not other.compile_stats[-1].cache_hit


def test_the_same_instructions_of_other_code_are_traced_and_not_compiled(tmp_path: Path) -> None:
    joined(double(made(tmp_path, "before")), jnp.ones(3))
    after = double(made(tmp_path, "after"))
    joined(after, jnp.ones(3))
    assert after.compile_stats[-1].cache_hit
    assert after.compile_stats[-1].trace_s > 0
    again = double(made(tmp_path, "after"))
    again(jnp.ones(3))
    assert again.compile_stats[-1].trace_s == 0
    other = double(made(tmp_path, "other"), factor=3)
    assert float(other(jnp.ones(3))[0]) == 3.0


def test_elsewhere_a_program_is_found_by_its_instructions(tmp_path: Path) -> None:
    joined(double(made(tmp_path, None)), jnp.ones(3))
    changed = double(made(tmp_path, None), factor=3)
    assert float(joined(changed, jnp.ones(3))[0]) == 3.0
    again = double(made(tmp_path, None))
    assert float(again(jnp.ones(3))[0]) == FACTOR
    assert again.compile_stats[-1].cache_hit
    assert again.compile_stats[-1].trace_s > 0


def test_a_damaged_entry_is_made_anew(tmp_path: Path) -> None:
    joined(double(made(tmp_path)), jnp.ones(3))
    for entry in tmp_path.iterdir():
        content = bytearray(entry.read_bytes())
        content[len(content) // 2] ^= 1
        entry.write_bytes(bytes(content))
    program = double(made(tmp_path))
    assert float(program(jnp.ones(3))[0]) == FACTOR
    assert program.compile_stats[-1].trace_s > 0


def test_what_calls_python_is_not_kept(tmp_path: Path) -> None:
    def told(x: Any) -> Any:
        jax.debug.callback(lambda _: None, x)
        return x * FACTOR

    joined(Program("told", told, program_cache=made(tmp_path)), jnp.ones(3))
    again = Program("told", told, program_cache=made(tmp_path))
    again(jnp.ones(3))
    assert again.compile_stats[-1].trace_s > 0


def test_room_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_BYTES", 30_000)
    for number in range(1, 12):
        joined(double(made(tmp_path)), jnp.ones(number))
    assert 0 < sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 30_000


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    nowhere = ProgramCache(tmp_path / "missing", config="config", machine="machine")
    assert float(joined(double(nowhere), jnp.ones(3))[0]) == FACTOR


def test_what_no_pickle_holds_is_not_kept(tmp_path: Path) -> None:
    kept_here = made(tmp_path)
    assert kept_here.get_or_make("shapes", lambda: lambda: 1)() == 1
    assert not list(tmp_path.iterdir())


def test_a_checkout_that_is_not_installed_keeps_nothing(
    command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def requires(name: str) -> list[str]:
        raise kept.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(kept.importlib.metadata, "requires", requires)
    kept._get_package_versions.cache_clear()
    assert folder_of(small().debugging(compilation_cache_dir=str(command))) is None
    kept._get_package_versions.cache_clear()


class OwnCallbacks(Callbacks):
    """Somebody's."""


class OwnCartPole(CartPole):
    """Somebody's."""


def test_what_follows_from_a_config_alone(command: Path) -> None:
    one, two = of_config(small(), command), of_config(small().debugging(seed=7), command)
    assert one is not None
    assert two is not None
    assert one._config == two._config, "a seed is an argument"
    other = of_config(small().training(gamma=0.5), command)
    assert other is not None
    assert other._config != one._config


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig().environment(OwnCartPole),
        PPOConfig().environment("CartPole-v1").callbacks(OwnCallbacks),
        PPOConfig().environment("CartPole-v1").callbacks(on_train_result=lambda **_: None),
        PPOConfig().environment("own-cartpole"),
        PPOConfig().environment(f"{__name__}:OwnCartPole"),
        PPOConfig().environment("CartPole-v1").evaluation(evaluation_config={"env": OwnCartPole}),
        PPOConfig().environment("CartPole-v1").debugging(jit=False),
        type("OwnConfig", (PPOConfig,), {})().environment("CartPole-v1"),
    ],
    ids=["class", "callbacks", "hook", "registered", "path", "evaluation", "debugger", "config"],
)
def test_code_of_others_is_traced(config: Any, command: Path) -> None:
    register_env("own-cartpole", lambda context: OwnCartPole())
    found = of_config(config, command)
    assert found is None or found._config is None


def test_versions_of_environments_packages_are_in_the_key(
    command: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a config names one, also within another environment's arguments."""
    versions: dict[str, str] = {}
    own_read = kept.read_versions
    monkeypatch.setattr(kept, "read_versions", lambda names: own_read(names) | versions)
    configs = {
        "pgx": small().environment("pgx:tic_tac_toe"),
        "brax": small().environment(env_config={"env": {"inner": "brax:ant"}}),
        "craftax": small().evaluation(evaluation_config={"env": "craftax:Craftax-Symbolic-v1"}),
    }
    for package, config in configs.items():
        keys = []
        for number in ("1.0", "1.0", "1.1"):
            versions.clear()
            versions[package] = number
            kept._get_package_versions.cache_clear()
            keys.append(vars(of_config(config, command))["_machine"])
        assert keys[0] == keys[1] != keys[2]
    monkeypatch.setattr(kept, "is_editable", lambda name: name == "pgx")
    kept._get_package_versions.cache_clear()
    kept_in_memory = of_config(configs["pgx"], command)
    assert kept_in_memory is None or kept_in_memory._config is None, "it is edited in place"
    assert vars(of_config(configs["brax"], command))["_config"] is not None
    monkeypatch.undo()
    kept._get_package_versions.cache_clear()


def test_only_in_commands_and_where_the_cache_is_on(command: Path, monkeypatch: Any) -> None:
    assert of_config(small(), command) is not None
    assert folder_of(small().debugging(compilation_cache_dir="off")) is None
    monkeypatch.setitem(commands._process_state, "command", False)
    jax.config.update("jax_compilation_cache_dir", str(command.parent / "of_jax"))
    assert folder_of(small()) is None, "JAX was told where to keep programs"
    elsewhere = of_config(small(), command)
    assert elsewhere is not None
    assert elsewhere._config is None, "a script may have changed jaxrl's own functions"


def test_a_changed_source_file_is_another_code(monkeypatch: pytest.MonkeyPatch) -> None:
    kept._digest_source.cache_clear()
    before = kept._digest_source()
    kept._digest_source.cache_clear()
    assert kept._digest_source() == before
    source = Path(kept.__file__)
    status = source.stat()
    try:
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000))
        kept._digest_source.cache_clear()
        assert kept._digest_source() != before
    finally:
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
        kept._digest_source.cache_clear()


def test_the_code_in_memory_has_no_builtins_and_every_class_once() -> None:
    code = snapshot_code()
    assert code.count(vars(RLModule)["has_density"]) == 1
    assert BytesWarning not in code


@pytest.mark.slow
def test_a_command_finds_its_programs_and_computes_the_same(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [
        *(sys.executable, "-m", "jaxrl", "train", "file", "classic/cartpole-ppo.yaml"),
        *("--steps", "20000", "-v"),
    ]
    said, rows = [], []
    for name in ("first", "second"):
        done = subprocess.run(
            [*command, "--set", f"run_name={name}"],
            capture_output=True,
            text=True,
            env=home,
            cwd=tmp_path,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout + done.stderr)
        rows.append(read_results(tmp_path / "jaxrl_results" / name / "result.json"))
    for program in ("init", "train", "evaluate", "actor"):
        lines = [line for line in said[1].splitlines() if f"compiled {program} in" in line]
        assert len(lines) == 1
        for line in lines:
            assert "traced 0.00, lowered 0.00, from the cache" in line
    first, second = ([repr(without_times(row)) for row in of_run] for of_run in rows)
    assert first == second


@pytest.mark.slow
def test_equal_configs_share_programs_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "SHARED_PROGRAMS", kept.SharedPrograms())

    def traced(config: Any) -> list[str]:
        """Names of the programs that a run traced, after its numbers were compared."""
        with config.build() as algorithm:
            algorithm.train()
            return [p.name for p in algorithm._programs for s in p.compile_stats if s.trace_s]

    assert traced(small()) == ["init", "train"]
    assert traced(small().debugging(seed=3)) == []
    assert traced(small(gamma=0.9)) == ["init", "train"]
    assert traced(small().environment(OwnCartPole)) == ["init", "train"]
    assert traced(small().environment(OwnCartPole)) == ["init", "train"]
    honest = PPOLearner.compute_loss
    monkeypatch.setattr(PPOLearner, "compute_loss", lambda *args: honest(*args))
    assert traced(small()) == ["init", "train"], "a function was replaced"
    monkeypatch.setattr(PPOLearner, "compute_loss", honest)
    assert traced(small()) == []


def test_a_shared_program_computes_the_same() -> None:
    states = []
    for _ in range(2):
        with small().build() as algorithm:
            algorithm.train()
            states.append(jax.device_get(algorithm.get_weights()))
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_the_least_recently_used_program_leaves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_SHARED_PROGRAMS", 2)
    shared, one = kept.SharedPrograms(), (jax.jit(jnp.sin).lower(1.0).compile(), {})
    shared.put(one, "a")
    shared.put(one, "b")
    assert shared.get("a") is one
    shared.put(one, "c")
    assert [shared.get(name) is one for name in "abc"] == [True, False, True]


def test_a_run_with_an_output_has_other_programs(tmp_path: Path) -> None:
    plain = small()
    recorded = plain.copy(copy_frozen=False).offline_data(output=str(tmp_path / "data"))
    other = plain.copy(copy_frozen=False).offline_data(output=str(tmp_path / "elsewhere"))
    digests = [kept._describe_config(config) for config in (plain, recorded, other)]
    assert digests[0] != digests[1] == digests[2]


def test_when_a_run_is_saved_and_evaluated_changes_no_program() -> None:
    plain = kept._describe_config(small())
    saved = small().checkpointing(checkpoint_frequency=2, checkpoint_at_end=False)
    assert kept._describe_config(saved.evaluation(evaluation_interval=3)) == plain
    longer = small().evaluation(evaluation_duration=7)
    assert plain is not None
    assert kept._describe_config(longer) != plain


def test_batches_that_follow_from_what_was_given_are_another_program() -> None:
    """A default that is given is the size of a batch; one that is not may be adapted."""
    config = PQNConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=8)
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    steps = []
    for settings in ({}, {"train_batch_size": PQNConfig().train_batch_size}):
        given = config.copy(copy_frozen=False).training(**settings)
        with given.build() as algorithm:
            steps.append(int(algorithm.train()["num_env_steps_sampled_lifetime"]))
            assert steps[-1] == algorithm.config.plan().train_batch_size
    assert steps[0] < steps[1] == PQNConfig().train_batch_size


def test_an_id_that_is_registered_again_with_other_bounds_shares_nothing() -> None:
    def key(bound: float) -> object:
        gymnasium.register("Bounded-v0", entry_point=lambda: Bounded(bound))
        config = small(env="Bounded-v0").env_runners(placement="host")
        cache = assemble_run(config, should_train=True).program_cache
        assert cache is not None
        return cache._shared

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the id is overridden
            assert key(1.0) == key(1.0) != key(2.0)
    finally:
        gymnasium.registry.pop("Bounded-v0")


class Bounded(gymnasium.Env[Any, Any]):
    """A box of actions, whose shape says nothing of its bounds."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self, bound: float) -> None:
        self.action_space = gymnasium.spaces.Box(-bound, bound, (1,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, False, {}
