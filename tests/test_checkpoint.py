"""Checkpoints restored: exact, in whole or in parts, and refused where they do not fit."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, CQLConfig, Population, RLModule
from jaxrl.errors import CheckpointError, RunFolderError
from jaxrl.runs import checkpoint as ckpt
from jaxrl.runs import host_state
from jaxrl.runs.checkpoint import (
    find_checkpoint,
    read_leaves,
    read_metadata,
)
from tests.helpers import assert_equal, differs, slow_but, small

ROOT = Path(__file__).parent.parent


def in_new_process(code: str, *args: str) -> str:
    """Return what a Python program of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("algo", slow_but("PPO", of=["PPO", "A2C", "PG"]))
def test_resuming_in_a_new_process_is_byte_exact(algo: str, tmp_path: Path) -> None:
    config = small(algo).env_runners(observation_filter="MeanStdFilter", normalize_rewards=True)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        algorithm.train()
        algorithm.train()
        want = algorithm.get_state()["train_state"]
        steps = algorithm.iteration
    in_new_process(
        "import sys, numpy as np\n"
        "from jaxrl.algorithm import Algorithm\n"
        "algorithm = Algorithm.from_checkpoint(sys.argv[1])\n"
        "[algorithm.train() for _ in range(2)]\n"
        f"assert algorithm.iteration == {steps}\n"
        "np.savez(sys.argv[2], **algorithm.get_state()['train_state'])\n"
        "algorithm.stop()\n",
        path,
        str(tmp_path / "resumed.npz"),
    )
    got = np.load(tmp_path / "resumed.npz")
    assert set(got.files) == set(want)
    assert len(want) > 30
    for name, leaf in want.items():
        assert got[name].dtype == leaf.dtype, name
        assert got[name].tobytes() == leaf.tobytes(), name


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A checkpoint after one iteration, the leaves after three, and how another seed gets there."""
    results = {"results_dir": str(tmp_path_factory.mktemp("results"))}
    with small().debugging(**results).build() as algorithm:
        algorithm.train()
        path = algorithm.save(results["results_dir"])
        algorithm.train()
        algorithm.train()
        want = algorithm.get_state()["train_state"]
    with small().debugging(seed=9, **results).build() as other:
        other.train()
        other.train()
        foreign = other.get_state()

        def after_two_more() -> dict[str, np.ndarray]:
            other.restore(path)
            other.train()
            other.train()
            found = other.get_state()["train_state"]
            other.set_state(foreign)
            return found

        yield path, want, after_two_more


def forgetting(victim: str) -> Callable[..., Any]:
    """`checkpoint.fill` as it would be if it left out the first leaf that is called so."""
    fill = ckpt.fill

    def broken(template: Any, leaves: Any, prefixes: tuple[str, ...] = ("",)) -> Any:
        paths = jax.tree_util.tree_flatten_with_path(template)[0]
        names = [ckpt.format_leaf_name(path) for path, _ in paths]
        lost = next(name for name in names if re.search(victim, name))

        def keep(path: Any, old: Any, new: Any) -> Any:
            return old if ckpt.format_leaf_name(path) == lost else new

        return jax.tree_util.tree_map_with_path(keep, template, fill(template, leaves, prefixes))

    return broken


@pytest.mark.parametrize(
    "victim", [r"^key$", r"^learner\..*\bmu\b", r"^env\.env\.", r"^env\.count$"]
)
def test_the_comparison_notices_one_leaf_that_is_not_restored(
    victim: str, resumed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The twin of the resume test whose restoring is broken: it has to fail."""
    _, want, after_two_more = resumed
    assert_equal(want, after_two_more())
    with monkeypatch.context() as broken:
        broken.setattr(ckpt, "fill", forgetting(victim))
        got = after_two_more()
    with pytest.raises(AssertionError):
        assert_equal(want, got)


def test_another_algorithm_or_shape_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    with small().build() as algorithm:
        path = algorithm.save(tmp_path)
    foreign = pytest.raises(CheckpointError, match="was saved by PPO, but this algorithm is A2C")
    with small("A2C").build() as other, foreign:
        other.restore(path)
    wider = small().rl_module(model_config={"fcnet_hiddens": [9]})
    with wider.build() as other:
        before = other.get_state()["train_state"]
        with pytest.raises(CheckpointError, match=r"does not fit.*learner\.\S+ is float32\[8"):
            other.restore(path)
        assert_equal(before, other.get_state()["train_state"])


def test_keys_of_another_implementation_are_refused_with_the_variable_to_set(
    tmp_path: Path,
) -> None:
    with jax.default_prng_impl("rbg"), small().build() as algorithm:
        path = algorithm.save(tmp_path)
    expected = r"keys of rbg, expected threefry2x32; set JAX_DEFAULT_PRNG_IMPL=rbg in the environ"
    with small().build() as algorithm:
        with pytest.raises(CheckpointError, match=expected):
            algorithm.restore(path)
        algorithm.restore(path, component="rl_module")


