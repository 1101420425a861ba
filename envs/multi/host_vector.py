"""Copies of a Python environment of several agents, in this process or in one process each."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.precheck import ValidateEnv, precheck_env
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import VectorizeMode
from jaxrl.envs.multi.host_copy import CopySpec, CopyStep, EnvCopy
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_processes import ProcessCopies
from jaxrl.envs.multi.host_slots import EpisodeMaker, OpenEpisode
from jaxrl.envs.multi.host_steps import HostMultiStart

OnSteps: TypeAlias = Callable[[Mapping[int, CopyStep]], None]
"""Function of the steps of copies by row."""


class Copies(Protocol):
    """Copies of an environment, wherever they are."""

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of copies, given their arguments by row; return the results by row."""
        ...

    def advance(
        self, actions: Mapping[int, Mapping[str, PyTree]], on_steps: OnSteps
    ) -> dict[int, CopyStep]:
        """Take a step of copies, given their agents' actions by row, and begin their next episodes.

        `on_steps` is called in between if the copies are in this process, else afterwards.
        """
        ...

    def get_sub_environments(self) -> list[Any]:
        """Return the environments that are in this process, for callbacks."""
        ...

    def close(self) -> None:
        """Close all copies; may be called twice."""
        ...


class LocalCopies:
    """Copies in this process, which are called one after another."""

    def __init__(self, specs: Sequence[CopySpec]) -> None:
        self._copies = [EnvCopy(spec) for spec in specs]

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        return {row: getattr(self._copies[row], method)(*own) for row, own in arguments.items()}

    def advance(
        self, actions: Mapping[int, Mapping[str, PyTree]], on_steps: OnSteps
    ) -> dict[int, CopyStep]:
        steps: dict[int, CopyStep] = self.call("step", {row: (x,) for row, x in actions.items()})
        on_steps(steps)
        return self.call("begin_next", {row: (step,) for row, step in steps.items()})

    def get_sub_environments(self) -> list[Any]:
        return [copy.env.env for copy in self._copies]

    def close(self) -> None:
        for copy in self._copies:
            copy.close()


class MultiHostVector:
    """`B` copies of an environment of several agents, each with auto-reset.

    Args:
        specs: Recipes of the copies.
        copies: The copies.
    """

    def __init__(self, specs: Sequence[CopySpec], copies: Copies) -> None:
        self.num_envs = len(specs)
        self.has_slots = specs[0].made.slots is not None
        """Whether agents are those of slots, which know their episodes."""
        self._first_seeds = [spec.first_seed for spec in specs]
        self._copies = copies
        self._own_ids: dict[tuple[int, str], AgentID] = {}
        self._paused = np.zeros(self.num_envs, np.bool_)

    def reset(self, seeds: Sequence[int] | None = None) -> list[HostMultiStart]:
        """Start new episodes in all copies, each with a seed of its own.

        Args:
            seeds: Seeds of the copies; None for those that they were made with.
        """
        chosen = self._first_seeds if seeds is None else seeds
        return self._call_all("begin", [(seed,) for seed in chosen])

    def step(
        self, actions: Sequence[Mapping[str, PyTree]], on_steps: OnSteps = lambda steps: None
    ) -> list[CopyStep]:
        """Step every copy that is not paused, and begin the episodes that follow those that ended.

        Args:
            actions: Actions of the agents that act, of every copy.
            on_steps: Function that is called in between with the steps by row; copies in other
                processes have begun their episodes by then.
        """
        going = {row: actions[row] for row in range(self.num_envs) if not self._paused[row]}
        steps = self._copies.advance(going, on_steps)
        return [steps.get(row, CopyStep()) for row in range(self.num_envs)]

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        """Pause the marked copies, and resume the others, until the next call."""
        self._paused = np.array(paused, np.bool_)

    def get_state(self) -> PyTree | None:
        """Return the state of all copies as arrays with a leading axis B, None if unavailable.

        It is available if the environment has both `get_state()` and `set_state(state)`.
        """
        states = self._call_all("get_state")
        if any(state is None for state in states):
            return None
        return jax.tree.map(lambda *rows: np.stack(rows), *states)

    def set_state(self, state: PyTree) -> None:
        """Restore a state that `get_state` returned."""

        def select(row: int) -> PyTree:
            return jax.tree.map(lambda x: np.asarray(x)[row], state)

        self._call_all("set_state", [(select(row),) for row in range(self.num_envs)])

    def get_own_id(self, row: int, agent: str) -> AgentID:
        """Return the environment's own id of an agent, which may be an int."""
        if self.has_slots or (row, agent) not in self._own_ids:
            found = self._copies.call("get_own_id", {row: (agent,)})
            self._own_ids[row, agent] = found[row]
        return self._own_ids[row, agent]

    def set_episode_maker(self, make_episode: EpisodeMaker) -> None:
        """Set the function that makes the episodes of copies with slots, which are in this process."""
        if self.has_slots:
            self._call_all("set_episode_maker", [(make_episode,)] * self.num_envs)

    def get_episode(self, row: int) -> OpenEpisode:
        """Return the ongoing episode of a copy with slots, which knows the modules of its agents."""
        return self._copies.call("get_slotted", {row: ()})[row].episode

    def set_episode(self, row: int, episode: OpenEpisode) -> None:
        """Replace it by its next chunk."""
        self._copies.call("get_slotted", {row: ()})[row].episode = episode

    def take_rewards_without_action(self) -> int:
        """Return the number of rewards, since the last call, of agents that were not present."""
        return sum(self._call_all("take_rewards_without_action"))

    def get_sub_environments(self) -> list[Any]:
        """Return the environments, for callbacks; empty if they are in other processes."""
        return self._copies.get_sub_environments()

    def close(self) -> None:
        """Close all copies; may be called twice."""
        self._copies.close()

    def _call_all(
        self, method: str, arguments: Sequence[tuple[Any, ...]] | None = None
    ) -> list[Any]:
        """Call a method of all copies, each with its own arguments."""
        given = [()] * self.num_envs if arguments is None else arguments
        results = self._copies.call(method, dict(enumerate(given)))
        return [results[row] for row in range(self.num_envs)]


def make_multi_vector(
    made: MadeMultiHostEnv,
    *,
    num_envs: int,
    first_index: int = 0,
    worker_index: int = 0,
    num_workers: int = 0,
    seed: int = 0,
    mode: VectorizeMode = "sync",
    restart_failed: bool = False,
    reads_state: bool = False,
    check: bool = True,
    validate_env: ValidateEnv | None = None,
    timeout_s: float | None = None,
) -> MultiHostVector:
    """Make `num_envs` copies of an environment of several agents; see `make_vector`.

    `mode` is "sync" or "async", and "sync" where agents have slots. `reads_state` is whether steps
    have the global state, which central critics see.

    Raises:
        EnvError: If the environment fails a check, or `validate_env` rejects it.
    """
    context = EnvContext(made.env_config, worker_index=worker_index, num_workers=num_workers)
    precheck_env(made, context, check=check, validate_env=validate_env, may_fail=restart_failed)
    specs = [
        CopySpec(
            made=made,
            row=row,
            context=context.copy_with_overrides(vector_index=row),
            seed=seed,
            index=first_index + row,
            restart_failed=restart_failed,
            reads_state=reads_state,
        )
        for row in range(num_envs)
    ]
    if mode == "async":
        return MultiHostVector(specs, ProcessCopies(specs, timeout_s))
    return MultiHostVector(specs, LocalCopies(specs))
