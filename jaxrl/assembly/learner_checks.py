"""Check of a user's learner by tracing, before anything is compiled."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxrl.assembly.offline import make_blank_dataset
from jaxrl.compat import lookup
from jaxrl.core.hparams import PerLane, replace_with_traced
from jaxrl.core.types import Key, Metrics, PyTree
from jaxrl.envs.vector import NO_FAULT
from jaxrl.errors import (
    TRACING_ERRORS,
    JaxrlError,
    LossError,
    locate_in_user_code,
    summarize_exception,
)
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.offline import MixedTrainStep, OfflineRunner
from jaxrl.training.rollout import make_blank_rollout
from jaxrl.training.train_state import RolloutBatch
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def check_learner(runner: TrainStep) -> None:
    """Trace the training on one blank train batch, or on blank recorded data.

    With a replay buffer in host memory, rows come from outside of the program; only the initial
    state is traced, and the rest left to the compilation.

    Raises:
        LossError: If the learner cannot be traced, or overrides a method of RLlib's that is never
            called.
    """
    is_users = lookup.is_defined_by_user(type(runner.learner))
    if is_users:
        lookup.load("rllib.attributes").refuse_learner_methods(runner.learner)
    try:
        jax.eval_shape(_make_blank_run(runner), jax.random.key(0))
    except JaxrlError:
        raise
    except TRACING_ERRORS as error:
        if is_users:
            lookup.load("rllib.attributes").explain_learner_method(error, runner.learner)
        raise LossError(
            f"learner_class={type(runner.learner).__name__} cannot be traced by jax.jit "
            f"({summarize_exception(error)}){locate_in_user_code(error)}."
        ) from error


def check_learner_class(config: "AlgorithmConfig") -> None:
    """Raise if `learner_class` is no subclass of the algorithm's Learner.

    Raises:
        LossError: If it is not.
    """
    given, own = config.learners_settings.learner_class, config.get_default_learner_class()
    if given is not None and not (isinstance(given, type) and issubclass(given, own)):
        raise LossError(
            f"learner_class must be a subclass of {own.__module__}.{own.__name__}, the Learner of "
            f"{config.algo_name}, got {getattr(given, '__name__', given)}."
        )


def _make_blank_run(runner: TrainStep) -> Callable[[Key], PyTree]:
    """Return the function that is traced."""
    own = replace_per_lane(runner)
    if runner.host_replay is not None:
        return own.learner.init
    if isinstance(own, OfflineRunner):
        data = make_blank_dataset(own.policy_step, len(own.experience.source_sizes or (0,)))
        return lambda key: own.step(own.init(key, data), data)[1]
    if isinstance(runner, MixedTrainStep):
        sizes = runner.recorded.source_sizes or ()
        runner = runner.bind(make_blank_dataset(runner.policy_step, len(sizes)))
    return partial(_train_on_blank_batch, runner)


def _train_on_blank_batch(runner: TrainStep, key: Key) -> Metrics:
    steps, envs = runner.num_steps, runner.num_envs
    state = replace_per_lane(runner).init_without_envs(key, envs)
    zeros = jnp.zeros((steps, envs), jnp.int32)
    data = RolloutBatch(
        rollout=make_blank_rollout(runner.policy_step, runner.make_actor_state(state), steps, envs),
        record=EpisodeRecord(
            ended=zeros > 0,
            episode_return=zeros.astype(jnp.float32),
            episode_length=zeros,
            env_step=zeros.astype(jnp.uint32),
            fault=zeros + NO_FAULT,
        ),
        env_index=jnp.arange(envs, dtype=jnp.int32),
        num_env_steps=jnp.asarray(runner.batch_steps, jnp.uint32),
    )
    received, batch = runner.receive(state, data)
    if runner.has_buffer:
        received = runner.add_to_buffer(received, batch)
    return runner.update(received, batch)[1]


def replace_per_lane(runner: TrainStep) -> TrainStep:
    """Return the runner with a number in place of every per-lane setting, as `init` receives it."""
    settings = runner.learner.settings
    own = [name for name, value in vars(settings).items() if isinstance(value, PerLane)]
    numbers = dict.fromkeys(own, jnp.ones((), jnp.float32))
    learner = dataclasses.replace(runner.learner, settings=replace_with_traced(settings, numbers))
    return dataclasses.replace(runner, learner=learner)
