"""Group with a single EnvRunner in this process."""

from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, ClassVar, cast

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.runners.counts import SampleCounts
from jaxrl.runners.env_runner import EnvRunner, make_env_runner
from jaxrl.runners.fragment import Fragment, RunnerFault, Weights
from jaxrl.runners.hang_watch import HangWatch
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.protocols import FormerGroupNames, call_runner
from jaxrl.runtime.program import Program

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.runners.multi.env_runner import MultiEnvRunner

MAX_REPORTED_RESTARTS = 20
"""Maximum number of restarts listed in a result, latest first."""


class LocalEnvRunnerGroup(FormerGroupNames):
    """Runner group of one local EnvRunner, which samples on request with the newest weights.

    Args:
        config: Config of the run.
        assembly: Assembled run, which provides the environment.
        hooks: Callbacks for episodes and samples.
    """

    is_compiled: ClassVar[bool] = False

    def __init__(self, config: "Config", assembly: Assembly, hooks: RunnerHooks) -> None:
        plan = config.plan()
        self.notes: list[str] = []
        self.task: PyTree = None
        self._fragments_per_batch, self._fragment_length = (
            plan.fragments_per_batch,
            plan.rollout_fragment_length,
        )
        self._complete_episodes = config.env_runners_settings.batch_mode == "complete_episodes"
        self.runner: EnvRunner = make_env_runner(
            config,
            num_envs=plan.envs_per_runner,
            first_env_index=0,
            made=assembly.made,
            hooks=hooks,
        )
        limit = config.env_runners_settings.sample_timeout_s
        self._watch = HangWatch(assembly.made.id, limit)
        self._latest_faults: deque[RunnerFault] = deque(maxlen=MAX_REPORTED_RESTARTS)
        self._env_seconds, self._seconds = 0.0, 0.0
        self._counts = SampleCounts(has_several_agents=config.is_multi_agent)

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the runner."""
        return self.runner.programs

    def sync_weights(
        self, weights: Weights | None = None, *, policies: Collection[str] | None = None
    ) -> None:
        """Set the weights to act with; RLlib's call, without any, changes nothing.

        Runners receive the newest weights of all modules before they sample.
        """
        del policies
        if weights is None:
            return
        self.task = weights.task
        self.runner.set_weights(weights)

    def set_task(self, task: PyTree) -> None:
        self.task = task
        self.runner.set_task(task)

    def next_batch(self) -> list[Fragment]:
        sample = (
            self.runner.sample_complete_episodes
            if self._complete_episodes
            else self.runner.sample_fragment
        )
        with self._watch:
            fragments = [sample(self._fragment_length) for _ in range(self._fragments_per_batch)]
        for fragment in fragments:
            self._seconds += fragment.seconds
            self._env_seconds += fragment.env_seconds
            self._latest_faults.extendleft(fragment.faults)
            self._counts.add(fragment)
        return fragments

    def get_metrics(self) -> dict[str, Any]:
        env_share = self._env_seconds / self._seconds if self._seconds else 0.0
        self._env_seconds = self._seconds = 0.0
        return {
            "env_runners": {"env_step_fraction": env_share},
            "fault_tolerance": {
                "restarts": [describe_fault(fault) for fault in self._latest_faults],
                **self._counts.describe(),
            },
        }

    def get_state(self) -> PyTree:
        return self.runner.get_state()

    def set_state(self, state: PyTree) -> None:
        self.runner.set_state(state)

    def get_counts(self) -> dict[str, Any]:
        return {**self._counts.describe()}

    def set_counts(self, counts: dict[str, Any]) -> None:
        self._counts.restore(counts)

    @property
    def local_config(self) -> "Config":
        return self.runner.config

    def change_modules(
        self, config: "Config", made: MadeMultiHostEnv, *, has_new_mapping: bool
    ) -> None:
        runner = cast("MultiEnvRunner", self.runner)
        runner.change_modules(config, made, has_new_mapping=has_new_mapping)

    def keep_config(self, config: "Config", made: MadeMultiHostEnv) -> None:
        """Do nothing: there is one runner, whose own config was set."""

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool = True,
    ) -> list[Any]:
        """Call a function, or the method of a name, on the only runner, which is a local one."""
        if not local_env_runner:
            return []
        return [call_runner(self.runner, func, kwargs)]

    @property
    def local_env_runner(self) -> EnvRunner:
        """The only runner."""
        return self.runner

    def foreach_env_runner_with_index(
        self, func: Callable[[int, Any], Any]
    ) -> list[tuple[int, Any]]:
        """Call a function of index and runner; the index of the only runner is 0."""
        return [(0, func(0, self.runner))]

    @property
    def num_healthy_env_runners(self) -> int:
        """Number of runners that reply in time: the only one."""
        return 1

    def stop(self) -> None:
        self._watch.stop()
        self.runner.close()


def describe_fault(fault: RunnerFault) -> str:
    """Return a message about the restart of an environment, with the original traceback."""
    return (
        f"environment {fault.env_index} of runner {fault.worker_index} was restarted "
        f"({fault.what}): {fault.detail}"
    )
