"""MAPPO: what its critic sees, that its policy sees none of it, and values against NumPy."""

import copy
import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, RLModuleSpec
from jaxrl.algorithms.dqn import DQNConfig
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.core.struct import replace
from jaxrl.core.types import CentralObs, ObsSequence, PyTree, Rollout
from jaxrl.envs.multi.base import Entry
from jaxrl.envs.multi.foraging import Foraging
from jaxrl.errors import ConfigError, JaxrlError, ModuleError
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.training.agent_rows import AgentRows, CriticInputs, Scene
from tests import actor_critics as ac
from tests.multi_agent.agent_envs import Targets, Torture

MEMORY = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 8}
SPLIT = {"a": "p0", "b": "p1"}


class Clock(Targets):
    """Targets in episodes of 5 steps that are cut; the global state is the time."""

    name = "clock"
    max_episode_steps = 5

    def state_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return spaces.Dict(time=spaces.Box(0.0, 9.0, (1,), np.float32), odd=spaces.Discrete(2))

    def global_state(self, state: Any, params: PyTree) -> PyTree:
        return {"time": state[None], "odd": (state % 2).astype(jnp.int32)}


class Streams(Torture):
    """Torture whose global state is (episode, time)."""

    name = "streams"

    def state_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return spaces.Box(0.0, 1e6, (2,), np.float32)

    def global_state(self, state: Any, params: PyTree) -> PyTree:
        return jnp.stack([state.episode, state.time.astype(jnp.float32)])


def make_config(env: Any, algo: Any = MAPPOConfig, **training: Any) -> Any:
    """16 environments x 32 steps."""
    config = algo().environment(env).env_runners(num_envs_per_env_runner=16)
    config.training(train_batch_size=512, num_epochs=4, minibatch_size=128, lr=3e-3, **training)
    return config.rl_module(model_config={"fcnet_hiddens": [16]}).debugging(loggers=[], seed=1)


def roll(config: Any, steps: int) -> tuple[Any, PyTree, Any]:
    """Return the runner of a config, its first state, and the rollouts of some steps."""
    config.prepare()
    assembly: Any = assemble(config)
    runner = assembly.run
    state = jax.jit(runner.init)(jax.random.key(0), assembly.made.params)
    actors, worker = runner.make_actor_state(state), runner.rollout_worker
    recorded = jax.jit(
        lambda env, carry: worker.rollout(actors, env, carry, assembly.made.params, steps)[2]
    )(state.env, state.carry)
    return runner, state, recorded


# --- the probe ---


def explained(algo: Any, env: Any = "jaxrl:probe-state-v0", **training: Any) -> float:
    config = make_config(env, algo, **training)
    with config.build() as algorithm:
        result = algorithm.fit(stop={"training_iteration": 10})
    return result["learners"]["default_policy"]["vf_explained_var"]


def test_the_critic_learns_what_only_the_global_state_tells() -> None:
    config = make_config("jaxrl:probe-state-v0")
    with config.build() as algorithm:
        result = algorithm.fit(stop={"training_iteration": 10})
        learner: Any = algorithm.state.modules["default_policy"].learner
        module: Any = algorithm.get_module()
        ids = jnp.eye(2, dtype=jnp.float32)
        coins = jnp.asarray([[-1.0], [-1.0], [1.0], [1.0]])
        state = jnp.concatenate([coins, jnp.tile(ids, (2, 1))], axis=1)
        seen = CentralObs(obs=jnp.zeros((4, 1)), state=state)
        values = module.compute_values(learner.sgd.params, seen)
        values = learner.value_moments.denormalize(values)
        with pytest.raises(ModuleError, match=r"values of a .*Module are those of CentralObs"):
            module.compute_values(learner.sgd.params, jnp.zeros((4, 1)))
    assert result["learners"]["default_policy"]["vf_explained_var"] > 0.95
    np.testing.assert_allclose(values, coins[:, 0], atol=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["joint", "ppo", "agent_specific"])
