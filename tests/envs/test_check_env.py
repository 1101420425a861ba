"""check_env refuses environments that are broken in one way each, and says in which."""

import itertools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, PPOConfig, TimeStep
from jaxrl.core.struct import pytree, replace
from jaxrl.envs import JaxEnv
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import EnvError
from jaxrl.testing import check_env


@pytree
class WalkParams:
    width: Any


@pytree
class WalkState:
    position: Any
    num_steps: Any


class Walk(JaxEnv[Any, Any]):
    """A sound environment: a walk that starts near 0 and ends beyond `width`."""

    name = "Walk"
    max_episode_steps = 50

    @property
    def default_params(self) -> WalkParams:
        return WalkParams(width=np.asarray(3.0, np.float32))

    def observation_space(self, params: WalkParams) -> Any:
        return spaces.Dict(
            {
                "position": spaces.Box(-9.0, 9.0, (1,), np.float32),
                "parts": spaces.Tuple([spaces.Discrete(100), spaces.MultiDiscrete([100, 2])]),
            }
        )

    def action_space(self, params: WalkParams) -> Any:
        return spaces.Discrete(2)

    def observe(self, state: WalkState) -> Any:
        parts = (state.num_steps, jnp.stack([state.num_steps, jnp.zeros((), jnp.int32)]))
        return {"position": state.position[None], "parts": parts}

    def reset(self, key: Any, params: WalkParams) -> Any:
        state = WalkState(
            position=jax.random.uniform(key, (), jnp.float32, -0.1, 0.1),
            num_steps=jnp.zeros((), jnp.int32),
        )
        return state, self.observe(state)

    def step(self, key: Any, state: WalkState, action: Any, params: WalkParams) -> Any:
        noise = jax.random.uniform(key, (), jnp.float32, 0.5, 1.0)
        position = state.position + jnp.where(action == 1, noise, -noise)
        position = jnp.clip(position, -4.0, 4.0)
        state = WalkState(position=position, num_steps=state.num_steps + 1)
        return state, TimeStep(
            obs=self.observe(state),
            reward=jnp.ones((), jnp.float32),
            terminated=jnp.abs(position) > params.width,
            truncated=jnp.zeros((), bool),
            info={},
        )


def test_a_sound_environment_passes() -> None:
    check_env(Walk())


class Bare(JaxEnv[Any, None]):
    """As little as an environment can say: no parameters, no truncation, no info."""

    name = "Bare"
    max_episode_steps = 5

    def observation_space(self, params: None) -> Any:
        return spaces.Box(0.0, 9.0, (1,), np.float32)

    def action_space(self, params: None) -> Any:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: None) -> Any:
        position = jax.random.uniform(key, (1,), jnp.float32)
        return position, position

    def step(self, key: Any, state: Any, action: Any, params: None) -> Any:
        state = jnp.minimum(state + action, 9.0)
        terminated = state[0] > 3.0
        return state, TimeStep(
            obs=state, reward=jnp.where(terminated, 1.0, -0.5), terminated=terminated
        )


class Paying(Bare):
    """Rewards of another type."""

    def __init__(self, pay: Any) -> None:
        self.pay = pay

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state, step = super().step(key, state, action, params)
        return state, replace(step, reward=self.pay(step, action))


PAID = [
    Bare(),
    Paying(lambda step, action: action + 1),
    Paying(lambda step, action: step.terminated),
    Paying(lambda step, action: -1),
]


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("env", PAID)
def test_rewards_of_any_number_become_float32(env: Bare) -> None:
    """Another type after a step than after a reset would compile every program twice."""
    check_env(env, num_steps=12)
    vector, params = VectorEnv(env, "every_step"), env.default_params

    def one_step(state: Any) -> Any:
        inputs = jax.tree.map(lambda x: x[0], vector.make_step_inputs(state, 1, params))
        return vector.step(state, jnp.ones((2,), jnp.int32), inputs, params)

    first = jax.eval_shape(lambda: vector.reset(jax.random.key(0), jnp.arange(2), params))
    after, step = jax.eval_shape(one_step, first)
    assert after == first
    assert (step.reward.dtype, step.reward.weak_type) == (np.float32, False)


def test_an_environment_without_parameters_trains_and_is_restored(tmp_path: Path) -> None:
    config = PPOConfig().environment(Bare).env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=32, minibatch_size=32, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [4]}).learners(num_devices=1)
    config.debugging(loggers=[])
    with config.build() as algo:
        result = algo.train()["env_runners"]
        assert result["episode_len_max"] == 5
        assert -2.5 <= result["episode_return_min"] <= result["episode_return_max"] <= 1.0
        checkpoint = algo.save(tmp_path)
        expected = jax.tree.leaves(algo.get_weights())
    with Algorithm.from_checkpoint(checkpoint) as again:
        assert again.env_params is None
        jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(again.get_weights()), expected)


