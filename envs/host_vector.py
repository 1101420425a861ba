"""Construction of vector environments that are stepped on the host."""

import functools
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from jaxrl.envs.adapters.barrier import FaultBarrier, SubEnvSpec, derive_seed, make_specs
from jaxrl.envs.adapters.gym_processes import start_processes
from jaxrl.envs.adapters.gym_vector import FastSyncVectorEnv, GymVector
from jaxrl.envs.adapters.host_creators import VectorOnlyCreator
from jaxrl.envs.adapters.host_spaces import to_runner_actions, to_runner_space
from jaxrl.envs.adapters.precheck import ValidateEnv, call_validate_env, precheck_env
from jaxrl.envs.base import ResetMode
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv, VectorizeMode
from jaxrl.envs.jax_host import JaxHostVector
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_vector import LocalCopies, MultiHostVector, ProcessCopies
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import EnvError, JaxrlError


def make_vector(
    made: MadeEnv | MadeHostEnv | MadeMultiHostEnv,
    *,
    num_envs: int,
    first_index: int = 0,
    worker_index: int = 0,
    num_workers: int = 0,
    seed: int = 0,
    mode: VectorizeMode = "auto",
    restart_failed: bool = False,
    check: bool = True,
    validate_env: ValidateEnv | None = None,
    reset_mode: ResetMode | None = None,
    timeout_s: float | None = None,
    reads_state: bool = False,
) -> Any:
    """Make `num_envs` copies of an environment: a `HostVector`, or a `MultiHostVector`.

    Args:
        made: Result of `jaxrl.envs.make`.
        num_envs: Number of copies.
        first_index: Index of the first copy among all copies of the run; seeds derive from these
            indices, so that data do not depend on how copies are distributed over runners.
        worker_index: Index of the runner, for each copy's `EnvContext`.
        num_workers: Number of runners, for each copy's `EnvContext`.
        seed: Seed of the run.
        mode: Where copies are stepped: in this process ("sync"), in one process each ("async"), or
            by the environment's own vector environment ("vector_entry_point"); "auto" is the last
            where the environment is made for it, and "sync" elsewhere.
        restart_failed: Whether to restart a copy that raises, instead of raising.
        check: Whether to check the environment before the first step.
        validate_env: Function of an environment and its context that raises to reject it.
        reset_mode: Auto-reset mode of JAX environments, None for the environment's own.
        timeout_s: Time limit in seconds of a step of copies in processes, None for no limit.
        reads_state: Whether steps of several agents have the global state, which central critics
            see.

    Raises:
        EnvError: If the environment cannot be made or fails a check.
    """
    make_context = functools.partial(EnvContext, worker_index=worker_index, num_workers=num_workers)
    if isinstance(made, MadeEnv):
        if validate_env is not None:
            call_validate_env(made.id, made.env, make_context(), validate_env)
        return JaxHostVector(
            made,
            num_envs=num_envs,
            first_index=first_index,
            seed=seed,
            reset_mode=reset_mode or made.env.reset_mode,
        )
    context, mode = make_context(made.env_config), made.resolve_mode(mode)
    if mode == "vector_entry_point" and isinstance(made.create, VectorOnlyCreator):
        check = False  # there is no single environment
    if check or validate_env is not None:
        precheck_env(made, context, check=check, validate_env=validate_env, may_fail=restart_failed)
    if isinstance(made, MadeHostEnv) and mode == "vector_entry_point":
        seeds = [derive_seed(seed, first_index + row) for row in range(num_envs)]
        return _make_own_vector(made, context, seeds, restart_failed)
    specs: Any = make_specs(
        made,
        context,
        num_envs,
        first_index,
        seed=seed,
        restart_failed=restart_failed,
        reads_state=reads_state,
    )
    if isinstance(made, MadeMultiHostEnv):
        copies = ProcessCopies(specs, timeout_s) if mode == "async" else LocalCopies(specs)
        return MultiHostVector(specs, copies)
    return make_gym_vector(specs, mode=mode, timeout_s=timeout_s)


def _make_own_vector(
    made: MadeHostEnv, context: EnvContext, seeds: list[int], restart_failed: bool
) -> GymVector:
    """Make the environment's own vector environment."""
    if made.vector is None:
        raise EnvError(
            f"{made.id} has no vector environment of its own; set gym_env_vectorize_mode to "
            f"'sync' or 'async'."
        )
    if restart_failed:
        raise EnvError(
            f"restart_failed_sub_environments cannot restart one copy of {made.id} with "
            f"gym_env_vectorize_mode='vector_entry_point', which steps them all in one call; use "
            f"'sync' or 'async'."
        )
    try:
        vector = made.vector(len(seeds), context)
    except JaxrlError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise EnvError(
            f"The vector environment of {made.id} cannot be made: its creation raised {reason}."
        ) from error
    for name, space, seen, expected in (
        (
            "observation",
            vector.single_observation_space,
            to_runner_space(vector.single_observation_space),
            made.observation_space,
        ),
        (
            "action",
            vector.single_action_space,
            to_runner_actions(vector.single_action_space),
            made.action_space,
        ),
    ):
        if seen != expected:
            vector.close()
            raise EnvError(
                f"The vector environment of {made.id} has the {name} space {space}, but one "
                f"environment has {expected}; set gym_env_vectorize_mode to 'sync' or 'async'."
            )
    return GymVector(
        vector,
        name=f"{made.id} (worker_index={context.worker_index})",
        seeds=seeds,
        observation_space=made.observation_space,
    )


def make_gym_vector(
    specs: list[SubEnvSpec[MadeHostEnv]],
    *,
    mode: str,
    autoreset_mode: AutoresetMode | None = None,
    timeout_s: float | None = None,
) -> GymVector:
    """Make copies behind barriers, in this process ("sync") or in one process each ("async").

    Copies in this process are reset after a step, those in others by themselves within it, unless
    `autoreset_mode` says otherwise.

    Raises:
        EnvError: If the copies cannot be pickled, or their processes do not start.
    """
    barriers = [functools.partial(FaultBarrier, spec) for spec in specs]
    made, worker_index = specs[0].made, specs[0].context.worker_index
    if mode == "sync":
        vector: VectorEnv[Any, Any, Any] = (
            FastSyncVectorEnv(barriers)
            if autoreset_mode is None
            else SyncVectorEnv(barriers, autoreset_mode=autoreset_mode)
        )
    else:
        mode_of_processes = autoreset_mode or AutoresetMode.SAME_STEP
        vector = start_processes(made.id, barriers, mode_of_processes)
    return GymVector(
        vector,
        name=f"{made.id} (worker_index={worker_index})",
        seeds=[spec.first_seed for spec in specs],
        observation_space=made.observation_space,
        timeout_s=timeout_s,
        task=made.task,
    )