def test_other_critics_of_the_probe(kind: str) -> None:
    """Observations tell nothing: only a critic with the global state predicts the return."""
    if kind == "ppo":
        assert explained(PPOConfig) < 0.1
    else:
        found = explained(MAPPOConfig, critic_input=kind)
        assert found > 0.95 if kind == "agent_specific" else found < 0.1


class Hidden(Targets):
    """One step, in which both are paid what each half-observes: the product of two coins."""

    name = "hidden"
    max_episode_steps = 1

    def reset(self, key: Any, params: PyTree) -> Any:
        _, start = super().reset(key, params)
        state = 2.0 * jax.random.bernoulli(key, shape=(2,)).astype(jnp.float32) - 1.0
        return state, replace(start, obs=self._see(state))

    def _see(self, state: Any) -> PyTree:
        return {"a": state.at[1].set(0.0), "b": state.at[0].set(0.0)}

    def step(self, key: Any, state: Any, actions: Any, params: PyTree) -> Any:
        _, step = super().step(key, jnp.zeros(()), actions, params)
        reward = dict.fromkeys(("a", "b"), state[0] * state[1])
        return state, replace(step, obs=self._see(state), reward=reward)


@pytest.mark.slow
def test_joint_observations_tell_what_none_tells_alone() -> None:
    assert explained(MAPPOConfig, Hidden, critic_input="joint", gamma=0.0) > 0.9


@pytest.mark.slow
def test_one_observation_does_not_tell_it() -> None:
    assert explained(PPOConfig, Hidden, gamma=0.0, vf_clip_param=1e9) < 0.3


# --- what is recorded ---


def test_the_state_after_an_episode_is_its_last_one_and_not_that_of_the_next() -> None:
    _, _, recorded = roll(make_config(Clock), 12)
    rollout: Rollout = recorded.rollouts["default_policy"]
    obs, final = np.asarray(rollout.obs.state), np.asarray(rollout.final_obs.state)
    time = np.arange(12) % 5
    rows = np.broadcast_to(time[:, None], (12, 32))
    assert np.asarray(rollout.truncated)[4].all()
    # The time, whether it is odd (one-hot), and the agent.
    np.testing.assert_array_equal(obs[..., 0], rows)
    np.testing.assert_array_equal(obs[..., 1:3], np.eye(2)[rows % 2])
    np.testing.assert_array_equal(final[..., 0], rows + 1)
    np.testing.assert_array_equal(final[..., 1:3], np.eye(2)[(rows + 1) % 2])
    np.testing.assert_array_equal(obs[..., 3:], np.tile(np.eye(2), (12, 16, 1)))


@pytest.mark.representatives("state")
@pytest.mark.parametrize("kind", ["state", "agent_specific"])
def test_rows_in_turns_have_the_state_of_their_agents_time(kind: str) -> None:
    config = make_config(Streams, critic_input=kind)
    config.multi_agent(mapping={"a": "p0", "b": "p1", "c": "p0"})
    _, _, recorded = roll(config, 32)
    for module, rollout in recorded.rollouts.items():
        mask = np.asarray(rollout.mask)
        assert mask.sum() > 60
        assert np.asarray(rollout.truncated).sum() > 5
        for seen in (rollout.obs, rollout.final_obs):
            own, state = np.asarray(seen.obs)[mask], np.asarray(seen.state)[mask]
            np.testing.assert_array_equal(state[:, :2], own[:, [0, 2]])  # episode and time
            if kind == "agent_specific":
                np.testing.assert_array_equal(state[:, 2:5], own)
            if module == "p0":
                np.testing.assert_array_equal(state[:, -2:], np.eye(2)[(own[:, 1] / 2).astype(int)])
            else:
                assert state.shape[-1] == (5 if kind == "agent_specific" else 2)
        assert (np.asarray(rollout.final_obs.obs) != np.asarray(rollout.obs.obs))[mask].any()


def flags(**by_agent: list[int]) -> dict[str, Any]:
    return {name: jnp.asarray(values, bool) for name, values in by_agent.items()}


