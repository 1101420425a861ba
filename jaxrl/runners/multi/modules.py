"""Rows and states of modules, which a runner of several agents keeps by group of equal modules."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.runners.host_policy import HostPolicy
from jaxrl.runners.multi.rows import CompletedRows
from jaxrl.runners.multi.scenes import with_central
from jaxrl.runners.multi.state import GroupState


def make_group_states(
    policy: HostPolicy, central: Mapping[str, np.ndarray], *, is_fixed: bool
) -> dict[str, GroupState]:
    """Return the rows of every group, of no agent yet.

    Args:
        policy: What acts.
        central: All-zero inputs of central critics, by module.
        is_fixed: Whether agents are always played by the same modules.
    """
    obs, outputs = policy.make_blank_obs(), policy.make_blank_outputs()
    carry = policy.carry
    return {
        g: GroupState(
            jax.tree.leaves(obs[g]),
            jax.tree.leaves(outputs[g]),
            jax.tree.leaves(carry[g]),
            tuple(jax.tree.structure(tree[g]) for tree in (obs, outputs, carry)),
            group.width,
            is_fixed=is_fixed,
            central=[group.join(central)] if g in central else [],
        )
        for g, group in policy.groups.items()
    }


def get_modules_state(
    policy: HostPolicy, states: Mapping[str, GroupState]
) -> dict[str, dict[str, PyTree]]:
    """Return rows and carries by module, as arrays `[B, agents, ...]`."""
    carries = policy.carry
    found: dict[str, dict[str, PyTree]] = {"modules": {}, "carry": {}}
    for g, group in policy.groups.items():
        carry = jax.tree.map(
            lambda x, own=group: x.reshape(own.num_envs, -1, *x.shape[1:]), carries[g]
        )
        found["modules"] |= group.split_state(states[g].get_state())
        found["carry"] |= group.split_state(carry)
    return {name: dict(sorted(own.items())) for name, own in found.items()}


def set_modules_state(
    policy: HostPolicy, states: Mapping[str, GroupState], found: Mapping[str, PyTree]
) -> None:
    """Restore what `get_modules_state` returned."""
    carry: dict[str, PyTree] = {}
    for g, group in policy.groups.items():
        states[g].set_state(group.join_state(found["modules"]))
        own = group.join_state(found["carry"])
        carry[g] = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), own)
    policy.set_carry(carry)


def build_rollouts(
    policy: HostPolicy,
    states: Mapping[str, GroupState],
    rows: Mapping[str, CompletedRows],
) -> dict[str, PyTree]:
    """Return the rollout of every module."""
    rollouts: dict[str, PyTree] = {}
    for g, group in policy.groups.items():
        obs, outputs, carry = (own.unflatten for own in states[g].structures)
        joint = rows[g].build_rollout(
            with_central(obs) if states[g].central else obs, outputs, carry
        )
        steps, start = replace(joint, carry_in=None), joint.carry_in
        for m in group.modules:
            own = group.select(steps, m, axis=1)
            rollouts[m] = replace(own, carry_in=group.select(start, m))
    return dict(sorted(rollouts.items()))


def split_steps(
    policy: HostPolicy, steps: Mapping[str, Sequence[Bool[np.ndarray, " R"]]]
) -> dict[str, Bool[np.ndarray, "T R"]]:
    """Return flags of steps by module, given those of each step by group."""
    return {
        m: group.select(np.stack(steps[g]), m, axis=1)
        for g, group in policy.groups.items()
        for m in group.modules
    }
