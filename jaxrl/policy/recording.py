"""Recording of a policy that no longer learns, in its environment."""

from collections.abc import Generator
from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxrl.assembly.assemble import make_env
from jaxrl.core.keys import make_key
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import VectorEnv, VectorState
from jaxrl.errors import ConfigError
from jaxrl.offline.recorded import RecordedData, open_data
from jaxrl.offline.stitch import PartStitcher
from jaxrl.offline.writer import EpisodeWriter
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runners.recording import choose_run_name
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorCarry, RolloutWorker, make_env_index

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

    def record(
        self,
        output: str,
        *,
        num_steps: int = DEFAULT_NUM_STEPS,
        num_envs: int = DEFAULT_NUM_ENVS,
        explore: bool | None = None,
        seed: int | None = None,
    ) -> RecordedData:
        """Record the current policy in its environment, without learning.

        Without an environment to train in, that of the evaluation is taken.

        Args:
            output: Folder of recorded data; one that has data of the same spaces is appended to.
            num_steps: Least number of environment steps; whole rollouts of all environments are
                recorded. Episodes that have not ended are cut.
            num_envs: Number of environments that are stepped side by side.
            explore: Whether the policy explores; None for the config's `explore`.
            seed: Seed of the environments and actions; None for the config's.

        Returns:
            The data in the folder.

        Raises:
            ConfigError: If there is no environment, or a number is below 1.
            DataError: If the folder has other data, or cannot be written.
        """
        for name, number in (("num_steps", num_steps), ("num_envs", num_envs)):
            if number < 1:
                raise ConfigError(f"{name} must be at least 1, got {number}.")
        own = self.config
        config = own.get_evaluation_config_object()
        if config is None or own.environment_settings.env is not None:
            config = own.copy(copy_frozen=False)
            config.in_evaluation = True
        default = own.env_runners_settings.explore
        config.env_runners(explore=default if explore is None else explore)
        if seed is not None:
            config.debugging(seed=seed)
        return record_policy(config, self.get_policy(), output, num_steps, num_envs)


def record_policy(
    config: "AlgorithmConfig", policy: "Policy", output: str, num_steps: int, num_envs: int
) -> RecordedData:
    """Record a policy; see `RecordingMethods.record`.

    Args:
        config: Config of an evaluation, with the environment, `explore` and the seed.
        policy: Policy to record.
        output: Folder of recorded data.
        num_steps: Least number of environment steps.
        num_envs: Number of environments.
    """
    made, seed = make_env(config), config.debugging_settings.run_seed
    explore = config.env_runners_settings.explore
    settings, module = config.offline_data_settings, policy.inference.policy_step.module
    per_env = -(-num_steps // num_envs)
    length = -(-per_env // -(-per_env // MAX_FRAGMENT_LENGTH))
    if isinstance(made, MadeEnv):
        rows = _play_compiled(config, made, policy, num_envs, length)
    else:
        rows = _play_on_host(config, made, policy, num_envs, length)
    writer = EpisodeWriter(
        output,
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
    with writer:
        for rollout, env_index, steps in rows:
            writer.add_parts(stitcher.add(rollout, env_index, version=0))
            recorded += steps
            if recorded >= num_steps:
                break
        rows.close()
        writer.add_parts(stitcher.flush())
    return open_data(output)


def _play_compiled(
    config: "AlgorithmConfig", made: MadeEnv, policy: "Policy", num_envs: int, length: int
) -> Generator[Rows]:
    """Yield rollouts of environments in JAX, without end."""
    mode, step = config.environment_settings.reset_mode, policy.inference.policy_step
    worker = RolloutWorker(
        env=VectorEnv(made.env, made.env.reset_mode if mode == "auto" else mode),
        module=step.module,
        obs_pipeline=step.obs_pipeline,
        action_pipeline=step.action_pipeline,
    )
    env_index, explore = make_env_index(num_envs), config.env_runners_settings.explore

    @jax.jit
    def start(key: Key, params: PyTree) -> tuple[VectorState, ActorCarry]:
        return worker.env.reset(key, env_index, params), worker.initial_carry(num_envs)

    @jax.jit
    def play(actor: PyTree, env: VectorState, carry: ActorCarry, params: PyTree) -> PyTree:
        return worker.rollout(actor, env, carry, params, length, explore)[:3]

    env, carry = start(make_key(config.debugging_settings.run_seed), made.params)
    while True:
        env, carry, rollout = play(policy.actor, env, carry, made.params)
        rollout = to_host(rollout)
        yield rollout, np.asarray(env_index), int(rollout.mask.sum())


def _play_on_host(
    config: "AlgorithmConfig", made: MadeHostEnv, policy: "Policy", num_envs: int, length: int
) -> Generator[Rows]:
    """Yield rollouts of environments that are stepped from Python, without end."""
    from jaxrl.runners.env_runner import make_env_runner

    runner = make_env_runner(
        config, num_envs=num_envs, first_env_index=0, made=made, hooks=NoHooks()
    )
    try:
        runner.set_weights(Weights(version=0, actor=to_host(policy.actor)))
        while True:
            fragment: Fragment = runner.sample(length)
            yield fragment.rollout, fragment.env_index, fragment.num_env_steps
    finally:
        runner.close()