class Broken(Walk):
    """A walk of which one result is changed: `observe(obs, state)`, `after_step(state, step, params)`
    or `after_reset(state, obs)`.

    Other changes are attributes.
    """

    def __init__(self, **changes: Any) -> None:
        self.change_obs = changes.pop("observe", lambda obs, state: obs)
        self.change_reset = changes.pop("after_reset", lambda state, obs: (state, obs))
        self.change_step = changes.pop("after_step", lambda state, step, params: (state, step))
        for name, value in changes.items():
            setattr(self, name, value)

    def observe(self, state: Any) -> Any:
        return self.change_obs(super().observe(state), state)

    def reset(self, key: Any, params: Any) -> Any:
        return self.change_reset(*super().reset(key, params))

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        return self.change_step(*super().step(key, state, action, params), params)


def with_step(**fields: Any) -> Broken:
    """Return a walk whose steps have other fields, which are functions of the state and the step."""

    def change(state: Any, step: TimeStep, params: Any) -> Any:
        return state, replace(step, **{name: get(state, step) for name, get in fields.items()})

    return Broken(after_step=change)


def with_obs(**parts: Any) -> Broken:
    """Return a walk whose observations have other parts, which are functions of these and the state."""
    return Broken(
        observe=lambda obs, state: {**obs, **{k: get(obs, state) for k, get in parts.items()}}
    )


class NoSpace(Walk):
    action_space = JaxEnv.action_space


class Unhashable(Walk):
    def __eq__(self, other: object) -> bool:
        return self is other


class PythonBranch(Walk):
    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state, step = super().step(key, state, action, params)
        return (state, step) if step.terminated else (state, replace(step, info={}))


class HostRandomness(Walk):
    counter = itertools.count()

    def reset(self, key: Any, params: Any) -> Any:
        state, _ = super().reset(key, params)
        shape = jax.ShapeDtypeStruct((), np.float32)
        drawn = jax.pure_callback(
            lambda _: np.float32(0.001 * next(self.counter)),
            shape,
            state.position,
            vmap_method="sequential",
        )
        state = replace(state, position=drawn)
        return state, self.observe(state)


class BatchAware(Walk):
    """Depends on whether it is vmapped, through a callback that sees the whole batch."""

    def reset(self, key: Any, params: Any) -> Any:
        state, _ = super().reset(key, params)
        shape = jax.ShapeDtypeStruct((), np.float32)
        mean = jax.pure_callback(
            lambda x: np.broadcast_to(np.float32(x.size), x.shape),
            shape,
            state.position,
            vmap_method="expand_dims",
        )
        state = replace(state, position=0.01 * mean)
        return state, self.observe(state)


class AutoReset(Walk):
    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state, step = super().step(key, state, action, params)
        fresh, obs = self.reset(jax.random.key(0), params)

        def choose(a: Any, b: Any) -> Any:
            return jnp.where(step.terminated, a, b)

        state = jax.tree.map(choose, fresh, state)
        return state, replace(step, obs=jax.tree.map(choose, obs, step.obs))


