"""Rollouts of several agents against a walk over what the environments did, step by step."""

import functools
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.core.types import Columns, PyTree, Rollout
from jaxrl.training.in_graph import CompiledRun
from jaxrl.training.multi_rollout import MultiCarry
from tests.multi_agent.agent_envs import Torture
from tests.recurrent import step_by_step

AGENTS = ("a", "b", "c")
MAPPING = {"a": "one", "b": "two", "c": "one"}
NUM_ENVS, NUM_STEPS = 8, 60
MEMORY = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 10}


@functools.cache
def make_runner(*, use_lstm: bool = False) -> tuple[Any, PyTree, PyTree]:
    """Return a runner, the state of a run and the parameters of its environments."""
    config = (
        PPOConfig()
        .environment(Torture)
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size=NUM_ENVS * NUM_STEPS, minibatch_size=60, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4], **(MEMORY if use_lstm else {})})
        .multi_agent(mapping=MAPPING)
        .debugging(loggers=[], seed=2)
    )
    with config.build() as algorithm:
        runner, params = algorithm.runner, algorithm.env_params
        assert isinstance(runner, CompiledRun)
        return runner, algorithm.state, params


def roll(runner: CompiledRun, state: PyTree, params: PyTree, window: int) -> list[Any]:
    """Roll all steps out in windows; return what each recorded."""
    worker, actors = runner.rollout_worker, runner.make_actor_state(state)

    @jax.jit
    def run(env: PyTree, carry: MultiCarry) -> PyTree:
        return worker.rollout(actors, env, carry, params, window)

    env, carry, recorded = state.env, state.carry, []
    for _ in range(NUM_STEPS // window):
        env, carry, rollout, _ = run(env, carry)
        recorded.append(jax.tree.map(np.asarray, rollout))
    return recorded


def watch(runner: CompiledRun, state: PyTree, params: PyTree) -> list[tuple[Any, Any, Any]]:
    """Return the state before every step, the step and the actions of each module."""
    worker, actors = runner.rollout_worker, runner.make_actor_state(state)

    @jax.jit
    def run(env: PyTree, carry: MultiCarry) -> PyTree:
        inputs = worker.sample_inputs(env, 1, params)
        row = jax.tree.map(lambda x: x[0], inputs)
        after, carry, step, _ = worker.step(actors, env, carry, row, params, True)
        return after, carry, step

    env, carry, seen = state.env, state.carry, []
    for _ in range(NUM_STEPS):
        after, carry, step = run(env, carry)
        seen.append(jax.tree.map(np.asarray, (env.obs, env.acts, env.is_first, step)))
        env = after
    return seen


@functools.cache
def watch_without_memory() -> list[tuple[Any, Any, Any]]:
    return watch(*make_runner())


def walk(seen: list[Any], env: int, agent: str) -> list[dict[str, Any]]:
    """The rows of an agent in an environment, from each of its actions to the next or to its end."""
    rows: list[dict[str, Any]] = []
    begun: dict[str, Any] | None = None
    for time, (obs, acts, is_first, step) in enumerate(seen):
        if acts[agent][env]:
            begun = {"obs": obs[agent][env], "is_first": is_first[agent][env], "reward": 0.0}
        if begun is None:
            continue
        begun["reward"] += step.reward[agent][env]
        ended = step.terminated[agent][env] or step.truncated[agent][env]
        if ended or step.acts[agent][env]:
            terminated, truncated = step.terminated[agent][env], step.truncated[agent][env]
            final_obs = step.final_obs[agent][env]
            ends = {"terminated": terminated, "truncated": truncated, "final_obs": final_obs}
            rows.append({**begun, **ends, "done": time})
            begun = None
    return rows


def get_column(rollouts: list[Any], module: str, column: int) -> list[dict[str, Any]]:
    """The rows of a column of a module, over all windows."""
    rows: list[dict[str, Any]] = []
    for window, recorded in enumerate(rollouts):
        rollout: Rollout = recorded.rollouts[module]
        for time in range(int(rollout.mask[:, column].sum())):
            assert rollout.mask[time, column]
            names = ("obs", "is_first", "reward", "terminated", "truncated", "final_obs")
            row = {name: getattr(rollout, name)[time, column] for name in names}
            rows.append({**row, "window": window})
    return rows


@pytest.mark.representatives("60", "1")
@pytest.mark.parametrize("window", [60, 12, 1])
def test_rows_are_those_of_each_agents_own_time(window: int) -> None:
    runner, state, params = make_runner()
    seen = watch_without_memory()
    rollouts = roll(runner, state, params, window)
    total = 0
    for env in range(NUM_ENVS):
        for module, place, agent in (("one", 0, "a"), ("one", 1, "c"), ("two", 0, "b")):
            column = env * (2 if module == "one" else 1) + place
            expected, found = walk(seen, env, agent), get_column(rollouts, module, column)
            total += len(expected)
            assert len(found) == len(expected)
            for row, other in zip(expected, found, strict=True):
                assert other["window"] == row["done"] // window
                for name in ("obs", "final_obs", "is_first", "terminated", "truncated"):
                    np.testing.assert_array_equal(other[name], row[name], err_msg=name)
                np.testing.assert_allclose(other["reward"], row["reward"], atol=1e-5)
    assert total > 300
    ends = [step for *_, step in seen]
    assert any(step.terminated["a"].any() for step in ends)
    assert any((step.truncated["a"] & ~step.terminated["a"]).any() for step in ends)


def test_memories_advance_on_own_turns_only_and_start_at_zero() -> None:
    runner, state, params = make_runner(use_lstm=True)
    worker, actors = runner.rollout_worker, runner.make_actor_state(state)

    @jax.jit
    def run(env: PyTree, carry: MultiCarry) -> PyTree:
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
        return worker.step(actors, env, carry, row, params, True)[:2]

    env, carry = state.env, state.carry
    moved = stood = fresh = 0
    for _ in range(NUM_STEPS):
        after, new_carry = run(env, carry)
        acts = np.asarray(worker.rows.gather(env.acts, "one"))
        starts = np.asarray(worker.rows.gather(after.is_first, "one"))
        for old, new in zip(
            jax.tree.leaves(carry.acting["one"]),
            jax.tree.leaves(new_carry.acting["one"]),
            strict=True,
        ):
            before, behind = np.asarray(old), np.asarray(new)
            waits = ~acts & ~starts
            np.testing.assert_array_equal(behind[waits], before[waits])
            np.testing.assert_array_equal(behind[starts], 0)
            stood, fresh = stood + waits.sum(), fresh + starts.sum()
            moved += int(np.any(behind[acts & ~starts] != before[acts & ~starts]))
        env, carry = after, new_carry
    assert moved > 10
    assert stood > 10
    assert fresh > 10


def test_a_module_computes_from_packed_rows_what_it_did_when_acting() -> None:
    runner, state, params = make_runner(use_lstm=True)
    policy = runner.learning.steps["one"].policy_step
    parameters = state.modules["one"].learner.sgd.params
    total = 0
    for recorded in roll(runner, state, params, 20):
        rollout: Rollout = recorded.rollouts["one"]
        carry = policy.get_recurrent_carry(rollout.carry_in)
        out = step_by_step(policy.module, parameters, rollout.obs, carry, rollout.is_first)
        found = out[Columns.ACTION_DIST_INPUTS][rollout.mask]
        expected = rollout.extras[Columns.ACTION_DIST_INPUTS][rollout.mask]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        total += len(found)
    assert total > 200
