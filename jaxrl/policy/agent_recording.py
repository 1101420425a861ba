"""Recording of the policies of several agents that no longer learn, in their environment."""

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.assembly.multi_agent import (
    MultiAgentAssembly,
    make_multi_agent_env,
    make_multi_vector_env,
)
from jaxrl.core.struct import replace
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import ConfigError
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import AgentStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.policy.rollouts import Rows, check_steps, compute_length, play_compiled, play_on_host
from jaxrl.runners.agent_recording import open_module_writers, split_rollout
from jaxrl.runners.recording import choose_run_name, make_blank_part, make_writer
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.multi_rollout import MultiPolicyStep, MultiRollout
from jaxrl.training.rollout import ActorState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def record_policies(
    config: "AlgorithmConfig",
    assembly: MultiAgentAssembly,
    inputs: EvaluationInputs,
    path: Path,
    num_steps: int,
    num_envs: int,
) -> dict[str, RecordedData]:
    """Record the policies of all modules, each in a folder of its own; see `RecordingMethods.record`.

    Args:
        config: Config of an evaluation, with the environment, `explore` and the seed.
        assembly: Functions of the run.
        inputs: Parameters of all modules, and those of the environment, if it has some.
        path: Folder of the modules' folders.
        num_steps: Least number of environment steps.
        num_envs: Number of environments.
    """
    period = len(assembly.patterns)
    if num_envs < period:
        raise ConfigError(
            f"num_envs={num_envs} leaves modules without an environment, because the mapping differs "
            f"between {period} successive ones: set {period} or more."
        )
    explores = config.env_runners_settings.explore

    def make(m: str, own: Assembly, folder: Path) -> EpisodeWriter:
        has_density = own.module.has_density and explores
        return make_writer(config, own, folder, has_density=has_density, module_id=m)

    actors = cast("dict[str, ActorState]", inputs.actor)
    with open_module_writers(assembly.modules, path, make) as writers:
        seed = config.debugging_settings.run_seed
        run = choose_run_name(config.algo_name, seed, *(own.path for own in writers.values()))
        stitchers = {m: AgentStitcher(run, m, assembly.agent_rows.agents) for m in writers}
        for m, writer in writers.items():
            if writer.counts.num_steps:
                step = assembly.modules[m].policy_step
                writer.check_columns(make_blank_part(step, lambda _, m=m: actors[m]))
        for rollout, env_index in _play(config, assembly, inputs, num_envs, num_steps):
            for m, rows in split_rollout(rollout, assembly.agent_rows).items():
                writers[m].add_parts(stitchers[m].add(rows, env_index, version=0))
        for m, writer in writers.items():
            writer.add_parts(stitchers[m].flush())
            writer.close()
    return {m: open_data(path / m) for m, own in writers.items() if own.counts.num_steps}


def _play(
    config: "AlgorithmConfig",
    assembly: MultiAgentAssembly,
    inputs: EvaluationInputs,
    num_envs: int,
    num_steps: int,
) -> Generator[tuple[MultiRollout, np.ndarray]]:
    """Yield rollouts of all modules and the indices of their environments, for a number of steps."""
    length, done = compute_length(num_steps, num_envs), 0
    with contextlib.closing(_play_on(config, assembly, inputs, num_envs, length)) as played:
        while done < num_steps:
            rollout, env_index, steps = next(played)
            check_steps(assembly.agents_env.id, steps, length, num_envs)
            done += steps
            yield rollout, env_index


def _play_on(
    config: "AlgorithmConfig",
    assembly: MultiAgentAssembly,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
) -> Generator[Rows]:
    """Yield rollouts of all modules, without end."""
    made = make_multi_agent_env(config)
    if isinstance(made, MadeMultiEnv):
        policies = cast("MultiPolicyStep", assembly.policy_step)
        worker = policies.with_envs(make_multi_vector_env(config, made))
        yield from play_compiled(config, worker, made.params, inputs, num_envs, length)
        return
    for fragment in play_on_host(config, made, inputs, num_envs, length):
        rollout = replace(fragment.rollout, completed=fragment.completed)
        yield rollout, np.asarray(fragment.env_index), fragment.num_env_steps
