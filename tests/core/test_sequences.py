"""Modules that remember: a sequence is what its steps are, wherever it is cut."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import RLModule, RLModuleSpec
from jaxrl.core.types import Columns, ObsSequence, ObsWithCarry, SuccessorObs
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.policy_and_critics import (
    CRITIC,
    POLICY,
    DeterministicPolicyModule,
    StochasticPolicyModule,
)
from jaxrl.modules.q_network import QModule
from tests.helpers import slow_but
from tests.recurrent import MEMORY, step_by_step

pytestmark = pytest.mark.allow_key_reuse

T, B = 12, 3
ENOUGH = ("own", "shared", "gru", "soft", "linear", "attention")
"""A module of each kind and a memory of each; the others are combinations."""
VECTOR = spaces.Box(-1.0, 1.0, (4,), np.float32)
ARM = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Counter(RLModule):
    """Written from nothing: it counts the steps of the episode, and its outputs say so."""

    def init(self, key: Any) -> Any:
        return {"w": jnp.ones(())}

    def initial_carry(self, batch_size: int) -> Any:
        return jnp.full((batch_size,), 3.0)

    def _forward_step(self, params: Any, obs: Any, carry: Any) -> Any:
        count = carry + params["w"]
        inputs = jnp.stack([count, obs.sum(axis=-1)], axis=-1)
        return {
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.VF_PREDS: count,
            Columns.STATE_OUT: count,
        }


MODULES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "own": (Counter, spaces.Discrete(2), {}),
    "separate": (ActorCriticModule, spaces.Discrete(3), MEMORY),
    "shared": (ActorCriticModule, ARM, {**MEMORY, "vf_share_layers": True}),
    "gru": (ActorCriticModule, ARM, {**MEMORY, "recurrent_layer_type": "gru"}),
    "q": (QModule, spaces.Discrete(3), {**MEMORY, "recurrent_num_layers": 2}),
    "soft": (StochasticPolicyModule, ARM, MEMORY),
    "soft discrete": (StochasticPolicyModule, spaces.Discrete(3), MEMORY),
    "deterministic": (DeterministicPolicyModule, ARM, MEMORY),
    "linear": (QModule, spaces.Discrete(3), {**MEMORY, "recurrent_layer_type": "lru"}),
    "attention": (
        ActorCriticModule,
        spaces.Discrete(3),
        {
            "fcnet_hiddens": [8],
            "use_attention": True,
            "attention_dim": 6,
            "attention_memory_inference": 5,
        },
    ),
}


def module_of(name: str) -> RLModule:
    module_class, action_space, settings = MODULES[name]
    return RLModuleSpec(
        module_class=module_class,
        observation_space=VECTOR,
        action_space=action_space,
        model_config=settings,
    ).build()


def rows_of(seed: int = 0) -> tuple[Any, Any]:
    """Observations and episode starts, `[T, B]`; one episode begins with the second chunk."""
    rng = np.random.default_rng(seed)
    is_first = rng.random((T, B)) < 0.25
    is_first[5, 0] = is_first[0, 1] = True
    return jnp.asarray(rng.normal(size=(T, B, 4)), jnp.float32), jnp.asarray(is_first)


def swap(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.swapaxes(jnp.asarray(x), 0, 1), tree)


@pytest.fixture(scope="module", params=slow_but(*ENOUGH, of=sorted(MODULES)))
def case(request: Any) -> Any:
    """A module, its parameters, rows, the carry before them, and all step by step."""
    module = module_of(request.param)
    assert module.is_stateful
    params = jax.jit(module.init)(jax.random.key(1))
    before, _ = rows_of(7)
    carry = jax.tree.map(
        lambda x: x[-1],
        step_by_step(module, params, before[:3], module.initial_carry(B), jnp.zeros((3, B), bool))[
            Columns.STATE_OUT
        ],
    )
    obs, is_first = rows_of()
    return module, params, obs, is_first, carry, step_by_step(module, params, obs, carry, is_first)


def unrolled(module: Any, params: Any, sequence: ObsSequence) -> Any:
    return jax.device_get(jax.jit(module.unroll)(params, sequence))


def assert_rows(got: Any, want: Any) -> None:
    for name in want:
        for x, y in zip(jax.tree.leaves(got[name]), jax.tree.leaves(want[name]), strict=True):
            np.testing.assert_allclose(x, y, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.representatives("gru", "attention")
def test_a_sequence_equals_its_steps_wherever_it_is_cut(case: Any) -> None:
    module, params, obs, is_first, carry, want = case
    for cuts in ((T,), (5, T)):
        parts, start, now = [], 0, carry
        for end in cuts:
            sequence = ObsSequence(
                obs=swap(obs[start:end]), carry=now, is_first=is_first[start:end].T
            )
            part = unrolled(module, params, sequence)
            now = jax.tree.map(lambda x: x[:, -1], part[Columns.STATE_OUT])
            parts.append(swap(part))
            start = end
        got = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        assert_rows(got, want)


def test_starts_that_are_off_by_one_are_seen(case: Any) -> None:
    module, params, obs, is_first, carry, want = case
    late = jnp.roll(is_first, 1, axis=0)
    sequence = ObsSequence(obs=swap(obs), carry=carry, is_first=late.T)
    got = swap(unrolled(module, params, sequence))
    name = Columns.ACTION_DIST_INPUTS
    assert np.abs(np.asarray(got[name]) - want[name]).max() > 1e-3


def test_burn_in_finds_the_state_and_gets_no_gradient(case: Any) -> None:
    module, params, obs, is_first, carry, want = case
    sequence = ObsSequence(obs=swap(obs), carry=carry, is_first=is_first.T, burn_in=5)
    tail = {name: jax.tree.map(lambda x: x[5:], leaf) for name, leaf in want.items()}
    assert_rows(swap(unrolled(module, params, sequence)), tail)

    def first(obs: Any) -> Any:
        rows = ObsSequence(obs=obs, carry=carry, is_first=is_first.T, burn_in=5)
        return jnp.sum(module.unroll(params, rows)[Columns.ACTION_DIST_INPUTS] ** 2)

    gradient = np.asarray(jax.jit(jax.grad(first))(swap(obs)))
    assert (gradient[:, :5] == 0.0).all()
    assert (gradient[:, 5:] != 0.0).any()


@pytest.mark.representatives("gru", "linear")
def test_a_successor_is_seen_with_what_is_remembered_after_its_row(case: Any) -> None:
    module, params, obs, is_first, carry, want = case
    final_obs, _ = rows_of(3)
    after = np.random.default_rng(1).integers(0, T, (B, 4))
    rows = jnp.asarray(np.asarray(final_obs)[after, np.arange(B)[:, None]])
    sequence = ObsSequence(obs=swap(obs), carry=carry, is_first=is_first.T)
    seen = SuccessorObs(obs=rows, after=jnp.asarray(after), sequence=sequence)
    got = jax.jit(module.forward_train)(params, {Columns.OBS: seen})
    name = Columns.ACTION_DIST_INPUTS
    for env in range(B):
        for i, t in enumerate(after[env]):
            then = jax.tree.map(lambda x, t=t, env=env: x[t, env][None], want[Columns.STATE_OUT])
            one = ObsWithCarry(obs=rows[env, i][None], carry=then)
            expected = module.forward_train(params, {Columns.OBS: one})[name][0]
            np.testing.assert_allclose(got[name][env, i], expected, rtol=2e-4, atol=2e-5)


def test_acting_goes_through_the_same_steps(case: Any) -> None:
    module, params, obs, is_first, _, _ = case
    carry = module.initial_carry(B)
    want = step_by_step(module, params, obs, carry, jnp.zeros_like(is_first))
    act = jax.jit(module.forward_inference)
    for t in range(3):
        out = act(params, obs[t], carry)
        carry = out[Columns.STATE_OUT]
        name = Columns.ACTION_DIST_INPUTS
        np.testing.assert_allclose(out[name], want[name][t], rtol=2e-4, atol=2e-5)
    for x, y in zip(jax.tree.leaves(carry), jax.tree.leaves(want[Columns.STATE_OUT]), strict=True):
        np.testing.assert_allclose(x, y[2], rtol=2e-4, atol=2e-5)


@pytest.mark.representatives("soft")
@pytest.mark.parametrize("name", ["soft", "soft discrete", "deterministic"])
def test_critics_remember_for_themselves(name: str) -> None:
    module: Any = module_of(name)
    params = jax.jit(module.init)(jax.random.key(1))
    obs, is_first = rows_of()
    sequence = ObsSequence(obs=swap(obs), carry=module.initial_carry(B), is_first=is_first.T)
    action = None if module.is_discrete else jnp.zeros((B, T, 2))
    q_values = jax.jit(module.compute_q_values)
    whole = q_values(params[CRITIC], sequence, action)
    assert whole.shape[:3] == (2, B, T)
    # From its first start on, a column does not depend on what was before.
    start = int(np.argmax(np.asarray(is_first[:, 0])))
    assert is_first[start, 0]
    other = sequence.obs.at[:, :start].add(1.0)
    moved = q_values(
        params[CRITIC], ObsSequence(obs=other, carry=None, is_first=is_first.T), action
    )
    np.testing.assert_allclose(whole[:, 0, start:], moved[:, 0, start:], rtol=1e-5)
    assert start == 0 or np.abs(np.asarray(whole - moved))[:, 0, start - 1].max() > 1e-4
    assert set(params[CRITIC]["critics_0"]["encoder"]) == {"features", "memory"}
    assert set(params[POLICY]["encoder"]) == {"features", "memory"}
