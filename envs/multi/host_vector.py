"""Copies of a Python environment of several agents, in this process or in one process each.

Seeds, restarts and their reports are those of copies of environments of a single agent
(`jaxrl.envs.adapters.barrier`).
"""

import dataclasses
import multiprocessing
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn, TypeAlias

import cloudpickle
import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import (
    Restarts,
    SubEnvSpec,
    close_quietly,
    reraise_interrupts,
)
from jaxrl.envs.adapters.gym_processes import (
    RemoteTraceback,
    block_terminal_signals,
    describe_dead_processes,
    dump_for_processes,
    end_processes,
    make_start_error,
)
from jaxrl.envs.adapters.host_state import get_env_state, set_env_state
from jaxrl.envs.host import HostFault
from jaxrl.envs.multi.checked import (
    CheckedMultiAgentEnv,
    HostMultiStart,
    HostMultiStep,
    NonFiniteValueError,
)
from jaxrl.envs.multi.host_env import AgentID
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_slots import EpisodeMaker, OpenEpisode, SlottedEnv
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


class EnvCopy:
    """One copy with auto-reset, which is made at its first use and restarted if allowed.

    Args:
        spec: Recipe of the copy.
    """

    def __init__(self, spec: SubEnvSpec[MadeMultiHostEnv]) -> None:
        self._spec, self._made, self._name = spec, spec.made, spec.name
        self._row = spec.context.vector_index
        self._env: CheckedMultiAgentEnv | None = None
        self._make_episode: EpisodeMaker | None = None
        self._restarts = Restarts(spec)
        self._num_unpaid = 0
        """Rewards without an action in environments that were closed."""
        self._pending_faults: list[HostFault] = []
        """Faults of a reset, which are reported with the next step."""

    @property
    def env(self) -> CheckedMultiAgentEnv:
        """The environment, made now if it does not exist yet."""
        if self._env is None:
            self._env = self._made.make_checked(
                self._spec.context, trains=True, reads_state=self._spec.reads_state
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
        return self.env.get_own_id(agent)

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
            self._restarts.note_step()
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
        flags = self._env.get_flags(self._made.possible_agents)
        return {**state, "restarts": self._restarts.get_state(), "episode": flags}

    def set_state(self, state: PyTree) -> None:
        """Restore a state that `get_state` returned."""
        env = self.env
        assert not isinstance(env, SlottedEnv)
        env.reset(seed=0)
        self._restarts.set_state(state["restarts"])
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
        self._restarts.count_fault(str(error), error)
        fault = HostFault(row=self._row, what=error.what, detail=str(error))
        start, faults = self._reset(None)
        return start, [fault, *faults]

    def _restart(self, what: str, error: BaseException) -> tuple[Outcome, list[HostFault]]:
        """Make the copy again after an exception, and begin an episode."""

        def recreate(seed: int) -> Outcome:
            self.close()
            return self._check_agents(self.env.reset(seed))

        start, fault = self._restarts.restart(what, error, recreate, final=EnvError)
        detail = f"{fault.detail}\n{fault.trace}"
        row = HostFault(row=self._row, what="raised", detail=detail, silent=fault.silent)
        return start, [row]


class ProcessCopies:
    """Copies in one process each, which take their steps at the same time.

    Args:
        specs: Recipes of the copies.
        timeout_s: Time limit in seconds of a call, None for no limit.

    Raises:
        EnvError: If the copies cannot be pickled, or the processes do not start.
    """

    def __init__(
        self, specs: Sequence[SubEnvSpec[MadeMultiHostEnv]], timeout_s: float | None
    ) -> None:
        first = specs[0]
        self._name = f"{first.made.id} (worker_index={first.context.worker_index})"
        self._timeout_s = timeout_s
        self._has_failed = False
        packed = [dump_for_processes(first.made.id, spec) for spec in specs]
        context = multiprocessing.get_context("spawn")  # never a fork: JAX has threads by now
        self._pipes: list[Connection] = []
        self._processes: list[SpawnProcess] = []
        self._finalizer = weakref.finalize(self, end_processes, self._pipes, self._processes)
        try:
            with block_terminal_signals():
                for spec in packed:
                    own, other = context.Pipe()
                    self._pipes.append(own)
                    process = context.Process(target=_serve, args=(other, spec), daemon=True)
                    process.start()
                    self._processes.append(process)
                    other.close()
            for pipe in self._pipes:
                pipe.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError, RuntimeError) as error:
            self.close()
            raise make_start_error(first.made.id) from error
        except BaseException:
            self.close()
            raise

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of copies at the same time; see `LocalCopies`.

        Raises:
            EnvError: If a copy raises it, its process has died, or it does not reply in time.
        """
        if self._has_failed and method == "get_state":
            return dict.fromkeys(arguments)
        if self._has_failed:
            raise EnvError(
                f"{self._name}: an earlier call of its processes failed or was interrupted; build the "
                "run again."
            )
        try:
            for row, own in arguments.items():
                self._pipes[row].send((method, own))
            deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
            replies = {row: self._receive(row, deadline) for row in arguments}
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._has_failed = True
            raise EnvError(
                f"{self._name}: {describe_dead_processes(self._processes)}; check its output, or use "
                "gym_env_vectorize_mode='sync'."
            ) from error
        except BaseException:
            self._has_failed = True  # replies of other copies may be left in their pipes
            raise
        failures = [value for is_error, value in replies.values() if is_error]
        if failures:
            self._raise(*failures[0])
        return {row: value for row, (_, value) in replies.items()}

    def advance(
        self,
        actions: Mapping[int, Mapping[str, PyTree]],
        on_steps: Callable[[Mapping[int, CopyStep]], None],
    ) -> dict[int, CopyStep]:
        """Take steps and begin episodes in one message each; `on_steps` is called afterwards."""
        steps = self.call("advance", {row: (own,) for row, own in actions.items()})
        on_steps(steps)
        return steps

    def _receive(self, row: int, deadline: float | None) -> tuple[bool, Any]:
        pipe = self._pipes[row]
        if deadline is not None and not pipe.poll(max(0.0, deadline - time.monotonic())):
            raise EnvError(
                f"{self._name}: the process of a copy (vector_index={row}) has not responded within "
                f"sample_timeout_s={self._timeout_s:g} seconds, so its environment hangs; increase "
                "sample_timeout_s if it is only slow."
            )
        return pipe.recv()

    def _raise(self, message: str, trace: str) -> NoReturn:
        self._has_failed = True
        raise EnvError(message) from (RemoteTraceback(trace) if trace else None)

    def get_sub_environments(self) -> list[Any]:
        """Return an empty list, because the environments are in other processes."""
        return []

    def close(self) -> None:
        """Close all copies and end their processes, by force if they do not respond."""
        self._finalizer()


def _serve(pipe: Connection, packed: bytes) -> None:
    """Answer calls of a copy until its pipe is closed, in the copy's own process."""
    copy = EnvCopy(cloudpickle.loads(packed))
    pipe.send(None)
    try:
        while True:
            method, arguments = pipe.recv()
            if method == "close":
                return
            _reply(pipe, method, *_call(copy, method, arguments))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the process that trains has ended
    finally:
        copy.close()


