"""Recording of a policy that no longer learns, in its environment."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from jaxrl.assembly.assemble import Assembly, make_env, make_vector_env
from jaxrl.assembly.multi_agent import (
    MultiAgentAssembly,
    make_multi_agent_env,
    make_multi_vector_env,
)
from jaxrl.config.multi_agent import AnyMadeMulti
from jaxrl.core.struct import replace
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import AnyMadeEnv, MadeEnv
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError
from jaxrl.offline.manifest import find_module_folders, read_manifest
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import AgentStitcher, PartStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.policy.rollouts import Rows, check_steps, compute_length, play_compiled, play_on_host
from jaxrl.runners.recording import (
    choose_run_name,
    make_blank_part,
    make_stitcher,
    make_writer,
    open_writers,
    split_rollout,
)
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.multi_rollout import MultiPolicyStep, MultiRollout
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config

DEFAULT_NUM_STEPS = 10_000
DEFAULT_NUM_ENVS = 8


def record_run(
    own: "Config",
    assembly: Assembly,
    get_policy_step: Callable[[], PolicyStep],
    make_inputs: Callable[[], EvaluationInputs],
    output: str | os.PathLike[str],
    *,
    num_steps: int,
    num_envs: int,
    explore: bool | None,
    seed: int | None,
) -> RecordedData | dict[str, RecordedData]:
    """Record the current policy of a run; see `Algorithm.record`.

    Args:
        own: Config of the run.
        assembly: Functions of the run.
        get_policy_step: Function that returns the policy of a single agent.
        make_inputs: Function that returns the current parameters and the current task.
        output: Folder of recorded data.
        num_steps: Least number of environment steps.
        num_envs: Number of environments.
        explore: Whether the policy explores; None for the config's `explore`.
        seed: Seed of the environments and actions; None for the config's.
    """
    for name, number in (("num_steps", num_steps), ("num_envs", num_envs)):
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, got {number}.")
    path = Path(output).expanduser().absolute()
    config, inputs = own.get_evaluation_config_object(), make_inputs()
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
    step = None if isinstance(assembly, MultiAgentAssembly) else get_policy_step()
    found = _record(config, assembly, step, inputs, path, num_steps, num_envs)
    return found if step is None else found[""]


def _record(
    config: "Config",
    assembly: Assembly,
    policy_step: PolicyStep | None,
    inputs: EvaluationInputs,
    path: Path,
    num_steps: int,
    num_envs: int,
) -> dict[str, RecordedData]:
    """Record the policies of all modules; see `record_run`.

    Args:
        config: Config of an evaluation, with the environment, `explore` and the seed.
        assembly: Functions of the run.
        policy_step: Module and connectors of the policy of a single agent, whose id is ""; None for
            several agents.
        inputs: Parameters of the policies, and the task and parameters of the environment, if any.
        path: Folder of recorded data, or of the modules' folders.
        num_steps: Least number of environment steps.
        num_envs: Number of environments.
    """
    if policy_step is not None:
        made = make_env(config)
        policies, actors, envs = {"": policy_step}, {"": inputs.actor}, {"": made}
    else:
        assert isinstance(assembly, MultiAgentAssembly)
        period = len(assembly.patterns)
        if num_envs < period:
            raise ConfigError(
                f"num_envs={num_envs} leaves modules without an environment, because the mapping "
                f"differs between {period} successive ones: set {period} or more."
            )
        made = make_multi_agent_env(config.environment_settings, config.multi_agent_settings)
        policies = {m: own.policy_step for m, own in assembly.modules.items()}
        actors = cast("dict[str, ActorState]", inputs.actor)
        envs = {m: own.made for m, own in assembly.modules.items()}
    explores, seed = config.env_runners_settings.explore, config.debugging_settings.run_seed
    length, recorded = compute_length(num_steps, num_envs), 0

    def make(m: str, step: PolicyStep, folder: Path) -> EpisodeWriter:
        has_density = step.module.has_density and explores
        return make_writer(config, envs[m], folder, has_density, m or None)

    with open_writers(policies, path, make) as writers:
        run = choose_run_name(config.algo_name, seed, *(own.path for own in writers.values()))
        for m, writer in writers.items():
            if writer.counts.num_steps:
                writer.check_columns(make_blank_part(policies[m], lambda _, m=m: actors[m]))
        stitchers = {m: make_stitcher(assembly, run, m) for m in writers}
        played = _play(config, made, policy_step or assembly.policy_step, inputs, num_envs, length)
        with contextlib.closing(played):
            while recorded < num_steps:
                rollout, env_index, steps = next(played)
                check_steps(made.id, steps, length, num_envs)
                recorded += steps
                for m, parts in _stitch(assembly, stitchers, rollout, env_index):
                    writers[m].add_parts(parts)
        for m, writer in writers.items():
            writer.add_parts(stitchers[m].flush())
            writer.close()
    return {m: open_data(path / m) for m, own in writers.items() if own.counts.num_steps}


def _stitch(
    assembly: Assembly,
    stitchers: Mapping[str, PartStitcher | AgentStitcher],
    rollout: PyTree,
    env_index: np.ndarray,
) -> Iterator[tuple[str, list[EpisodePart]]]:
    """Yield the parts of each module that a rollout completes."""
    if isinstance(assembly, MultiAgentAssembly):
        for m, rows in split_rollout(rollout, assembly.agent_rows).items():
            stitcher = stitchers[m]
            assert isinstance(stitcher, AgentStitcher)
            yield m, stitcher.add(rows, env_index, version=0)
        return
    # By environment, since the first parts to be complete are of short episodes.
    parts = stitchers[""].add_by_column(rollout, env_index, version=0)
    yield "", [part for _, part in parts]


def _play(
    config: "Config",
    made: AnyMadeEnv | AnyMadeMulti,
    policy_step: PolicyStep,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
) -> Generator[Rows]:
    """Yield rollouts, without end."""
    play = partial(
        play_compiled,
        explore=config.env_runners_settings.explore,
        seed=config.debugging_settings.run_seed,
    )
    if isinstance(made, MadeMultiEnv):
        policies = cast("MultiPolicyStep", policy_step)
        worker = policies.with_envs(make_multi_vector_env(config.environment_settings, made))
        yield from play(worker, made.params, inputs, num_envs, length)
        return
    if isinstance(made, MadeEnv) and inputs.task is None:
        worker = policy_step.with_envs(make_vector_env(config.environment_settings, made))
        yield from play(worker, made.params, inputs, num_envs, length)
        return
    for fragment in play_on_host(config, made, inputs, num_envs, length):
        rollout = fragment.rollout
        if isinstance(rollout, MultiRollout):
            rollout = replace(rollout, completed=fragment.completed)
        yield rollout, np.asarray(fragment.env_index), fragment.num_env_steps
