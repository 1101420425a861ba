"""Training of several modules in one program, through the Algorithm."""

import copy
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, PolicySpec
from jaxrl.algorithms.appo import APPOConfig
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.impala import IMPALAConfig
from jaxrl.algorithms.ppo import A2CConfig, PGConfig, PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.load import load_config
from jaxrl.core.keys import make_key
from jaxrl.core.types import PyTree
from jaxrl.envs import make_multi
from jaxrl.envs.multi.base import MultiStep
from jaxrl.errors import CheckpointError, EnvError, JaxrlError
from jaxrl.modules.scripted import ScriptedModule
from jaxrl.training.episode_stats import EndedEpisode
from jaxrl.training.sharding import state_specs
from tests.multi_agent.agent_envs import Ending, Rare, Targets, Torture
from tests.multi_agent.host_envs import Duel

MAPPING = {"a": "p0", "b": "p1"}
OBS = {agent: np.array([0.0, i], np.float32) for i, agent in enumerate(("a", "b"))}


def make_config(
    config: AlgorithmConfig | None = None, env: Any = Targets, **settings: Any
) -> AlgorithmConfig:
    """16 environments x 32 steps."""
    config = PPOConfig().training(minibatch_size=128, num_epochs=4) if config is None else config
    config.environment(env).env_runners(num_envs_per_env_runner=16)
    config.training(train_batch_size=512, lr=3e-3).rl_module(model_config={"fcnet_hiddens": [16]})
    config.debugging(loggers=[], seed=7)
    return config.multi_agent(**{"mapping": MAPPING, **settings})


def train(config: AlgorithmConfig, times: int) -> tuple[dict[str, Any], PyTree]:
    """Return the last result and the parameters of the modules after some iterations."""
    with config.build() as algorithm:
        for _ in range(times):
            result = algorithm.train()
        return result, algorithm.get_weights()


def assert_same(one: PyTree, other: PyTree) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def is_same(one: PyTree, other: PyTree) -> bool:
    return all(
        np.array_equal(x, y)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


@dataclasses.dataclass
class Learned:
    """A run of PPO that has ended, and the weights that it had after two iterations."""

    algorithm: Algorithm
    early_weights: PyTree
    last_result: dict[str, Any]


def make_learned_config() -> AlgorithmConfig:
    config = make_config().training(lr=1e-2)
    return config.evaluation(evaluation_interval=12, evaluation_duration=16)


@pytest.fixture(scope="module")
def learned() -> Iterator[Learned]:
    with make_learned_config().build() as algorithm:
        algorithm.train()
        algorithm.train()
        weights = copy.deepcopy(algorithm.get_weights())
        for _ in range(10):
            result = algorithm.train()
        yield Learned(algorithm, weights, result)


def test_results_have_the_keys_of_rllib_and_both_modules_learn(learned: Learned) -> None:
    check_results(learned.last_result, 12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "times"),
    [(A2CConfig(), 12), (IMPALAConfig(), 12), (APPOConfig(), 40), (PGConfig(), 30)],
    ids=["A2C", "IMPALA", "APPO", "PG"],
)
def test_results_of_other_algorithms_are_alike(config: AlgorithmConfig, times: int) -> None:
    env = Ending if config.algo_name == "PG" else Targets  # PG needs whole returns
    result, _ = train(make_config(config.copy(), env=env).training(lr=1e-2), times)
    check_results(result, times)


def check_results(result: dict[str, Any], times: int) -> None:
    steps = 512 * times
    sampled = result["env_runners"]
    assert sampled["agent_episode_returns_mean"].keys() == {"a", "b"}
    assert sampled["module_episode_returns_mean"].keys() == {"p0", "p1"}
    returns = sampled["agent_episode_returns_mean"]
    assert sampled["module_episode_returns_mean"] == {"p0": returns["a"], "p1": returns["b"]}
    total = sum(sampled["agent_episode_returns_mean"].values())
    assert sampled["episode_return_mean"] == pytest.approx(total, rel=1e-5)
    assert sampled["num_agent_steps_sampled"] == {"a": 512, "b": 512}
    assert sampled["num_module_steps_sampled"] == {"p0": 512, "p1": 512}
    assert sampled["num_agent_steps_sampled_lifetime"] == {"a": steps, "b": steps}
    assert sampled["num_env_steps_sampled_lifetime"] == steps
    assert result["learners"].keys() == {"p0", "p1", "__all_modules__"}
    assert np.isfinite(result["learners"]["p0"]["total_loss"])
    # Random play is paid 4 of 8 each; each module must learn the action of its own agent.
    assert min(sampled["agent_episode_returns_mean"].values()) > 6.0