def _call(copy: EnvCopy, method: str, arguments: tuple[Any, ...]) -> tuple[bool, Any]:
    """Return whether a call raised, and its result, or the message and the cause's traceback."""
    try:
        return False, getattr(copy, method)(*arguments)
    except EnvError as error:
        cause = error.__cause__
        trace = "" if cause is None else "".join(traceback.format_exception(cause))
        return True, (str(error), trace)


def _reply(pipe: Connection, method: str, is_error: bool, value: object) -> None:
    try:
        pipe.send((is_error, value))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:  # noqa: BLE001  (what an environment returns may raise anything)
        message = (
            f"What an environment returned from {method} cannot be sent from its process, because it "
            f"cannot be pickled ({summarize_exception(error)}): return plain values in infos, or use "
            "gym_env_vectorize_mode='sync'."
        )
        pipe.send((True, (message, "")))


OnSteps: TypeAlias = Callable[[Mapping[int, CopyStep]], None]
"""Function of the steps of copies by row."""


class LocalCopies:
    """Copies in this process, which are called one after another."""

    def __init__(self, specs: Sequence[SubEnvSpec[MadeMultiHostEnv]]) -> None:
        self._copies = [EnvCopy(spec) for spec in specs]

    def call(self, method: str, arguments: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call a method of copies, given their arguments by row; return the results by row."""
        return {row: getattr(self._copies[row], method)(*own) for row, own in arguments.items()}

    def advance(
        self, actions: Mapping[int, Mapping[str, PyTree]], on_steps: OnSteps
    ) -> dict[int, CopyStep]:
        """Take a step of copies, given their agents' actions by row, and begin their next episodes.

        `on_steps` is called in between.
        """
        steps: dict[int, CopyStep] = self.call("step", {row: (x,) for row, x in actions.items()})
        on_steps(steps)
        return self.call("begin_next", {row: (step,) for row, step in steps.items()})

    def get_sub_environments(self) -> list[Any]:
        """Return the environments."""
        return [copy.env.env for copy in self._copies]

    def close(self) -> None:
        """Close all copies; may be called twice."""
        for copy in self._copies:
            copy.close()


class MultiHostVector:
    """`B` copies of an environment of several agents, each with auto-reset.

    Args:
        specs: Recipes of the copies.
        copies: The copies.
    """

    def __init__(
        self,
        specs: Sequence[SubEnvSpec[MadeMultiHostEnv]],
        copies: "LocalCopies | ProcessCopies",
    ) -> None:
        self.num_envs, self.can_pause = len(specs), True
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
        self, actions: Sequence[Mapping[str, PyTree]], on_steps: OnSteps | None = None
    ) -> list[CopyStep]:
        """Step every copy that is not paused, and begin the episodes that follow those that ended.

        Args:
            actions: Actions of the agents that act, of every copy.
            on_steps: Function that is called in between with the steps by row; copies in other
                processes have begun their episodes by then.
        """
        going = {row: actions[row] for row in range(self.num_envs) if not self._paused[row]}
        steps = self._copies.advance(going, on_steps or (lambda steps: None))
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
