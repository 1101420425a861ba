"""Which learners and runners a config asks for. Ray is imported only where it is needed."""

from typing import TYPE_CHECKING

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import Device
from jaxrl.runners.hooks import OF_DISPATCHES, AlgorithmHooks, RunnerHooks
from jaxrl.runners.host_loop import HostLoop
from jaxrl.runners.in_graph_group import InGraphLearnerGroup
from jaxrl.runners.in_graph_loop import Dispatcher
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup
from jaxrl.runners.protocols import EnvRunnerGroup, Loop

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def learner_group(
    config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
) -> LearnerGroup:
    """This process, or `num_learners` processes."""
    if config.learners_settings.num_learners == 0:
        local = InGraphLearnerGroup if assembly.in_graph else LocalLearnerGroup
        return local(config, assembly, devices)
    from jaxrl.runners.ray.learner_group import RayLearnerGroup

    return RayLearnerGroup(config, assembly)


def loop_of(
    config: "AlgorithmConfig",
    assembly: Assembly,
    learners: LearnerGroup,
    callbacks: RunnerHooks,
    algorithm: object,
) -> Loop:
    """Dispatches of the compiled program, or the loop over runners on the host."""
    if assembly.in_graph:
        hooks = AlgorithmHooks(callbacks, algorithm, OF_DISPATCHES)
        steps, replay = assembly.in_graph_runner.batch_steps, assembly.replay
        trained = steps if replay is None else replay.num_updates * replay.rows_per_update
        return Dispatcher(learners, steps, trained, hooks)
    hooks = AlgorithmHooks(callbacks, algorithm)
    interval = vars(config.training_settings).get("broadcast_interval", 1)
    return HostLoop(lambda: env_runner_group(config, assembly, hooks), learners, interval)


def env_runner_group(
    config: "AlgorithmConfig", assembly: Assembly, hooks: RunnerHooks
) -> EnvRunnerGroup:
    """The runners of training."""
    if config.env_runners_settings.num_env_runners == 0:
        from jaxrl.runners.local_group import LocalEnvRunnerGroup

        return LocalEnvRunnerGroup(config, assembly, hooks)
    from jaxrl.runners.ray.group import RayEnvRunnerGroup

    return RayEnvRunnerGroup(config, assembly, hooks)