def make_replay_config(env: Any = Targets, **settings: Any) -> AlgorithmConfig:
    """16 environments, and an update of each module after every 4 steps."""
    buffer = {"type": "prioritized", "capacity": 4096}
    config = DQNConfig().training(replay_buffer_config=buffer, epsilon=[[0, 1.0], [4000, 0.05]])
    config = make_config(config, env=env, **settings)
    config.training(train_batch_size=64, num_steps_sampled_before_learning_starts=200)
    config.env_runners(rollout_fragment_length=4)
    return config.reporting(min_sample_timesteps_per_iteration=640)


def test_replayed_rows_are_counted_by_module() -> None:
    result, _ = train(make_replay_config(mapping={"a": "p0", "b": "p0"}).training(lr=1e-2), 16)
    assert min(result["env_runners"]["agent_episode_returns_mean"].values()) > 6.0
    buffer, learned = result["replay_buffer"]["p0"], result["learners"]["p0"]
    assert buffer["capacity"] == buffer["num_module_steps_stored"] == 4096
    assert buffer["num_module_steps_added"] == 2 * 640
    assert buffer["num_module_steps_added_lifetime"] == 2 * 640 * 16
    assert learned["num_module_steps_trained"] == 64 * 10 == buffer["num_module_steps_sampled"]
    # 200 rows are there after the second of 160 rollouts of 128 rows.
    assert learned["num_updates_lifetime"] == 159
    assert learned["num_module_steps_trained_lifetime"] == 64 * 159


@pytest.mark.slow
def test_a_replaying_module_learns_beside_one_that_does_not() -> None:
    config = make_replay_config(policies_to_train=["p1"])
    with config.build() as algorithm:
        before = copy.deepcopy(algorithm.get_weights())
        for _ in range(2):
            result = algorithm.train()
        after = algorithm.get_weights()
    assert_same(before["p0"], after["p0"])
    assert not is_same(before["p1"], after["p1"])
    assert result["replay_buffer"].keys() == {"p1"}


def test_a_module_without_a_new_row_is_not_updated() -> None:
    """In turns of one step, each module of a rollout of one step has a row half of the time."""
    config = make_replay_config(env="jaxrl:probe-turns-v0").env_runners(rollout_fragment_length=1)
    buffer = {"type": "uniform", "capacity": 4096}
    config.training(num_steps_sampled_before_learning_starts=16, replay_buffer_config=buffer)
    config.multi_agent(policies_to_train=["p1"])
    result, _ = train(config.env_runners(num_envs_per_env_runner=1), 1)
    assert result["env_runners"]["num_module_steps_sampled"] == {"p0": 320, "p1": 320}
    assert result["learners"]["p1"]["num_updates_lifetime"] == 320 - 15


def test_modules_do_not_touch_each_other(learned: Learned) -> None:
    overrides = {"p1": PPOConfig.overrides(lr=3e-3, entropy_coeff=0.1)}
    config = make_learned_config().multi_agent(algorithm_config_overrides_per_module=overrides)
    _, other = train(config, 2)
    assert_same(learned.early_weights["p0"], other["p0"])
    assert not is_same(learned.early_weights["p1"], other["p1"])


class Always(ScriptedModule):
    """Script that plays its only agent's best action."""

    def choose_actions(self, obs: PyTree) -> PyTree:
        return jax.numpy.ones(obs.shape[:-1], jax.numpy.int32)


SCRIPTED = {"p0": None, "p1": PolicySpec(policy_class=Always)}


@pytest.mark.slow
def test_a_scripted_module_plays_beside_one_that_is_trained() -> None:
    result, _ = train(make_config(policies=SCRIPTED, policies_to_train=["p0"]), 2)
    assert result["env_runners"]["agent_episode_returns_mean"]["b"] == 8.0
    assert result["learners"].keys() == {"p0", "__all_modules__"}


def test_a_scripted_module_is_not_trained() -> None:
    with pytest.raises(JaxrlError, match=r"module 'p1'.*no parameters.*policies_to_train"):
        make_config(policies=SCRIPTED).build()


@pytest.mark.slow
def test_a_shared_module_learns_from_all_agents() -> None:
    result, weights = train(make_config(mapping=dict.fromkeys(MAPPING, "both")), 20)
    assert weights.keys() == {"both"}
    assert result["env_runners"]["num_module_steps_sampled"] == {"both": 1024}
    assert min(result["env_runners"]["agent_episode_returns_mean"].values()) > 6.0


