"""Factories for the learners, runners and loop of a config. Ray is imported only if used."""

from typing import TYPE_CHECKING

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import Device
from jaxrl.runners.compiled_runner import CompiledEnvRunner
from jaxrl.runners.curriculum import Curriculum
from jaxrl.runners.hooks import DISPATCH_HOOKS, AlgorithmHooks, RunnerHooks
from jaxrl.runners.host_loop import HostLoop
from jaxrl.runners.in_graph_group import InGraphLearnerGroup
from jaxrl.runners.in_graph_loop import DispatchStrategy, InGraphLoop
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup
from jaxrl.runners.protocols import EnvRunnerGroup, Loop
from jaxrl.runners.recording import Recorder, RolloutRecorder

if TYPE_CHECKING:
    from jaxrl.config.config import Config


def make_learner_group(config: "Config", assembly: Assembly, devices: list[Device]) -> LearnerGroup:
    """Create the learners: one in this process, or `num_learners` Ray actors."""
    data = None
    if assembly.train_step.takes_dataset:
        from jaxrl.runners.offline import load_device_dataset, make_offline_learners

        if assembly.row_storage != "device":
            return make_offline_learners(config, assembly, devices)
        data = load_device_dataset(config, assembly, devices)
    if config.learners_settings.num_learners == 0 or data is not None:
        is_compiled = assembly.is_in_graph or assembly.is_offline
        local = InGraphLearnerGroup if is_compiled else LocalLearnerGroup
        return local(config, assembly, devices, data=data)
    from jaxrl.runners.ray.learner_group import RayLearnerGroup

    return RayLearnerGroup(config, assembly)


def make_loop(
    config: "Config",
    assembly: Assembly,
    learners: LearnerGroup,
    callbacks: RunnerHooks,
    algorithm: object,
    dispatches: DispatchStrategy,
) -> Loop:
    """Create the training loop: dispatches of the compiled program, or the host loop."""
    if assembly.is_offline:
        from jaxrl.runners.offline import OfflineLoop

        hooks = AlgorithmHooks(callbacks, algorithm)
        return OfflineLoop(config, assembly, learners, hooks, dispatches)
    if assembly.is_in_graph:
        return _make_in_graph_loop(config, assembly, learners, callbacks, algorithm, dispatches)
    hooks = AlgorithmHooks(callbacks, algorithm)
    recorder = _make_host_recorder(config, assembly)
    return HostLoop(
        lambda: make_env_runner_group(config, assembly, hooks, recorder),
        learners,
        Curriculum(config, is_jax_env=assembly.made.is_jax),
        config.training_settings.weights_interval,
        saves_buffer=assembly.replay is None or assembly.should_save_buffer,
        recorder=recorder,
    )


def _make_host_recorder(config: "Config", assembly: Assembly) -> Recorder | None:
    """Make the recorder of a run on the host, or of simulators; None without an `output`."""
    if config.env_runners_settings.placement != "external":
        return make_recorder(config, assembly)
    if config.offline_data_settings.output is None:
        return None
    from jaxrl.runners.external.group import PartRecorder

    return PartRecorder(config, assembly)


def make_recorder(config: "Config", assembly: Assembly) -> RolloutRecorder | None:
    """Make the recorder of a run that jaxrl steps; None without an `output`."""
    if config.offline_data_settings.output is None:
        return None
    return RolloutRecorder(config, assembly)


def _make_in_graph_loop(
    config: "Config",
    assembly: Assembly,
    learners: LearnerGroup,
    callbacks: RunnerHooks,
    algorithm: object,
    strategy: DispatchStrategy,
) -> InGraphLoop:
    """Create the loop over dispatches of the compiled program."""
    hooks = AlgorithmHooks(callbacks, algorithm, DISPATCH_HOOKS)
    steps = assembly.run.batch_steps
    buffers = [part.replay for part in assembly.parts.values() if part.replay is not None]
    drawn = sum(replay.num_updates * replay.rows_per_update for replay in buffers)
    trained = drawn if buffers else steps
    runner = CompiledEnvRunner(config, assembly)
    curriculum = Curriculum(config, is_jax_env=True)
    recorder = make_recorder(config, assembly)
    most = assembly.run.max_recorded_batches
    return InGraphLoop(
        learners, steps, trained, hooks, strategy, runner, curriculum, recorder, most
    )


def make_env_runner_group(
    config: "Config",
    assembly: Assembly,
    hooks: RunnerHooks,
    recorder: Recorder | None = None,
) -> EnvRunnerGroup:
    """Create the runners that sample for training; simulators have what they send recorded."""
    if config.env_runners_settings.placement == "external":
        from jaxrl.runners.external.group import ExternalEnvRunnerGroup, PartRecorder

        parts = recorder if isinstance(recorder, PartRecorder) else None
        return ExternalEnvRunnerGroup(config, assembly, hooks, parts)
    if config.env_runners_settings.num_env_runners == 0:
        from jaxrl.runners.local_group import LocalEnvRunnerGroup

        return LocalEnvRunnerGroup(config, assembly, hooks)
    from jaxrl.runners.ray.group import RayEnvRunnerGroup

    return RayEnvRunnerGroup(config, assembly, hooks)
