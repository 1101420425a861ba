"""Programs of the steps of a training step: each a dispatch of its own, with its own report."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxrl.core.struct import replace
from jaxrl.core.types import Device, PyTree
from jaxrl.runtime.kept_programs import ProgramCache
from jaxrl.runtime.program import Program
from jaxrl.training.columns import gather_per_env, replace_per_env, scatter_per_env
from jaxrl.training.data_flow import finish_update, receive_batch, update_learner
from jaxrl.training.in_graph import InGraphRunner
from jaxrl.training.replay_updates import PresampledBatches
from jaxrl.training.sharding import (
    DEVICE_AXIS,
    REPLICATED,
    data_specs,
    shard_over_devices,
    state_specs,
    summary_specs,
    to_per_device,
)
from jaxrl.training.train_state import (
    ReportRow,
    RolloutBatch,
    Summary,
    TrainState,
    make_report_row,
)
from jaxrl.training.train_step import TrainStep

ROW_SHARDED = PartitionSpec(None, DEVICE_AXIS)
"""Spec of drawn rows, `[U, N]`."""


class StepPrograms:
    """Programs of sampling, storing and updating, compiled on first use.

    They donate the state and keep the batches, which may be used again.

    Args:
        train_step: Functions of the run.
        devices: Devices that share the work.
        max_retraces: See `Program`.
        jit: Whether to compile.
        program_cache: Cache of programs compiled by earlier processes.
    """

    def __init__(
        self,
        train_step: TrainStep,
        devices: list[Device],
        *,
        max_retraces: int | None,
        jit: bool,
        program_cache: ProgramCache | None = None,
    ) -> None:
        self._train_step, self._devices = train_step, devices
        self._options: dict[str, Any] = {
            "donate_argnums": (0,),
            "max_retraces": max_retraces,
            "program_cache": program_cache,
            "enabled": jit,
        }
        self._programs: dict[str, Program] = {}

    @property
    def programs(self) -> list[Program]:
        """Programs that were used so far."""
        return list(self._programs.values())

    def sample(self, state: TrainState) -> tuple[TrainState, RolloutBatch, ReportRow]:
        """Step the environments of the state for one train batch.

        Returns:
            The state that has received the batch, the batch, and the report on it.
        """
        return self._get("sample", self._sample)(state)

    def receive(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, RolloutBatch, ReportRow]:
        """Receive a batch that host runners recorded; returns what `sample` does."""
        return self._get("receive", self._receive)(state, data)

    def add_to_buffer(self, state: TrainState, batch: RolloutBatch) -> TrainState:
        """Add a received batch to the buffer."""
        return self._get("add_to_buffer", self._add_to_buffer)(state, batch)

    def update(
        self, state: TrainState, batch: RolloutBatch | None, num_updates: int | None
    ) -> tuple[TrainState, ReportRow]:
        """Update the learner from a batch, or from its buffer."""
        if batch is None:
            name = "update" if num_updates is None else f"update_{num_updates}"

            def update(state: TrainState) -> tuple[TrainState, ReportRow]:
                return self._update(state, None, num_updates)

            return self._get(name, update)(state)
        return self._get("update", lambda state, batch: self._update(state, batch, None))(
            state, batch
        )

    def update_on_presampled(
        self, state: TrainState, presampled: PresampledBatches
    ) -> tuple[TrainState, ReportRow, PyTree]:
        """Update the learner from rows that were drawn elsewhere; also return their TD errors."""
        return self._get("update", self._update_on_presampled)(state, presampled)

    def _get(self, name: str, fn: Callable[..., Any]) -> Program:
        if name not in self._programs:
            self._programs[name] = Program(name, fn, **self._options)
        return self._programs[name]

    # --- traced ---

    def _map(
        self,
        call: Callable[..., Any],
        arguments: tuple[PyTree, ...],
        make_out_specs: Callable[..., PyTree],
    ) -> PyTree:
        """Call a function of the run's functions and arguments, over the mesh if there are several devices."""
        learning = self._train_step
        if len(self._devices) == 1:
            return call(learning, *arguments)
        out_specs = make_out_specs(*jax.eval_shape(lambda *xs: call(learning, *xs), *arguments))
        state, *batches = arguments
        per_device = to_per_device(learning)
        in_specs = state_specs(state), *map(_get_argument_specs, batches)
        return shard_over_devices(
            self._devices, lambda *xs: call(per_device, *xs), in_specs, out_specs
        )(*arguments)

    def _sample(self, state: TrainState) -> tuple[TrainState, PyTree, ReportRow]:
        def sample(runner: InGraphRunner, state: TrainState) -> tuple[TrainState, PyTree, Summary]:
            return receive_batch(runner, *runner.collect(state))

        after, batch, summary = self._map(sample, (state,), _get_batch_specs)
        return after, batch, make_report_row(after, summary)

    def _receive(
        self, state: TrainState, data: RolloutBatch
    ) -> tuple[TrainState, PyTree, ReportRow]:
        columns = gather_per_env(self._train_step, state, data)
        after, batch, summary = self._map(receive_batch, (columns, data), _get_batch_specs)
        after = scatter_per_env(self._train_step, state, after, data)
        return after, batch, make_report_row(after, summary)

    def _add_to_buffer(self, state: TrainState, batch: PyTree) -> TrainState:
        def add(learning: TrainStep, *xs: PyTree) -> tuple[TrainState]:
            return (learning.add_to_buffer(*xs),)

        after = self._map(
            add, (_without_per_env(state), batch), lambda after: (state_specs(after),)
        )[0]
        return _with_per_env_of(after, state)

    def _update(
        self, state: TrainState, batch: PyTree, num_updates: int | None
    ) -> tuple[TrainState, ReportRow]:
        def update(
            learning: TrainStep, state: TrainState, *batches: PyTree
        ) -> tuple[TrainState, Summary]:
            return update_learner(learning, state, batches[0] if batches else None, num_updates)

        batches = () if batch is None else (batch,)
        after, summary = self._map(
            update,
            (_without_per_env(state), *batches),
            lambda after, _: (state_specs(after), summary_specs(tuple(after.modules))),
        )
        after = _with_per_env_of(after, state)
        return after, make_report_row(after, summary)

    def _update_on_presampled(
        self, state: TrainState, presampled: PresampledBatches
    ) -> tuple[TrainState, ReportRow, PyTree]:
        def update(
            learning: TrainStep, state: TrainState, presampled: PresampledBatches
        ) -> tuple[TrainState, Summary, PyTree]:
            after, metrics, errors = learning.update_on_presampled(state, presampled)
            return *finish_update(learning, state, after, metrics), errors

        after, summary, errors = self._map(
            update,
            (_without_per_env(state), presampled),
            lambda after, _summary, _errors: (state_specs(after), summary_specs(), ROW_SHARDED),
        )
        after = _with_per_env_of(after, state)
        return after, make_report_row(after, summary), errors