class Unpaid(Targets):
    """Targets whose agent `b` alone is paid, for both actions."""

    def step(self, key: Any, state: Any, actions: Any, params: Any) -> tuple[Any, MultiStep]:
        state, step = super().step(key, state, actions, params)
        reward = {"a": 0.0 * step.reward["a"], "b": step.reward["a"] + step.reward["b"]}
        return state, MultiStep(
            obs=step.obs,
            acts=step.acts,
            reward=reward,
            terminated=step.terminated,
            truncated=step.truncated,
        )


@pytest.mark.slow
@pytest.mark.parametrize("share", ["team", "all"])
def test_shared_rewards_teach_who_is_not_paid(share: str) -> None:
    result, _ = train(make_config(env=Unpaid, share_rewards=share), 20)
    # What is reported is what the environment pays: up to 16, 12 if only b learns.
    assert result["env_runners"]["agent_episode_returns_mean"]["a"] == 0.0
    assert result["env_runners"]["agent_episode_returns_mean"]["b"] > 14.0
    alone, _ = train(make_config(env=Unpaid), 20)
    assert alone["env_runners"]["agent_episode_returns_mean"]["b"] < 13.5


def make_sharded_config(number: int) -> AlgorithmConfig:
    """Four shards of environments on some devices; one of two modules is trained."""
    # With Adam, rounding decides the sign of the step where a gradient is almost zero.
    ppo = PPOConfig().training(optimizer="sgd", minibatch_size=256, num_epochs=1)
    mapping = {"a": "p0", "b": "p1", "c": "p0"}
    config = make_config(ppo, env=Torture, mapping=mapping, policies_to_train=["p0"])
    return config.learners(num_devices=number, num_shards=4)


@dataclasses.dataclass
class Watched:
    """Weights before and after two iterations on one device, all episodes, and results."""

    before: PyTree
    after: PyTree
    episodes: list[EndedEpisode]
    results: list[dict[str, Any]]


@pytest.fixture(scope="module")
def watched() -> Watched:
    episodes: list[EndedEpisode] = []

    def on_episode_end(*, episode: Any, **kwargs: Any) -> None:
        episodes.append(episode)

    config = make_sharded_config(1).callbacks(on_episode_end=on_episode_end)
    with config.build() as algorithm:
        before = copy.deepcopy(algorithm.get_weights())
        results = [algorithm.train() for _ in range(2)]
        return Watched(before, algorithm.get_weights(), episodes, results)


def test_devices_compute_the_same(watched: Watched) -> None:
    result, weights = train(make_sharded_config(2), 2)
    check_close(weights, watched.after)
    sampled = result["env_runners"]["num_agent_steps_sampled"]
    assert sampled == watched.results[-1]["env_runners"]["num_agent_steps_sampled"]
    assert sum(sampled.values()) > 100


@pytest.mark.slow
def test_devices_replay_the_same() -> None:
    found = []
    for number in (1, 2):
        config = make_replay_config(env=Torture, mapping={"a": "p0", "b": "p1", "c": "p0"})
        config.training(optimizer="sgd").learners(num_devices=number, num_shards=4)
        result, weights = train(config, 2)
        found.append((weights, result["env_runners"]["num_agent_steps_sampled"]))
    check_close(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert sum(found[0][1].values()) > 100


def check_close(one: PyTree, other: PyTree) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), one, other)


def test_every_array_of_the_state_has_a_place_on_several_devices() -> None:
    """A command compiles for the arrays' places before there is a state."""
    for env, mapping in ((Targets, MAPPING), (Torture, dict.fromkeys("abc", "p0"))):
        runner = assemble(make_config(env=env, mapping=mapping)).run
        params = make_multi(env).params
        shapes = jax.eval_shape(runner.jitted_init, make_key(0), params)
        jax.tree.map(lambda shape, spec: (shape.shape, spec), shapes, state_specs(shapes))


def test_actions_by_agent(learned: Learned) -> None:
    algorithm = learned.algorithm
    assert algorithm.compute_actions(OBS, explore=False) == {"a": 0, "b": 1}
    assert algorithm.compute_single_action(OBS["b"], policy_id="p1", explore=False) == 1
    assert algorithm.get_weights(["p0"]).keys() == {"p0"}
    with pytest.raises(JaxrlError, match="p9"):
        algorithm.compute_single_action(OBS["b"], policy_id="p9")
    with pytest.raises(JaxrlError, match="'z'"):
        algorithm.compute_actions({"z": OBS["a"]})


