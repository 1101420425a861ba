"""Stacked frames: against a plain loop, at every kind of episode end, and where they are needed."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm
from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import Before, FrameStacking
from jaxrl.connectors.checks import check_observation_pipeline
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import get_at_path, map_leaves
from jaxrl.core.types import Columns
from jaxrl.errors import ConfigError, SpaceError
from jaxrl.policy.inference import stack_trees
from tests.connectors.memory_probes import STEPS, Echo, play
from tests.helpers import assert_close, assert_equal, observation_pipeline, small
from tests.nested import within

pytestmark = pytest.mark.allow_key_reuse


def before(is_first: np.ndarray) -> Before:
    rows = is_first.shape[0]
    return Before(
        is_first=jnp.asarray(is_first),
        action=jnp.zeros((rows,), jnp.int32),
        reward=jnp.zeros((rows,), jnp.float32),
    )


def stacked_by_a_loop(obs: np.ndarray, is_first: np.ndarray, num: int, padding: str) -> np.ndarray:
    """`[T, B, ...]` observations, each beside those before it in its episode, newest last."""
    rows = []
    for t in range(len(obs)):
        columns = []
        for b in range(obs.shape[1]):
            start = max(s for s in range(t + 1) if is_first[s, b])
            frames = [obs[s, b] for s in range(start, t + 1)][-num:]
            blank = frames[0] if padding == "first" else np.zeros_like(frames[0])
            frames = [blank] * (num - len(frames)) + frames
            columns.append(np.concatenate(frames, axis=-1))
        rows.append(np.stack(columns))
    return np.stack(rows)


@pytest.mark.parametrize("padding", ["zero", "first"])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, 1.0, (3,), np.float32),
        spaces.Box(0, 255, (2, 2, 2), np.uint8),
        spaces.Box(-5, 5, (4, 2), np.int64),
    ],
    ids=["vector", "image", "integers"],
)
def test_frames_stand_side_by_side_and_none_is_of_another_episode(
    space: spaces.Box, padding: Any
) -> None:
    num_steps, num_envs = 9, 4
    rng = np.random.default_rng(0)
    obs = rng.uniform(1, 5, (num_steps, num_envs, *space.shape)).astype(space.dtype)
    is_first = rng.random((num_steps, num_envs)) < 0.3
    is_first[0] = True
    pipeline = observation_pipeline(space, extra=(FrameStacking(3, padding),))
    connector: Any = pipeline["FrameStacking"]
    stacked_space = connector.output_space(space)
    assert stacked_space.shape == (*space.shape[:-1], 3 * space.shape[-1])
    carry = connector.init_carry(space, num_envs)
    got = []
    for t in range(num_steps):
        carry = jax.tree.map(
            lambda new, old, t=t: jnp.where(
                is_first[t].reshape(-1, *[1] * (old.ndim - 1)), new, old
            ),
            connector.init_carry(space, num_envs),
            carry,
        )
        carry, seen = connector.step((), carry, jnp.asarray(obs[t]), before(is_first[t]))
        assert seen.dtype == stacked_space.dtype
        got.append(np.asarray(seen))
    np.testing.assert_array_equal(np.stack(got), stacked_by_a_loop(obs, is_first, 3, padding))


def stacks() -> Any:
    return FrameStacking(4)


def test_the_learner_sees_what_the_module_saw_and_would_have_seen_at_truncations() -> None:
    """Two rollouts of a CartPole that ends in both ways, the second in the middle of episodes."""
    config = small("PPO").environment("CartPole-v1", max_episode_steps=13)
    config.env_runners(env_to_module_connector=stacks, observation_filter="MeanStdFilter")
    config.training(train_batch_size=16 * 20)
    assembly = assemble(config)
    runner = assembly.run
    sampler = runner.rollout_worker

    @jax.jit
    def run(key: Any) -> Any:
        state = runner.init(key, assembly.made.params)
        actor = runner.make_actor_state(state)
        env, carry, rollouts = state.env, state.carry, []
        for _ in range(2):
            env, carry, raw, _ = sampler.rollout(actor, env, carry, state.env_params, 20)
            seen = sampler.preprocess_rollout(actor.obs_state, raw)
            out = sampler.module.forward_train(actor.params, {Columns.OBS: seen.obs})
            rollouts.append((raw, seen, out[Columns.ACTION_DIST_INPUTS]))
        return actor, rollouts

    actor, rollouts = run(jax.random.key(0))
    for raw, _, again in rollouts:  # acting and replaying are the same
        recorded = raw.extras[Columns.ACTION_DIST_INPUTS]
        np.testing.assert_allclose(recorded, again, rtol=1e-5, atol=1e-6)
    raw, seen = (
        jax.tree.map(lambda *parts: np.concatenate(parts), *[r[i] for r in rollouts])
        for i in (0, 1)
    )
    del actor
    want = stacked_by_a_loop(raw.obs, raw.is_first, 4, "zero")
    want = np.clip(want, -10.0, 10.0)  # the filter has seen nothing yet: it clips alone
    np.testing.assert_allclose(seen.obs, want, atol=1e-6)
    ended = raw.terminated | raw.truncated
    assert raw.truncated.sum() > 20
    assert (raw.terminated & ~raw.truncated).sum() > 5
    np.testing.assert_array_equal(seen.final_obs[:-1][~ended[:-1]], seen.obs[1:][~ended[:-1]])
    for t, b in np.argwhere(ended):
        frames = np.concatenate([want[t, b][4:], np.clip(raw.final_obs[t, b], -10.0, 10.0)])
        np.testing.assert_allclose(seen.final_obs[t, b], frames, atol=1e-6)


def test_without_a_memory_nothing_is_carried() -> None:
    assembly = assemble(small())
    state = jax.eval_shape(assembly.run.init, jax.random.key(0), assembly.made.params)
    assert jax.tree.leaves(state.carry) == []


# --- a task that needs the observation before ---


def pairs() -> Any:
    return FrameStacking(num_frames=2)


def echo(connector: Any = pairs, **settings: Any) -> Any:
    config = small("PPO", Echo, lr=1e-2, gamma=0.0)
    config.env_runners(env_to_module_connector=connector, **settings)
    config.reporting(min_sample_timesteps_per_iteration=128 * 60)
    config.checkpointing(checkpoint_at_end=False)
    return config.evaluation(evaluation_config={"explore": False}, evaluation_duration=16)


@pytest.mark.slow
def test_the_observation_before_is_learned_from_and_acted_on_everywhere() -> None:
    """The best return is 5: of six steps the first pays nothing."""
    with echo().build() as algorithm:
        assert algorithm.get_module().observation_space.shape == (2,)
        algorithm.train()
        before = algorithm.get_state()["train_state"]
        evaluated = algorithm.evaluate()["env_runners"]
        assert_equal(before, algorithm.get_state()["train_state"])
        assert evaluated["episode_return_min"] == STEPS - 1
        assert play(algorithm, Echo(), 3, reads=False) == [STEPS - 1.0] * 3
        _forgets(algorithm)
    with echo(None).build() as algorithm:
        algorithm.train()
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] < 3.0


def _forgets(algorithm: Any) -> None:
    """A state is what makes an action depend on the past, and it has to be kept."""
    one, minus = np.ones(1, np.float32), -np.ones(1, np.float32)
    for first, right in ((one, 1), (minus, 0)):
        _, memory, _ = algorithm.compute_single_action(first, explore=False, full_fetch=True)
        for second in (one, minus):
            action, _, _ = algorithm.compute_single_action(second, memory, explore=False)
            assert action == right
        states = {"a": memory, 7: memory}
        actions, states, _ = algorithm.compute_actions({"a": one, 7: minus}, states, explore=False)
        assert actions == {"a": right, 7: right}
        assert actions["a"].shape == ()
        action, _, _ = algorithm.compute_single_action(one, states[7], explore=False)
        assert action == 0
    with pytest.raises(ConfigError, match=r"FrameStacking is stateful.*full_fetch=True"):
        algorithm.compute_single_action(one)
    with pytest.raises(ConfigError, match=r"state must be the one that full_fetch.*got ndarray"):
        algorithm.compute_single_action(one, np.zeros(3))
    with pytest.raises(ConfigError, match=r"prev_reward=1.0\) has no effect"):
        algorithm.compute_single_action(one, memory, prev_reward=1.0)


@pytest.mark.slow
def test_a_runner_on_the_host_carries_the_same_frames(tmp_path: Any) -> None:
    one_update = {"num_epochs": 1, "minibatch_size": None}
    states = []
    for placement in ("in_graph", "host"):
        config = echo(placement=placement).training(**one_update)
        with config.reporting(min_sample_timesteps_per_iteration=256).build() as algorithm:
            algorithm.train()
            path = algorithm.save(tmp_path / placement)
            algorithm.train()
            states.append(jax.device_get((algorithm.state.learner, algorithm.state.ring)))
        with Algorithm.from_checkpoint(path, env_to_module_connector=pairs) as resumed:
            resumed.train()
            again = jax.device_get((resumed.state.learner, resumed.state.ring))
            assert_equal(states[-1], again)
    assert_close(states[0][0], states[1][0], rtol=1e-4, atol=1e-5)
    assert_equal(states[0][1], states[1][1])


NESTED = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
        "rest": spaces.Tuple(
            [spaces.Box(-1.0, 1.0, ()), spaces.Discrete(3, start=4), spaces.MultiBinary(2)]
        ),
        "many": spaces.MultiDiscrete([[2, 3]], start=[[0, 1]]),
    }
)


@pytest.mark.parametrize("padding", ["zero", "first"])
def test_every_part_is_stacked(padding: Any) -> None:
    pipeline = observation_pipeline(NESTED, extra=(FrameStacking(2, padding),))
    check_observation_pipeline(pipeline, spaces.Discrete(2))
    space: Any = pipeline.spaces[-1]
    assert space["rest"][1] == spaces.MultiDiscrete([3, 3], start=[4, 4])
    obs = [
        jax.tree.map(jnp.asarray, stack_trees([value])) for value in (first(NESTED), last(NESTED))
    ]
    carry = pipeline.init_carry(1)
    seen = []
    for t, value in enumerate(obs):
        carry, out = pipeline.step(pipeline.init(), carry, value, before(np.array([t == 0])))
        seen.append(out)
        assert space.contains(row(jax.device_get(out), 0, space))
    blank = obs[0]["rest"][1] if padding == "first" else jnp.array([4])
    np.testing.assert_array_equal(seen[0]["rest"][1], [[blank[0], obs[0]["rest"][1][0]]])
    for path in (("image",), ("rest", 2), ("many",)):
        both = [np.asarray(get_at_path(value, path)) for value in obs]
        np.testing.assert_array_equal(get_at_path(seen[1], path), np.concatenate(both, axis=-1))
    np.testing.assert_array_equal(seen[1]["rest"][0], [[obs[0]["rest"][0][0], 1.0]])


def first(space: Any) -> Any:
    """The value with everything at its least, but choices at their last."""
    return map_leaves(
        lambda leaf: within(leaf)[isinstance(leaf, spaces.Discrete)].astype(get_leaf_dtype(leaf)),
        space,
    )


def last(space: Any) -> Any:
    return map_leaves(lambda leaf: within(leaf)[1].astype(get_leaf_dtype(leaf)), space)


def row(batch: Any, place: int, space: Any) -> Any:
    return map_leaves(lambda leaf, x: np.asarray(x[place], leaf.dtype), space, batch)


# --- refusals ---


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FrameStacking(0), ConfigError, ["num_frames=0", "from 1 on"]),
        (lambda: FrameStacking(True), ConfigError, ["num_frames=True"]),
        (lambda: FrameStacking(2.0), ConfigError, ["num_frames=2.0"]),  # pyright: ignore
        (lambda: FrameStacking(2, "last"), ConfigError, ["padding='last'", "'first'"]),  # pyright: ignore
        (
            lambda: observation_pipeline(spaces.Text(3), extra=(FrameStacking(2),)),
            SpaceError,
            ["observation_space is Text", "use Box"],
        ),
    ],
)
def test_what_cannot_be_stacked_is_refused(make: Any, error: Any, words: list[str]) -> None:
    with pytest.raises(error) as caught:
        make()
    for word in words:
        assert word in str(caught.value)


def test_one_frame_is_the_observation_itself() -> None:
    assert len(observation_pipeline(spaces.Box(-1, 1, (3,)), extra=(FrameStacking(1),))) == 0