def make_row_specs(presampled: PresampledBatches) -> PresampledBatches:
    """Return specs that divide drawn rows `[U, N]`; those of a device's shards are contiguous."""
    rows: PresampledBatches = jax.tree.map(lambda _: ROW_SHARDED, presampled)
    return replace(rows, is_ready=REPLICATED)


def _get_argument_specs(argument: PyTree) -> PyTree:
    if isinstance(argument, PresampledBatches):
        return make_row_specs(argument)
    if isinstance(argument, RolloutBatch):
        return data_specs(argument)
    return {m: data_specs(own) for m, own in argument.items()}


def _get_batch_specs(state: TrainState, batch: PyTree, _: Summary) -> tuple[Any, Any, Any]:
    specs = _get_argument_specs(batch), summary_specs(tuple(state.modules))
    return state_specs(state), *specs


def _without_per_env(state: TrainState) -> TrainState:
    """Return the state without the connectors' state of each environment, which no update reads.

    On the host it has a row per environment, whose number the devices need not divide.
    """
    modules = {m: _without_per_env(own) for m, own in state.modules.items()}
    return replace(replace_per_env(state, ()), modules=modules)


def _with_per_env_of(after: TrainState, before: TrainState) -> TrainState:
    modules = {m: _with_per_env_of(own, before.modules[m]) for m, own in after.modules.items()}
    return replace(replace_per_env(after, before.connectors.per_env), modules=modules)
