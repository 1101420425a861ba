"""AlphaZero: models, searches and targets against hand-worked games; what broken versions do not find."""

import dataclasses
import sys
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from scipy.special import log_softmax

from jaxrl import AlphaZeroConfig, JaxEnv, PPOConfig, RandomRLModule, Seats, TimeStep, grid
from jaxrl.algorithms.alpha_zero import AlphaZeroBatch, AlphaZeroLearner
from jaxrl.assembly.assemble import assemble
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Columns, Progress, Rollout
from jaxrl.envs import MultiAgentJaxEnv
from jaxrl.envs.model import EnvModel, Imagined, with_state
from jaxrl.envs.multi.base import ALL, MultiStart, MultiStep
from jaxrl.envs.registry import make, make_multi
from jaxrl.errors import ConfigError, EnvError, JaxrlError
from jaxrl.modules import planner
from jaxrl.modules.planner import GumbelSearch, PuctSearch
from jaxrl.modules.rl_module import make_zeros
from jaxrl.testing.replies import play_all_replies
from tests.helpers import assert_close, assert_equal

SEATS = ("player_0", "player_1")


def new_key() -> Any:
    return jax.random.key(0)


@pytree
class PileState:
    """Stones that are left, and who is to move."""

    stones: Any
    mover: Any


class Pile(MultiAgentJaxEnv[PileState, None]):
    """A pile of stones, of which one (action 0) or two (1) are taken; who takes the last one wins.

    Who takes two moves again. Taking two of one is illegal, costs 3 and ends the game.
    """

    name = "Pile"
    possible_agents = SEATS
    acting = "some"
    max_acting = 1
    size = 4
    prize = 1.0

    def observation_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        stones = spaces.Box(0.0, 9.0, (1,), np.float32)
        return spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": stones})

    def action_space(self, agent: str, params: None) -> gymnasium.Space[Any]:
        return spaces.Discrete(2)

    def _see(self, state: PileState) -> tuple[Any, Any]:
        obs = {
            "action_mask": jnp.stack([state.stones >= 1, state.stones >= 2]).astype(jnp.int8),
            "obs": state.stones.astype(jnp.float32)[None],
        }
        acts = {name: state.mover == i for i, name in enumerate(SEATS)}
        return dict.fromkeys(SEATS, obs), acts

    def reset(self, key: Any, params: None) -> tuple[PileState, MultiStart]:
        state = PileState(stones=jnp.int32(self.size), mover=jnp.int32(0))
        obs, acts = self._see(state)
        return state, MultiStart(obs=obs, acts=acts)

    def step(
        self, key: Any, state: PileState, actions: Any, params: None
    ) -> tuple[PileState, MultiStep]:
        action = jnp.where(state.mover == 0, actions[SEATS[0]], actions[SEATS[1]])
        left = state.stones - 1 - action
        won, illegal = left == 0, left < 0
        reward = jnp.where(illegal, -3.0, self.prize * won.astype(jnp.float32))
        after = PileState(
            stones=jnp.maximum(left, 0), mover=jnp.where(action == 1, state.mover, 1 - state.mover)
        )
        obs, acts = self._see(after)
        never = dict.fromkeys((*SEATS, ALL), jnp.bool_(False))
        return after, MultiStep(
            obs=obs,
            acts=acts,
            reward={n: jnp.where(state.mover == i, reward, -reward) for i, n in enumerate(SEATS)},
            terminated={**never, ALL: won | illegal},
            truncated=never,
        )


class Alone(Pile):
    """A game of one player, who takes one stone or two; the rewards of nobody else make up for its own."""

    possible_agents = SEATS[:1]

    def _see(self, state: PileState) -> tuple[Any, Any]:
        obs, acts = super()._see(state)
        return {"player_0": obs["player_0"]}, {"player_0": jnp.ones_like(acts["player_0"])}

    def step(
        self, key: Any, state: PileState, actions: Any, params: None
    ) -> tuple[PileState, MultiStep]:
        mine = replace(state, mover=jnp.zeros_like(state.mover))
        after, step = super().step(key, mine, dict.fromkeys(SEATS, actions["player_0"]), params)
        never = {name: step.truncated[name] for name in ("player_0", ALL)}
        return after, replace(
            step,
            reward={"player_0": step.reward["player_0"]},
            terminated={**never, ALL: step.terminated[ALL]},
            truncated=never,
        )


def model_of(env: Any, **kwargs: Any) -> tuple[EnvModel, Any]:
    """The model of an environment, and its first observation's state."""
    is_multi = isinstance(env, MultiAgentJaxEnv) or env == "TicTacToe-v0"
    made = with_state((make_multi if is_multi else make)(env, **kwargs))
    assert made.model is not None
    start = made.env.reset(new_key(), made.params)[1]
    obs = start.obs[SEATS[0]] if is_multi else start
    return made.model, obs["state"]


def walk(model: EnvModel, state: Any, *actions: int) -> list[Imagined]:
    steps: list[Imagined] = []
    for action in actions:
        steps.append(model.step(new_key(), state, jnp.int32(action)))
        state = steps[-1].obs["state"]
    return steps


def test_a_game_of_one_player_is_searched_too() -> None:
    """All steps count for the player, and its rewards need not sum to 0."""
    one, two = walk(*model_of(Alone()), 0, 1)
    assert [float(x.discount) for x in (one, two)] == [1.0, 1.0]
    config = AlphaZeroConfig().environment(Alone).debugging(seed=0, loggers=[])
    config.training(num_simulations=2, train_batch_size=64, minibatch_size=32, num_epochs=1)
    config.env_runners(num_envs_per_env_runner=8).rl_module(model_config={"fcnet_hiddens": [8]})
    with config.build() as algorithm:
        losses = algorithm.train()["learners"]["default_policy"]
        assert np.isfinite(losses["policy_loss"])
        assert losses["vf_loss"] > 0.0


