"""Central critics' view of the copies of an environment on the host."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxrl.core.types import CentralObs, PyTree
from jaxrl.envs.multi.checked import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_vector import CopyStep
from jaxrl.modules.rl_module import make_zeros
from jaxrl.runners.host_policy import get_cpu_device
from jaxrl.runtime.program import Program
from jaxrl.training.agent_rows import AgentRows, AgentView, CriticInputs, Scene

CriticRows = dict[str, Float[np.ndarray, "R n"]]
"""Input of the critic of each row, by module."""


class CriticScenes:
    """Moments of all copies, of which the compiled program's function makes critics' inputs.

    There are two moments of a copy, which differ where an episode ends: that after the latest step,
    before any reset, and that at which agents act next. An agent that has no observation at a
    moment, because it is not its turn, has its latest one there.

    Args:
        critics: Inputs of each module's critic.
        rows: Agents in the rows of modules.
        num_envs: Number of copies B.
        jit: Whether to compile; False runs operation by operation.
    """

    def __init__(
        self, critics: Mapping[str, CriticInputs], rows: AgentRows, num_envs: int, *, jit: bool
    ) -> None:
        self._critics, self._rows, self._num_envs = dict(critics), rows, num_envs
        first = next(iter(self._critics.values()))
        self._device = get_cpu_device()
        self._obs = {a: _make_zeros(first.observed[a], 2 * num_envs) for a in rows.agents}
        self._is_there = np.zeros((2 * num_envs, len(rows.agents)), np.bool_)
        self._state: PyTree = None
        if first.reads_state:
            assert first.state_space is not None
            self._state = _make_zeros(first.state_space, 2 * num_envs)
        self._position = {agent: i for i, agent in enumerate(rows.agents)}
        self.program = Program("host_critic_inputs", self._compute, low_latency=True, enabled=jit)

    @staticmethod
    def make_if(
        views: Mapping[str, AgentView], rows: AgentRows, num_envs: int, *, jit: bool
    ) -> "CriticScenes | None":
        """Return the moments of copies, None if no module has a central critic."""
        critics = {m: view.critic for m, view in views.items() if view.critic is not None}
        return CriticScenes(critics, rows, num_envs, jit=jit) if critics else None

    def make_blank(self) -> CriticRows:
        """Return all-zero inputs."""
        return {
            m: np.zeros(
                (self._num_envs * len(self._rows.get_positions(m)), *critic.space.shape), np.float32
            )
            for m, critic in self._critics.items()
        }

    def watch(self, steps: Sequence[CopyStep]) -> tuple[CriticRows, CriticRows]:
        """Add what happened in the copies.

        Returns:
            Inputs of the critics after the step, and those at which agents act next.
        """
        for env, copy in enumerate(steps):
            if copy.step is not None:
                self._add_step(env, copy.step)
            if copy.start is not None:
                self._add_start(self._num_envs + env, copy.start)
        arguments = self._obs, self._is_there, self._state
        found = jax.device_get(self.program(*jax.device_put(arguments, self._device)))
        after: CriticRows = {m: rows[: len(rows) // 2] for m, rows in found.items()}
        return after, {m: rows[len(rows) // 2 :] for m, rows in found.items()}

    def _compute(self, obs: PyTree, is_there: Bool[Array, "B A"], state: PyTree) -> PyTree:
        flags = {agent: is_there[:, i] for agent, i in self._position.items()}
        scene = Scene(obs=obs, is_there=flags, global_state=state)
        return {m: critic(scene) for m, critic in self._critics.items()}

    def _add_start(self, row: int, start: HostMultiStart) -> None:
        self._is_there[row] = False
        for agent, obs in start.obs.items():
            self._is_there[row, self._position[agent]] = True
            _write(self._obs[agent], row, obs)
        _write(self._state, row, start.global_state)

    def _add_step(self, env: int, step: HostMultiStep) -> None:
        """Add a step, by the rules of `Scene.after`."""
        before = self._num_envs + env
        died, left = step.terminated, step.truncated
        stays = [agent for agent in step.present if not (died[agent] or left[agent])]
        acts = [agent for agent, flag in step.acts.items() if flag]
        goes_on = list(dict.fromkeys((*stays, *acts)))
        there = goes_on or [agent for agent in step.present if not died[agent]]
        for agent, obs in step.obs.items():
            _write(self._obs[agent], before, obs)
        for tree in self._obs.values():
            jax.tree.map(lambda leaf: _copy_row(leaf, before, env), tree)
        for row, agents in ((env, there), (before, goes_on)):
            self._is_there[row] = False
            self._is_there[row, [self._position[agent] for agent in agents]] = True
            _write(self._state, row, step.global_state)

    def get_state(self) -> PyTree:
        """Return the moments at which agents act next, as arrays `[B, ...]`."""
        tree = self._obs, self._is_there, self._state
        return jax.tree.map(lambda leaf: leaf[self._num_envs :].copy(), tree)

    def set_state(self, state: PyTree) -> None:
        """Restore what `get_state` returned."""

        def fill(to: np.ndarray, saved: np.ndarray) -> None:
            to[self._num_envs :] = np.asarray(saved)

        jax.tree.map(fill, (self._obs, self._is_there, self._state), state)


def with_central(unflatten: Callable[[Sequence[Any]], PyTree]) -> Callable[[Sequence[Any]], PyTree]:
    """Return a function of leaves, the last of which is what a central critic sees."""

    def build(leaves: Sequence[Any]) -> CentralObs:
        return CentralObs(obs=unflatten(leaves[:-1]), state=leaves[-1])

    return build


def _make_zeros(space: gymnasium.Space[Any], rows: int) -> PyTree:
    shapes = jax.eval_shape(lambda: make_zeros(space, (rows,)))
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)


def _write(tree: PyTree, row: int, value: PyTree) -> None:
    """Write a value into a row of a tree, which may have no leaves."""
    for to, leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(value), strict=tree is not None):
        to[row] = leaf


def _copy_row(leaf: np.ndarray, source: int, to: int) -> None:
    leaf[to] = leaf[source]
