"""Stand-ins for the runners of a run whose environments are part of the compiled program."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.env import EnvToInspect, Spaces, get_rllib_spaces
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.compat.lookup import RLlibNames
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.protocols import FormerGroupNames, ReadsPolicies, call_runner

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.modules.rl_module import RLModule


class CompiledEnvRunner(ReadsPolicies, RLlibNames):
    """Readable part of environments in the compiled program, by the names of an EnvRunner.

    It cannot step them: `env` has the environment objects, which are pure functions, and their
    states are in `algorithm.state`.

    Args:
        config: Config of the run.
        assembly: Functions of the run.

    Attributes:
        env: Environments in the form of a vector environment.
        metrics: Logger of the values that callbacks log, which appear below `env_runners`.
        modules: Modules without weights; `algorithm.get_module(...)` has them.
        patterns: Module of each agent in copies of the environment; empty for a single agent.
    """

    _rllib_kind = "compiled_runner"

    def __init__(self, config: "Config", assembly: Assembly) -> None:
        self.config = config
        self.modules = (
            {name: own.module for name, own in assembly.modules.items()}
            if isinstance(assembly, MultiAgentAssembly)
            else {DEFAULT_MODULE: assembly.module}
        )
        self.patterns = assembly.patterns
        self.num_envs = assembly.plan.num_envs
        self.env = EnvToInspect(assembly.made, self.num_envs)
        self.metrics = MetricsLogger()
        self.worker_index = self.num_workers = 0

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Observation and action spaces, as RLlib's runners have them."""
        made = self.env.single_observation_space, self.env.single_action_space
        own = {name: (m.observation_space, m.action_space) for name, m in self.modules.items()}
        return {**get_rllib_spaces(made, self.num_envs), **own}

    @property
    def module(self) -> "RLModule | dict[str, RLModule]":
        """Module without weights; those of several agents by id."""
        return self.modules.get(DEFAULT_MODULE) or self.modules

    def get_spaces(self) -> dict[str, Spaces]:
        """Return `spaces`."""
        return self.spaces


class CompiledRunnerGroup(FormerGroupNames):
    """Group of the one CompiledEnvRunner, with the methods of a group that only read.

    Args:
        runner: Stand-in for the runner.
    """

    is_compiled: ClassVar[bool] = True

    def __init__(self, runner: CompiledEnvRunner) -> None:
        self.local_env_runner = runner

    def set_policies(self, policies: Mapping[str, Any]) -> None:
        self.local_env_runner.run_policies = policies

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool = True,
    ) -> list[Any]:
        """Call a function, or the method of a name, on the stand-in, which is a local runner."""
        if not local_env_runner:
            return []
        return [call_runner(self.local_env_runner, func, kwargs)]

    def foreach_env_runner_with_index(
        self, func: Callable[[int, Any], Any]
    ) -> list[tuple[int, Any]]:
        """Call a function of index and runner; the index of the only runner is 0."""
        return [(0, func(0, self.local_env_runner))]

    @property
    def num_healthy_env_runners(self) -> int:
        """Number of runners that reply in time: the only one."""
        return 1
