"""One copy of a Python environment of several agents, with auto-reset and restarts after faults.

Seeds, restarts and what is reported of them are those of copies of environments of a single agent
(`jaxrl.envs.adapters.barrier`).
"""

import dataclasses
import time
import traceback
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

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
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import HostFault
from jaxrl.envs.multi.checked import NonFiniteValueError
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_made import AnyCheckedEnv, MadeMultiHostEnv
from jaxrl.envs.multi.host_slots import EpisodeMaker, SlottedEnv
from jaxrl.envs.multi.host_steps import HostMultiStart, HostMultiStep
from jaxrl.errors import EnvError, summarize_exception

Outcome: TypeAlias = HostMultiStart | HostMultiStep


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopySpec:
    """Recipe of one copy, and whether to restart it after a fault.

    Attributes:
        made: The environment.
        row: Row of the copy in its vector.
        context: Context of the copy.
        seed: Seed of the run.
        index: Index of the copy among all copies of the run, which its seeds derive from.
        restart_failed: Whether to restart a copy that raises, instead of raising.
        reads_state: Whether steps have the global state, which central critics see.
    """

    made: MadeMultiHostEnv
    row: int
    context: EnvContext
    seed: int
    index: int
    restart_failed: bool
    reads_state: bool = False

    @property
    def name(self) -> str:
        """Environment, worker and copy, for messages."""
        context = self.context
        return (
            f"{self.made.id} (worker_index={context.worker_index}, "
            f"vector_index={context.vector_index})"
        )

    @property
    def first_seed(self) -> int:
        """Seed of the first reset."""
        return derive_seed(self.seed, self.index)


class EnvCopy:
    """One copy with auto-reset, which is made at its first use and restarted if allowed.

    Args:
        spec: Recipe of the copy.
    """

    def __init__(self, spec: CopySpec) -> None:
        self._made, self._context, self._row = spec.made, spec.context, spec.row
        self._name, self._seed, self._index = spec.name, spec.seed, spec.index
        self._restart_failed, self._reads_state = spec.restart_failed, spec.reads_state
        self._env: AnyCheckedEnv | None = None
        self._make_episode: EpisodeMaker | None = None
        self._restarts = self._num_consecutive = 0
        self._num_unpaid = 0
        """Rewards without an action in environments that were closed."""
        self._pending_faults: list[HostFault] = []
        """Faults of a reset, which are reported with the next step."""

    @property
    def env(self) -> AnyCheckedEnv:
        """The environment, made now if it does not exist yet."""
        if self._env is None:
            self._env = self._made.make_checked(
                self._context, trains=True, reads_state=self._reads_state
            )
            if isinstance(self._env, SlottedEnv) and self._make_episode is not None:
                self._env.make_episode = self._make_episode
        return self._env

    def begin(self, seed: int) -> HostMultiStart:
        """Begin an episode, whose faults are reported with its first step."""
        start, self._pending_faults = self._reset(seed)
        return start

    def advance(self, actions: Mapping[str, PyTree]) -> CopyStep:
        """Take a step, and begin the next episode if the step ends one."""
        return self.begin_next(self.step(actions))

    def step(self, actions: Mapping[str, PyTree]) -> CopyStep:
        """Take a step, which begins an episode only after a fault."""
        faults, self._pending_faults = self._pending_faults, []
        outcome, found = self._step(actions)
        faults = (*faults, *found)
        if isinstance(outcome, HostMultiStart):
            return CopyStep(start=outcome, faults=faults)
        return CopyStep(step=outcome, faults=faults)

    def begin_next(self, copy: CopyStep) -> CopyStep:
        """Begin the next episode if a step of this copy ended one; return it with the start."""
        if copy.step is None or not copy.step.is_over:
            return copy
        start, found = self._reset(None)
        return dataclasses.replace(copy, start=start, faults=(*copy.faults, *found))

    def get_own_id(self, agent: str) -> AgentID:
        """Return the environment's own id of an agent, which may be an int."""
        return self.env.agents.get_own_id(agent)

    def set_episode_maker(self, make_episode: EpisodeMaker) -> None:
        """Set the function that makes episodes, before the environment is made."""
        self._make_episode = make_episode

    def get_slotted(self) -> SlottedEnv:
        """Return an environment whose agents have slots, which has its ongoing episode."""
        assert isinstance(self.env, SlottedEnv)
        return self.env

    def _reset(self, seed: int | None) -> tuple[HostMultiStart, list[HostFault]]:
        """Begin an episode; a copy that raises is restarted."""
        outcome, faults = self._call("reset", lambda: self.env.reset(seed))
        assert isinstance(outcome, HostMultiStart)
        return outcome, faults

    def _step(self, actions: Mapping[str, PyTree]) -> tuple[Outcome, list[HostFault]]:
        """Take a step; a start is that of the episode after a fault."""
        outcome, faults = self._call("step", lambda: self.env.step(actions))
        if isinstance(outcome, HostMultiStep):
            self._num_consecutive = 0
        return outcome, faults

    def take_rewards_without_action(self) -> int:
        """Return the number of rewards without an action since the last call."""
        number, self._num_unpaid = self._num_unpaid, 0
        if self._env is not None:
            number += self._env.rewards_without_action
            self._env.rewards_without_action = 0
        return number

    def close(self) -> None:
        """Close the environment; exceptions of its own `close` are only logged."""
        env, self._env = self._env, None
        if env is not None:
            self._num_unpaid += env.rewards_without_action
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
        self._pending_faults = []

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
        start, faults = self._reset(None)
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
