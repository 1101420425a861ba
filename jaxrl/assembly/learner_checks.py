"""A user's Learner, traced before anything is compiled."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxrl.buffers.sequence import AnyReplay
from jaxrl.core.hparams import PerLane, traced_settings
from jaxrl.core.types import Key, Metrics
from jaxrl.envs.vector import NO_FAULT
from jaxrl.errors import TRACING_ERRORS, JaxrlError, LossError, in_one_line, where_raised
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.rollout import blank_rollout
from jaxrl.training.train_state import Sampled
from jaxrl.training.train_step import Learning


def check_learner(runner: Learning) -> None:
    """Trace the learning of one train batch, in which nothing happened.

    With a replay buffer in host memory, rows come from outside of the program; then the tracing is
    left to the compiler.

    Raises:
        LossError: In one sentence, what does not fit.
    """
    if isinstance(runner.experience, AnyReplay) and runner.experience.in_host_memory:
        return
    try:
        jax.eval_shape(lambda key: _one_batch(runner, key), jax.random.key(0))
    except JaxrlError:
        raise
    except TRACING_ERRORS as error:
        raise LossError(
            f"learner_class={type(runner.learner).__name__} cannot be traced by jax.jit "
            f"({in_one_line(error)}){where_raised(error)}."
        ) from error


def _one_batch(runner: Learning, key: Key) -> Metrics:
    steps, envs = runner.num_steps, runner.num_envs
    state = _with_numbers(runner).init_learning(key, envs)
    zeros = jnp.zeros((steps, envs), jnp.int32)
    data = Sampled(
        rollout=blank_rollout(runner.acting, runner.actor(state), steps, envs),
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
    return runner.learn(state, data)[1]


def _with_numbers(runner: Learning) -> Learning:
    """The runner with some number wherever each lane of a program has its own, as `init` has it."""
    settings = runner.learner.settings
    own = [name for name, value in vars(settings).items() if isinstance(value, PerLane)]
    numbers = dict.fromkeys(own, jnp.ones((), jnp.float32))
    learner = dataclasses.replace(runner.learner, settings=traced_settings(settings, numbers))
    return dataclasses.replace(runner, learner=learner)