@dataclasses.dataclass
class Step:
    """Part of a MultiVectorStep: four environments with the agents x and y."""

    acts: Any
    present: Any
    terminated: Any
    truncated: Any
    final_obs: Any = None
    final_global_state: Any = None


def test_who_is_there_after_a_step() -> None:
    step: Any = Step(  # goes on; x dies; x leaves; the episode is cut, where y has died
        acts=flags(x=[1, 0, 0, 0], y=[0, 1, 1, 0]),
        present=flags(x=[1, 1, 1, 1], y=[1, 1, 1, 1]),
        terminated=flags(x=[0, 1, 0, 0], y=[0, 0, 0, 1]),
        truncated=flags(x=[0, 0, 1, 1], y=[0, 0, 0, 1]),
    )
    found = Scene.after(step).is_there
    np.testing.assert_array_equal(found["x"], [True, False, False, True])
    np.testing.assert_array_equal(found["y"], [True, True, True, False])


def test_joined_observations() -> None:
    """Two copies of x, and of a kind of two members, whose second one shares x's module."""
    entries = (Entry(key="x", agents=("x",)), Entry(key="k", agents=("k_0", "k_1"), is_kind=True))
    rows = AgentRows(entries=entries, patterns=({"x": "p", "k_0": "q", "k_1": "p"},))
    masked = spaces.Dict(
        action_mask=spaces.MultiBinary(2), own=spaces.Box(-9.0, 9.0, (1,), np.float32)
    )
    observed = {"x": spaces.Discrete(3), "k_0": masked, "k_1": masked}

    def make(module: str) -> CriticInputs:
        return CriticInputs(
            kind="joint",
            rows=rows,
            module=module,
            state_space=None,
            observed=observed,
            mask_key="action_mask",
        )

    scene = Scene(
        obs={
            "x": jnp.asarray([2, 1]),
            "k": {
                "action_mask": jnp.ones((2, 2, 2), jnp.int8),
                "own": jnp.asarray([[[5.0], [6.0]], [[7.0], [8.0]]]),
            },
        },
        is_there={
            "x": jnp.asarray([True, False]),
            "k": jnp.asarray([[True, False], [False, True]]),
        },
        global_state=None,
    )
    p, q = make("p"), make("q")
    assert (p.space.shape, q.space.shape) == ((7,), (5,))
    np.testing.assert_array_equal(q(scene), [[0, 0, 1, 5, 0], [0, 0, 0, 7, 8]])  # its own is there
    np.testing.assert_array_equal(
        p(scene),
        [
            [0, 0, 1, 5, 0, 1, 0],
            [0, 0, 1, 5, 6, 0, 1],  # the row of k_1, which is not there for others
            [0, 1, 0, 0, 8, 1, 0],
            [0, 0, 0, 0, 8, 0, 1],
        ],
    )


# --- the policy sees none of it ---


@pytest.mark.representatives("LSTM")
@pytest.mark.parametrize("model", [{}, MEMORY], ids=["FC", "LSTM"])
def test_the_policy_never_reads_the_global_state(model: dict[str, Any]) -> None:
    config = make_config(Streams)
    config.rl_module(model_config={"fcnet_hiddens": [16], **model})
    config.prepare()
    assembly: Any = assemble(config)
    runner, params = assembly.run, assembly.made.params
    worker = runner.rollout_worker
    state = jax.jit(runner.init)(jax.random.key(0), params)
    hidden = replace(state.env, global_state=jnp.full_like(state.env.global_state, jnp.nan))

    @jax.jit
    def step(env: Any) -> PyTree:
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
        return worker.step(runner.make_actor_state(state), env, state.carry, row, params, True)

    (_, carry, _, rows), (_, blind, _, others) = step(state.env), step(hidden)
    assert np.isnan(blind.pending["default_policy"].begun.obs.state).any()
    for one, other in ((carry.acting, blind.acting), (rows, others)):
        drop = jax.tree.map(np.asarray, (without_state(one), without_state(other)))
        jax.tree.map(np.testing.assert_array_equal, *drop)


