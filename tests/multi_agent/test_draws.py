"""Opponents that are drawn by episode, against a walk in NumPy, and each computed alone."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Draw, RandomRLModule, Seats
from jaxrl.algorithms.appo import APPOConfig
from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.config.base import AlgorithmConfig
from jaxrl.core.keys import make_key
from jaxrl.core.types import Columns, PyTree
from jaxrl.errors import ConfigError
from jaxrl.modules.scripted import ScriptedModule
from jaxrl.training.opponents import (
    choose_block_size,
    compute_in_blocks,
    draw_slots,
    make_blocks,
    put,
)
from tests.multi_agent.agent_envs import Targets, Torture

NUM_ENVS = 8
MEMORY = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 8}
WITH_REWARDS = {**MEMORY, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}


class Zero(ScriptedModule):
    """Always the first action."""

    def choose_actions(self, obs: Any) -> Any:
        return jnp.zeros(obs.shape[:1], jnp.int32)


class One(ScriptedModule):
    """Always the second action."""

    def choose_actions(self, obs: Any) -> Any:
        return jnp.ones(obs.shape[:1], jnp.int32)


def make_config(
    env: Any = Targets, model: dict[str, Any] | None = None, **settings: Any
) -> PPOConfig:
    """8 environments x 32 steps."""
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=NUM_ENVS)
    config.training(train_batch_size=256, minibatch_size=64, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [8], **(model or {})})
    config.debugging(loggers=[], seed=3)
    default: dict[str, Any] = {
        "policies": {"main": None, "zero": Zero, "one": One, "v0": None, "v1": None},
        "policies_to_train": ["main"],
        "mapping": Seats("main", Draw()),
        "policy_map_capacity": 4,
    }
    return config.multi_agent(**{**default, **settings})


@pytest.mark.parametrize("size", [1, 3, 8])
def test_blocks_have_every_row_once(size: int) -> None:
    rng = np.random.default_rng(size)
    for number in (1, 7, 24):
        for members in (1, 2, 5):
            member = rng.integers(-1, members, number).astype(np.int32)
            blocks = jax.jit(make_blocks, static_argnums=(1, 2))(member, members, size)
            source, owner, place = (
                np.asarray(x) for x in (blocks.source, blocks.member, blocks.place)
            )
            number_of = np.bincount(member[member >= 0], minlength=members)
            assert blocks.count == sum(-(-count // size) for count in number_of.tolist())
            filled = place[member >= 0]
            assert (filled < size * blocks.count).all()
            assert len(set(filled.tolist())) == len(filled)
            for row in np.flatnonzero(member >= 0):
                assert source.reshape(-1)[place[row]] == row
                assert owner[place[row] // size] == member[row]


def test_block_sizes() -> None:
    assert choose_block_size(1024, 4) == 64
    assert choose_block_size(4096, 16) == 64
    assert choose_block_size(64, 16) == 8
    assert choose_block_size(4, 16) == 4


@functools.cache
def make_runner(memory: str) -> tuple[Any, PyTree, PyTree]:
    """Return a runner, a state and parameters; environments have agents that come and go."""
    model = {"without": {}, "lstm": MEMORY, "rewards": WITH_REWARDS}[memory]
    mapping = [
        {"a": "main", "b": Draw(), "c": "main"},
        {"a": Draw(), "b": "main", "c": Draw(("zero", "v1"), (1.0, 3.0))},
    ]
    config = make_config(Torture, model, mapping=mapping)
    config.env_runners(observation_filter="MeanStdFilter")
    with config.debugging(seed=2).build() as algorithm:
        return algorithm.runner, algorithm.state, algorithm.env_params


def spread(stack: Any) -> Any:
    """Give members of a stack connector statistics of their own."""
    shift = jnp.arange(4, dtype=jnp.float32)

    def move(x: Any) -> Any:
        if not jnp.issubdtype(x.dtype, jnp.floating):
            return x
        return x + shift.reshape((-1,) + (1,) * (x.ndim - 1))

    return jax.tree.map(move, stack)


@pytest.mark.representatives("rewards")
@pytest.mark.parametrize(
    "memory", ["without", pytest.param("lstm", marks=pytest.mark.slow), "rewards"]
)
def test_every_row_is_computed_by_its_own_opponent(memory: str) -> None:
    """Over an episode and more: outputs and carries are those of each opponent alone, row by row."""
    runner, state, _ = make_runner(memory)
    pool = runner.rollout_worker.pool
    kind = next(kind for kind in pool.kinds if kind.name == "main")
    stack = state.opponents.actors["main"]
    stack = put(stack, 2, jax.tree.map(lambda x: x[0], stack))
    stack = jax.tree.map(lambda x: x, stack)
    stack = type(stack)(
        params=stack.params,
        obs_state=spread(stack.obs_state),
        hparams=stack.hparams,
        progress=stack.progress,
    )
    rng, number = np.random.default_rng(1), 24
    member = jnp.asarray(rng.integers(0, 4, number), jnp.int32)
    obs = jnp.asarray(rng.normal(size=(5, number, 3)) * 9, jnp.float32)
    is_first = jnp.asarray(rng.random((5, number)) < 0.3).at[0].set(True)
    reward = jnp.asarray(rng.normal(size=(5, number)), jnp.float32)

    def act(actor: Any, rows: Any) -> Any:
        obs, carry, is_first = rows
        index = jnp.zeros(obs.shape[:1], jnp.int32)
        return kind.policy.act(actor, obs, carry, is_first, index, None, explore=False)

    @jax.jit
    def in_blocks(member: Any, rows: Any) -> Any:
        return compute_in_blocks(act, stack, member, rows, 8)

    @jax.jit
    def alone(index: Any, rows: Any) -> Any:
        return act(jax.tree.map(lambda x: x[index], stack), rows)

    carry, own = (kind.policy.initial_carry(number) for _ in range(2))
    for time in range(5):
        out = in_blocks(member, (obs[time], carry, is_first[time]))
        one = [alone(i, (obs[time], own, is_first[time])) for i in range(4)]
        expected = jax.tree.map(
            lambda *xs: np.stack([xs[m][r] for r, m in enumerate(np.asarray(member))]), *one
        )
        for name in (Columns.ACTION_DIST_INPUTS, Columns.STATE_OUT):
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
                out[name],
                expected[name],
            )
        np.testing.assert_array_equal(out[Columns.ACTIONS], expected[Columns.ACTIONS])
        after = is_first[min(time + 1, 4)]
        carry = kind.policy.advance(out[Columns.STATE_OUT], reward[time], after)
        own = kind.policy.advance(
            jax.tree.map(jnp.asarray, expected[Columns.STATE_OUT]), reward[time], after
        )


def choose(weights: np.ndarray, number: float) -> int:
    """Slot of a number in [0, 1): the first one at which the sum of weights exceeds it."""
    total = 0.0
    for slot, weight in enumerate(weights):
        total += weight
        if number * weights.sum() < total:
            return slot
    raise AssertionError


def test_slots_are_drawn_in_proportion() -> None:
    weights = np.array([[0.0, 1.0, 0.0, 3.0, 0.0], [2.0, 0.0, 0.0, 0.0, 0.0]], np.float32)
    for row in weights:
        numbers = np.linspace(0, 1, 201, endpoint=False, dtype=np.float32)
        found = draw_slots(jnp.tile(row, (201, 1)), jnp.asarray(numbers))
        np.testing.assert_array_equal(found, [choose(row, x) for x in numbers])
    last = np.float32(1) - np.finfo(np.float32).epsneg
    np.testing.assert_array_equal(draw_slots(jnp.asarray(weights), jnp.full(2, last)), [3, 0])


def test_who_plays_is_that_of_a_walk() -> None:
    """In every copy and episode, and no change before its end."""
    runner, state, params = make_runner("rewards")
    worker, actors = runner.rollout_worker, runner.make_actor_state(state)
    weights = np.asarray(state.opponents.weights)
    names = ["v0", "v1", "", "", "one", "zero"]
    np.testing.assert_array_equal(weights, [[1, 1, 0, 0, 1, 1], [0, 3, 0, 0, 0, 1]])

    @jax.jit
    def run(env: Any, carry: Any) -> Any:
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
        keys = jax.random.key_data(row.env.action_key)
        return (*worker.step(actors, env, carry, row, params, True)[:2], keys)

    cells = [(env, i) for env in range(NUM_ENVS) for i in range(3) if (env % 2 == 0) == (i == 1)]
    env, carry = state.env, state.carry
    current = dict.fromkeys(cells, -1)
    drawn: list[str] = []
    for _ in range(60):
        begins = np.asarray(env.episode_length) == 0
        env, carry, keys = run(env, carry)
        for copy, agent in cells:
            if begins[copy]:
                key = jax.random.fold_in(jax.random.wrap_key_data(keys[copy]), agent)
                number = float(jax.random.uniform(jax.random.fold_in(key, 0x6F70706F)))
                draw = 1 if agent == 2 else 0
                current[copy, agent] = choose(weights[draw], number)
                drawn.append(names[current[copy, agent]])
        np.testing.assert_array_equal(carry.opponents.slot, list(current.values()))
    assert set(drawn) == {"v0", "v1", "one", "zero"}
    assert len(drawn) > 30


def test_actions_are_those_of_who_plays() -> None:
    """Scripted opponents are paid in every episode for their only action, or never."""
    config = make_config(mapping=Seats("main", Draw(("zero", "one"))))
    config.multi_agent(policies={"main": None, "zero": Zero, "one": One})
    with config.debugging(seed=2).build() as algorithm:
        runner, params, state = algorithm.runner, algorithm.env_params, algorithm.state
        runner: Any

        @jax.jit
        def run(env: Any, carry: Any) -> Any:
            worker, actors = runner.rollout_worker, runner.make_actor_state(state)
            row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
            env, carry, step, _ = worker.step(actors, env, carry, row, params, True)
            return env, carry, worker.rows.select(worker.rows.gather_all(step.reward), DRAWN)

        env, carry = state.env, state.carry
        names = ["one", "zero"]  # kinds are sorted
        seen: set[tuple[int, str]] = set()
        for _ in range(40):
            env, carry, reward = run(env, carry)
            for row, slot in enumerate(np.asarray(carry.opponents.slot)):
                agent = 1 - row % 2  # main has the first seat in even copies
                name = names[slot - 4]
                assert reward[row] == float(name == ["zero", "one"][agent])
                seen.add((agent, name))
    assert len(seen) == 4


@pytest.mark.slow
def test_a_draw_of_one_plays_as_it_does_without_a_draw() -> None:
    """To the bit: the rows of the module that learns."""
    policies = {"main": None, "random": RandomRLModule}
    rollouts: list[PyTree] = []
    for opponent in ("random", Draw(("random",))):
        config = make_config(
            policies=policies, mapping=Seats("main", opponent), policy_map_capacity=16
        )
        with config.build() as algorithm:
            runner, params = algorithm.runner, algorithm.env_params
        runner: Any
        state = jax.jit(runner.init)(make_key(2), params)
        after, _, (sampled,) = jax.jit(runner.train_batch)(state)
        recorded = sampled.rollout
        kept = jax.tree.map(jnp.asarray, (recorded.rollouts["main"], recorded.agents))
        rollouts.append((kept, after.modules["main"].learner.sgd.params, after.agents.steps))
    jax.tree.map(np.testing.assert_array_equal, *rollouts)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "nothing to draw": (
        {"policies": {"main": None}},
        "Draw has no module to draw from",
    ),
    "a module that plays": (
        {"mapping": Seats("main", Draw(("main", "zero")))},
        "Draw names 'main', which plays an agent of its own",
    ),
    "trained": (
        {"policies_to_train": ["main", "v0"]},
        "policies_to_train names 'v0', which is drawn",
    ),
    "no room": ({"policy_map_capacity": 1}, "policy_map_capacity=1 has no room .* v0, v1: set 2"),
    "capacity": ({"policy_map_capacity": 0}, "policy_map_capacity"),
    "capacity without a draw": (
        {"policies": {"main": None, "one": One}, "mapping": Seats("main", "one")},
        "policy_map_capacity=4 has no effect: the mapping draws no opponents",
    ),
    "ids of agents": ({"observe_agent_id": True}, "observe_agent_id=True"),
    "settings": (
        {"algorithm_config_overrides_per_module": {"v0": {"lr": 0.1}}},
        "lr of 'v0' has no effect",
    ),
    "an unused id": (
        {"mapping": Seats("main", Draw(("zero",)))},
        "policies has 'one', which plays none",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_sentence(name: str) -> None:
    settings, match = BAD[name]
    with pytest.raises(ConfigError, match=match) as caught:
        make_config(**settings).build()
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["APPO"])
def test_other_algorithms_and_games_draw(algo: str) -> None:
    config: AlgorithmConfig = {"APPO": APPOConfig}[algo]()
    config.environment("TicTacToe-v0").env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=80).debugging(loggers=[])
    config.multi_agent(
        policies={"main": None, "random": RandomRLModule},
        policies_to_train=["main"],
        mapping=Seats("main", Draw(), live=0.5),
    )
    with config.build() as algorithm:
        for _ in range(6):  # APPO's buffer of train batches fills first
            result = algorithm.train()
        assert result["learners"]["main"]["num_module_steps_trained"] > 0