def test_a_leaf_with_a_colon_in_its_name_is_not_taken_for_a_key() -> None:
    template = {"a:b": {"x": np.ones(2), "y": np.ones(3)}}
    assert ckpt.find_first_difference(template, {"a:b.y": np.ones(3)}) == "a:b.x is missing"


@pytest.mark.slow
def test_components_are_restored_alone(tmp_path: Path) -> None:
    with small().env_runners(observation_filter="MeanStdFilter").build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        saved = algorithm.get_state()["train_state"]
    other = small().env_runners(observation_filter="MeanStdFilter").debugging(seed=5)
    with other.build() as fresh:
        before = fresh.get_state()["train_state"]
        fresh.restore(path, component="rl_module")
        after = fresh.get_state()["train_state"]
        for name, leaf in after.items():
            learned = name.replace("guard.snapshot.", "learner.")  # a rollback leads here too
            source = saved if learned.startswith("learner.sgd.params") else before
            np.testing.assert_array_equal(leaf, source[learned], err_msg=name)
        fresh.restore(path, component="connectors")
        after = fresh.get_state()["train_state"]
        np.testing.assert_array_equal(
            after["connectors.obs.0.mean"], saved["connectors.obs.0.mean"]
        )
        assert fresh.iteration == 0
        with pytest.raises(CheckpointError, match="Did you mean 'rl_module'"):
            fresh.restore(path, component="rl_modul")


def test_from_checkpoint_takes_a_component(resumed: Any) -> None:
    path, _, _ = resumed
    saved = read_leaves(Path(path), read_metadata(Path(path)))
    with Algorithm.from_checkpoint(path, component="rl_module", seed=5) as algorithm:
        assert algorithm.iteration == 0
        got = algorithm.get_state()["train_state"]
    parameters = {name for name in got if name.startswith("learner.sgd.params")}
    assert parameters
    for name in parameters:
        np.testing.assert_array_equal(got[name], saved[name], err_msg=name)
    assert not np.array_equal(got["env.obs"], saved["env.obs"])
    with pytest.raises(CheckpointError, match="Did you mean 'learner'"):
        Algorithm.from_checkpoint(path, component="learners")


@pytest.mark.slow
def test_an_env_that_cannot_be_imported_must_be_supplied(tmp_path: Path) -> None:
    from jaxrl.envs.classic.cartpole import CartPole

    with small(env=lambda _: CartPole()).build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        want = algorithm.get_state()["train_state"]
    with pytest.raises(CheckpointError, match=r"from_checkpoint\(\.\.\., env=\.\.\.\)"):
        Algorithm.from_checkpoint(path)
    with Algorithm.from_checkpoint(path, env="CartPole-v1") as algorithm:
        assert_equal(want, algorithm.get_state()["train_state"])