def without_state(tree: PyTree) -> PyTree:
    def drop(x: Any) -> Any:
        return x.obs if isinstance(x, CentralObs) else x

    return jax.tree.map(drop, tree, is_leaf=lambda x: isinstance(x, CentralObs))


@pytest.mark.parametrize("model", [{}, MEMORY], ids=["FC", "LSTM"])
def test_policy_and_values_depend_on_their_own_inputs_alone(model: dict[str, Any]) -> None:
    config = make_config(Clock).rl_module(model_config={"fcnet_hiddens": [16], **model})
    config.prepare()
    assembly: Any = assemble(config)
    module = assembly.modules["default_policy"].module
    params = module.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    obs = jnp.asarray(rng.normal(size=(6, 5, 2)), jnp.float32)
    state = jnp.asarray(rng.normal(size=(6, 5, 5)), jnp.float32)

    def run(obs: Any, state: Any) -> dict[str, Any]:
        seen: PyTree = CentralObs(obs=obs, state=state)
        if model:
            seen = ObsSequence(
                obs=seen, carry=module.initial_carry(6), is_first=jnp.zeros((6, 5), bool)
            )
        return module.forward_train(params, {"obs": seen})

    out, nothing = run(obs, state), jnp.full((6, 5, 5), jnp.nan)
    blind, deaf = run(obs, nothing), run(jnp.full_like(obs, jnp.nan), state)
    np.testing.assert_array_equal(out["action_dist_inputs"], blind["action_dist_inputs"])
    np.testing.assert_array_equal(out["vf_preds"], deaf["vf_preds"])
    assert np.isnan(blind["vf_preds"]).all()
    assert np.isnan(deaf["action_dist_inputs"]).all()
    np.testing.assert_array_equal(
        out["vf_preds"], module.compute_values(params, CentralObs(obs=obs, state=state))
    )


# --- targets and loss ---


def test_targets_equal_a_walk_over_each_row() -> None:
    """Lambda-returns of the critic's values of global states, cut at time limits, in NumPy."""
    config = make_config(Clock, gamma=0.9, lambda_=0.8, normalize_advantages=False)
    runner, state, recorded = roll(config, 12)
    step, own = runner.learning.steps["default_policy"], state.modules["default_policy"]
    rollout = recorded.rollouts["default_policy"]
    seen = step.policy_step.preprocess_rollout(own.connectors.obs, rollout)
    batch, _ = step.learner.prepare(own.learner, seen, own.progress)
    module, params = step.learner.module, own.learner.sgd.params
    compute_values = jax.jit(module.compute_values)

    def value(time: int, agent: int) -> float:
        row = [time, *np.eye(2)[time % 2], *np.eye(2)[agent]]
        seen = CentralObs(obs=jnp.zeros((1, 2)), state=jnp.asarray([row], jnp.float32))
        return float(compute_values(params, seen)[0])

    reward = np.asarray(rollout.reward)
    for column in (0, 1, 7):
        agent, after = column % 2, 0.0
        for t in reversed(range(12)):
            time = t % 5
            if time == 4:  # cut: nothing passes, but the value of the last state
                after = 0.0
            now, later = value(time, agent), value(time + 1, agent)
            delta = reward[t, column] + 0.9 * later - now
            after = delta + 0.9 * 0.8 * after
            np.testing.assert_allclose(batch.advantages[t, column], after, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(
                batch.value_targets[t, column], after + now, rtol=1e-4, atol=1e-5
            )


def test_the_gradient_is_that_of_the_formula() -> None:
    """Slopes in logits and normalized values, in float64, after the parameters have moved."""
    config = make_config(Clock, entropy_coeff=0.02, huber_delta=0.5)
    runner, state, recorded = roll(config, 12)
    step, own = runner.learning.steps["default_policy"], state.modules["default_policy"]
    seen = step.policy_step.preprocess_rollout(
        own.connectors.obs, recorded.rollouts["default_policy"]
    )
    learner, rng = step.learner, np.random.default_rng(0)
    batch, _ = learner.prepare(own.learner, seen, own.progress)
    batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    targets = jnp.asarray(rng.normal(size=batch.weight.shape) * 3, jnp.float32)
    batch = replace(batch, value_targets=targets)
    params = jax.tree.map(
        lambda x: x + jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32),
        own.learner.sgd.params,
    )
    values = learner.settings.at(own.learner.hparams, own.progress)
    out = learner.module.forward_train(params, {"obs": batch.obs})
    found = ac.loss_slopes(learner, out, batch, values)
    b, logits = jax.device_get(batch), out["action_dist_inputs"]
    slopes = ac.surrogate_slopes(logits, b.action, b.log_prob, b.advantages, 0.2)
    slopes -= 0.02 * ac.entropy_slopes(logits)
    weight = np.asarray(b.weight, np.float64) / len(b.weight)
    np.testing.assert_allclose(
        found["action_dist_inputs"], weight[:, None] * slopes, rtol=1e-4, atol=1e-7
    )
    error = np.asarray(out["vf_preds"], np.float64) - b.value_targets
    assert 5 < (np.abs(error) > 0.5).sum() < len(error) - 5
    expected = weight * np.clip(error, -0.5, 0.5) * float(values.vf_loss_coeff)
    np.testing.assert_allclose(found["vf_preds"], expected, rtol=1e-4, atol=1e-7)


