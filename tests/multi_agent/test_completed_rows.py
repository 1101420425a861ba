"""Completed rows against a walk over each agent's own episodes, for random streams of agents."""

import dataclasses
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from jaxrl.core.types import PyTree, Rollout
from jaxrl.learners.bootstrap import compute_values_and_successors
from jaxrl.ops.returns import gae, lambda_returns, n_step_returns, vtrace
from jaxrl.training.agent_rows import (
    AgentStep,
    BegunRow,
    PendingRows,
    complete_rows,
    make_no_rows,
    pack_rows,
)

NUM_STEPS, GAMMA, LAMBDA = 48, 0.9, 0.8
NUM_RETURN_STEPS = 3


@dataclasses.dataclass(frozen=True)
class Streams:
    """Random lives of agents, `[T, R]`: when they act, are paid, end, and what they observe."""

    acts: np.ndarray
    is_first: np.ndarray
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    is_valid: np.ndarray
    acts_next: np.ndarray
    obs: np.ndarray
    final_obs: np.ndarray
    action: np.ndarray


def make_streams(number: int, seed: int) -> Streams:
    """Agents that act with a probability of their own, die, leave, come again, and meet faults."""
    rng = np.random.default_rng(seed)
    shape = (NUM_STEPS, number)
    busy = rng.choice([0.2, 0.5, 0.9, 1.0], number)
    acts = rng.random((NUM_STEPS + 1, number)) < busy
    dies, leaves = rng.random(shape) < 0.07, rng.random(shape) < 0.07
    is_valid = rng.random(shape) > 0.02
    present = np.zeros(number, bool)
    is_first = np.zeros(shape, bool)
    terminated, truncated, acts_next = (np.zeros(shape, bool) for _ in range(3))
    for t in range(NUM_STEPS):
        is_first[t] = ~present
        here = present | acts[t]
        terminated[t] = here & dies[t] & is_valid[t]
        truncated[t] = here & (leaves[t] | ~is_valid[t])
        ended = terminated[t] | truncated[t]
        acts_next[t] = acts[t + 1] & ~ended
        present = here & ~ended
    obs = rng.normal(size=(NUM_STEPS + 1, number)).astype(np.float32)
    ended = terminated | truncated
    other = rng.normal(size=shape).astype(np.float32)
    return Streams(
        acts=acts[:-1],
        is_first=is_first,
        reward=rng.normal(size=shape).astype(np.float32) * (acts[:-1] | ~is_first),
        terminated=terminated,
        truncated=truncated,
        is_valid=is_valid,
        acts_next=acts_next,
        obs=obs[:-1],
        final_obs=np.where(ended, other, obs[1:]),
        action=rng.integers(0, 1000, shape),
    )


@dataclasses.dataclass
class Row:
    """Row of the walk; `done` is the step that completed it."""

    done: int
    obs: float
    action: int
    reward: float
    terminated: bool
    truncated: bool
    final_obs: float
    is_first: bool


def walk(s: Streams, column: int) -> Iterator[Row]:
    """The rows of one agent: from each of its actions to the next one, or to its end."""
    begun: tuple[float, int, bool] | None = None
    reward = 0.0
    for t in range(NUM_STEPS):
        if s.acts[t, column]:
            begun = s.obs[t, column], s.action[t, column], s.is_first[t, column]
            reward = 0.0
        reward += float(s.reward[t, column])
        if begun is None:
            continue
        if not s.is_valid[t, column]:
            begun = None
            continue
        ends = s.terminated[t, column] or s.truncated[t, column]
        if ends or s.acts_next[t, column]:
            yield Row(
                done=t,
                obs=begun[0],
                action=begun[1],
                reward=reward,
                terminated=s.terminated[t, column],
                truncated=s.truncated[t, column],
                final_obs=s.final_obs[t, column],
                is_first=begun[2],
            )
            begun = None