BROKEN: list[tuple[Walk, str]] = [
    (
        Broken(observation_space=lambda params: {"position": 3}),
        "observation_space must be a gymnasium space, got {'position': 3}",
    ),
    (
        Broken(
            observation_space=lambda params: spaces.Dict(
                position=spaces.Box(-1, 1, (1,), np.float64)
            )
        ),
        "observation_space['position'] must have at most 32 bits, such as float32, got float64",
    ),
    (Broken(action_space=lambda params: spaces.Text(3)), "action_space is Text; supported are"),
    (
        NoSpace(),
        "NoSpace.action_space is missing; it must be a method: `def action_space(self, params)",
    ),
    (
        Broken(action_space=spaces.Box(-1.0, 1.0, (1,))),
        "Broken.action_space is a Box; it must be a method",
    ),
    (
        Broken(action_space=lambda params: spaces.Box(0, 3, (1,), np.int32)),
        "action_space must be float32, got int32",
    ),
    (
        Broken(observe=lambda obs, state: {"position": obs["position"]}),
        "must be a dictionary with the keys ['parts', 'position'], got ['position']",
    ),
    (
        with_obs(parts=lambda obs, state: obs["parts"][:1]),
        "reset's observation['parts'] must be a tuple of 2, got 1 of them",
    ),
    (
        with_obs(position=lambda obs, state: state.position),
        "observation['position'] must be float32 of shape (1,)",
    ),
    (
        with_obs(parts=lambda obs, state: (jnp.float32(1), obs["parts"][1])),
        "observation['parts'][0] must be int32 of shape () for Discrete(100), got float32",
    ),
    (
        with_obs(parts=lambda obs, state: (jnp.asarray(1), obs["parts"][1])),
        "observation['parts'][0] is a weakly typed int32",
    ),
    (
        with_obs(position=lambda obs, state: [state.position]),
        "observation['position'] must be one float32 array",
    ),
    (
        with_obs(position=lambda obs, state: 40.0 * obs["position"]),
        "observation['position'] must lie in [-9.0, 9.0] at index (0,)",
    ),
    (
        with_step(
            obs=lambda state, step: {
                **step.obs,
                "position": jnp.where(state.num_steps == 2, jnp.nan, step.obs["position"]),
            }
        ),
        "step's observation['position'] is NaN at index (0,)",
    ),
    (
        with_step(reward=lambda state, step: jnp.where(state.num_steps == 2, jnp.nan, step.reward)),
        "the reward is nan",
    ),
    (
        with_step(reward=lambda state, step: step.reward[None]),
        "the reward must be one number, got float32 of shape (1,)",
    ),
    (
        with_step(reward=lambda state, step: {"a": step.reward}),
        "the reward must be one number, got a dict",
    ),
    (
        with_step(terminated=lambda state, step: step.terminated.astype(jnp.float32)),
        "terminated must be a bool scalar, got float32",
    ),
    (
        with_step(truncated=lambda state, step: None),
        "truncated must be a bool scalar, got a NoneType",
    ),
    (with_step(info=lambda state, step: []), "info must be a dictionary, got a list"),
    (
        Broken(
            after_step=lambda state, step, params: (
                *(step.obs, state, step.reward, step.terminated),
                {},
            )
        ),
        "step must return (state, TimeStep), got a tuple of 5",
    ),
    (
        Broken(after_reset=lambda state, obs: (state, obs, {})),
        "reset must return (state, obs), got a tuple of 3",
    ),
    (
        Broken(after_step=lambda state, step, _: ({"state": state}, step)),
        "the state's structure differs between reset and step",
    ),
    (
        Broken(
            after_step=lambda state, step, _: (
                replace(state, num_steps=state.num_steps.astype(jnp.float32)),
                step,
            )
        ),
        "num_steps is int32[] after a reset and float32[] after a step",
    ),
    (
        Broken(after_reset=lambda state, obs: (replace(state, num_steps=0), obs)),
        "num_steps is a weakly typed int32",
    ),
    (Unhashable(), "must be hashable"),
    (PythonBranch(), "step cannot be traced by jax.jit (TracerBoolConversionError"),
    (
        Broken(
            after_step=lambda state, step, params: (
                state,
                replace(step, reward=jnp.full((), float(params.width), jnp.float32)),
            )
        ),
        "step cannot be traced by jax.jit (ConcretizationTypeError",
    ),
    (HostRandomness(), "two runs from the same keys and actions differ in first_"),
    (BatchAware(), "a vmapped environment differs from the same environment alone"),
    (AutoReset(), "the state after an end looks like a reset's"),
]


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize(("env", "sentence"), BROKEN, ids=[sentence for _, sentence in BROKEN])
def test_a_broken_environment_is_refused(env: Walk, sentence: str) -> None:
    with pytest.raises(EnvError, match=re.escape(sentence)):
        check_env(env, num_steps=12)


def test_what_cannot_be_traced_is_shown_with_the_users_line() -> None:
    with pytest.raises(
        EnvError, match=r"test_check_env.py:\d+ 'return \(state, step\) if step.term"
    ):
        check_env(PythonBranch())


def test_ends_that_are_first_states_can_be_allowed() -> None:
    check_env(AutoReset(), num_steps=12, check_auto_reset=False)


def test_an_environment_that_ignores_its_key_is_warned_about() -> None:
    class SameStart(Walk):
        def reset(self, key: Any, params: Any) -> Any:
            return super().reset(jax.random.key(0), params)

        def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            return super().step(jax.random.key(0), state, action, params)

    with pytest.warns(UserWarning, match="Walk does not depend on the key"):
        check_env(SameStart(), num_steps=4)


def test_an_environment_without_an_end_is_warned_about() -> None:
    class Endless(Walk):
        max_episode_steps = None

        @property
        def default_params(self) -> WalkParams:
            return WalkParams(width=np.asarray(100.0, np.float32))

    with pytest.warns(UserWarning, match="did not end within 4 steps and has no time limit"):
        check_env(Endless(), num_steps=4)


def test_what_is_no_environment_is_refused() -> None:
    with pytest.raises(EnvError, match="must return a JaxEnv, a MultiAgentJaxEnv or a gymnasium"):
        check_env(lambda context: 5)  # pyright: ignore


def test_what_make_returned_is_checked_with_its_params() -> None:
    from jaxrl.envs import make

    narrow = make(Walk(), {"width": np.float32(1.0)})
    check_env(narrow, num_steps=8)
    with pytest.raises(EnvError, match="wrong"):
        check_env(replace(narrow, env=Wrong()), num_steps=8)


class Wrong(Walk):
    def observation_space(self, params: Any) -> Any:
        if params.width == 1.0:
            raise EnvError("wrong")
        return super().observation_space(params)
