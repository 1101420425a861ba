"""The learner of a run whose environments are in the compiled program: the program is the run."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.seeds import seed_key
from jaxrl.core.types import Device
from jaxrl.envs.registry import MadeEnv
from jaxrl.runners.ahead import MAX_COPY_BYTES, Pace, Window
from jaxrl.runners.learner_group import LocalLearnerGroup
from jaxrl.runtime.program import Program
from jaxrl.training.in_graph import MAX_ROWS
from jaxrl.training.report import Report
from jaxrl.training.sharding import Compiled, compile_runner
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


class InGraphLearnerGroup(LocalLearnerGroup):
    """One learner, in this process, whose program steps the environments as well.

    Several iterations may be computed in one dispatch, see `runners.ahead`; `state` is always that
    of the latest one that was given out.
    """

    def _build(
        self, config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
    ) -> tuple[Program, Program, TrainState]:
        debugging, made = config.debugging_settings, assembly.made
        assert isinstance(made, MadeEnv)
        key = seed_key(debugging.seed)
        first, kept = assembly.in_graph_runner.first_state, assembly.kept

        def traced() -> TrainState:
            return jax.eval_shape(first, key, made.params)

        shapes = traced() if kept is None else kept.remembered("first_state", traced)
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
        self._keeps_before = debugging.jit and size <= MAX_COPY_BYTES
        self.compiled: Compiled = compile_runner(
            assembly.in_graph_runner,
            shapes,
            devices,
            max_retraces=debugging.max_retraces,
            jit=debugging.jit,
            keeps_before=self._keeps_before,
            kept=kept,
        )
        self._pace = Pace(MAX_ROWS)
        self._window: Window | None = None
        self._following: tuple[int, Future[Window]] | None = None
        self._not_given_out: Window | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jaxrl-ahead")
        self._compiling: threading.Thread | None = None
        if assembly.trains_at_once and debugging.jit:
            self._begin_to_compile(shapes)
        state = self.compiled.init(key, made.params)
        return self.compiled.init, self.compiled.run, state

    @property
    def state(self) -> TrainState:
        self._settle()
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._settle()
        self._state = state
        self._generation += 1

    def run(
        self, batches: int, on_phase: Callable[[str], None], *, rows_at_most: int = 1
    ) -> Report:
        window = self._window
        if window is None or not window.has(batches):
            if window is not None and window.taken < window.number:
                self._settle()
            window = self._next_window(batches, on_phase, rows_at_most)
            self._begin_following(window, rows_at_most - window.number)
        window.taken += 1
        self._pace.took(is_last=window.taken == window.number)
        return Report.of_row(window.rows, window.taken - 1, window.seconds, window.waited)

    def _next_window(
        self, batches: int, on_phase: Callable[[str], None], rows_at_most: int
    ) -> Window:
        """The window that runs already, else another one."""
        started = time.perf_counter()
        if self._following is not None and self._following[0] == batches:
            window = self._following[1].result()
        else:
            self._end_following()
            number = self._pace.rows(rows_at_most) if self._keeps_before else 1
            window = self._dispatched(number, batches, on_phase)
        self._window, self._state = window, window.state
        self._following = self._not_given_out = None
        window.waited = (time.perf_counter() - started) / window.number
        if window.updates > 0:  # the steps before learning starts tell nothing of those after
            self._pace.ran(window.seconds)
        return window

    def _dispatched(
        self, number: int, batches: int, on_phase: Callable[[str], None] | None = None
    ) -> Window:
        """Run so many rows from the state."""
        numbers = np.int32(number), np.int32(batches)
        on_phase = on_phase or _nobody
        if self._jit and not self._main.figures:
            on_phase("compiling")
        self._wait_for_compiling()
        program = self._main.compiled_for(self._state, *numbers)
        on_phase("training")
        started = time.perf_counter()
        state, rows, *before = program(self._state, *numbers)
        # The old state is given away: this has the one to return to if anything goes wrong now.
        window = self._not_given_out = Window(
            state=state,
            rows=rows,
            number=number,
            batches=batches,
            before=before[0] if before else None,
            seconds=0.0,
        )
        window.rows = jax.device_get(rows)
        window.seconds = (time.perf_counter() - started) / number
        return window

    def _begin_following(self, window: Window, at_most: int) -> None:
        """Run the next window in a thread, while the rows of this one are given out."""
        if not self._keeps_before:
            return
        number = self._pace.rows_after(window.number, at_most)
        if number > 0:
            run = partial(self._dispatched, number, window.batches)
            self._following = window.batches, self._thread.submit(run)

    def _end_following(self) -> bool:
        """Undo what was dispatched and not given out; whether the state before it is lost."""
        failed = self._following is not None and self._following[1].exception() is not None
        window, self._following, self._not_given_out = self._not_given_out, None, None
        if window is not None:
            self._state = window.state if window.before is None else window.before
        return failed and window is None

    def _settle(self) -> None:
        """Bring the state to where the latest row that was given out says it is."""
        had_following = self._following is not None
        is_lost = self._end_following()
        window, self._window = self._window, None
        if window is None:
            return
        in_vain = window.taken < window.number
        self._pace.looked(in_vain=in_vain or had_following)
        if not (in_vain or is_lost) or window.before is None:
            return
        self._state = window.before
        if window.taken:
            numbers = np.int32(window.taken), np.int32(window.batches)
            self._state = self._main.compiled_for(self._state, *numbers)(self._state, *numbers)[0]

    def _begin_to_compile(self, shapes: TrainState) -> None:
        """Compile the train program in a thread, beside the one that makes the first state."""

        def placed(leaf: Any, sharding: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(
                leaf.shape, leaf.dtype, sharding=sharding, weak_type=leaf.weak_type
            )

        state = jax.tree.map(placed, shapes, self.compiled.shardings)

        def compile_quietly() -> None:
            with contextlib.suppress(Exception):  # told by the first dispatch, which tries again
                self.compiled.run.compiled_for(state, np.int32(1), np.int32(1))

        self._compiling = threading.Thread(target=compile_quietly, name="jaxrl-compile")
        self._compiling.start()

    def _wait_for_compiling(self) -> None:
        thread, self._compiling = self._compiling, None
        if thread is not None:
            thread.join()

    def stop(self) -> None:
        self._wait_for_compiling()
        self._thread.shutdown()

    def compile(self) -> None:
        """Compile the program, without running it."""
        self._wait_for_compiling()
        if self._jit:
            self._main.compiled_for(self._state, np.int32(1), np.int32(1))

    def wait(self, pending: Any) -> None:
        """It has been waited for."""
        del pending

    def report(self, pending: Sequence[Any]) -> Report:
        return Report.joined(pending)

    def weights(self, version: int) -> Any:
        self._settle()
        return super().weights(version)


def _nobody(phase: str) -> None:
    """Tell nobody of a phase."""
    del phase
