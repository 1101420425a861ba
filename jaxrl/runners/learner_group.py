"""Where the TrainState lives and learns: in this process, on its local devices."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.seeds import seed_key
from jaxrl.core.struct import replace
from jaxrl.core.types import Device
from jaxrl.runners.batches import side_by_side, to_devices
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.host_replay import HostMemory, uses_host_memory
from jaxrl.runtime.program import Program
from jaxrl.training.report import Report
from jaxrl.training.rollout import Actor
from jaxrl.training.sharding import learn_program, state_shardings
from jaxrl.training.train_state import Sampled, Summary, TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class LearnerGroup(Protocol):
    """The learners of a run: one that is this process, or processes of their own."""

    is_remote: bool

    @property
    def state(self) -> TrainState:
        """The whole state; from other processes it is fetched when it is asked for."""
        ...

    @state.setter
    def state(self, state: TrainState) -> None: ...

    @property
    def generation(self) -> int:
        """How often the state was replaced from outside, rather than by learning."""
        ...

    @property
    def programs(self) -> list[Program]:
        """What is compiled in this process."""
        ...

    def run(self, batches: int, on_phase: Callable[[str], None], *, rows_at_most: int = 1) -> Any:
        """Run train batches of a run whose environments are in the program.

        Args:
            batches: How many.
            on_phase: Told of what happens.
            rows_at_most: As many calls with the same `batches` may follow before anything else is
                asked, this one counted, so that they may be computed at once.

        Returns:
            What `report` takes.
        """
        ...

    def learn(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> Any:
        """One train batch from what runners recorded; what `report` takes."""
        ...

    def wait(self, pending: Any) -> None:
        """Wait for what `run` or `learn` began."""
        ...

    def report(self, pending: Sequence[Any]) -> Report:
        """What is to be known of all that `run` or `learn` began."""
        ...

    def weights(self, version: int) -> Weights:
        """What acting depends on now."""
        ...

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        """What a function of each learner returns."""
        ...

    def stop(self) -> None:
        """Let everything go; may be called twice."""
        ...


class LocalLearnerGroup:
    """One learner, in this process, over its local devices, fed by runners on the host.

    Args:
        config: The run's.
        assembly: Its pure functions.
        devices: The local devices that share the work.
    """

    is_remote = False

    def __init__(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> None:
        self._jit, self._devices = config.debugging_settings.jit, devices
        self._runner = assembly.runner
        self._generation = 0
        self._memory: HostMemory | None = None
        self._init, self._main, self._state = self._build(config, assembly, devices)
        self._actor = jax.jit(self._copied_actor)

    def _build(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        """Make the programs that initialise and learn, and the first state."""
        debugging, total_envs = config.debugging_settings, assembly.plan.total_envs
        whole = config.env_runners_settings.batch_mode == "truncate_episodes"
        # Whole episodes differ in length, so their fragments have several shapes.
        retraces = debugging.max_retraces if whole else None
        if uses_host_memory(assembly.runner):
            self._memory = HostMemory(
                assembly.runner, devices, max_retraces=retraces, jit=debugging.jit
            )
            main = self._memory.main
        else:
            main = learn_program(assembly.runner, devices, max_retraces=retraces, jit=debugging.jit)

        def init(key: Any) -> TrainState:
            return assembly.runner.init_learning(key, total_envs)

        key = seed_key(debugging.seed)
        shardings = state_shardings(jax.eval_shape(init, key), devices)
        first = Program("init", init, out_shardings=shardings, enabled=debugging.jit)
        state = first(key)
        if self._memory is not None:
            state = replace(state, buffer=self._memory.empty(state))
        return first, main, state

    @property
    def state(self) -> TrainState:
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._state = state
        self._generation += 1

    @property
    def generation(self) -> int:
        return self._generation

    @property
    def programs(self) -> list[Program]:
        return [self._init, *([self._main] if self._memory is None else self._memory.programs)]

    def run(self, batches: int, on_phase: Callable[[str], None], *, rows_at_most: int = 1) -> Any:
        """There is nothing to run: environments are stepped by runners on the host."""
        raise NotImplementedError("Runners on the host feed this learner: call learn().")

    def learn(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> Summary:
        if self._memory is not None:
            data = to_devices(fragments, self._devices)
            return self._learn_from(self._memory, data, on_phase)
        # One device gets the arrays with the call: placing them one by one would cost as much as it.
        alone = self._jit and len(self._devices) == 1
        data = side_by_side(fragments) if alone else to_devices(fragments, self._devices)
        self._state, summary = self._dispatch(self._state, data, on_phase=on_phase)
        return summary

    def _learn_from(
        self, memory: HostMemory, data: Sampled, on_phase: Callable[[str], None]
    ) -> Summary:
        """One train batch with the buffer in host memory."""
        if self._jit and not self._main.figures:
            on_phase("compiling")
        buffer, drawn, dealt = memory.deal(self._state, data)
        self._state, ready = replace(self._state, buffer=buffer), dealt.ready
        state, summary, errors = self._dispatch(
            replace(self._state, buffer=()), data, dealt, on_phase=on_phase
        )
        self._state = replace(state, buffer=buffer)
        self._state = replace(state, buffer=memory.renew(buffer, drawn, errors, ready))
        return summary

    def _dispatch(
        self, state: TrainState, *arguments: Any, on_phase: Callable[[str], None]
    ) -> tuple[Any, ...]:
        if self._jit and not self._main.figures:
            on_phase("compiling")
        compiled = self._main.compiled_for(state, *arguments)
        on_phase("training")
        return compiled(state, *arguments)

    def wait(self, pending: Any) -> None:
        jax.block_until_ready(pending.train_batches)

    def report(self, pending: Sequence[Any]) -> Report:
        return Report.fetch(self._state, pending)

    def weights(self, version: int) -> Weights:
        return Weights(version=version, actor=self._actor(what_acts(self._state)))

    def _copied_actor(self, state: TrainState) -> Actor:
        """In memory of its own, since that of the state is given to the next."""
        return jax.tree.map(lambda leaf: jnp.array(leaf, leaf.dtype), self._runner.actor(state))

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        return [fn(self)]

    def stop(self) -> None:
        """There is nothing to let go."""


def what_acts(state: TrainState) -> TrainState:
    """The state without the parts that are large or many and that no actor is made of."""
    unread: Any = ()
    return replace(
        state, buffer=unread, ring=unread, faults=unread, guard=unread, env=unread, carry=unread
    )
