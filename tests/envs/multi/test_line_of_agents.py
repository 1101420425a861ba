"""A line of equal agents: its motion against plain NumPy, and programs that do not grow with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.core.struct import replace
from jaxrl.envs import make_multi
from jaxrl.envs.multi.line_of_agents import LineOfAgents, LineParams
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.errors import EnvError

pytestmark = pytest.mark.allow_key_reuse


def move(state: Any, actions: np.ndarray, params: LineParams) -> dict[str, Any]:
    """One step, piston by piston."""
    number = len(actions)
    heights = [
        min(max(float(height) + (int(action) - 1) * float(params.lift), 0.0), 1.0)
        for height, action in zip(state.heights, actions, strict=True)
    ]
    before = float(state.position)
    left = min(int(before), number - 2)
    slope = heights[left + 1] - heights[left]
    speed = float(state.speed) * (1 - float(params.friction)) - float(params.pull) * slope
    speed = min(max(speed, -1.0), 1.0)
    position = min(max(before + speed, 0.0), number - 1.0)
    if position == number - 1 and speed > 0:
        speed = 0.0
    way = (before - position) / float(state.start)
    obs = [
        (
            heights[i],
            heights[max(i - 1, 0)],
            heights[min(i + 1, number - 1)],
            (position - i) / (number - 1),
            speed,
            i / (number - 1),
        )
        for i in range(number)
    ]
    return {
        "heights": heights,
        "position": position,
        "speed": speed,
        "obs": obs,
        "reward": float(params.way_reward) * way + float(params.step_reward),
        "over": position <= 0,
    }


@pytest.mark.parametrize("number", [2, 20])
def test_every_step_is_the_references(number: int) -> None:
    env, params = LineOfAgents(number), LineParams()
    step_env, rng = jax.jit(env.step), np.random.default_rng(number)
    seen: set[Any] = set()
    for episode in range(6):
        state, start = env.reset(jax.random.key(episode), params)
        assert 0.75 * (number - 1) <= float(state.position) <= number - 1
        assert start.obs["piston"].shape == (number, 6)
        places = np.arange(number)
        for _ in range(60):
            actions = rng.integers(0, 3, number)
            if episode >= 2:  # up to the right of the ball, or to its left
                right = places > float(state.position)
                actions = np.where(right == (episode % 2 == 0), 2, 0)
            wanted = move(jax.device_get(state), actions, params)
            inputs = {"piston": jnp.asarray(actions, jnp.int32)}
            state, step = step_env(jax.random.key(0), state, inputs, params)
            np.testing.assert_allclose(state.heights, wanted["heights"], atol=1e-6)
            np.testing.assert_allclose(state.position, wanted["position"], atol=1e-5)
            np.testing.assert_allclose(state.speed, wanted["speed"], atol=1e-6)
            np.testing.assert_allclose(step.obs["piston"], wanted["obs"], atol=1e-5)
            np.testing.assert_allclose(step.reward["piston"], wanted["reward"], atol=1e-4)
            assert bool(step.terminated["__all__"]) == wanted["over"]
            assert not step.truncated["__all__"]
            whole = env.global_state(state, params)
            assert env.state_space(params).contains(np.asarray(whole))
            seen.add((wanted["over"], wanted["position"] == number - 1))
            if wanted["over"]:
                break
    assert seen == {(False, False), (True, False), (False, True)}


def test_an_episode_is_cut_and_does_not_terminate_at_the_limit() -> None:
    made = make_multi("LineOfAgents-v0", {"num_agents": 4})
    state, _ = made.env.reset(jax.random.key(0), made.params)
    state = replace(state, inner=replace(state.inner, heights=jnp.ones((4,))))
    still = {"piston": jnp.ones((4,), jnp.int32)}
    step_env = jax.jit(made.env.step)
    for count in range(125):
        state, step = step_env(jax.random.key(0), state, still, made.params)
        assert bool(step.truncated["__all__"]) == (count == 124)
        assert not step.terminated["__all__"]


def count_equations(jaxpr: Any) -> int:
    """Number of equations, those inside of others included."""
    total = 0
    for equation in jaxpr.eqns:
        total += 1
        for value in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")
        ):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                total += count_equations(inner)
    return total


def count_in_vector(env: Any, number: int) -> int:
    vector, params = MultiVectorEnv(env), env.default_params
    key = jax.random.key(0)
    state = jax.eval_shape(vector.reset, key, jnp.arange(3), params)
    inputs = jax.eval_shape(lambda s: vector.make_step_inputs(s, 1, params), state)
    inputs = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), inputs)
    actions = {"piston": jax.ShapeDtypeStruct((3, number), jnp.int32)}
    return count_equations(jax.make_jaxpr(vector.step)(state, actions, inputs, params).jaxpr)


def test_programs_do_not_grow_with_the_agents() -> None:
    counts = {number: count_in_vector(LineOfAgents(number), number) for number in (5, 40)}
    assert counts[5] == counts[40] > 100


@pytest.mark.parametrize("number", [1, 2.0, True])
def test_wrong_numbers_are_refused(number: Any) -> None:
    with pytest.raises(EnvError, match=f"num_agents={number} must be an integer of at least 2"):
        make_multi("LineOfAgents-v0", {"num_agents": number})


def test_pictures_show_heights_and_the_ball() -> None:
    env = LineOfAgents(5)
    state, _ = env.reset(jax.random.key(0), LineParams())
    state = replace(state, heights=jnp.array([0.0, 1, 0, 0, 0]), position=jnp.float32(3.0))
    picture = env.render(state, LineParams())
    assert (picture.shape, picture.dtype) == ((96, 120, 3), np.uint8)
    is_bar = (picture == (110, 120, 140)).all(axis=-1)
    assert is_bar[:, 12].sum() == 12
    assert is_bar[:, 36].sum() == 36
    red = np.argwhere((picture == (220, 50, 40)).all(axis=-1)).mean(axis=0)
    np.testing.assert_allclose(red, [96 - 12 - 9.6 - 0.5, 83.5], atol=0.6)