def test_evaluation_reports_agents_too(learned: Learned) -> None:
    evaluated = learned.last_result["evaluation"]["env_runners"]
    assert evaluated["num_episodes"] == 16
    returns = evaluated["agent_episode_returns_mean"]
    assert evaluated["module_episode_returns_mean"] == {"p0": returns["a"], "p1": returns["b"]}
    assert sum(returns.values()) == pytest.approx(evaluated["episode_return_mean"], rel=1e-5)


def test_callbacks_see_all_agents_and_what_is_not_trained_keeps_every_byte(
    watched: Watched,
) -> None:
    assert_same(watched.before["p1"], watched.after["p1"])
    assert not is_same(watched.before["p0"], watched.after["p0"])
    result, episodes = watched.results[-1], watched.episodes
    assert "p1" not in result["learners"]
    assert result["env_runners"]["module_episode_returns_mean"].keys() == {"p0", "p1"}
    assert len(episodes) == result["env_runners"]["num_episodes_lifetime"] > 20
    for episode in episodes:
        assert sum(episode.agent_returns.values()) == pytest.approx(episode.get_return(), abs=1e-3)
        assert 0 < episode.agent_steps() == sum(episode.agent_lengths.values())
        assert all(length <= len(episode) for length in episode.agent_lengths.values())
        assert episode.module_for("a") == episode.module_for("c") == "p0"
    assert len({tuple(episode.agent_returns) for episode in episodes}) > 1  # some miss one
    sampled = result["env_runners"]["num_agent_steps_sampled_lifetime"]
    assert sum(e.agent_steps() for e in episodes) <= sum(sampled.values())


CONTINUE = """
import sys, numpy as np, jax
from jaxrl import Algorithm
algorithm = Algorithm.from_checkpoint(sys.argv[1])
for _ in range(2):
    algorithm.train()
np.savez(sys.argv[2], *jax.tree.leaves(algorithm.get_weights()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["FC", "LSTM", "DQN", "Python"])
def test_a_resumed_run_goes_on_to_the_bit_in_a_fresh_process(kind: str, tmp_path: Path) -> None:
    make = make_replay_config if kind == "DQN" else make_config
    config = make(env=Torture, mapping={"a": "p0", "b": "p1", "c": "p0"})
    if kind == "Python":
        config = make(env=Duel, mapping={"left": "p0", "right": "p1"})
    if kind == "LSTM":
        memory = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 16}
        config.rl_module(model_config={"fcnet_hiddens": [4], **memory})
    config.debugging(results_dir=str(tmp_path / "results"))
    with config.build() as algorithm:
        algorithm.train()
        if kind != "Python":
            assert any(x.any() for x in map(np.asarray, jax.tree.leaves(pending(algorithm))))
        path = algorithm.save(str(tmp_path / "checkpoint"))
        for _ in range(2):
            algorithm.train()
        expected = jax.tree.leaves(algorithm.get_weights())
    script = tmp_path / "resume.py"
    script.write_text(
        f"import tests.multi_agent.agent_envs, tests.multi_agent.host_envs\n{CONTINUE}"
    )
    out = tmp_path / "weights.npz"
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, script, str(path), out], check=True, cwd=tmp_path, env=make_env(root)
    )
    found = np.load(out)
    for index, leaf in enumerate(expected):
        np.testing.assert_array_equal(found[f"arr_{index}"], leaf)


def pending(algorithm: Algorithm) -> PyTree:
    return {m: rows.has_row for m, rows in algorithm.state.carry.pending.items()}


@pytest.mark.slow
def test_a_checkpoint_without_buffers_fills_them_again(tmp_path: Path) -> None:
    config = make_replay_config().training(store_buffer_in_checkpoints=False)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(str(tmp_path / "checkpoint"))
        expected = algorithm.get_weights()
    with Algorithm.from_checkpoint(str(path)) as restored:
        assert_same(restored.get_weights(), expected)
        result = restored.train()
    assert result["replay_buffer"]["p0"]["num_module_steps_stored"] == 640
    assert result["learners"]["p0"]["num_updates_lifetime"] == 7 + 7


def make_env(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root)}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["ppo", "mappo"])
def test_the_shipped_config_reaches_its_threshold(algo: str) -> None:
    path = Path(__file__).parents[2] / f"configs/multi_agent/multiagentcartpole-{algo}.yaml"
    for seed in range(3):
        config = load_config(path).debugging(loggers=[], seed=seed)
        with config.build() as algorithm:
            result = algorithm.fit(stop={"num_env_steps_sampled_lifetime": 75_000})
        returns = result["env_runners"]["agent_episode_returns_mean"]
        assert result["env_runners"]["episode_return_mean"] > 600
        assert min(returns.values()) > 250  # neither rides on the other


@pytest.mark.representatives("rl_module")
@pytest.mark.parametrize("component", ["rl_module", "learner"])
def test_a_component_is_restored_for_every_module(
    component: str, learned: Learned, tmp_path: Path
) -> None:
    path = learned.algorithm.save(tmp_path / "checkpoint")
    saved, count = learned.algorithm.get_weights(), read_counts(learned.algorithm)
    with make_learned_config().debugging(seed=11).build() as algorithm:
        before = algorithm.get_weights()
        algorithm.restore(path, component=component)
        after = algorithm.get_weights()
        assert (read_counts(algorithm) == count) == (component == "learner")
    assert saved.keys() == {"p0", "p1"}
    assert_same(after, saved)
    assert not is_same(after, before)


def test_the_checkpoint_of_one_agent_is_refused_with_what_fits(
    learned: Learned, tmp_path: Path
) -> None:
    several = learned.algorithm.save(tmp_path / "several")
    before = learned.algorithm.get_weights()
    config = PPOConfig().environment("CartPole-v1").debugging(loggers=[])
    with config.training(train_batch_size=64, minibatch_size=64).build() as single:
        one = single.save(tmp_path / "one")
        with pytest.raises(
            CheckpointError, match=r"the modules p0, p1.*\{'default_policy': .*'p0'"
        ):
            single.restore(several, component="rl_module")
        for component in (None, "rl_module"):
            with pytest.raises(CheckpointError, match=r"one module.*\{'p0': .*'default_policy'"):
                learned.algorithm.restore(one, component)
        assert_same(learned.algorithm.get_weights(), before)


def read_counts(algorithm: Algorithm) -> list[int]:
    """Numbers of updates that the modules' optimizers have made."""
    return [
        int(leaf)
        for module in algorithm.state.modules.values()
        for leaf in jax.tree.leaves(module.learner.sgd.opt_state)
        if leaf.ndim == 0 and np.issubdtype(leaf.dtype, np.integer)
    ]


