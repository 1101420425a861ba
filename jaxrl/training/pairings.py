"""Games of a module against opponents in every seat, as one compiled program of bounded length."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.vector import MultiVectorState, MultiVectorStep
from jaxrl.envs.vector import NO_FAULT
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.multi_rollout import Actors, MultiCarry, MultiRolloutWorker
from jaxrl.training.rollout import make_env_index


@pytree
class PairingResult:
    """Sums over the episodes of each pairing.

    `outcomes` are the numbers of wins, draws and losses of the first of two agents, by the sign of
    the difference of their returns; `returns` are the sums of each agent's. `num_cut` counts
    episodes that were not completed. `fault` is that of `EvaluationResult`.
    """

    outcomes: Int[Array, "P 3"]
    returns: Float[Array, "P A"]
    num_steps: Int[Array, " P"]
    num_cut: Int[Array, " P"]
    fault: Int[Array, ""]


@pytree
class _Loop:
    env: MultiVectorState
    acting: MultiCarry
    scores: Float[Array, "B A"]
    played: Int[Array, " B"]
    result: PairingResult
    steps: Int[Array, ""]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PairingEvaluator:
    """Program that plays `episodes_per_env` episodes in each of `num_envs` environments.

    The environment of index i has the pairing `i % number of patterns` of the worker's rows.
    `max_steps` bounds the steps of each.
    """

    worker: MultiRolloutWorker
    num_envs: int
    episodes_per_env: int
    max_steps: int
    explore: bool

    def __call__(self, actors: Actors, env_params: PyTree, key: Key) -> PairingResult:
        """Play all episodes. Consumes the key."""
        worker, rows = self.worker, self.worker.rows
        number, agents = len(rows.patterns), len(rows.agents)
        zeros = jnp.zeros((number,), jnp.int32)
        start = _Loop(
            env=worker.env.reset(key, make_env_index(self.num_envs), env_params),
            acting=worker.initial_carry(self.num_envs),
            scores=jnp.zeros((self.num_envs, agents), jnp.float32),
            played=jnp.zeros((self.num_envs,), jnp.int32),
            result=PairingResult(
                outcomes=jnp.zeros((number, 3), jnp.int32),
                returns=jnp.zeros((number, agents), jnp.float32),
                num_steps=zeros,
                num_cut=zeros,
                fault=jnp.full((), NO_FAULT, jnp.int32),
            ),
            steps=jnp.zeros((), jnp.int32),
        )

        def is_running(loop: _Loop) -> Bool[Array, ""]:
            return (loop.steps < self.max_steps) & (loop.played < self.episodes_per_env).any()

        def body(loop: _Loop) -> _Loop:
            return self._step(actors, env_params, loop)

        end = jax.lax.while_loop(is_running, body, start)
        missing = jnp.maximum(self.episodes_per_env - end.played, 0)
        return dataclasses.replace(end.result, num_cut=self._add_up(missing))

    def _step(self, actors: Actors, env_params: PyTree, loop: _Loop) -> _Loop:
        worker = self.worker
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(loop.env, 1, env_params))
        env, acting, step, _ = worker.step(
            actors, loop.env, loop.acting, row, env_params, self.explore
        )
        playing = loop.played < self.episodes_per_env
        scores, outcome = score_episodes(worker.rows, loop.scores, step)
        ended = step.ended & playing
        won = [ended & (outcome == sign) for sign in (1, 0, -1)]
        old = loop.result
        result = PairingResult(
            outcomes=old.outcomes + self._add_up(jnp.stack(won, axis=1).astype(jnp.int32)),
            returns=old.returns + self._add_up(jnp.where(ended[:, None], scores, 0.0)),
            num_steps=old.num_steps + self._add_up((playing & step.mask).astype(jnp.int32)),
            num_cut=old.num_cut,
            fault=jnp.maximum(old.fault, jnp.where(playing, step.fault, NO_FAULT).max()),
        )
        return _Loop(
            env=env,
            acting=acting,
            scores=reset_scores(scores, env),
            played=loop.played + step.ended,
            result=result,
            steps=loop.steps + 1,
        )

    def _add_up(self, values: Array) -> Array:
        """Return sums over the environments of each pairing."""
        pairing = np.arange(self.num_envs) % len(self.worker.rows.patterns)
        return jax.ops.segment_sum(values, pairing, len(self.worker.rows.patterns))


def score_episodes(
    rows: AgentRows, scores: Float[Array, "B A"], step: MultiVectorStep
) -> tuple[Float[Array, "B A"], Int[Array, " B"]]:
    """Return the returns of all agents in the current episode, and who is ahead.

    Args:
        rows: Agents.
        scores: Returns before the step.
        step: The step.

    Returns:
        The returns after it, and the sign of the difference between the first two agents.
    """
    scores = scores + rows.gather_all(step.reward)
    return scores, jnp.sign(scores[:, 0] - scores[:, 1]).astype(jnp.int32)


def reset_scores(scores: Float[Array, "B A"], after: MultiVectorState) -> Float[Array, "B A"]:
    """Return the returns with zeros where an episode begins next."""
    return jnp.where((after.episode_length == 0)[:, None], 0.0, scores)