def test_defaults_are_those_of_the_paper() -> None:
    config = MAPPOConfig().environment(Clock)
    training = config.training_settings
    assert (training.critic_input, training.huber_delta, training.clip_param) == (
        "state",
        10.0,
        0.2,
    )
    assert training.normalize_values
    assert not training.use_kl_loss
    runner, state, _ = roll(config, 1)
    params = state.modules["default_policy"].learner.sgd.params
    kernel = np.asarray(params["pi_encoder"]["mlp"]["dense_1"]["kernel"])
    np.testing.assert_allclose(kernel.T @ kernel, 2.0 * np.eye(64), atol=1e-5)
    head = np.asarray(params["pi_head"]["out"]["kernel"])
    np.testing.assert_allclose(head.T @ head, 1e-4 * np.eye(2), atol=1e-8)
    del runner


# --- runs ---


@pytest.mark.representatives("FC")
@pytest.mark.parametrize("model", [{}, MEMORY], ids=["FC", "LSTM"])
def test_a_resumed_run_goes_on_to_the_bit(model: dict[str, Any], tmp_path: Path) -> None:
    config = make_config(Streams).multi_agent(
        mapping=dict.fromkeys(("a", "b", "c"), "p0"), observe_agent_id=True
    )
    config.rl_module(model_config={"fcnet_hiddens": [4], **model})
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save(str(tmp_path / "checkpoint"))
        result = algorithm.fit(stop={"training_iteration": 3})
        assert np.isfinite(result["learners"]["p0"]["total_loss"])
        expected = jax.tree.map(np.asarray, algorithm.state.modules["p0"].learner)
        returned = algorithm.evaluate()
        assert returned["env_runners"]["agent_episode_returns_mean"].keys() == {"a", "b", "c"}
        obs = {"a": np.zeros(3, np.float32), "c": np.ones(3, np.float32)}
        assert algorithm.compute_actions(obs, full_fetch=True)[0].keys() == {"a", "c"}
    with Algorithm.from_checkpoint(path) as again:
        for _ in range(2):
            again.train()
        found = jax.tree.map(np.asarray, again.state.modules["p0"].learner)
    jax.tree.map(np.testing.assert_array_equal, expected, found)
    assert expected.value_moments.total_weight > 0