def test_a_circular_buffer_has_only_train_batches_with_rows_of_its_module() -> None:
    """A train batch has 4 steps, half of them none of `b`; others are used twice."""
    config = APPOConfig().environment(Rare).multi_agent(mapping=MAPPING)
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=4)
    config.training(train_batch_size=8, circular_buffer_num_batches=4, lr=0.01)
    config.training(circular_buffer_iterations_per_batch=2, use_kl_loss=True)
    config.rl_module(model_config={"fcnet_hiddens": [4]}).learners(num_devices=1)
    config.reporting(min_sample_timesteps_per_iteration=1).debugging(loggers=[])
    counters = ("next_slot", "filled", "draws_left", "uses_left")

    def copy_of_module(algorithm: Algorithm) -> PyTree:
        state = algorithm.state.modules["p1"]
        counts = {name: getattr(state.buffer, name) for name in counters}
        return jax.tree.map(np.asarray, (state.learner.sgd, state.learner.kl_coeff, counts))

    added = 0
    with config.build() as algorithm:
        for _ in range(16):
            before, rows = copy_of_module(algorithm), int(algorithm.state.agents.steps.low[1])
            algorithm.train()
            after, buffer = copy_of_module(algorithm), algorithm.state.modules["p1"].buffer
            stored = np.asarray(buffer.batches.mask).any(axis=(1, 2))
            assert stored[np.asarray(buffer.uses_left) > 0].all()
            if int(algorithm.state.agents.steps.low[1]) == rows:
                assert_same(before, after)
            else:
                added += 1
                assert int(buffer.next_slot) == added % 4
        assert 6 <= added <= 8
        # The first two wait, until half of the buffer is filled.
        assert int(algorithm.state.modules["p1"].progress.updates) == 2 * (added - 2)


class Hasty(Torture):
    """Declares that everybody acts, which is wrong."""

    acting = "all"


def test_a_run_ends_where_a_declaration_turns_out_wrong() -> None:
    config = make_config(PGConfig(), Hasty, mapping={"a": "p0", "b": "p1", "c": "p1"})
    with config.build() as algorithm, pytest.raises(EnvError) as raised:
        algorithm.train()
    assert "Hasty: at step" in str(raised.value)
    assert "acting='all' declares that all do" in str(raised.value)
