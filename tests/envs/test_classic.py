"""One step of each classic environment against gymnasium's, from random states and actions."""

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import TimeStep
from jaxrl.envs import MadeEnv, TimeLimit, make
from jaxrl.envs.catalog import BUILTIN_ENVS

CLASSIC = [
    name
    for name, entry in BUILTIN_ENVS.items()
    if ".classic." in entry.path and not name.startswith("Stateless")
]
NUM_STATES = 4000

# Per environment: the state's low and high, and what counts as zero in each observation (the
# float32 rounding of the terms that cancel there).
CASES: dict[str, tuple[list[float], list[float], Any]] = {
    "CartPole-v1": ([-2.5, -3, -0.25, -3], [2.5, 3, 0.25, 3], 1e-6),
    "Acrobot-v1": ([-np.pi, -np.pi, -12.5, -28], [np.pi, np.pi, 12.5, 28], 1e-6),
    "MountainCar-v0": ([-1.2, -0.07], [0.6, 0.07], [1e-6, 1e-8]),
    "MountainCarContinuous-v0": ([-1.2, -0.07], [0.6, 0.07], [1e-6, 1e-8]),
    "Pendulum-v1": ([-4 * np.pi, -8], [4 * np.pi, 8], 1e-6),
}


def distance_to_threshold(name: str, after: np.ndarray) -> np.ndarray:
    """Compute the distance of gymnasium's state after the step from where termination would flip."""
    if name == "CartPole-v1":
        margins = [np.abs(after[:, 0]) - 2.4, np.abs(after[:, 2]) - 12 * 2 * np.pi / 360]
    elif name == "Acrobot-v1":
        margins = [-np.cos(after[:, 0]) - np.cos(after[:, 0] + after[:, 1]) - 1.0]
    elif name.startswith("MountainCar"):
        margins = [after[:, 0] - (0.5 if name == "MountainCar-v0" else 0.45), after[:, 1]]
    else:
        return np.full(len(after), np.inf)
    return np.min(np.abs(np.stack(margins)), axis=0)


def random_states_and_actions(name: str, space: gymnasium.Space[Any]) -> tuple[Any, Any]:
    rng = np.random.default_rng(7)
    low, high, _ = CASES[name]
    states = rng.uniform(low, high, (NUM_STATES, len(low))).astype(np.float32)
    if name.startswith("MountainCar"):
        states[::4, 0] = rng.uniform(-1.2, -1.15, len(states[::4]))  # the wall
        states[1::4, 0] = rng.uniform(0.4, 0.55, len(states[1::4]))  # the goal
    if isinstance(space, gymnasium.spaces.Discrete):
        return states, rng.integers(space.n, size=NUM_STATES).astype(np.int32)
    assert isinstance(space, gymnasium.spaces.Box)
    actions = rng.uniform(1.5 * space.low, 1.5 * space.high, (NUM_STATES, 1))
    return states, actions.astype(np.float32)


def one_step(made: MadeEnv) -> Any:
    """A step of the environment inside the time limit: (states, actions, params) -> TimeStep."""
    assert isinstance(made.env, TimeLimit)
    env = made.env.env
    key = jax.eval_shape(lambda: jax.random.key(0))
    first, _ = jax.eval_shape(env.reset, key, made.params)

    @jax.jit
    def step(states: Any, actions: Any, params: Any) -> TimeStep:
        def one(key: Any, physics: Any, action: Any) -> TimeStep:
            state = dataclasses.replace(first, physics=physics)
            return env.step(key, state, action, params)[1]

        return jax.vmap(one)(jax.random.split(jax.random.key(0), len(states)), states, actions)

    return step


