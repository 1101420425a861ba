"""Copies of any environment, stepped together on the host."""

import functools
from typing import Any

from gymnasium.vector import AutoresetMode, SyncVectorEnv

from jaxrl.envs.adapters.barrier import CopyBarrier, CopyPlan, derived_seed
from jaxrl.envs.adapters.gym_processes import start_processes
from jaxrl.envs.adapters.gym_vector import GymVector
from jaxrl.envs.adapters.host_spaces import runner_space
from jaxrl.envs.adapters.precheck import ValidateEnv, try_out, validate
from jaxrl.envs.adapters.sync_copies import SyncCopies
from jaxrl.envs.base import ResetMode
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import HostVector, MadeHostEnv, VectorizeMode
from jaxrl.envs.jax_host import JaxHostVector
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import EnvError, JaxrlError


def make_vector(
    made: MadeEnv | MadeHostEnv,
    *,
    num_envs: int,
    first_index: int = 0,
    worker_index: int = 0,
    num_workers: int = 0,
    seed: int = 0,
    mode: VectorizeMode = "sync",
    restart_failed: bool = False,
    check: bool = True,
    validate_env: ValidateEnv | None = None,
    reset_mode: ResetMode | None = None,
    timeout_s: float | None = None,
) -> HostVector:
    """`num_envs` copies of an environment.

    Args:
        made: What `jaxrl.envs.make` returned.
        num_envs: How many copies.
        first_index: The place of the first copy among all copies of the run; seeds derive from
            places, so that data do not depend on how copies are spread over runners.
        worker_index: For the copies' `EnvContext`, as `num_workers`.
        num_workers: How many runners there are.
        seed: The run's.
        mode: In this process ("sync"), in one process each ("async"), or the vector environment
            that the environment brings itself ("vector_entry_point").
        restart_failed: Restart a copy that raises, instead of raising.
        check: Try the environment out before the first step.
        validate_env: Called with an environment and its context; raises if it does not like it.
        reset_mode: Of JAX environments; None for the one that the environment names.
        timeout_s: Seconds that a step of copies in processes may take; None for ever.

    Raises:
        EnvError: The environment cannot be made, or is not what it should be.
    """
    context = EnvContext(
        made.env_config if isinstance(made, MadeHostEnv) else None,
        worker_index=worker_index,
        num_workers=num_workers,
    )
    if isinstance(made, MadeEnv):
        if validate_env is not None:
            validate(made.id, made.env, context, validate_env)
        return JaxHostVector(
            made,
            num_envs=num_envs,
            first_index=first_index,
            seed=seed,
            reset_mode=reset_mode or made.env.reset_mode,
        )
    if check or validate_env is not None:
        try_out(made, context, check=check, validate_env=validate_env, may_fail=restart_failed)
    if mode == "vector_entry_point":
        return _own_vector(made, context, num_envs, derived_seed(seed, first_index), restart_failed)
    plans = [
        CopyPlan(
            id=made.id,
            create=made.create,
            context=context.copy_with_overrides(vector_index=row),
            observation_space=made.observation_space,
            action_space=made.action_space,
            seed=seed,
            index=first_index + row,
            restart=restart_failed,
        )
        for row in range(num_envs)
    ]
    return gym_copies(plans, mode=mode, timeout_s=timeout_s)


def _own_vector(
    made: MadeHostEnv, context: EnvContext, num_envs: int, seed: int, restart_failed: bool
) -> GymVector:
    """The vector environment that the environment brings itself."""
    if made.vector is None:
        raise EnvError(
            f"{made.id} brings no vector environment of its own; set gym_env_vectorize_mode to "
            f"'sync' or 'async'."
        )
    if restart_failed:
        raise EnvError(
            f"restart_failed_sub_environments cannot restart one copy of {made.id} with "
            f"gym_env_vectorize_mode='vector_entry_point', which steps them all in one call; use "
            f"'sync' or 'async'."
        )
    try:
        vector = made.vector(num_envs, context)
    except JaxrlError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0].rstrip(".")
        raise EnvError(
            f"The vector environment of {made.id} cannot be made: its creation raised {reason}."
        ) from error
    for name, space, of_one in (
        ("observation", vector.single_observation_space, made.observation_space),
        ("action", vector.single_action_space, made.action_space),
    ):
        if runner_space(space) != of_one:
            vector.close()
            raise EnvError(
                f"The vector environment of {made.id} has the {name} space {space}, but one "
                f"environment has {of_one}; set gym_env_vectorize_mode to 'sync' or 'async'."
            )
    return GymVector(
        vector,
        name=f"{made.id} (worker_index={context.worker_index})",
        seeds=[seed] * num_envs,
        observation_space=made.observation_space,
    )


def gym_copies(
    plans: list[CopyPlan],
    *,
    mode: str,
    autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
    timeout_s: float | None = None,
) -> GymVector:
    """Copies behind barriers, in this process ("sync") or in one process each ("async").

    Raises:
        EnvError: The copies cannot be sent to processes, or those do not start.
    """
    barriers = [functools.partial(CopyBarrier, plan) for plan in plans]
    first = plans[0]
    if mode == "sync":
        same_step = autoreset_mode is AutoresetMode.SAME_STEP
        kind = SyncCopies if same_step else SyncVectorEnv
        vector: Any = kind(barriers, autoreset_mode=autoreset_mode)
    else:
        vector = start_processes(first.id, barriers, autoreset_mode)
    return GymVector(
        vector,
        name=f"{first.id} (worker_index={first.context.worker_index})",
        seeds=[derived_seed(plan.seed, plan.index) for plan in plans],
        observation_space=first.observation_space,
        timeout_s=timeout_s,
    )
