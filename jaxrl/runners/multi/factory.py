"""Creation of the runner that a config for several agents specifies."""

from typing import TYPE_CHECKING

import numpy as np

from jaxrl.assembly.multi_agent import make_multi_policy_step
from jaxrl.callbacks import CallbackList
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_vector import make_multi_vector
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.multi.env_runner import MultiEnvRunner

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def change_modules(
    runner: MultiEnvRunner,
    config: "AlgorithmConfig",
    made: MadeMultiHostEnv,
    *,
    has_new_mapping: bool,
) -> None:
    """Let a runner act with the modules of a changed config; see `EnvRunnerGroup.change_modules`."""
    mapping_fn = runner.config.multi_agent_settings.policy_mapping_fn
    runner.change_modules(config, make_multi_policy_step(config, made))
    if not has_new_mapping:
        runner.config.multi_agent(policy_mapping_fn=mapping_fn)


def make_multi_env_runner(
    config: "AlgorithmConfig",
    made: MadeMultiHostEnv,
    *,
    worker_index: int = 0,
    num_workers: int = 0,
    num_envs: int,
    first_env_index: int,
    seed: int | None = None,
    explore: bool | None = None,
    hooks: RunnerHooks | None = None,
) -> MultiEnvRunner:
    """Create the runner of a config for several agents; see `make_env_runner`.

    Raises:
        JaxrlError: If the environment or a module cannot be created.
    """
    environment, policy_step = config.environment_settings, make_multi_policy_step(config, made)
    vector = make_multi_vector(
        made,
        num_envs=num_envs,
        first_index=first_env_index,
        worker_index=worker_index,
        num_workers=num_workers,
        seed=config.debugging_settings.run_seed if seed is None else seed,
        mode=config.env_runners_settings.gym_env_vectorize_mode,
        timeout_s=config.env_runners_settings.sample_timeout_s,
        restart_failed=config.fault_tolerance_settings.restart_failed_sub_environments,
        reads_state=policy_step.reads_state,
        check=not environment.disable_env_checking,
        validate_env=environment.validate_env,
    )
    return MultiEnvRunner(
        config=config,
        vector=vector,
        policy_step=policy_step,
        env_index=np.arange(first_env_index, first_env_index + num_envs, dtype=np.int32),
        worker_index=worker_index,
        num_workers=num_workers,
        seed=seed,
        explore=explore,
        hooks=CallbackList(config.callbacks_settings) if hooks is None else hooks,
    )