@pytest.mark.parametrize(
    ("actions", "rewards", "discounts", "seats"),
    [
        # one, one, then two of two: the last of them wins
        ((0, 0, 1), (0, 0, 1), (-1, -1, 0), (1, 0, 0)),
        # two: the same player moves again, and takes the last two
        ((1, 1), (0, 1), (1, 0), (0, 0)),
        # two, one, then two of one is illegal
        ((1, 0, 1), (0, 0, -3), (1, -1, 0), (0, 1, 1)),
    ],
)
def test_a_model_of_turns_has_rewards_of_who_moves_and_signs_of_who_is_next(
    actions: tuple[int, ...], rewards: Any, discounts: Any, seats: Any
) -> None:
    steps = walk(*model_of(Pile()), *actions)
    assert [float(step.reward) for step in steps] == list(rewards)
    assert [float(step.discount) for step in steps] == list(discounts)
    assert [bool(step.is_over) for step in steps] == [d == 0 for d in discounts]
    assert [int(step.obs["state"]["(seat)"]) for step in steps] == list(seats)


def test_a_model_goes_on_from_what_was_observed_and_beyond_a_time_limit() -> None:
    made = make("CartPole-v1", max_episode_steps=2)
    shown = with_state(made)
    assert shown.max_episode_steps == 2
    model, state = shown.model, shown.env.reset(new_key(), shown.params)[1]["state"]
    assert model is not None
    own, _ = made.env.reset(new_key(), made.params)
    for number in range(3):
        own, step = made.env.step(new_key(), own, jnp.int32(number % 2), made.params)
        found = model.step(new_key(), state, jnp.int32(number % 2))
        state = found.obs["state"]
        assert_equal(found.obs["obs"], step.obs)
        assert_equal(model.unpack(state), own)
        assert bool(step.truncated) == (number >= 1)
        assert float(found.discount) == 1.0
        assert not found.is_over
    ends = [step for step in walk(model, state, *[1] * 20) if step.is_over]
    assert ends
    assert float(ends[0].discount) == 0.0
    assert float(ends[0].reward) == 1.0


def decide(
    env: Any,
    state: Any,
    method: Any,
    num_simulations: int,
    logits: Any = None,
    *,
    explore: bool = False,
) -> planner.Plan:
    """Search from a state with a network that knows nothing: values 0, and the same logits everywhere."""
    config = AlphaZeroConfig().environment(env).debugging(seed=0)
    config.training(num_simulations=num_simulations, search=method)
    config.rl_module(model_config={"fcnet_hiddens": [4], "conv_filters": []})
    assembly = assemble(config)
    own = assembly.modules["default_policy"] if config.is_multi_agent else assembly
    step = own.policy_step
    module: Any = step.module
    params = jax.tree.map(jnp.zeros_like, module.init(new_key()))
    if logits is not None:
        params["pi_head"]["out"]["bias"] = jnp.asarray(logits, jnp.float32)
    obs_state = step.obs_pipeline.init()
    bound = module.bind(lambda obs: step.obs_pipeline(obs_state, obs), step.action_pipeline)
    obs = jax.tree.map(lambda x: x[None], state)
    seen = step.obs_pipeline(obs_state, obs)
    return bound.plan(params, seen, jax.random.split(new_key(), 1), {"gamma": 1.0}, explore=explore)


def tic_tac_toe(own: int, other: int) -> Any:
    """The observation of the player to move, with the state; stones are bits of cells."""
    made = with_state(make_multi("TicTacToe-v0"))
    state, _ = made.env.reset(new_key(), made.params)
    last = (other & -other).bit_length() - 1
    stones = jnp.asarray([other & ~(1 << last), own], jnp.uint16)
    before = replace(state, stones=stones, mover=jnp.int32(1))
    actions = dict.fromkeys(SEATS, jnp.int32(last))
    return made.env.step(new_key(), before, actions, made.params)[1].obs[SEATS[0]]


WIN = tic_tac_toe(own=0b000_000_011, other=0b000_011_000)
"""Cells 0 and 1 are own, 3 and 4 the other's: 2 wins at once."""
BLOCK = tic_tac_toe(own=0b100_000_001, other=0b000_011_000)
"""Cells 0 and 8 are own, 3 and 4 the other's: anything but 5 loses."""


@pytest.mark.parametrize("method", ["gumbel", "puct"])
@pytest.mark.parametrize(("obs", "move"), [(WIN, 2), (BLOCK, 5)])
def test_a_search_takes_a_win_and_prevents_a_loss(obs: Any, move: int, method: str) -> None:
    found = decide("TicTacToe-v0", obs, method, 200)
    assert int(found.action[0]) == move
    assert float(found.policy[0, move]) > 0.5
    assert_close(found.policy.sum(), 1.0, rtol=1e-5)
    illegal = np.asarray(obs["action_mask"]) == 0
    assert float(found.policy[0, illegal].sum()) == 0.0


