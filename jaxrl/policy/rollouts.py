"""Rollouts of policies that no longer learn, in environments in JAX or on the host."""

from collections.abc import Generator
from typing import TYPE_CHECKING, cast

import jax
import numpy as np

from jaxrl.core.keys import make_key
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import EnvError
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.training.evaluate import EvaluationInputs
from jaxrl.training.multi_rollout import MultiRolloutWorker
from jaxrl.training.report import to_host
from jaxrl.training.rollout import RolloutWorker, make_env_index

if TYPE_CHECKING:
    from jaxrl.config.config import Config

MAX_FRAGMENT_LENGTH = 256

Rows = tuple[PyTree, np.ndarray, int]
"""Rollout `[T, B, ...]`, the indices of its environments, and its number of steps."""


def compute_length(num_steps: int, num_envs: int) -> int:
    """Return the length of rollouts of environments that make at least a number of steps in all."""
    per_env = -(-num_steps // num_envs)
    return -(-per_env // -(-per_env // MAX_FRAGMENT_LENGTH))


def check_steps(env_id: str, steps: int, length: int, num_envs: int) -> None:
    """Check that a rollout has steps.

    Raises:
        EnvError: If it has none.
    """
    if not steps:
        raise EnvError(
            f"{env_id} made no valid step in {length} steps of {num_envs} environments: its "
            "observations or rewards are not finite."
        )


def play_compiled(
    worker: RolloutWorker | MultiRolloutWorker,
    default_params: PyTree,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
    *,
    explore: bool,
    seed: int,
) -> Generator[Rows]:
    """Yield rollouts of environments in JAX, without end.

    Args:
        worker: Policy, or policies, with the environments.
        default_params: Parameters of environments that are not those of the run.
        inputs: Parameters to act with, and of the environment.
        num_envs: Number of environments.
        length: Number of steps of a rollout.
        explore: Whether policies explore.
        seed: Seed of the environments and actions.
    """
    current = to_host(inputs.env_params)
    params = current if jax.tree.leaves(current) else default_params
    actor = to_host(inputs.actor)
    acting = cast("RolloutWorker", worker)
    env_index = make_env_index(num_envs)

    @jax.jit
    def start(key: Key, params: PyTree) -> tuple[PyTree, PyTree]:
        return acting.env.reset(key, env_index, params), acting.initial_carry(num_envs)

    @jax.jit
    def play(actor: PyTree, env: PyTree, carry: PyTree, params: PyTree) -> PyTree:
        return acting.rollout(actor, env, carry, params, length, explore)[:3]

    env, carry = start(make_key(seed), params)
    while True:
        env, carry, rollout = play(actor, env, carry, params)
        rollout = to_host(rollout)
        yield rollout, np.asarray(env_index), int(rollout.mask.sum())


def play_on_host(
    config: "Config",
    made: MadeEnv | MadeHostEnv | MadeMultiHostEnv,
    inputs: EvaluationInputs,
    num_envs: int,
    length: int,
) -> Generator[Fragment]:
    """Yield fragments of environments that are stepped from Python, without end."""
    from jaxrl.runners.env_runner import make_env_runner

    runner = make_env_runner(
        config, num_envs=num_envs, first_env_index=0, made=made, hooks=NoHooks()
    )
    try:
        runner.set_weights(Weights(version=0, actor=to_host(inputs.actor), task=inputs.task))
        while True:
            yield runner.sample_fragment(length)
    finally:
        runner.close()
