"""Copies of a Python environment of several agents, stepped in this process with auto-reset.

Seeds, restarts of single copies after a fault and what is reported of them are those of copies of
environments of a single agent (`jaxrl.envs.adapters.barrier`).
"""

import contextlib
import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import (
    FIRST_PAUSE_S,
    MAX_ATTEMPTS,
    MAX_CONSECUTIVE_RESTARTS,
    StepFailedRecreateEnvError,
    close_quietly,
    derive_seed,
    reraise_interrupts,
)
from jaxrl.envs.adapters.host_state import get_env_state, set_env_state
from jaxrl.envs.adapters.precheck import ValidateEnv
from jaxrl.envs.adapters.precheck_multi import precheck_multi_env
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import HostFault
from jaxrl.envs.multi.checked import NonFiniteValueError
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_made import AnyCheckedEnv, MadeMultiHostEnv
from jaxrl.envs.multi.host_slots import EpisodeMaker, OpenEpisode, SlottedEnv
from jaxrl.envs.multi.host_steps import HostMultiStart, HostMultiStep
from jaxrl.errors import EnvError, summarize_exception

Outcome: TypeAlias = HostMultiStart | HostMultiStep
_CHECK_ATTEMPTS = 3
"""Number of checks of an environment that may raise at times."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyStep:
    """Step of one copy, and the reset that followed it.

    Attributes:
        step: The step; None where it was no transition, because the copy raised, returned something
            that is not finite, or is paused.
        start: First observations of the next episode; None where the episode goes on.
        faults: Restarts, and what was not finite.
    """

    step: HostMultiStep | None = None
    start: HostMultiStart | None = None
    faults: tuple[HostFault, ...] = ()


class MultiHostVector:
    """`B` copies of an environment of several agents, each with auto-reset.

    Args:
        made: The environment.
        num_envs: Number of copies.
        first_index: Index of the first copy among all copies of the run; seeds derive from these
            indices, so that data do not depend on how copies are distributed over runners.
        context: Context that each copy's own derives from.
        seed: Seed of the run.
        restart_failed: Whether to restart a copy that raises, instead of raising.
        reads_state: Whether steps have the global state, which central critics see.
    """

    def __init__(
        self,
        made: MadeMultiHostEnv,
        *,
        num_envs: int,
        first_index: int,
        context: EnvContext,
        seed: int,
        restart_failed: bool,
        reads_state: bool = False,
    ) -> None:
        self.num_envs, self._made = num_envs, made
        self._pending_faults: list[list[HostFault]] = [[] for _ in range(num_envs)]
        self._paused = np.zeros(num_envs, np.bool_)
        self._copies = [
            _Copy(
                made,
                row=row,
                context=context.copy_with_overrides(vector_index=row),
                seed=seed,
                index=first_index + row,
                restart_failed=restart_failed,
                reads_state=reads_state,
            )
            for row in range(num_envs)
        ]

    def reset(self, seeds: Sequence[int] | None = None) -> list[HostMultiStart]:
        """Start new episodes in all copies, each with a seed of its own.

        Args:
            seeds: Seeds of the copies; None for those that they were made with.
        """
        starts: list[HostMultiStart] = []
        for row, copy in enumerate(self._copies):
            start, faults = copy.reset(copy.first_seed if seeds is None else seeds[row])
            self._pending_faults[row] = faults
            starts.append(start)
        return starts

    def step(self, actions: Sequence[Mapping[str, PyTree]]) -> list[CopyStep]:
        """Step every copy that is not paused with the actions of its agents that act."""
        return [
            CopyStep() if self._paused[row] else self._step_copy(row, copy, actions[row])
            for row, copy in enumerate(self._copies)
        ]

    def _step_copy(self, row: int, copy: "_Copy", actions: Mapping[str, PyTree]) -> CopyStep:
        faults, self._pending_faults[row] = self._pending_faults[row], []
        outcome, found = copy.step(actions)
        faults = [*faults, *found]
        if isinstance(outcome, HostMultiStart):
            return CopyStep(start=outcome, faults=tuple(faults))
        if not outcome.is_over:
            return CopyStep(step=outcome, faults=tuple(faults))
        start, found = copy.reset(None)
        return CopyStep(step=outcome, start=start, faults=(*faults, *found))

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        """Pause the marked copies, and resume the others, until the next call."""
        self._paused = np.array(paused, np.bool_)

    def get_state(self) -> PyTree | None:
        """Return the state of all copies as arrays with a leading axis B, None if unavailable.

        It is available if the environment has both `get_state()` and `set_state(state)`.
        """
        states = [copy.get_state() for copy in self._copies]
        if any(state is None for state in states):
            return None
        return jax.tree.map(lambda *rows: np.stack(rows), *states)

    def set_state(self, state: PyTree) -> None:
        """Restore a state that `get_state` returned."""
        for row, copy in enumerate(self._copies):
            copy.set_state(jax.tree.map(lambda x, row=row: np.asarray(x)[row], state))
        self._pending_faults = [[] for _ in self._copies]

    def get_own_id(self, row: int, agent: str) -> AgentID:
        """Return the environment's own id of an agent, which may be an int."""
        return self._copies[row].env.agents.get_own_id(agent)

    @property
    def has_slots(self) -> bool:
        """Return whether agents are those of slots, which know their episodes."""
        return self._made.slots is not None

    def set_episode_maker(self, make_episode: EpisodeMaker) -> None:
        """Set the function that makes the episodes of copies with slots."""
        for copy in self._copies:
            copy.make_episode = make_episode

    def get_episode(self, row: int) -> OpenEpisode:
        """Return the ongoing episode of a copy with slots, which knows the modules of its agents."""
        env = self._copies[row].env
        assert isinstance(env, SlottedEnv)
        return env.episode

    def set_episode(self, row: int, episode: OpenEpisode) -> None:
        """Replace it by its next chunk."""
        env = self._copies[row].env
        assert isinstance(env, SlottedEnv)
        env.episode = episode

    def take_rewards_without_action(self) -> int:
        """Return the number of rewards, since the last call, of agents that were not present."""
        return sum(copy.take_rewards_without_action() for copy in self._copies)

    def get_sub_environments(self) -> list[Any]:
        """Return the environments, for callbacks."""
        return [copy.env.env for copy in self._copies]

    def close(self) -> None:
        """Close all copies; may be called twice."""
        for copy in self._copies:
            copy.close()