def gymnasium_steps(name: str, states: np.ndarray, actions: np.ndarray) -> dict[str, np.ndarray]:
    env = gymnasium.make(name).unwrapped
    rows: dict[str, list[Any]] = {key: [] for key in ("obs", "reward", "terminated", "state")}
    for state, action in zip(states, actions, strict=True):
        env.reset(seed=0)
        vars(env)["state"] = state
        obs, reward, terminated, truncated, _ = env.step(action)
        assert not truncated
        rows["obs"].append(obs)
        rows["reward"].append(reward)
        rows["terminated"].append(terminated)
        rows["state"].append(np.array(vars(env)["state"], np.float64))
    return {key: np.array(value) for key, value in rows.items()}


def conditioning(name: str, states: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Compute the effect of a float32 rounding of each number of the state on gymnasium's result.

    Acrobot's Runge-Kutta step is so steep at high speeds that float64 and float32 must differ.
    """
    obs = gymnasium_steps(name, states.astype(np.float64), actions)["obs"]
    change = np.zeros_like(obs)
    for index in range(states.shape[1]):
        shifted = states.astype(np.float64)
        shifted[:, index] += np.spacing(np.abs(states[:, index]))
        moved = gymnasium_steps(name, shifted, actions)["obs"]
        change = np.maximum(change, np.abs(moved - obs))
    return change


@pytest.mark.parametrize("name", CLASSIC)
def test_one_step_equals_gymnasium(name: str) -> None:
    made = make(name)
    states, actions = random_states_and_actions(name, made.env.action_space(made.params))
    expected = gymnasium_steps(name, states.astype(np.float64), actions)
    got = jax.device_get(one_step(made)(states, actions, made.params))

    clear = distance_to_threshold(name, expected["state"]) > 1e-6
    assert np.mean(clear) > 0.75
    np.testing.assert_array_equal(got.terminated[clear], expected["terminated"][clear])
    if name != "Pendulum-v1":
        assert 0.01 < np.mean(expected["terminated"]) < 0.99
    assert not np.any(got.truncated)
    error = np.abs(got.obs - expected["obs"])
    tolerance = 1e-5 * np.abs(expected["obs"]) + np.broadcast_to(CASES[name][2], error.shape)
    if name == "Acrobot-v1":
        assert np.mean(error <= tolerance) > 0.98
        tolerance = tolerance + 8 * conditioning(name, states, actions)
    assert np.all(error <= tolerance), np.max(error - tolerance, axis=0)
    np.testing.assert_allclose(
        got.reward[clear], expected["reward"][clear].astype(np.float32), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", CLASSIC)
def test_spaces_and_time_limit_are_gymnasiums(name: str) -> None:
    theirs = gymnasium.make(name)
    made = make(name)
    assert made.env.observation_space(made.params) == theirs.observation_space
    assert made.env.action_space(made.params) == theirs.action_space
    assert theirs.spec is not None
    assert made.env.max_episode_steps == theirs.spec.max_episode_steps


@pytest.mark.parametrize("name", CLASSIC)
def test_first_states_are_distributed_as_gymnasiums(name: str) -> None:
    theirs = gymnasium.make(name)
    expected = np.stack([theirs.reset(seed=seed)[0] for seed in range(1000)])
    made = make(name)
    keys = jax.random.split(jax.random.key(1), 1000)
    _, obs = jax.jit(jax.vmap(made.env.reset, in_axes=(0, None)))(keys, made.params)
    got = np.asarray(obs)
    spread = np.ptp(expected, axis=0)
    for quantile in (0.0, 0.25, 0.5, 0.75, 1.0):
        a, b = np.quantile(got, quantile, axis=0), np.quantile(expected, quantile, axis=0)
        assert np.all(np.abs(a - b) <= 0.1 * spread + 1e-7), (quantile, a, b)


@pytest.mark.parametrize("name", CLASSIC)
def test_every_parameter_reaches_the_environment(name: str) -> None:
    made = make(name)
    states, actions = random_states_and_actions(name, made.env.action_space(made.params))
    step = one_step(made)
    reset = jax.jit(jax.vmap(made.env.reset, in_axes=(0, None)))

    def everything(env_config: dict[str, float]) -> list[Any]:
        changed = make(name, env_config)
        keys = jax.random.split(jax.random.key(0), 8)
        arrays = (step(states, actions, changed.params), reset(keys, changed.params)[1])
        spaces = [changed.env.observation_space(changed.params)]
        spaces.append(changed.env.action_space(changed.params))
        return [*map(np.asarray, jax.tree.leaves(arrays)), str(spaces)]

    usual = everything({})
    for field in dataclasses.fields(made.params):
        value = float(getattr(made.params, field.name))
        other = everything({field.name: 0.6 * value + 0.013})
        same = [np.array_equal(a, b) for a, b in zip(usual, other, strict=True)]
        assert not all(same), f"{name} ignores {field.name}"


def test_cartpole_pays_after_sutton_and_barto_when_asked() -> None:
    made = make("CartPole-v1", {"sutton_barto_reward": True})
    states = np.array([[0, 0, 0, 0], [3, 0, 0, 0]], np.float32)
    step = one_step(made)(states, np.zeros(2, np.int32), made.params)
    np.testing.assert_array_equal(step.reward, [0.0, -1.0])


def brightness(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    """Rows and columns of the pixels of exactly this colour."""
    return np.argwhere(np.all(picture == np.array(colour), axis=-1))


def test_cartpole_is_drawn_where_it_stands() -> None:
    made = make("CartPole-v1")
    key = jax.random.key(0)
    first, _ = made.env.reset(key, made.params)

    def draw(x: float, theta: float) -> np.ndarray:
        inner = dataclasses.replace(first.inner, physics=np.array([x, 0, theta, 0], np.float32))
        return made.env.render(dataclasses.replace(first, inner=inner), made.params)

    picture = draw(0.0, 0.0)
    assert picture.shape == (400, 600, 3)
    assert picture.dtype == np.uint8
    cart = brightness(picture, (0, 0, 0))
    assert cart[:, 1].min() == 0  # the track
    assert abs(brightness(draw(1.2, 0.0), (202, 152, 101))[:, 1].mean() - 450) < 2
    leaning = brightness(draw(0.0, 0.3), (202, 152, 101))
    top, bottom = leaning[leaning[:, 0].argmin()], leaning[leaning[:, 0].argmax()]
    assert top[1] > bottom[1] + 20  # a positive angle leans to the right
    assert abs((bottom[0] - top[0]) - 125 * np.cos(0.3)) < 12


def test_pendulum_is_drawn_where_it_hangs() -> None:
    made = make("Pendulum-v1")
    first, _ = made.env.reset(jax.random.key(0), made.params)

    def rod(theta: float) -> np.ndarray:
        inner = dataclasses.replace(first.inner, physics=np.array([theta, 0], np.float32))
        picture = made.env.render(dataclasses.replace(first, inner=inner), made.params)
        assert picture.shape == (500, 500, 3)
        assert picture.dtype == np.uint8
        return brightness(picture, (204, 77, 77)).mean(axis=0)

    assert rod(0.0)[0] < 210
    assert rod(np.pi)[0] > 290
    assert rod(np.pi / 2)[1] < 210  # counter-clockwise


@pytest.mark.allow_key_reuse
def test_stateless_cartpole_is_cartpole_without_velocities() -> None:
    whole, partly = make("CartPole-v1"), make("StatelessCartPole-v0")
    assert partly.max_episode_steps == 500
    assert whole.max_episode_steps == 500
    key = jax.random.key(3)
    state, obs = whole.env.reset(key, whole.params)
    hidden, seen = partly.env.reset(key, partly.params)
    space = partly.env.observation_space(partly.params)
    for t in range(20):
        np.testing.assert_array_equal(seen, np.asarray(obs)[[0, 2]])
        assert space.contains(np.asarray(seen))
        state, step = whole.env.step(key, state, jnp.int32(t % 2), whole.params)
        hidden, other = partly.env.step(key, hidden, jnp.int32(t % 2), partly.params)
        assert bool(step.terminated) == bool(other.terminated)
        obs, seen = step.obs, other.obs
