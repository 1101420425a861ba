"""Which learners and runners a config asks for. Ray is imported only where it is needed."""

from typing import TYPE_CHECKING, Any

from jaxrl.core.types import Device
from jaxrl.runners.assemble import Assembly
from jaxrl.runners.host import EnvRunnerGroup, HostLoop
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def learner_group(
    config: "AlgorithmConfig", assembly: Assembly, devices: list[Device]
) -> LearnerGroup:
    """This process, or `num_learners` processes."""
    if config.learners_settings.num_learners == 0:
        return LocalLearnerGroup(config, assembly, devices)
    from jaxrl.runners.ray.learner_group import RayLearnerGroup

    return RayLearnerGroup(config, assembly)


def host_loop(
    config: "AlgorithmConfig", assembly: Assembly, learners: LearnerGroup, hooks: Any
) -> HostLoop:
    """The loop over runners in this process or `num_env_runners` actors."""
    interval = vars(config.training_settings).get("broadcast_interval", 1)
    return HostLoop(lambda: env_runner_group(config, assembly, hooks), learners, interval)


def env_runner_group(config: "AlgorithmConfig", assembly: Assembly, hooks: Any) -> EnvRunnerGroup:
    """The runners of training."""
    if config.env_runners_settings.num_env_runners == 0:
        from jaxrl.runners.local_group import LocalEnvRunnerGroup

        return LocalEnvRunnerGroup(config, assembly, hooks)
    from jaxrl.runners.ray.group import RayEnvRunnerGroup

    return RayEnvRunnerGroup(config, assembly, hooks)