@pytest.mark.slow
def test_modules_that_are_not_trained_keep_every_byte() -> None:
    config = make_config(Clock).multi_agent(mapping=SPLIT, policies_to_train=["p1"])
    with config.build() as algorithm:
        before = copy.deepcopy(algorithm.get_weights())
        algorithm.train()
        after = algorithm.get_weights()
    jax.tree.map(np.testing.assert_array_equal, before["p0"], after["p0"])
    kernels = [w["p1"]["vf_head"]["out"]["kernel"] for w in (before, after)]
    assert (kernels[0] != kernels[1]).any()


@pytest.mark.slow
def test_devices_compute_the_same() -> None:
    found: list[PyTree] = []
    for number in (1, 4):
        config = make_config(Streams, optimizer="sgd", grad_clip=1.0)
        config.learners(num_devices=number, num_shards=4)
        with config.build() as algorithm:
            for _ in range(2):
                algorithm.train()
            learner: Any = algorithm.state.modules["default_policy"].learner
            found.append(jax.tree.map(np.asarray, (learner.sgd.params, learner.value_moments)))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), *found)


# --- bad input ---


def prepare_and_assemble(config: Any) -> None:
    config.prepare()
    assemble(config)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            lambda: make_config(Targets),
            ["critic_input='state' needs a global state, and", "set critic_input='joint'"],
        ),
        (
            lambda: make_config(Targets, critic_input="agent_specific"),
            ["critic_input='agent_specific' needs a global state"],
        ),
        (
            lambda: make_config("CartPole-v1"),
            ["critic_input='state' is of several agents", "use PPOConfig"],
        ),
        (
            lambda: make_config(Clock, use_critic=False),
            ["use_critic=False leaves MAPPO without", "use PGConfig"],
        ),
        (
            lambda: make_config(Clock).rl_module(
                rl_module_spec=RLModuleSpec(module_class=ActorCriticModule)
            ),
            ["MAPPO trains a CentralCriticModule", "got a ActorCriticModule"],
        ),
        (
            lambda: make_config(Clock).rl_module(model_config={"vf_share_layers": True}),
            ["vf_share_layers=True shares layers", "leave it out"],
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(config: Any, words: list[str]) -> None:
    with pytest.raises(JaxrlError) as error:
        prepare_and_assemble(config())
    for word in words:
        assert word in str(error.value), error.value
    assert "\n" not in str(error.value)


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="critic_input must be"):
        MAPPOConfig().training(critic_input="everything")  # pyright: ignore
    with pytest.raises(JaxrlError, match="no setting 'critic_input'"):
        PPOConfig().training(critic_input="state")  # pyright: ignore


def test_explain_tells_the_bytes_of_what_critics_see() -> None:
    config = MAPPOConfig().environment("Foraging-v0")
    config.env_runners(num_envs_per_env_runner=4).training(train_batch_size=64)
    table = config.copy().training(critic_input="agent_specific").explain().split("\n\n")[2]
    _, header, row = table.splitlines()
    assert header.split() == [
        "module",
        "agents",
        "learns",
        "rows",
        "observation",
        "critic",
        "all",
        "rows",
    ]
    # The observation has 12 numbers; the critic sees the state, the observation, and who of two it is.
    env = Foraging()
    size = 4 * (env.state_space(env.default_params).shape[0] + 12 + 2)
    assert row.split()[:6] == ["default_policy", "player_0,", "player_1", "yes", "128", "48"]
    assert row.split()[7:] == [f"{size}", "B", f"{128 * (48 + size) / 1e6:.1f}", "MB"]


def test_explain_tells_what_replay_stores() -> None:
    config = DQNConfig().environment("MultiAgentCartPole-v0", env_config={"num_agents": 2})
    config.multi_agent(policies=["p0", "p1"], mapping={"0": "p0", "1": "p1"})
    config.multi_agent(policies_to_train=["p0"])
    rows = [line.split() for line in config.explain().split("\n\n")[2].splitlines()[2:]]
    assert rows[0] == ["p0", "0", "yes", "1,", "50,000", "stored", "16", "B", "-", "0.8", "MB"]
    assert rows[1] == ["p1", "1", "no", "1", "16", "B", "-", "-"]
