"""Recording of a policy that no longer learns, in its environment."""

import contextlib
import dataclasses
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl.assembly.assemble import Assembly, make_env, make_vector_env
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.offline.manifest import find_module_folders, read_manifest
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import PartStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.policy.agent_recording import record_policies
from jaxrl.policy.rollouts import Rows, check_steps, compute_length, play_compiled, play_on_host
from jaxrl.runners.recording import choose_run_name, make_blank_part
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.rollout import PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.policy.policy import Policy

DEFAULT_NUM_STEPS = 10_000
DEFAULT_NUM_ENVS = 8


class RecordingMethods:
    """Methods that record the current policy of an algorithm."""

    if TYPE_CHECKING:
        config: AlgorithmConfig

        _assembly: Assembly

        def get_policy(self) -> Policy: ...
        def _make_evaluation_inputs(self) -> EvaluationInputs: ...

    def record(
        self,
        output: str | os.PathLike[str],
        *,
        num_steps: int = DEFAULT_NUM_STEPS,
        num_envs: int = DEFAULT_NUM_ENVS,
        explore: bool | None = None,
        seed: int | None = None,
    ) -> RecordedData | dict[str, RecordedData]:
        """Record the current policy in its environment, without learning.

        Several agents have the policies of all modules recorded, each in the folder of its id. The
        environment has the run's current task. Without an environment to train in, that of the
        evaluation is taken.

        Args:
            output: Folder of recorded data; one that has data of the same spaces and module
                outputs is appended to.
            num_steps: Least number of environment steps; whole rollouts of all environments are
                recorded. Episodes that have not ended are cut.
            num_envs: Number of environments that are stepped side by side.
            explore: Whether the policy explores; None for the config's `explore`.
            seed: Seed of the environments and actions; None for the config's, to which the number of
                files in the folder is added, so that what is appended is new.

        Returns:
            The data in the folder, by module for several agents.

        Raises:
            ConfigError: If there is no environment, or a number is below 1.
            EnvError: If the environment makes no valid step.
            DataError: If the folder has other data, or cannot be written.
        """
        for name, number in (("num_steps", num_steps), ("num_envs", num_envs)):
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}.")
        own, path = self.config, Path(output).expanduser().absolute()
        config, inputs = own.get_evaluation_config_object(), self._make_evaluation_inputs()
        if config is None or own.environment_settings.env is not None:
            config = own.copy(copy_frozen=False)
            config.in_evaluation = True
        else:  # another environment, which has tasks and parameters of its own
            inputs = dataclasses.replace(inputs, env_params=(), task=None)
        default = own.env_runners_settings.explore
        config.env_runners(explore=default if explore is None else explore)
        if seed is None:
            folders = [path, *find_module_folders(path).values()]
            manifests = [read_manifest(folder) for folder in folders if folder.is_dir()]
            added = max((len(own.files) for own in manifests if own is not None), default=0)
            seed = (config.debugging_settings.run_seed + added) % 2**63
        config.debugging(seed=seed)
        assembly = self._assembly
        if isinstance(assembly, MultiAgentAssembly):
            return record_policies(config, assembly, inputs, path, num_steps, num_envs)
        step = self.get_policy().inference.policy_step
        return record_policy(config, step, inputs, path, num_steps, num_envs)


def record_policy(
    config: "AlgorithmConfig",
    policy_step: PolicyStep,
    inputs: EvaluationInputs,
    path: Path,
    num_steps: int,
    num_envs: int,
) -> RecordedData:
    """Record a policy; see `RecordingMethods.record`.

    Args:
        config: Config of an evaluation, with the environment, `explore` and the seed.
        policy_step: Module and connectors of the policy.
        inputs: Its parameters, and the task and parameters of the environment, if it has some.
        path: Folder of recorded data.
        num_steps: Least number of environment steps.
        num_envs: Number of environments.
    """
    made, seed = make_env(config), config.debugging_settings.run_seed
    explore = config.env_runners_settings.explore
    settings, module = config.offline_data_settings, policy_step.module
    length = compute_length(num_steps, num_envs)
    rows = _play(config, made, policy_step, inputs, num_envs, length)
    writer = EpisodeWriter(
        path,
        *made.spaces,
        env=made.id,
        algorithm=config.algo_name,
        seed=seed,
        has_density=module.has_density and explore,
        actions_are_normalized=True,
        max_file_bytes=settings.output_max_file_size,
        max_rows_per_file=settings.output_max_rows_per_file,
    )
    stitcher = PartStitcher(choose_run_name(config.algo_name, seed, writer.path))
    recorded = 0
    with writer, contextlib.closing(rows):
        if writer.counts.num_steps:
            writer.check_columns(make_blank_part(policy_step, lambda _: inputs.actor))
        while recorded < num_steps:
            rollout, env_index, steps = next(rows)
            check_steps(made.id, steps, length, num_envs)
            # By environment, since the first parts to be complete are of short episodes.
            parts = stitcher.add_by_column(rollout, env_index, version=0)
            writer.add_parts([part for _, part in parts])
            recorded += steps
        writer.add_parts(stitcher.flush())
    return open_data(path)


def _play(
    config: "AlgorithmConfig",
    made: MadeEnv | MadeHostEnv,
    policy_step: PolicyStep,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
) -> Generator[Rows]:
    """Yield rollouts, without end."""
    if isinstance(made, MadeEnv) and inputs.task is None:
        worker = policy_step.with_envs(make_vector_env(config, made))
        yield from play_compiled(config, worker, made.params, inputs, num_envs, length)
        return
    for fragment in play_on_host(config, made, inputs, num_envs, length):
        yield fragment.rollout, fragment.env_index, fragment.num_env_steps