class _Copy:
    """One copy, which is made at its first use and restarted if allowed."""

    def __init__(
        self,
        made: MadeMultiHostEnv,
        *,
        row: int,
        context: EnvContext,
        seed: int,
        index: int,
        restart_failed: bool,
        reads_state: bool,
    ) -> None:
        self._made, self._context, self._row = made, context, row
        self._name = (
            f"{made.id} (worker_index={context.worker_index}, vector_index={context.vector_index})"
        )
        self._seed, self._index = seed, index
        self._restart_failed, self._reads_state = restart_failed, reads_state
        self._env: AnyCheckedEnv | None = None
        self._restarts = self._num_consecutive = 0
        self.make_episode: EpisodeMaker | None = None

    @property
    def first_seed(self) -> int:
        """Seed of the first reset."""
        return derive_seed(self._seed, self._index)

    @property
    def env(self) -> AnyCheckedEnv:
        """The environment, made now if it does not exist yet."""
        if self._env is None:
            self._env = self._made.make_checked(
                self._context, trains=True, reads_state=self._reads_state
            )
            if isinstance(self._env, SlottedEnv) and self.make_episode is not None:
                self._env.make_episode = self.make_episode
        return self._env

    def reset(self, seed: int | None) -> tuple[HostMultiStart, list[HostFault]]:
        """Begin an episode; a copy that raises is restarted."""
        outcome, faults = self._call("reset", lambda: self.env.reset(seed))
        assert isinstance(outcome, HostMultiStart)
        return outcome, faults

    def step(self, actions: Mapping[str, PyTree]) -> tuple[Outcome, list[HostFault]]:
        """Take a step; a start is that of the episode after a fault."""
        outcome, faults = self._call("step", lambda: self.env.step(actions))
        if isinstance(outcome, HostMultiStep):
            self._num_consecutive = 0
        return outcome, faults

    def take_rewards_without_action(self) -> int:
        """Return the number of rewards without an action since the last call."""
        if self._env is None:
            return 0
        number, self._env.rewards_without_action = self._env.rewards_without_action, 0
        return number

    def close(self) -> None:
        """Close the environment; exceptions of its own `close` are only logged."""
        env, self._env = self._env, None
        if env is not None:
            close_quietly(self._name, env)

    def get_state(self) -> PyTree | None:
        """Return the state as arrays, None if unavailable."""
        if self._env is None or isinstance(self._env, SlottedEnv):  # whose ids are no arrays
            return None
        state = get_env_state(self._env.env)
        if state is None:
            return None
        counts = np.asarray([self._restarts, self._num_consecutive], np.int32)
        flags = self._env.get_flags(self._made.possible_agents)
        return {**state, "restarts": counts, "episode": flags}

    def set_state(self, state: PyTree) -> None:
        """Restore a state that `get_state` returned."""
        env = self.env
        assert not isinstance(env, SlottedEnv)
        env.reset(seed=0)
        self._restarts, self._num_consecutive = (int(count) for count in state["restarts"])
        set_env_state(env.env, state)
        env.set_flags(self._made.possible_agents, state["episode"])

    def _call(self, what: str, function: Callable[[], Outcome]) -> tuple[Outcome, list[HostFault]]:
        """Call the environment; return what it returned, or the start after a fault.

        Raises:
            EnvError: If it breaks the contract, or raises and may not be restarted.
        """
        try:
            return self._check_agents(function()), []
        except NonFiniteValueError as error:
            return self._reset_non_finite(error)
        except EnvError:
            raise
        except BaseException as error:  # noqa: BLE001  (a user's environment may raise anything)
            reraise_interrupts(error)
            return self._restart(what, error)

    def _check_agents(self, outcome: Outcome) -> Outcome:
        """Return the outcome if all of its agents have rows."""
        for agent in outcome.obs:
            if agent not in self._made.observation_spaces:
                raise EnvError(
                    f"{self._name}: the agent {agent!r} takes part, but possible_agents is not set "
                    f"and the first episode had {', '.join(self._made.possible_agents)}: set it to "
                    "the ids of all agents that may ever take part, or set max_agents to the number of "
                    "those that are present at once."
                )
        return outcome

    def _reset_non_finite(self, error: NonFiniteValueError) -> tuple[Outcome, list[HostFault]]:
        """Begin a new episode after something that is not finite."""
        self._count_consecutive(str(error), error)
        fault = HostFault(row=self._row, what=error.what, detail=str(error))
        start, faults = self.reset(None)
        return start, [fault, *faults]

    def _count_consecutive(self, sentence: str, error: BaseException) -> None:
        self._num_consecutive += 1
        if self._num_consecutive > MAX_CONSECUTIVE_RESTARTS:
            raise EnvError(
                f"{sentence} It was restarted {MAX_CONSECUTIVE_RESTARTS} times without a single step."
            ) from error

    def _restart(self, what: str, error: BaseException) -> tuple[Outcome, list[HostFault]]:
        """Make the copy again after an exception, and begin an episode."""
        sentence = f"{self._name}: {what} raised {summarize_exception(error)}."
        if not self._restart_failed:
            raise EnvError(sentence) from error
        self._count_consecutive(sentence, error)
        trace = "".join(traceback.format_exception(error))
        fault = HostFault(
            row=self._row,
            what="raised",
            detail=f"{sentence}\n{trace}",
            silent=isinstance(error, StepFailedRecreateEnvError),
        )
        last = error
        for attempt in range(MAX_ATTEMPTS):
            if attempt:
                time.sleep(FIRST_PAUSE_S * 2**attempt)
            try:
                self.close()
                self._restarts += 1
                start = self.env.reset(derive_seed(self._seed, self._index, self._restarts))
                return self._check_agents(start), [fault]
            except EnvError:
                raise
            except BaseException as again:  # noqa: BLE001  (reported after the last attempt)
                reraise_interrupts(again)
                last = again
        raise EnvError(
            f"{sentence} It could not be restarted in {MAX_ATTEMPTS} attempts, the last of which "
            f"raised {summarize_exception(last)}."
        ) from last


