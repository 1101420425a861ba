"""JAX environments stepped by the host: the transitions of the compiled loop."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.envs import MadeEnv, make
from jaxrl.envs.faults import FaultyEnv
from jaxrl.envs.host import HostStep
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.jax_host import JaxHostVector
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import EnvError

NUM_ENVS, NUM_STEPS, SEED = 4, 40, 3


def made_env(*arguments: Any, **keywords: Any) -> MadeEnv:
    made = make(*arguments, **keywords)
    assert isinstance(made, MadeEnv)
    return made


def actions(count: int = NUM_STEPS) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, (count, NUM_ENVS)).astype(np.int32)


def in_graph(made: MadeEnv, reset_mode: Any) -> dict[str, Any]:
    """Step as the compiled loop does: first states of the run's second key, then one scan."""
    env = VectorEnv(made.env, reset_mode)

    def body(state: Any, row: Any) -> Any:
        new_state, step = env.step(state, row[0], row[1], made.params)
        return new_state, {"obs": new_state.obs, "starts": new_state.is_first, "step": step}

    @jax.jit
    def run(key: Any, action: Any) -> dict[str, Any]:
        env_key = jax.random.split(key, 3)[1]
        state = env.reset(env_key, jnp.arange(NUM_ENVS, dtype=jnp.int32), made.params)
        first = state.obs
        inputs = env.make_step_inputs(state, NUM_STEPS, made.params)
        _, rows = jax.lax.scan(body, state, (action, inputs))
        return {"first": first, **rows}

    return run(jax.random.key(SEED), actions())


def on_host(vector: Any, first: int = 0, count: int = NUM_ENVS) -> list[HostStep]:
    return [vector.step(row[first : first + count]) for row in actions()]


def vector_of(
    made: MadeEnv, first: int = 0, count: int = NUM_ENVS, **keywords: Any
) -> JaxHostVector:
    vector = make_vector(made, num_envs=count, first_index=first, seed=SEED, **keywords)
    assert isinstance(vector, JaxHostVector)
    return vector


@pytest.mark.allow_key_reuse  # resetting on demand loops over keys
@pytest.mark.parametrize("reset_mode", ["every_step", "on_demand"])
def test_the_transitions_are_those_of_the_compiled_loop(reset_mode: Any) -> None:
    made = made_env("CartPole-v1", max_episode_steps=12)
    expected = in_graph(made, reset_mode)
    vector = vector_of(made, reset_mode=reset_mode)
    np.testing.assert_array_equal(vector.reset(), expected["first"])
    ends = 0
    for t, step in enumerate(on_host(vector)):
        now = jax.tree.map(lambda x, t=t: np.asarray(x)[t], {**expected, "first": ()})
        np.testing.assert_allclose(step.obs, now["obs"], rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(step.final_obs, now["step"].final_obs, rtol=1e-6, atol=1e-7)
        np.testing.assert_array_equal(step.starts, now["starts"])
        for name in ("reward", "terminated", "truncated", "mask"):
            np.testing.assert_array_equal(getattr(step, name), getattr(now["step"], name))
        ends += step.starts.sum()
    assert ends >= NUM_ENVS


def test_given_seeds_are_of_copies() -> None:
    vector = vector_of(made_env("CartPole-v1"))
    own = vector.reset()
    given = vector.reset([5, 6, 7, 8])
    assert not np.array_equal(own, given)
    np.testing.assert_array_equal(given, vector.reset([5, 6, 7, 8]))
    assert not np.array_equal(given[1:], vector.reset([5, 1, 1, 1])[1:])
    np.testing.assert_array_equal(given[0], vector.reset([5, 1, 1, 1])[0])


@pytest.mark.parametrize(("kind", "what"), [("reward", "reward"), ("obs", "observation")])
def test_faults_are_named(kind: Any, what: str) -> None:
    made = made_env(FaultyEnv("CartPole-v1", kind), {"at_step": 5, "fraction": 1.0})
    vector = vector_of(made)
    vector.reset()
    steps = on_host(vector)
    assert all(step.faults == () and step.mask.all() for step in steps[:4])
    fifth = steps[4]
    assert [(fault.row, fault.what) for fault in fifth.faults] == [(b, what) for b in range(4)]
    assert fifth.faults[0].detail == f"{made.id}: the {what} is not finite."
    assert not fifth.mask.any()
    assert fifth.starts.all()
    assert np.isfinite(fifth.obs).all()


def test_steps_come_between_reset_and_close() -> None:
    vector = vector_of(made_env("CartPole-v1"))
    with pytest.raises(EnvError, match="CartPole-v1: call reset before step"):
        vector.step(actions()[0])
    vector.reset()
    assert vector.step(actions()[0]).infos(0) == {}
    assert vector.get_sub_environments() == [made_env("CartPole-v1").env] * vector.num_envs
    vector.close()
    with pytest.raises(EnvError, match="nothing after close"):
        vector.step(actions()[0])