def test_a_policy_is_evaluated_where_nothing_can_be_written(
    resumed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _, _ = resumed
    (tmp_path / "file").write_text("no folder")
    nowhere = str(tmp_path / "file" / "x")
    with Algorithm.from_checkpoint(path, results_dir=nowhere) as algorithm:
        assert algorithm.evaluate(num_episodes=2)["env_runners"]["num_episodes"] == 2
        with pytest.raises(RunFolderError, match="results_dir"):
            algorithm.train()
        assert algorithm.programs.run.compile_stats == []  # refused before it was compiled
    assert (tmp_path / "file").read_text() == "no folder"


@pytest.mark.slow
def test_more_devices_load_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with small().learners(num_devices=1).build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        want = algorithm.get_state()["train_state"]
    with Algorithm.from_checkpoint(path, num_devices=4) as algorithm:
        assert len(algorithm.state.env.count.sharding.device_set) == 4
        assert_equal(want, algorithm.get_state()["train_state"])
        assert "num_devices=1, this run has 4" in caplog.text
        algorithm.train()
    assert differs(jax.tree.leaves(want), jax.tree.leaves(algorithm.get_state()["train_state"]))


def test_other_options_of_jax_load_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with jax.threefry_partitionable(False), small().build() as algorithm:
        path = algorithm.save(tmp_path)
    with small().build() as algorithm:
        algorithm.restore(path)
        assert "jax_threefry_partitionable=False, this run has True" in caplog.text
        caplog.clear()
        algorithm.restore(algorithm.save(tmp_path))
        assert "bit-identical" not in caplog.text


def test_a_state_that_was_given_out_does_not_change() -> None:
    with small().build() as algorithm:
        state: Any = algorithm.get_state()
        before = {name: leaf.copy() for name, leaf in state["train_state"].items()}
        algorithm.train()
        assert_equal(before, state["train_state"])
        algorithm.set_state(state)
        assert algorithm.iteration == 0
        assert_equal(before, algorithm.get_state()["train_state"])
        metadata = {**state["metadata"], "host": {"iteration": "3"}}
        for wrong in ({}, None, {**state, "metadata": {}}, {**state, "metadata": metadata}):
            with pytest.raises(CheckpointError, match=r"is missing|must be|with train_state"):
                algorithm.set_state(wrong)
        assert algorithm.iteration == 0
        assert_equal(before, algorithm.get_state()["train_state"])


def test_overridden_hyperparameters_are_the_given_ones(tmp_path: Path) -> None:
    """Also where the new value is a schedule, and those that were not given are restored."""
    with small(lr=1e-3, entropy_coeff=0.5).build() as algorithm:
        algorithm.train()
        path = algorithm.save(tmp_path)
        want, saved = algorithm.get_weights(), algorithm.get_state()["train_state"]
    given = {"lr": [[0, 1e-2], [1000, 0.0]], "env_config": {"gravity": 1.0}}
    with Algorithm.from_checkpoint(path, **given) as algorithm:
        assert_equal(want, algorithm.get_weights())
        assert float(algorithm.env_params.gravity) == 1.0
        learned = algorithm.train()["learners"]["default_policy"]
    assert learned["curr_lr"] == pytest.approx(1e-2 * (1 - 256 / 1000), rel=1e-4)
    assert learned["curr_entropy_coeff"] == pytest.approx(0.5)
    for seed in (0, 7):
        with Algorithm.from_checkpoint(path, kl_coeff=0.9, seed=seed) as algorithm:
            found = algorithm.get_state()["train_state"]
        assert found["learner.kl_coeff"] == np.float32(0.9) != saved["learner.kl_coeff"]
        keys = [name for name in saved if ":" in name]
        assert keys
        for name in keys:
            assert np.array_equal(found[name], saved[name]) == (seed == 0)


def test_only_leaves_of_overridden_settings_are_replaced() -> None:
    """Not a state that has the name of a setting, nor a part of observations with a colon."""
    kind = str(jax.random.key_impl(jax.random.key(0)))
    kept = (
        "learner.temperature.params.log_alpha",
        "connectors.obs.0.a:b.count",
        "learner.kl_coeff",
    )
    replaced = ("learner.hparams.temperature", f"key:{kind}", f"env.key:{kind}")
    saved = {name: np.ones(()) for name in (*kept, *replaced)}
    current = {name: np.zeros(()) for name in saved}
    overrides = {"temperature": 2.0, "seed": 5}
    config = CQLConfig().update_from_dict(overrides)
    found = host_state.apply_overrides(saved, current, config, overrides, {"seed": 0})
    assert {name for name, leaf in found.items() if leaf == 0.0} == set(replaced)
    again = host_state.apply_overrides(saved, current, config, {"seed": 5}, {"seed": 5})
    assert again == saved


class StoredElsewhere:
    """A checkpoint in a storage of Ray Tune's, with its two ways to a folder of this machine."""

    def __init__(self, local: str, error: Exception | None = None) -> None:
        self.path, self.local, self.error = "bucket/checkpoint_000000", local, error

    def __fspath__(self) -> str:
        raise TypeError("You cannot use Checkpoint objects directly as paths.")

    def to_directory(self) -> str:
        if self.error is not None:
            raise self.error
        return self.local


def test_checkpoints_of_ray_tune_are_checkpoints(tmp_path: Path) -> None:
    tune: Any = pytest.importorskip("ray.tune")
    with small().build() as algorithm:
        path = algorithm.save(tmp_path)
        for given in (path, Path(path), tune.Checkpoint(path), StoredElsewhere(path)):
            assert find_checkpoint(cast(Any, given)) == Path(path)
            algorithm.restore(checkpoint_path=cast(Any, given))
        given = tune.Checkpoint(path)
        algorithm.restore(given)
        for wrong, arguments in (
            ("takes one checkpoint, got none", {}),
            ("takes one checkpoint, got", {"path": path, "checkpoint_path": path}),
            ("given as a path, or as a Checkpoint of Ray Tune, got 5", {"path": 5}),
            ("given as a path, or as a Checkpoint of Ray Tune, got b'", {"path": path.encode()}),
            (
                "cannot be copied to this machine: no network",
                {"path": StoredElsewhere("", OSError("no network"))},
            ),
        ):
            with pytest.raises(CheckpointError, match=wrong):
                algorithm.restore(**cast(Any, arguments))
    with Algorithm.from_checkpoint(given) as again:
        assert again.iteration == 0
    assert RLModule.from_checkpoint(given) is not None
    for opens in (Population.from_checkpoint, RLModule.from_checkpoint):
        with pytest.raises(CheckpointError, match="given as a path"):
            opens(cast(Any, 5))
