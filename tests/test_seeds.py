"""Every seed has draws of its own, wherever a run draws; those of 32 bits the usual ones."""

import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.config.sweep import make_lanes
from jaxrl.core.keys import fold_in_uint64, make_key
from jaxrl.core.seeds import check_seed, make_seed_sequence, split_seed
from jaxrl.errors import ConfigError
from tests.helpers import slow_but, small

pytestmark = pytest.mark.allow_key_reuse

SEEDS = (0, 1, 2**32 - 1, 2**32, 2**32 + 1, 2**33, 2**63, 2**64 - 1)


def test_keys_of_all_seeds_differ_and_those_of_32_bits_are_jaxs() -> None:
    keys = [jax.random.key_data(make_key(seed)) for seed in SEEDS]
    assert len({np.asarray(key).tobytes() for key in keys}) == len(SEEDS)
    for seed in SEEDS[:3]:
        want = jax.random.key_data(jax.random.key(np.uint32(seed)))
        np.testing.assert_array_equal(jax.random.key_data(make_key(seed)), want)
    words = np.stack([split_seed(seed) for seed in SEEDS])
    traced = jax.jit(jax.vmap(make_key))(words)
    np.testing.assert_array_equal(jax.random.key_data(traced), np.stack(keys))


@pytest.mark.parametrize("places", [(), (3,), (3, 0), (0, 5), (3, 2**31, 7, 1)])
def test_entropy_of_all_seeds_differs_and_that_of_32_bits_is_numpys(places: Any) -> None:
    states = [make_seed_sequence(seed, *places).generate_state(4) for seed in SEEDS]
    assert len({state.tobytes() for state in states}) == len(SEEDS)
    for seed, state in zip(SEEDS[:3], states, strict=False):
        want = np.random.SeedSequence((seed, *places)).generate_state(4)
        np.testing.assert_array_equal(state, want)


def test_a_high_word_is_not_taken_for_a_place() -> None:
    one, other = make_seed_sequence(2**32 * 7, 3), make_seed_sequence(0, 7, 3)
    assert one.generate_state(1) != other.generate_state(1)
    key = jax.random.key(3)
    assert fold_in_uint64(key, 2**32) != fold_in_uint64(key, 0)
    assert fold_in_uint64(key, 5) == jax.random.fold_in(key, 5)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, None])
def test_what_is_no_seed_is_refused_in_a_sentence(seed: Any) -> None:
    with pytest.raises(ConfigError, match=r"^seed must be .*below 2\*\*64"):
        check_seed(seed)
    if not isinstance(seed, float | bool | None):
        with pytest.raises(ConfigError, match=r"^seed must be .*below 2\*\*64"):
            small().debugging(seed=seed)
        with pytest.raises(ConfigError, match=r"^seeds must be .*below 2\*\*64"):
            small().sweep(seeds=[0, seed])
    with pytest.raises(ConfigError, match="seed must be"):
        make_lanes(small().debugging(seed=2**64 - 1).sweep(seeds=2))


def test_no_other_code_makes_keys_of_seeds() -> None:
    root = Path(__file__).parents[1]
    for path in [*root.glob("jaxrl/**/*.py"), *root.glob("envs/**/*.py")]:
        if path.name not in ("keys.py", "seeds.py"):
            found = re.search(r"random\.(key|PRNGKey)\((?!0\))|SeedSequence\(", path.read_text())
            assert found is None, (path, found)


def first_fragment(algorithm: Algorithm) -> Any:
    group: Any = algorithm.env_runner_group
    group.sync_weights(algorithm.learner_group.get_weights(0))
    return group.next_batch()[0].rollout


@pytest.mark.parametrize(
    "env", slow_but("gymnasium:CartPole-v1", of=["CartPole-v1", "gymnasium:CartPole-v1"])
)
def test_environments_on_the_host_draw_by_the_whole_seed(env: str) -> None:
    """A JAX environment's runs are those of the program, gymnasium's have starts of their own."""
    starts: list[Any] = []
    for seed in (0, 2**32, 2**32 + 1, 2**63):
        config = small("A2C", env).env_runners(placement="host").debugging(seed=seed)
        with config.env_runners(num_envs_per_env_runner=4).build() as algorithm:
            rollout = first_fragment(algorithm)
            starts.append((rollout.obs[0].tobytes(), rollout.action.tobytes()))
            params = algorithm.get_weights()
        if env == "CartPole-v1":
            config = small("A2C").env_runners(num_envs_per_env_runner=4).debugging(seed=seed)
            with config.build() as compiled:
                np.testing.assert_allclose(compiled.state.env.obs, rollout.obs[0], rtol=1e-6)
                for one, other in zip(
                    jax.tree.leaves(compiled.get_weights()), jax.tree.leaves(params), strict=True
                ):
                    np.testing.assert_array_equal(one, other)
    assert len({obs for obs, _ in starts}) == len({actions for _, actions in starts}) == 4


def test_lanes_evaluation_and_policies_draw_by_the_whole_seed() -> None:
    config = small("A2C").sweep(seeds=[0, 2**32, 2**63]).checkpointing(checkpoint_at_end=False)
    with config.build() as sweep:
        states = [run.algorithm.state for run in sweep._runs]
        runs = [run.algorithm for run in sweep._runs]
        assert len({np.asarray(s.env.obs).tobytes() for s in states}) == 3
        keys = [jax.random.key_data(run._get_evaluation_key(0)).tobytes() for run in runs]
        assert len(set(keys)) == 3
        with small("A2C").debugging(seed=2**63).build() as alone:
            np.testing.assert_allclose(alone.state.env.obs, states[2].env.obs, rtol=1e-6)
            one, other = (alone.get_policy(seed=seed) for seed in (0, 2**32))
            obs = np.zeros(4, np.float32)
            drawn = [[int(policy.act(obs)) for _ in range(64)] for policy in (one, other)]
            assert drawn[0] != drawn[1]
            with pytest.raises(ConfigError, match="seed must be"):
                alone.get_policy(seed=-1)
