"""Where the TrainState lives and learns: in this process, on its local devices."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from jaxrl.core.types import Device
from jaxrl.envs.registry import MadeEnv
from jaxrl.runners.assemble import Assembly
from jaxrl.runners.batches import to_devices
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.program import Program
from jaxrl.runners.results import Report, to_host
from jaxrl.runners.sharding import Compiled, compile_runner, learn_program, state_shardings
from jaxrl.runners.train_state import Summary, TrainState

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

    def report(self, pending: Any) -> Report:
        """Wait for what `run` or `learn` began."""
        ...

    def weights(self, version: int) -> Weights:
        """What acting depends on now, as NumPy arrays."""
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
            self._main = learn_program(
                assembly.runner,
                devices,
                # Whole episodes differ in length, so their fragments have several shapes.
                max_retraces=debugging.max_retraces if whole else None,
                jit=debugging.jit,
            )

            def init(key: Any) -> TrainState:
                return assembly.runner.init_learning(key, total_envs)

            shardings = state_shardings(jax.eval_shape(init, key), devices)
            self._init = Program("init", init, out_shardings=shardings, enabled=debugging.jit)
            self._state = self._init(key)
        self._actor = jax.jit(assembly.runner.actor)

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
        return [self._init, self._main]

    def run(self, batches: int, on_phase: Callable[[str], None]) -> Summary:
        return self._dispatch(np.int32(batches), on_phase)

    def learn(self, fragments: Sequence[Fragment], on_phase: Callable[[str], None]) -> Summary:
        return self._dispatch(to_devices(fragments, self._devices), on_phase)

    def _dispatch(self, argument: Any, on_phase: Callable[[str], None]) -> Summary:
        if self._jit and not self._main.figures:
            on_phase("compiling")
        compiled = self._main.compiled_for(self._state, argument)
        on_phase("training")
        # The old state is given away: the new one is kept before anything else can go wrong.
        self._state, summary = compiled(self._state, argument)
        return summary

    def report(self, pending: Summary) -> Report:
        return Report.fetch(self._state, pending)

    def weights(self, version: int) -> Weights:
        return Weights(version=version, actor=to_host(self._actor(self._state)))

    def foreach_learner(self, fn: Callable[[Any], Any]) -> list[Any]:
        return [fn(self)]

    def stop(self) -> None:
        """There is nothing to let go."""
