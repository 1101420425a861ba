"""Evaluation as one compiled program with bounded length.

Each environment plays a fixed quota of episodes: taking the first n episodes to end would favor
short ones. Statistics are used but never updated; the training state and its keys are not touched.
"""

import dataclasses
from typing import cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.vector import NO_FAULT, VectorState
from jaxrl.training.episode_stats import AgentReturns
from jaxrl.training.multi_rollout import MultiRolloutWorker
from jaxrl.training.rollout import ActorCarry, ActorState, RolloutWorker, make_env_index

DEFAULT_MAX_EPISODE_STEPS = 10_000
"""Maximum length of an episode in an environment without a time limit."""
MIN_EPISODES_PER_ENV = 4
"""Minimum duration per environment of an evaluation by steps, in episodes of maximum length."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationInputs:
    """Inputs of an evaluation.

    Args:
        actor: Parameters and connector statistics.
        env_params: Parameters of the training environment; empty if it is not in the compiled
            program.
        key: Key of all random draws of this evaluation.
        iteration: Iteration of the run.
        task: Task of training environments on the host, as their `set_task` takes it; None for
            none.
    """

    actor: ActorState
    env_params: PyTree
    key: Key
    iteration: int
    task: PyTree = None

    @property
    def seed(self) -> int:
        """Seed of 31 bits, for environments that are seeded with a number."""
        return int(jax.random.bits(jax.random.clone(self.key), dtype=jnp.uint32)) >> 1


@pytree
class EpisodeMoments:
    """Running statistics of each environment's completed episodes, however many there are.

    `squares` is the sum of the returns' squared deviations from their mean (Welford 1962,
    https://doi.org/10.1080/00401706.1962.10490022), which float32 holds where it could not hold the
    difference of two sums.
    """

    count: Int[Array, " E"]
    mean_return: Float[Array, " E"]
    squares: Float[Array, " E"]
    min_return: Float[Array, " E"]
    max_return: Float[Array, " E"]
    sum_length: Int[Array, " E"]
    min_length: Int[Array, " E"]
    max_length: Int[Array, " E"]

    @staticmethod
    def empty(num_envs: int) -> "EpisodeMoments":
        """Return the statistics of no episodes."""
        none = jnp.zeros((num_envs,), jnp.int32)
        zero = jnp.zeros((num_envs,), jnp.float32)
        return EpisodeMoments(
            count=none,
            mean_return=zero,
            squares=zero,
            min_return=zero + jnp.inf,
            max_return=zero - jnp.inf,
            sum_length=none,
            min_length=none + jnp.iinfo(jnp.int32).max,
            max_length=none,
        )

    def add(
        self,
        counts: Bool[Array, " E"],
        episode_return: Float[Array, " E"],
        length: Int[Array, " E"],
    ) -> "EpisodeMoments":
        """Add an episode of each environment in which one ended that counts."""
        count = self.count + counts
        difference = episode_return - self.mean_return
        mean = self.mean_return + difference / jnp.maximum(count, 1)
        added = EpisodeMoments(
            count=count,
            mean_return=mean,
            squares=self.squares + difference * (episode_return - mean),
            min_return=jnp.minimum(self.min_return, episode_return),
            max_return=jnp.maximum(self.max_return, episode_return),
            sum_length=self.sum_length + length,
            min_length=jnp.minimum(self.min_length, length),
            max_length=jnp.maximum(self.max_length, length),
        )
        return where_rows(counts, added, self)


@pytree
class EvaluationResult:
    """Statistics of the completed episodes of each environment.

    `num_cut` counts episodes that were requested or started but not completed. `fault` is the largest
    number of a fault or of a breach of the contract, see `jaxrl.envs.vector`. `agents` has the
    agent-episodes of environments of several agents, None for others.
    """

    episodes: EpisodeMoments
    env_steps: Int[Array, ""]
    num_nonfinite: Int[Array, ""]
    num_cut: Int[Array, ""]
    fault: Int[Array, ""]
    agents: AgentReturns | None = None


@pytree
class _Loop:
    env: VectorState
    acting: ActorCarry
    played: Int[Array, " E"]
    result: EvaluationResult
    steps: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Evaluator:
    """Program that plays `episodes_per_env` episodes in each of `num_envs` environments.

    `max_steps` bounds the steps of each environment. If `episodes_per_env` is None, every
    environment plays exactly `max_steps` steps.
    """

    rollout_worker: RolloutWorker | MultiRolloutWorker
    num_envs: int
    episodes_per_env: int | None
    max_steps: int
    explore: bool

    def __call__(self, actor: ActorState, env_params: PyTree, key: Key) -> EvaluationResult:
        """Play all episodes of one evaluation. Consumes the key."""
        worker = cast("RolloutWorker", self.rollout_worker)
        env = worker.env.reset(key, make_env_index(self.num_envs), env_params)
        start = _Loop(
            env=env,
            acting=worker.initial_carry(self.num_envs),
            played=jnp.zeros((self.num_envs,), jnp.int32),
            result=EvaluationResult(
                episodes=EpisodeMoments.empty(self.num_envs),
                env_steps=jnp.zeros((), jnp.int32),
                num_nonfinite=jnp.zeros((), jnp.int32),
                num_cut=jnp.zeros((), jnp.int32),
                fault=jnp.full((), NO_FAULT, jnp.int32),
                agents=(
                    worker.make_agent_returns() if isinstance(worker, MultiRolloutWorker) else None
                ),
            ),
            steps=jnp.zeros((), jnp.int32),
        )

        def is_running(loop: _Loop) -> Bool[Array, ""]:
            running = loop.steps < self.max_steps
            if self.episodes_per_env is not None:
                running = running & (loop.played < self.episodes_per_env).any()
            return running

        def body(loop: _Loop) -> _Loop:
            return self._step(actor, env_params, loop)

        end = jax.lax.while_loop(is_running, body, start)
        if self.episodes_per_env is None:
            cut = end.env.episode_length > 0
        else:
            cut = jnp.maximum(self.episodes_per_env - end.played, 0)
        return replace(end.result, num_cut=jnp.sum(cut, dtype=jnp.int32))

    def _step(self, actor: ActorState, env_params: PyTree, loop: _Loop) -> _Loop:
        worker = cast("RolloutWorker", self.rollout_worker)
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(loop.env, 1, env_params))
        env, acting, step, _ = worker.step(
            actor, loop.env, loop.acting, row, env_params, self.explore
        )
        old = loop.result
        playing = (
            loop.played < self.episodes_per_env
            if self.episodes_per_env is not None
            else jnp.ones_like(step.ended)
        )
        result = replace(
            old,
            episodes=old.episodes.add(
                step.ended & playing, step.episode_return, step.episode_length
            ),
            env_steps=old.env_steps + playing.sum(dtype=jnp.int32),
            num_nonfinite=old.num_nonfinite + (playing & ~step.mask).sum(dtype=jnp.int32),
            fault=jnp.maximum(old.fault, jnp.where(playing, step.fault, NO_FAULT).max()),
            agents=self._add_agents(old.agents, step, playing),
        )
        return _Loop(
            env=env,
            acting=acting,
            played=loop.played + step.ended,
            result=result,
            steps=loop.steps + 1,
        )

    def _add_agents(
        self, returns: AgentReturns | None, step: PyTree, playing: Bool[Array, " E"]
    ) -> AgentReturns | None:
        """Add the agent-episodes that a step ended; None for a single agent."""
        worker = self.rollout_worker
        if returns is None or not isinstance(worker, MultiRolloutWorker):
            return None
        return worker.add_agents(returns, step, playing)
