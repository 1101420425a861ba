"""Where the TrainState lives and learns: in this process, on its local devices."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl.core.struct import replace
from jaxrl.core.types import Device
from jaxrl.envs.registry import MadeEnv
from jaxrl.runners.assemble import Assembly
from jaxrl.runners.batches import side_by_side, to_devices
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.host_memory import HostMemory, uses_host_memory
from jaxrl.runners.program import Program
from jaxrl.runners.results import Report
from jaxrl.runners.rollout import Actor
from jaxrl.runners.sharding import Compiled, compile_runner, learn_program, state_shardings
from jaxrl.runners.train_state import Sampled, Summary, TrainState

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

    def run(self, batches: int, on_phase: Callable[[str], None]) -> Any:
        """Train batches of a run whose environments are in the program; what `report` takes."""
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
    """One learner, in this process, over its local devices.

    Args:
        config: The run's.
        assembly: Its pure functions.
        devices: The local devices that share the work.
    """

    is_remote = False

    def __init__(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> None:
        debugging = config.debugging_settings
        self._jit, self._devices = debugging.jit, devices
        self._runner = assembly.runner
        self._generation = 0
        key, made = jax.random.key(debugging.seed), assembly.made
        self.compiled: Compiled | None = None
        self._memory: HostMemory | None = None
        if assembly.in_graph:
            assert isinstance(made, MadeEnv)
            shapes = jax.eval_shape(assembly.in_graph_runner.init, key, made.params)
            self.compiled = compile_runner(
                assembly.in_graph_runner,
                shapes,
                devices,
                max_retraces=debugging.max_retraces,
                jit=debugging.jit,
            )
            self._main = self.compiled.run
            self._init = self.compiled.init
            self._state = self._init(key, made.params)
        else:
            total_envs = assembly.plan.total_envs
            whole = config.env_runners_settings.batch_mode == "truncate_episodes"
            # Whole episodes differ in length, so their fragments have several shapes.
            retraces = debugging.max_retraces if whole else None
            if uses_host_memory(assembly.runner):
                self._memory = HostMemory(
                    assembly.runner, devices, max_retraces=retraces, jit=debugging.jit
                )
                self._main = self._memory.main
            else:
                self._main = learn_program(
                    assembly.runner, devices, max_retraces=retraces, jit=debugging.jit
                )

            def init(key: Any) -> TrainState:
                return assembly.runner.init_learning(key, total_envs)

            shardings = state_shardings(jax.eval_shape(init, key), devices)
            self._init = Program("init", init, out_shardings=shardings, enabled=debugging.jit)
            self._state = self._init(key)
            if self._memory is not None:
                self._state = replace(self._state, buffer=self._memory.empty(self._state))
        self._actor = jax.jit(self._copied_actor)

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

    def run(self, batches: int, on_phase: Callable[[str], None]) -> Summary:
        # The old state is given away: the new one is kept before anything else can go wrong.
        self._state, summary = self._dispatch(self._state, np.int32(batches), on_phase=on_phase)
        return summary

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

    def compile(self) -> None:
        """Compile the program of a run whose environments are in it, without running it."""
        if self._jit and self.compiled is not None:
            self._main.compiled_for(self._state, np.int32(1))

    def wait(self, pending: Summary) -> None:
        jax.block_until_ready(pending.train_batches)

    def report(self, pending: Sequence[Summary]) -> Report:
        return Report.fetch(self._state, pending)

    def weights(self, version: int) -> Weights:
        return Weights(version=version, actor=self._actor(_what_acts(self._state)))

    def _copied_actor(self, state: TrainState) -> Actor:
        """In memory of its own, since that of the state is given to the next."""
        return jax.tree.map(lambda leaf: jnp.array(leaf, leaf.dtype), self._runner.actor(state))

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        return [fn(self)]

    def stop(self) -> None:
        """There is nothing to let go."""


def _what_acts(state: TrainState) -> TrainState:
    """The state without the parts that are large or many and that no actor is made of."""
    unread: Any = ()
    return replace(
        state, buffer=unread, ring=unread, faults=unread, guard=unread, env=unread, carry=unread
    )