def walk_windows(s: Streams, column: int, window: int) -> list[list[Row]]:
    """The rows of one agent by the window that completes them.

    Where a fault dropped the last row of an episode, the row before it, if it is of the same
    window, is truncated.
    """
    windows: list[list[Row]] = [[] for _ in range(NUM_STEPS // window)]
    for row in walk(s, column):
        rows = windows[row.done // window]
        if rows and row.is_first and not rows[-1].terminated:
            rows[-1].truncated = True
        rows.append(row)
    return windows


def record(s: Streams, window: int) -> list[Rollout]:
    """Rollouts of consecutive windows, with pending rows carried between them."""
    number = s.obs.shape[1]

    def begin(acts: Array, obs: Array, action: Array, is_first: Array) -> BegunRow:
        del acts
        extras = {"action_logp": obs + 1}
        return BegunRow(obs=obs, action=action, extras=extras, is_first=is_first, carry=())

    def body(pending: PendingRows, row: PyTree) -> tuple[PendingRows, Rollout]:
        acts, begun, step = row
        return complete_rows(pending, acts, begun, step)

    @jax.jit
    def run(pending: PendingRows, rows: PyTree) -> tuple[PendingRows, Rollout]:
        return jax.lax.scan(body, pending, rows)

    pack = jax.jit(pack_rows)
    blank = begin(s.acts[0], *(jnp.asarray(x[0]) for x in (s.obs, s.action, s.is_first)))
    pending, rollouts = make_no_rows(blank), []
    for start in range(0, NUM_STEPS, window):
        part = jax.tree.map(
            lambda x, start=start: jnp.asarray(x[start : start + window]), dataclasses.asdict(s)
        )
        begun = begin(part["acts"], part["obs"], part["action"], part["is_first"])
        step = AgentStep(
            reward=part["reward"],
            terminated=part["terminated"],
            truncated=part["truncated"],
            ended=part["terminated"] | part["truncated"],
            acts_next=part["acts_next"],
            final_obs=part["final_obs"],
            is_valid=part["is_valid"],
        )
        pending, rollout = run(pending, (part["acts"], begun, step))
        rollouts.append(jax.tree.map(np.asarray, pack(rollout)))
    assert pending.has_row.shape == (number,)
    return rollouts


@pytest.mark.parametrize(
    ("window", "number"),
    [(48, 200), (8, 200), (3, 200), (1, 200)]
    + [pytest.param(w, 10_000, marks=pytest.mark.slow) for w in (48, 16, 6, 2, 1)],
)
def test_every_row_is_recorded_once_and_in_order(window: int, number: int) -> None:
    streams = make_streams(number, window)
    rollouts = record(streams, window)
    total = 0
    for column in range(number):
        windows = walk_windows(streams, column, window)
        total += sum(map(len, windows))
        for expected, rollout in zip(windows, rollouts, strict=True):
            mask = rollout.mask[:, column]
            assert mask.tolist() == [True] * len(expected) + [False] * (window - len(expected))
            for name in ("obs", "action", "terminated", "truncated", "final_obs", "is_first"):
                found = getattr(rollout, name)[: len(expected), column]
                np.testing.assert_array_equal(found, [getattr(row, name) for row in expected])
            found = rollout.reward[: len(expected), column]
            np.testing.assert_allclose(found, [row.reward for row in expected], atol=1e-5)
            logp = rollout.extras["action_logp"][: len(expected), column]
            np.testing.assert_allclose(logp, [row.obs + 1 for row in expected], rtol=1e-6)
    assert total == sum(int(rollout.mask.sum()) for rollout in rollouts) > number


def value(obs: np.ndarray | Array) -> Array:
    return jnp.sin(3 * jnp.asarray(obs))


@pytest.mark.parametrize("window", [48, 8, 2, 1])
def test_returns_are_those_of_each_agents_own_episodes(window: int) -> None:
    number = 100
    streams = make_streams(number, 7)
    found = [[np.asarray(x) for x in estimate(rollout)] for rollout in record(streams, window)]
    for column in range(number):
        for i, rows in enumerate(walk_windows(streams, column, window)):
            expected = np.array([estimate_slowly(rows, k) for k in range(len(rows))])
            for j, estimates in enumerate(found[i]):
                want = expected[:, j] if len(rows) else []
                np.testing.assert_allclose(estimates[: len(rows), column], want, atol=2e-5)


@jax.jit
def estimate(rollout: Rollout) -> tuple[Array, ...]:
    """Compute the advantages of GAE, lambda-returns, n-step returns and V-trace's targets."""
    values, successors = compute_values_and_successors(value, rollout)
    ends = rollout.terminated, rollout.truncated, rollout.mask, GAMMA
    return (
        gae(rollout.reward, values, successors, *ends, LAMBDA),
        lambda_returns(rollout.reward, successors, *ends, LAMBDA),
        n_step_returns(rollout.reward, successors, *ends, NUM_RETURN_STEPS),
        *vtrace(rollout.reward, values, successors, compute_ratio(rollout.obs), *ends, LAMBDA),
    )


def compute_ratio(obs: np.ndarray | Array) -> Array:
    return jnp.exp(jnp.sin(7 * jnp.asarray(obs)))


def estimate_slowly(rows: list[Row], k: int) -> tuple[float, ...]:
    """The same for one row, by sums over the rows that follow it in its episode and window."""
    episode: list[Row] = []
    for row in rows[k:]:
        episode.append(row)
        if row.terminated or row.truncated:
            break
    v = [float(np.sin(3 * row.obs)) for row in episode]
    after = [0.0 if row.terminated else float(np.sin(3 * row.final_obs)) for row in episode]
    rho = [float(np.exp(np.sin(7 * row.obs))) for row in episode]
    delta = [row.reward + GAMMA * after[i] - v[i] for i, row in enumerate(episode)]
    advantage = sum((GAMMA * LAMBDA) ** i * delta[i] for i in range(len(episode)))
    steps = min(NUM_RETURN_STEPS, len(episode))
    n_step = sum(GAMMA**i * episode[i].reward for i in range(steps))
    n_step += GAMMA**steps * after[steps - 1]
    targets: list[float] = []
    for first in range(min(2, len(episode))):
        correction, trace = 0.0, 1.0
        for i in range(first, len(episode)):
            correction += trace * min(1.0, rho[i]) * delta[i]
            trace *= GAMMA * LAMBDA * min(1.0, rho[i])
        targets.append(v[first] + correction)
    following = targets[1] if len(targets) > 1 else after[0]
    gradient = min(1.0, rho[0]) * (episode[0].reward + GAMMA * following - v[0])
    return advantage, v[0] + advantage, n_step, targets[0], gradient


def test_a_row_lost_at_a_cut_is_noticed() -> None:
    streams = make_streams(200, 3)
    rows = sum(len(list(walk(streams, column))) for column in range(200))
    kept = sum(int(rollout.mask.sum()) for rollout in record(streams, 3))
    alone = sum(  # each window on its own, as if what is pending were dropped
        int(record(dataclasses.replace(streams, **cut(streams, start, 3)), 48)[0].mask.sum())
        for start in range(0, NUM_STEPS, 3)
    )
    assert kept == rows > alone


def cut(s: Streams, start: int, window: int) -> dict[str, np.ndarray]:
    """The same streams in which agents act in one window alone."""
    inside = np.zeros((NUM_STEPS, 1), bool)
    inside[start : start + window] = True
    return {name: getattr(s, name) & inside for name in ("acts", "acts_next", "is_valid")}