def make_multi_vector(
    made: MadeMultiHostEnv,
    *,
    num_envs: int,
    first_index: int = 0,
    worker_index: int = 0,
    num_workers: int = 0,
    seed: int = 0,
    restart_failed: bool = False,
    reads_state: bool = False,
    check: bool = True,
    validate_env: ValidateEnv | None = None,
) -> MultiHostVector:
    """Make `num_envs` copies of an environment of several agents; see `make_vector`.

    Raises:
        EnvError: If the environment fails a check, or `validate_env` rejects it.
    """
    context = EnvContext(made.env_config, worker_index=worker_index, num_workers=num_workers)
    _precheck(made, context, check=check, validate_env=validate_env, may_fail=restart_failed)
    return MultiHostVector(
        made,
        num_envs=num_envs,
        first_index=first_index,
        context=context,
        seed=seed,
        restart_failed=restart_failed,
        reads_state=reads_state,
    )


def _precheck(
    made: MadeMultiHostEnv,
    context: EnvContext,
    *,
    check: bool,
    validate_env: ValidateEnv | None,
    may_fail: bool,
) -> None:
    """Check an environment; one that is known to raise at times has several attempts."""
    for _ in range(_CHECK_ATTEMPTS - 1 if may_fail else 0):
        with contextlib.suppress(EnvError):
            precheck_multi_env(made, context, check=check, validate_env=validate_env)
            return
    precheck_multi_env(made, context, check=check, validate_env=validate_env)
