"""Recording of a policy that no longer learns, in its environment."""

import contextlib
import dataclasses
import os
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxrl.assembly.assemble import make_env, make_vector_env
from jaxrl.core.keys import make_key
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import VectorState
from jaxrl.errors import ConfigError, EnvError
from jaxrl.offline.manifest import read_manifest
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import PartStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runners.recording import choose_run_name, make_blank_part
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorCarry, PolicyStep, make_env_index

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.policy.policy import Policy

DEFAULT_NUM_STEPS = 10_000
DEFAULT_NUM_ENVS = 8
MAX_FRAGMENT_LENGTH = 256

Rows = tuple[PyTree, np.ndarray, int]
"""Rollout `[T, B, ...]`, the indices of its environments, and its number of steps."""


class RecordingMethods:
    """Methods that record the current policy of an algorithm."""

    if TYPE_CHECKING:
        config: AlgorithmConfig

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
    ) -> RecordedData:
        """Record the current policy in its environment, without learning.

        The environment has the run's current task. Without an environment to train in, that of the
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
            The data in the folder.

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
            manifest = read_manifest(path) if path.is_dir() else None
            added = 0 if manifest is None else len(manifest.files)
            seed = (config.debugging_settings.run_seed + added) % 2**63
        config.debugging(seed=seed)
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
    per_env = -(-num_steps // num_envs)
    length = -(-per_env // -(-per_env // MAX_FRAGMENT_LENGTH))
    if isinstance(made, MadeEnv) and inputs.task is None:
        rows = _play_compiled(config, made, policy_step, inputs, num_envs, length)
    else:
        rows = _play_on_host(config, made, inputs, num_envs, length)
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
            if not steps:
                raise EnvError(
                    f"{made.id} made no valid step in {length} steps of {num_envs} environments: its "
                    "observations or rewards are not finite."
                )
            writer.add_parts(stitcher.add(rollout, env_index, version=0))
            recorded += steps
        writer.add_parts(stitcher.flush())
    return open_data(path)


def _play_compiled(
    config: "AlgorithmConfig",
    made: MadeEnv,
    policy_step: PolicyStep,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
) -> Generator[Rows]:
    """Yield rollouts of environments in JAX, without end."""
    worker = policy_step.with_envs(make_vector_env(config, made))
    current = to_host(inputs.env_params)
    params = current if jax.tree.leaves(current) else made.params
    actor = to_host(inputs.actor)
    env_index, explore = make_env_index(num_envs), config.env_runners_settings.explore

    @jax.jit
    def start(key: Key, params: PyTree) -> tuple[VectorState, ActorCarry]:
        return worker.env.reset(key, env_index, params), worker.initial_carry(num_envs)

    @jax.jit
    def play(actor: PyTree, env: VectorState, carry: ActorCarry, params: PyTree) -> PyTree:
        return worker.rollout(actor, env, carry, params, length, explore)[:3]

    env, carry = start(make_key(config.debugging_settings.run_seed), params)
    while True:
        env, carry, rollout = play(actor, env, carry, params)
        rollout = to_host(rollout)
        yield rollout, np.asarray(env_index), int(rollout.mask.sum())


def _play_on_host(
    config: "AlgorithmConfig",
    made: MadeEnv | MadeHostEnv,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
) -> Generator[Rows]:
    """Yield rollouts of environments that are stepped from Python, without end."""
    from jaxrl.runners.env_runner import make_env_runner

    runner = make_env_runner(
        config, num_envs=num_envs, first_env_index=0, made=made, hooks=NoHooks()
    )
    try:
        runner.set_weights(Weights(version=0, actor=to_host(inputs.actor), task=inputs.task))
        while True:
            fragment: Fragment = runner.sample(length)
            yield fragment.rollout, fragment.env_index, fragment.num_env_steps
    finally:
        runner.close()