@pytest.mark.parametrize("broken", ["sign", "end"])
def test_a_model_without_the_sign_or_the_end_finds_no_defence(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = EnvModel.step

    def step(self: EnvModel, *args: Any) -> Imagined:
        found = honest(self, *args)
        if broken == "sign":
            return replace(found, discount=jnp.abs(found.discount))
        return replace(found, reward=jnp.where(found.is_over, 0.0, found.reward))

    monkeypatch.setattr(EnvModel, "step", step)
    policy = np.asarray(decide("TicTacToe-v0", BLOCK, "gumbel", 200).policy[0])
    assert policy[5] < 0.5


@pytest.mark.parametrize("scales", [{}, {"value_scale": 0.02, "rescale_values": False}])
def test_the_improved_policy_is_the_paper_s(scales: dict[str, Any]) -> None:
    """Two stones: action 0 leaves one for the other, 1 wins at once."""
    game = type("Two", (Pile,), {"size": 2, "prize": 3.0})()
    made = with_state(make_multi(game))
    obs = made.env.reset(new_key(), made.params)[1].obs[SEATS[0]]
    logits = np.array([0.7, -0.4])
    found = decide(game, obs, {"type": "gumbel", "gumbel_scale": 0.0, **scales}, 2, logits)
    # Each action is visited once: values of 0 after action 0, and 3 for the win.
    q = np.array([0.0, 3.0])
    rescaled = q if "rescale_values" in scales else (q - q.min()) / (q.max() - q.min())
    wanted = logits + (50 + 1) * scales.get("value_scale", 0.1) * rescaled
    wanted = np.exp(wanted - wanted.max())
    assert_close(found.policy[0], wanted / wanted.sum(), rtol=1e-4)
    assert int(found.action[0]) == 1
    # The root's value is the mean of the network's value, and those of both visits.
    assert_close(found.value[0], 1.0, rtol=1e-5)


def test_visits_to_a_power_are_rllib_s_policy() -> None:
    game = type("Two", (Pile,), {"size": 2})()
    made = with_state(make_multi(game))
    obs = made.env.reset(new_key(), made.params)[1].obs[SEATS[0]]
    plain = decide(game, obs, {"type": "puct", "temperature": 1.0}, 30).policy[0]
    visits = np.round(np.asarray(plain) * 30)
    assert_close(visits.sum(), 30.0, rtol=1e-5)
    sharp = decide(game, obs, {"type": "puct", "temperature": 1.5}, 30).policy[0]
    assert_close(sharp, visits**1.5 / (visits**1.5).sum(), rtol=1e-4)


def test_noise_is_for_exploring_alone() -> None:
    loud = {"type": "gumbel", "gumbel_scale": 50.0}
    calm = [decide("TicTacToe-v0", BLOCK, m, 16).action for m in (loud, "gumbel")]
    assert_equal(*calm)
    drawn = decide("TicTacToe-v0", BLOCK, loud, 2, explore=True)
    assert int(drawn.action[0]) != int(decide("TicTacToe-v0", BLOCK, loud, 64).action[0])


# --- the learner ---


def learner_of(env: str = "CartPole-v1", **training: Any) -> tuple[AlphaZeroLearner, Any, Any]:
    config = AlphaZeroConfig().environment(env).training(**training).debugging(seed=0)
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    assembly = assemble(config)
    learner = assembly.train_step.learner
    assert isinstance(learner, AlphaZeroLearner)
    return learner, learner.init(new_key()), assembly


def recorded(module: Any, steps: int = 7, envs: int = 3) -> Rollout:
    """Rows with ends of both kinds, and one that is no transition."""
    rng, shape = np.random.default_rng(1), (7, 3)
    obs = make_zeros(module.observation_space, shape)
    terminated = np.zeros(shape, bool)
    terminated[2, 0] = terminated[4, 1] = True
    truncated = np.zeros(shape, bool)
    truncated[3, 2] = truncated[5, 0] = True
    mask = np.ones(shape, bool)
    mask[6, 1] = False
    policy = rng.dirichlet([1.0, 1.0], shape)

    def fill(seed: int) -> Any:
        values = np.random.default_rng(seed).normal(size=(*shape, 4))
        return {**obs, "obs": jnp.asarray(values, jnp.float32)}

    return Rollout(
        obs=fill(2),
        action=jnp.zeros(shape, jnp.int32),
        reward=jnp.asarray(rng.normal(size=shape), jnp.float32),
        terminated=jnp.asarray(terminated),
        truncated=jnp.asarray(truncated),
        final_obs=fill(3),
        is_first=jnp.zeros(shape, bool),
        mask=jnp.asarray(mask),
        extras={
            Columns.ACTION_LOGP: jnp.zeros(shape, jnp.float32),
            Columns.ACTION_DIST_INPUTS: jnp.log(jnp.asarray(policy, jnp.float32)),
            Columns.SEARCH_VALUE: jnp.asarray(rng.normal(size=shape), jnp.float32),
        },
    )


def test_value_targets_are_lambda_returns_that_bootstrap_where_episodes_are_cut() -> None:
    """Values are those that the searches found, and the network's where none searched."""
    learner, state, _ = learner_of(gamma=0.9, lambda_=0.7)
    rows = recorded(learner.module)
    batch, metrics = learner.prepare(state, rows, Progress.zeros())

    def value(obs: Any) -> np.ndarray:
        out = learner.module.inner.forward_train(state.sgd.params, {Columns.OBS: obs["obs"]})
        return np.asarray(out[Columns.VF_PREDS], np.float64)

    here, after = np.asarray(rows.extras[Columns.SEARCH_VALUE]), value(rows.final_obs)
    ends = rows.terminated | rows.truncated
    # Within an episode the successor is the next row; at its end, and the rollout's, the final one.
    last = np.zeros(ends.shape, bool)
    last[-1] = True
    follows = np.where(ends | last, after, np.roll(here, -1, axis=0))
    wanted = np.zeros(here.shape)
    for column in range(here.shape[1]):
        back = follows[-1, column]
        for t in reversed(range(here.shape[0])):
            if not rows.mask[t, column]:
                back = np.nan
                continue
            if rows.truncated[t, column] or np.isnan(back):
                mixed = float(after[t, column])
            else:
                mixed = 0.3 * follows[t, column] + 0.7 * back
            g = rows.reward[t, column] + (0.0 if rows.terminated[t, column] else 0.9 * mixed)
            back = float(g)
            wanted[t, column] = 0.3 * here[t, column] + 0.7 * back
    mask = np.asarray(rows.mask)
    assert_close(np.asarray(batch.value_targets)[mask], wanted[mask], rtol=1e-4)
    assert_close(batch.weight, mask / mask.mean(), rtol=1e-5)
    assert_close(batch.policy.sum(-1), np.ones(mask.shape), rtol=1e-5)
    assert float(metrics["curr_epsilon"]) == pytest.approx(0.25)


def test_the_loss_is_divergence_and_squared_error() -> None:
    learner, state, _ = learner_of(vf_loss_coeff=0.5)
    batch, _ = learner.prepare(state, recorded(learner.module), Progress.zeros())
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    values = learner.settings.at(state.hparams, Progress.zeros())
    loss, metrics = learner.compute_loss(state.sgd.params, flat, values, new_key())
    out = learner.module.inner.forward_train(state.sgd.params, {Columns.OBS: flat.obs})
    logits = np.asarray(out[Columns.ACTION_DIST_INPUTS], np.float64)
    log_prob = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    weight, target = np.asarray(flat.weight), np.asarray(flat.policy, np.float64)
    cross = (weight * -(target * log_prob).sum(-1)).mean()
    entropy = (weight * -(target * np.log(target)).sum(-1)).mean()
    error = np.asarray(out[Columns.VF_PREDS] - flat.value_targets, np.float64)
    squares = (weight * error**2).mean()
    assert_close(loss, cross - entropy + 0.5 * squares, rtol=1e-4)
    assert_close(metrics["policy_loss"], cross - entropy, rtol=1e-4)
    assert_close(metrics["target_entropy"], entropy, rtol=1e-4)
    assert_close(metrics["vf_loss"], squares, rtol=1e-4)


# --- runs ---


def run_of(env: Any = "TicTacToe-v0", **training: Any) -> Any:
    config = AlphaZeroConfig().environment(env)
    config.env_runners(num_envs_per_env_runner=8).debugging(seed=0, loggers=[])
    config.training(
        **{"num_simulations": 4, "train_batch_size": 64, "minibatch_size": 32, **training}
    )
    return config.rl_module(model_config={"fcnet_hiddens": [16], "conv_filters": []})


def test_exploring_moves_are_legal_and_as_often_as_epsilon_says() -> None:
    """With epsilon 1 games of tic-tac-toe are random, with 0 each move is the searched one."""
    results = {}
    for epsilon in (0.0, 1.0):
        with run_of(
            epsilon=epsilon,
            num_simulations=16,
            train_batch_size=512,
            lr=0.0,
            search={"type": "gumbel", "gumbel_scale": 0.0},
        ).build() as algorithm:
            results[epsilon] = algorithm.train()["env_runners"]["agent_episode_returns_mean"]
            assert algorithm.train()["learners"]["default_policy"]["curr_epsilon"] == epsilon
    # Games that end by an illegal move are no zero-sum games, so returns would not add up to 0.
    for returns in results.values():
        assert sum(returns.values()) == pytest.approx(0.0, abs=1e-6)
    assert results[0.0] != results[1.0]


def test_a_run_continues_from_a_checkpoint(tmp_path: Any) -> None:
    with run_of().build() as algorithm:
        algorithm.train()
        path = algorithm.save(str(tmp_path / "a"))
        wanted = algorithm.train()["learners"]["default_policy"]
        with type(algorithm).from_checkpoint(path) as restored:
            assert restored.train()["learners"]["default_policy"] == wanted


def test_batches_are_kept_and_learned_from_again() -> None:
    with run_of(circular_buffer_num_batches=3, circular_buffer_iterations_per_batch=2).build() as a:
        results = [a.train() for _ in range(3)]
    assert np.isfinite(results[-1]["learners"]["default_policy"]["vf_loss"])


def test_a_filter_applies_to_imagined_observations() -> None:
    """Without a search the network sees what PPO's does; the filter's statistics are those of PPO."""
    config = PPOConfig().environment("CartPole-v1").debugging(seed=0, loggers=[])
    config.env_runners(num_envs_per_env_runner=4, observation_filter="MeanStdFilter")
    config.training(train_batch_size=128, minibatch_size=64, num_epochs=1)
    with config.build() as algorithm:
        algorithm.train()
        obs = np.array([0.1, -0.2, 0.05, 0.3], np.float32)
        plain = algorithm.get_policy(explore=False)
        none = algorithm.get_policy(explore=False, planner={"num_simulations": 0})
        searching = algorithm.get_policy(explore=False, planner={"num_simulations": 8})
        assert_equal(plain.get_weights(), searching.get_weights())
        made = with_state(make("CartPole-v1"))
        _, shown = made.env.reset(new_key(), made.params)
        shown = {**jax.tree.map(np.asarray, shown), "obs": obs}
        assert none.act(shown) == plain.act(obs)
        assert searching.act(shown) in (0, 1)
        step = searching.inference.policy_step
        seen = step.obs_pipeline(
            searching.actor.obs_state, jax.tree.map(lambda x: jnp.asarray(x)[None], shown)
        )
        assert_close(
            seen["obs"], plain.inference.policy_step.obs_pipeline(plain.actor.obs_state, obs[None])
        )


def test_search_at_evaluation_of_any_policy() -> None:
    """A search of 16 steps sees that a pole falls, which a network without training does not."""
    config = PPOConfig().environment("CartPole-v1", max_episode_steps=100)
    config.debugging(seed=0, loggers=[]).evaluation(evaluation_config={"explore": False})
    config.rl_module(model_config={"vf_head_kernel_initializer": "zeros"})
    with config.build() as algorithm:
        alone = algorithm.evaluate(num_episodes=8)["env_runners"]["episode_return_mean"]
        none = algorithm.evaluate(num_episodes=8, planner={"num_simulations": 0})
        deep = algorithm.evaluate(num_episodes=8, planner={"num_simulations": 64})
        again = algorithm.evaluate(num_episodes=8)["env_runners"]["episode_return_mean"]
    assert none["env_runners"]["episode_return_mean"] == pytest.approx(alone)
    assert again == pytest.approx(alone)
    assert deep["env_runners"]["episode_return_mean"] > alone + 5


def test_all_replies_are_played() -> None:
    """Weights at random lose many of all lines, and with a search few."""
    shares = {}
    with run_of().build() as algorithm:
        for number in (0, 200):
            policy = algorithm.get_policy(explore=False, planner={"num_simulations": number})
            found = play_all_replies(policy, "TicTacToe-v0", first=True)
            assert found.lines >= found.lost + found.drawn
            shares[number] = found.lost / found.lines
    assert shares[0] > 0.2
    assert shares[200] < 0.1


# --- several choices ---

PAIRS = np.float32([[1.0, 0.0], [0.0, 3.0], [0.5, 9.0]])
"""Rewards of both choices of `Pairs`; the best of all, (2, 1), is illegal."""


class Pairs(JaxEnv[Any, None]):
    """One step with a choice of three and one of two, whose reward is that of both together."""

    name = "Pairs"
    choices: Any = (3, 2)

    def observation_space(self, params: None) -> gymnasium.Space[Any]:
        mask = spaces.MultiBinary(sum(self.choices))
        return spaces.Dict({"action_mask": mask, "obs": spaces.Box(0.0, 1.0, (1,), np.float32)})

    def action_space(self, params: None) -> gymnasium.Space[Any]:
        return spaces.MultiDiscrete(self.choices)

    def see(self) -> Any:
        mask = jnp.arange(sum(self.choices)) != 2
        return {"action_mask": mask.astype(jnp.int8), "obs": jnp.zeros((1,), jnp.float32)}

    def reset(self, key: Any, params: None) -> tuple[Any, Any]:
        return {"x": jnp.zeros((), jnp.float32)}, self.see()

    def step(self, key: Any, state: Any, action: Any, params: None) -> tuple[Any, TimeStep]:
        assert action.shape == (2,)
        reward = jnp.asarray(PAIRS)[action[0], action[1]]
        flag = jnp.bool_(True)
        return state, TimeStep(obs=self.see(), reward=reward, terminated=flag, truncated=~flag)


@pytest.mark.parametrize("method", ["gumbel", "puct"])
def test_all_combinations_of_choices_are_searched(method: str) -> None:
    _, obs = make(Pairs).env.reset(new_key(), None)
    state = {"x": jnp.zeros((), jnp.float32)}
    # Logits of the three and of the two choices: each alone prefers another than the best together.
    logits = np.array([0.4, 0.2, 5.0, 0.2, -0.1], np.float32)
    found = decide(Pairs, {**obs, "state": state}, method, 200, logits)
    policy = np.asarray(found.policy[0]).reshape(3, 2)
    assert_close(policy.sum(), 1.0, rtol=1e-5)
    assert np.unravel_index(policy.argmax(), policy.shape) == (1, 1)
    assert int(found.action[0]) == 3
    assert policy[2].sum() == 0.0


def test_the_loss_of_several_choices_is_the_divergence_of_their_product() -> None:
    config = run_of(Pairs).training(vf_loss_coeff=0.0)
    learner: Any = assemble(config).train_step.learner
    state, rng = learner.init(new_key()), np.random.default_rng(3)
    inner, joint = learner.module.inner, learner.module.joint
    obs = make_zeros(inner.observation_space, (4,))
    obs = {**obs, "action_mask": jnp.asarray([[1, 1, 0, 1, 1]] * 4, jnp.int8)}
    target = rng.dirichlet(np.ones(4), 4)
    target = np.concatenate([target, np.zeros((4, 2))], axis=1)
    batch = AlphaZeroBatch(
        obs=obs,
        policy=jnp.asarray(target, jnp.float32),
        value_targets=jnp.zeros((4,), jnp.float32),
        weight=jnp.ones((4,), jnp.float32),
    )
    values = learner.settings.at(state.hparams, Progress.zeros())
    loss, _ = learner.compute_loss(state.sgd.params, batch, values, new_key())
    inputs = inner.forward_train(state.sgd.params, {Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
    first, second = np.asarray(inputs, np.float64)[:, :2], np.asarray(inputs, np.float64)[:, 3:]
    log_prob = (log_softmax(first, -1)[:, :, None] + log_softmax(second, -1)[:, None]).reshape(4, 4)
    divergence = (target[:, :4] * (np.log(target[:, :4]) - log_prob)).sum(-1)
    assert_close(loss, divergence.mean(), rtol=1e-4)
    # The distribution of the improved policy is of whole actions.
    dist = learner.module.action_dist(jnp.log(batch.policy + planner.TINY), {"obs": obs})
    actions = joint.to_action(jnp.arange(6, dtype=jnp.int32))
    np.testing.assert_array_equal(actions, [(i, j) for i in range(3) for j in range(2)])
    np.testing.assert_array_equal(joint.to_index(actions), range(6))
    for row, action in enumerate(np.asarray(dist.mode())):
        assert int(joint.to_index(action)) == int(target[row].argmax())
        assert_close(jnp.exp(dist.log_prob(dist.mode()))[row], target[row].max(), rtol=1e-4)
    drawn = jax.vmap(dist.sample)(jax.random.split(new_key(), 50))
    assert drawn.shape == (50, 4, 2)
    assert int(drawn[..., 0].max()) == 1


@pytest.mark.allow_key_reuse
def test_several_choices_are_learned_and_acted_by() -> None:
    config = run_of(Pairs, lr=3e-2, num_epochs=4, epsilon=0.5, num_simulations=8)
    with config.build() as algorithm:
        for _ in range(10):
            algorithm.train()
        alone = algorithm.evaluate(num_episodes=20, planner={"num_simulations": 0})
        made = with_state(make(Pairs))
        obs = jax.tree.map(np.asarray, made.env.reset(new_key(), made.params)[1])
        action = algorithm.compute_single_action(obs, explore=False)
    assert alone["env_runners"]["episode_return_mean"] > 2.5
    np.testing.assert_array_equal(action, [1, 1])


# --- refusals ---


class Hidden(JaxEnv[Any, None]):
    """A state of a kind that cannot be searched."""

    name = "Hidden"

    def observation_space(self, params: None) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, params: None) -> gymnasium.Space[Any]:
        return spaces.Discrete(2)

    def make_state(self, key: Any) -> Any:
        del key
        return {"x": jnp.zeros((), jnp.float32)}

    def reset(self, key: Any, params: None) -> tuple[Any, Any]:
        return self.make_state(key), jnp.zeros((1,), jnp.float32)

    def step(self, key: Any, state: Any, action: Any, params: None) -> tuple[Any, TimeStep]:
        flag = jnp.bool_(False)
        return state, TimeStep(
            obs=jnp.zeros((1,), jnp.float32), reward=jnp.float32(0), terminated=flag, truncated=flag
        )


class Typed(Hidden):
    def make_state(self, key: Any) -> Any:
        return {"inner": {"noise": key}}


class Raw(Hidden):
    def make_state(self, key: Any) -> Any:
        return {"rng": jax.random.key_data(key)}


class Large(Hidden):
    def make_state(self, key: Any) -> Any:
        return {"x": jnp.zeros((200, 200), jnp.float32)}


class Taken(Hidden):
    def observation_space(self, params: None) -> gymnasium.Space[Any]:
        return spaces.Dict({"state": super().observation_space(params)})


class Trio(Pile):
    possible_agents = (*SEATS, "player_2")


class AtOnce(Pile):
    max_acting = None


class Team(Pile):
    teams = {"all": SEATS}


REFUSALS: list[tuple[Any, str]] = [
    (lambda c: c.environment(Typed), r"the key 'inner/noise', .* keys come to step"),
    (lambda c: c.environment(Raw), r"the key 'rng'"),
    (lambda c: c.environment(Large), r"160000 bytes, and search copies it .* up to 65536"),
    (lambda c: c.environment(Taken), r"a part 'state' of their own"),
    (lambda c: c.environment("StatelessCartPole-v0"), "open cards: use PPO"),
    (lambda c: c.environment("minefield-v0"), "open cards"),
    (lambda c: c.environment(Trio), "has 3 agents"),
    (lambda c: c.environment(AtOnce), "set max_acting=1"),
    (lambda c: c.environment(Team), "are a team"),
    (
        lambda c: c.environment("Pendulum-v1"),
        r"each action of a Discrete space.*use SAC for a Box, and PPO for any",
    ),
    (
        lambda c: c.environment(type("Many", (Pairs,), {"choices": (30, 20)})),
        r"30 x 20 = 600 joint actions, and search tries each of up to 512: use PPO",
    ),
    (
        lambda c: c.environment(Pairs).rl_module(model_config={"autoregressive_actions": True}),
        "one after the other, .* autoregressive_actions=False",
    ),
    (lambda c: c.environment("gymnasium:CartPole-v1"), "is stepped in Python: name one in JAX"),
    (lambda c: c.environment(observe_state=False), "searches from it: leave it at True"),
    (
        lambda c: c.rl_module(model_config={"use_lstm": True}),
        r"has a memory, .* \(leave use_lstm and use_attention out\)",
    ),
    (
        lambda c: c.env_runners(env_to_module_connector=stack_two),
        "'FrameStacking' joins an observation with what came before",
    ),
    (
        lambda c: c.environment(env_task_fn=lambda *args: None),
        "searches in the one that the run began with",
    ),
    (
        lambda c: c.environment(clip_rewards=True),
        "clip_rewards=True changes the rewards that values learn from, .* scale rewards",
    ),
    (lambda c: c.env_runners(normalize_rewards=True), "normalize_rewards=True changes the rewards"),
    (lambda c: c.training(intrinsic_reward="rnd"), "intrinsic_reward='rnd' changes the rewards"),
    (
        lambda c: c.evaluation(evaluation_config={"mcts_config": {"argmax_tree_policy": True}}),
        r"does not read num_simulations .* explore=False .*planner=\{'num_simulations': 64\}",
    ),
]


def stack_two(*args: Any) -> Any:
    from jaxrl.connectors import FrameStacking

    return FrameStacking(num_frames=2)


@pytest.mark.parametrize(("change", "sentence"), REFUSALS)
def test_what_cannot_be_searched_is_refused(change: Any, sentence: str) -> None:
    config = AlphaZeroConfig().environment("CartPole-v1").debugging(loggers=[])
    change(config)
    with pytest.raises(JaxrlError, match=sentence):
        config.build()


@pytest.mark.allow_key_reuse
def test_search_plays_against_opponents_without() -> None:
    """Also where the run's own observations have no state, and the opponents' have none either."""
    config = PPOConfig().environment("TicTacToe-v0").debugging(seed=0, loggers=[])
    config.multi_agent(
        policies={"main": None, "random": RandomRLModule}, mapping=Seats("main", "random")
    )
    config.multi_agent(policies_to_train=["main"])
    config.rl_module(model_config={"fcnet_hiddens": [16], "conv_filters": []})
    with config.build() as algorithm:
        losses = {}
        for number in (None, 0, 32):
            planner = None if number is None else {"num_simulations": number}
            found = algorithm.evaluate(opponents=["random"], num_episodes=100, planner=planner)
            seats = found["opponents"]["random"].values()
            losses[number] = sum(seat["losses"] for seat in seats)
    assert losses[None] == losses[0] > 60
    assert losses[32] < losses[0] / 2


class Generous(Pile):
    """The loser gets half of what the winner does."""

    def step(self, *args: Any) -> tuple[PileState, MultiStep]:
        state, step = super().step(*args)
        reward = {name: jnp.maximum(each, -0.5 * each) for name, each in step.reward.items()}
        return state, replace(step, reward=reward)


def search_generously(by: str) -> None:
    """Train by search, or search with a policy that was trained without it."""
    if by == "training":
        with run_of(Generous, num_simulations=1).build() as algorithm:
            algorithm.train()
    config = PPOConfig().environment(Generous).debugging(seed=0, loggers=[])
    config.multi_agent(
        policies={"main": None, "random": RandomRLModule}, mapping=Seats("main", "random")
    )
    config.multi_agent(policies_to_train=["main"])
    opponents = ["random"] if by == "opponents" else None
    with config.build() as algorithm:
        algorithm.evaluate(opponents=opponents, num_episodes=4, planner={"num_simulations": 1})


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("by", ["training", "evaluation", "opponents"])
def test_a_game_whose_rewards_do_not_sum_to_0_is_refused_where_it_is_searched(by: str) -> None:
    sentence = r"Generous:.* rewards of the two players do not sum to 0, .* PPO without a planner"
    with pytest.raises(EnvError, match=sentence):
        search_generously(by)


@pytest.mark.allow_key_reuse
def test_a_model_keeps_its_parameters() -> None:
    """They are compiled, so that runs with others have programs of their own."""
    sentence = r"set_env_params\(\) changes CartPole-v1, .* env_config"
    with run_of("CartPole-v1").build() as algorithm, pytest.raises(EnvError, match=sentence):
        algorithm.set_env_params(gravity=1.0)
    plain = PPOConfig().environment("CartPole-v1", observe_state=True).debugging(loggers=[])
    with plain.build() as algorithm:
        algorithm.set_env_params(gravity=1.0)
        assert float(algorithm.env_params.gravity) == 1.0
        with pytest.raises(EnvError, match="leave planner out"):
            algorithm.evaluate(planner={"num_simulations": 2})
    config = run_of("CartPole-v1").environment(env_config={"gravity": grid([1.0, 9.8, 1.0])})
    with config.build() as sweep:
        assert sorted(len(turn.lanes) for turns in sweep._groups for turn in turns) == [1, 2]


@pytest.mark.allow_key_reuse
def test_a_search_is_in_the_environment_that_is_played() -> None:
    """Not in one whose parameters have changed since, nor in that of training."""
    config = PPOConfig().environment("CartPole-v1").debugging(loggers=[])
    with config.build() as algorithm:
        algorithm.set_env_params(gravity=1.0)
        for search in (algorithm.evaluate, algorithm.get_policy):
            with pytest.raises(EnvError, match=r"its parameters have changed: leave planner out"):
                search(planner={"num_simulations": 2})
    heavy = run_of("CartPole-v1").evaluation(
        evaluation_config={"env_config": {"gravity": 30.0}}, evaluation_duration=2
    )
    with heavy.build() as algorithm:
        model = algorithm._evaluation._assembly.module.model
        assert model.params.gravity == 30.0
        assert np.isfinite(algorithm.evaluate()["env_runners"]["episode_return_mean"])


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({"num_simulations": 0}, "at least 1"),
    ({"search": "alphabeta"}, r"known are 'gumbel', 'puct'"),
    ({"search": {"type": "gumbel", "temperature": 1.0}}, "is an argument of 'puct'"),
    ({"search": {"type": "puct", "gumbel_scale": 1.0}}, "is an argument of 'gumbel'"),
    ({"search": {"type": "puct", "puct": 1.0}}, "Did you mean 'puct_coefficient'"),
    ({"search": {"type": "puct", "dirichlet_epsilon": 2.0}}, "from 0 to 1"),
    ({"search": {"max_num_considered_actions": 1.5}}, "a whole number"),
    ({"search": {"type": "puct", "argmax_tree_policy": 1}}, "True or False"),
    ({"search": {"rescale_values": 0}}, "True or False"),
    ({"epsilon": 1.5}, "between 0 and 1"),
    ({"ranked_rewards": {"enable": True}}, "need no ranking: leave it out"),
    ({"mcts_config": {"num_simulation": 3}}, "Did you mean 'num_simulations'"),
    ({"mcts_config": 3}, "must be a dictionary"),
    ({"replay_buffer_config": {"capacity": 1000}}, "circular_buffer_num_batches is the number"),
    ({"num_steps_sampled_before_learning_starts": 1000}, "begins with the first train batch"),
    ({"vf_share_layers": False}, r"model_config=\{'vf_share_layers': True\}"),
]


@pytest.mark.parametrize(("settings", "sentence"), SETTINGS)
def test_wrong_settings_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AlphaZeroConfig().training(**settings)


PLANNERS: list[tuple[Any, str]] = [
    ({}, r"as in \{'num_simulations': 64\}"),
    (64, r"as in \{'num_simulations': 64\}"),
    ({"num_simulations": -1}, "a whole number below 65536"),
    ({"num_simulations": 4, "searches": 1}, "Did you mean 'search'"),
    ({"num_simulations": 4, "search": {"type": "gumble"}}, "Did you mean 'gumbel'"),
    ({"num_simulations": 4, "search": 3}, "must be 'gumbel', 'puct' or a dictionary"),
]


def test_wrong_searches_at_evaluation_are_refused() -> None:
    config = PPOConfig().environment("CartPole-v1").debugging(loggers=[])
    with config.build() as algorithm:
        for given, sentence in PLANNERS:
            with pytest.raises(ConfigError, match=sentence):
                algorithm.evaluate(planner=given)
            with pytest.raises(ConfigError, match=sentence):
                algorithm.get_policy(planner=given)


@pytest.mark.parametrize(
    ("algo", "env", "sentence"),
    [
        ("DQN", "CartPole-v1", "'vf_preds'"),
        ("PPO", "gymnasium:CartPole-v1", "is stepped in Python"),
        ("PPO", "Pendulum-v1", "a Discrete space, or of a MultiDiscrete one"),
        ("PPO", "StatelessCartPole-v0", "open cards"),
    ],
)
def test_a_policy_that_cannot_search_says_so_at_evaluation(
    algo: str, env: str, sentence: str
) -> None:
    from jaxrl.config import get_algorithm_config

    with (
        get_algorithm_config(algo).environment(env).debugging(loggers=[]).build() as algorithm,
        pytest.raises(JaxrlError, match=sentence),
    ):
        algorithm.evaluate(planner={"num_simulations": 4})


def test_rllib_s_mcts_config_is_understood() -> None:
    config = AlphaZeroConfig().training(
        mcts_config={"num_simulations": 50, "add_dirichlet_noise": False, "temperature": 1.0},
        ranked_rewards={"enable": False},
        num_steps_sampled_before_learning_starts=0,
        num_sgd_iter=3,
        sgd_minibatch_size=64,
    )
    assert (config.num_simulations, config.num_epochs, config.minibatch_size) == (50, 3, 64)
    search = config.get_planner()
    assert search is not None
    assert search.method == PuctSearch(temperature=1.0, dirichlet_epsilon=0.0)
    assert planner.make_search_method("gumbel") == GumbelSearch()


def test_search_is_missed_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    planner.load_mctx.cache_clear()
    monkeypatch.setitem(sys.modules, "mctx", None)
    with pytest.raises(ConfigError, match=r"pip install 'jaxrl\[search\]'"):
        AlphaZeroConfig().environment("CartPole-v1").debugging(loggers=[]).build()
    planner.load_mctx.cache_clear()


@pytest.mark.parametrize("formats", ["numpy", "onnx"])
def test_formats_without_search_refuse_it(formats: str, tmp_path: Any) -> None:
    with (
        run_of().build() as algorithm,
        pytest.raises(JaxrlError, match=r"formats=\('stablehlo',\)"),
    ):
        algorithm.export(tmp_path / "a", formats=(formats,))


def test_an_exported_search_plays_as_the_policy(tmp_path: Any) -> None:
    from jaxrl.export.stablehlo import load_stablehlo

    with run_of(num_simulations=8).build() as algorithm:
        algorithm.train()
        folder = algorithm.export(tmp_path / "a", formats=("stablehlo",))
        policy = algorithm.get_policy(explore=False)
        exported = load_stablehlo(folder)
        for obs in (WIN, BLOCK):
            given = jax.tree.map(np.asarray, obs)
            assert exported.act(given) == policy.act(given)


def test_the_wrapper_leaves_the_game_as_it_is() -> None:
    made, shown = make_multi("TicTacToe-v0"), with_state(make_multi("TicTacToe-v0"))
    assert shown.env == with_state(make_multi("TicTacToe-v0")).env
    assert hash(shown.env) == hash(with_state(make_multi("TicTacToe-v0")).env)
    state, start = made.env.reset(new_key(), made.params)
    same, begun = shown.env.reset(new_key(), shown.params)
    assert_equal(same, state)
    for agent in SEATS:
        assert shown.observation_spaces[agent].contains(jax.tree.map(np.asarray, begun.obs[agent]))
        rest = {name: part for name, part in begun.obs[agent].items() if name != "state"}
        assert_equal(rest, start.obs[agent])
    with pytest.raises(EnvError, match="of their own"):
        with_state(shown)
    assert dataclasses.is_dataclass(shown.model)
