"""Estimators against closed forms and a chain of known values; coverage of their intervals."""

import dataclasses

import numpy as np
import pytest
from jaxtyping import Float

from jaxrl.estimation.estimate import (
    Estimate,
    WeightedEpisodes,
    estimate_dr,
    estimate_is,
    estimate_mean,
    estimate_pdis,
    estimate_wis,
    estimate_wpdis,
)

GAMMA, HORIZON = 0.9, 6
MOVE = np.array([[[0.8, 0.2, 0.0], [0.1, 0.1, 0.8]], [[0.5, 0.5, 0.0], [0.0, 0.3, 0.7]]])
"""Probabilities of the next states 0, 1 and the end, by state and action."""
REWARD = np.array([[1.0, 0.0], [-0.5, 2.0]])
BEHAVIOR = np.array([[0.6, 0.4], [0.5, 0.5]])
TARGET = np.array([[0.3, 0.7], [0.7, 0.3]])


@dataclasses.dataclass
class Chain:
    """Episodes of the chain from state 0, which end in its last state or after HORIZON steps."""

    data: WeightedEpisodes
    state: Float[np.ndarray, "E H"]
    action: Float[np.ndarray, "E H"]


def compute_values(policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q `[H, 2, 2]` and V `[H+1, 2]` of a policy, by dynamic programming."""
    value, q_value = np.zeros((HORIZON + 1, 2)), np.zeros((HORIZON, 2, 2))
    for t in reversed(range(HORIZON)):
        q_value[t] = REWARD + GAMMA * MOVE[:, :, :2] @ value[t + 1]
        value[t] = (policy * q_value[t]).sum(axis=1)
    return q_value, value


TRUTH = compute_values(TARGET)[1][0, 0]


def play(number: int, seed: int) -> Chain:
    rng = np.random.default_rng(seed)
    state = np.zeros(number, int)
    shape = number, HORIZON
    mask, reward = np.zeros(shape, bool), np.zeros(shape)
    states, actions, log_ratio = np.zeros(shape, int), np.zeros(shape, int), np.zeros(shape)
    alive = np.ones(number, bool)
    for t in range(HORIZON):
        action = (rng.random(number) < BEHAVIOR[state, 1]).astype(int)
        mask[:, t], states[:, t], actions[:, t] = alive, state, action
        reward[:, t] = np.where(alive, REWARD[state, action], 123.0)  # masked rows have no effect
        log_ratio[:, t] = np.log(TARGET[state, action] / BEHAVIOR[state, action])
        draw = rng.random(number)[:, None]
        after = (draw > MOVE[state, action].cumsum(axis=1)[:, :2]).sum(axis=1)
        alive &= after < 2
        state = np.where(after < 2, after, 0)
    return Chain(WeightedEpisodes(log_ratio=log_ratio, reward=reward, mask=mask), states, actions)


def estimate_all(chain: Chain, seed: int = 0) -> dict[str, Estimate]:
    q_value, value = compute_values(TARGET)
    model = {"q_value": 0.8 * q_value, "value": 0.8 * value}  # off by a fifth
    rng = np.random.default_rng(seed)
    return {
        "is": estimate_is(chain.data, GAMMA, 0.95),
        "pdis": estimate_pdis(chain.data, GAMMA, 0.95),
        "wis": estimate_wis(chain.data, GAMMA, 0.95, rng),
        "wpdis": estimate_wpdis(chain.data, GAMMA, 0.95, rng),
        "dr": estimate_dr(chain.data, *look_up(chain, **model), GAMMA, 0.95),
    }


def look_up(
    chain: Chain, q_value: np.ndarray, value: np.ndarray
) -> tuple[Float[np.ndarray, "E H"], Float[np.ndarray, "E H+1"]]:
    """The model's Q and V at the rows of episodes, V being 0 after the end."""
    steps = np.arange(HORIZON)
    q = q_value[steps, chain.state, chain.action]
    v = np.zeros((len(q), HORIZON + 1))
    v[:, :-1] = np.where(chain.data.mask, value[steps, chain.state], 0.0)
    return q, v


def test_many_episodes_give_the_value() -> None:
    estimates = estimate_all(play(100_000, 1))
    for name, estimate in estimates.items():
        assert estimate.value == pytest.approx(TRUTH, abs=0.03), name
        assert estimate.low < estimate.value < estimate.high


@pytest.mark.parametrize("name", ["is", "pdis", "wis", "wpdis", "dr"])
def test_without_weights_all_but_the_model_are_the_mean_return(name: str) -> None:
    chain = play(50, 2)
    same = dataclasses.replace(chain.data, log_ratio=np.zeros_like(chain.data.log_ratio))
    returns = (np.where(same.mask, same.reward, 0.0) * GAMMA ** np.arange(HORIZON)).sum(axis=1)
    if name == "dr":  # a model of zeros corrects nothing
        zeros = np.zeros_like(same.reward), np.zeros((50, HORIZON + 1))
        value = estimate_dr(same, *zeros, GAMMA, 0.95).value
    else:
        value = estimate_all(Chain(same, chain.state, chain.action))[name].value
    assert value == pytest.approx(returns.mean(), abs=1e-12)


def test_references_in_plain_loops() -> None:
    chain = play(40, 3)
    data, total = chain.data, {"is": 0.0, "pdis": 0.0, "wis": 0.0}
    sum_of_weights = 0.0
    tops, bottoms = np.zeros(HORIZON), np.zeros(HORIZON)
    for e in range(40):
        weight, ret, each = 1.0, 0.0, 0.0
        for t in range(HORIZON):
            if data.mask[e, t]:
                weight *= float(np.exp(data.log_ratio[e, t]))
                ret += GAMMA**t * data.reward[e, t]
                each += weight * GAMMA**t * data.reward[e, t]
                tops[t] += weight * GAMMA**t * data.reward[e, t]
            bottoms[t] += weight
        total["is"] += weight * ret / 40
        total["pdis"] += each / 40
        total["wis"] += weight * ret
        sum_of_weights += weight
    total["wis"] /= sum_of_weights
    total["wpdis"] = float((tops / bottoms).sum())
    estimates = estimate_all(chain)
    for name, value in total.items():
        assert estimates[name].value == pytest.approx(value, rel=1e-9), name


def test_bandit_in_closed_form() -> None:
    action, reward = np.array([0, 0, 0, 1]), np.array([1.0, 1.0, 0.0, 5.0])
    ratio = np.where(action == 0, 0.2 / 0.75, 0.8 / 0.25)
    data = WeightedEpisodes(
        log_ratio=np.log(ratio)[:, None], reward=reward[:, None], mask=np.ones((4, 1), bool)
    )
    assert estimate_is(data, 1.0, 0.95).value == pytest.approx((ratio * reward).mean())
    wis = estimate_wis(data, 1.0, 0.95, np.random.default_rng(0)).value
    assert wis == pytest.approx((ratio * reward).sum() / ratio.sum())
    size, share = data.compute_effective_size()
    assert size == pytest.approx(ratio.sum() ** 2 / (ratio**2).sum())
    assert share == pytest.approx(ratio.max() / ratio.sum())


def test_exact_model_leaves_the_variance_of_the_first_value_alone() -> None:
    chain = play(200, 4)
    q_value, value = compute_values(TARGET)
    exact = estimate_dr(chain.data, *look_up(chain, q_value, value), GAMMA, 0.95)
    rough = estimate_all(chain)
    assert exact.high - exact.low < 0.8 * (rough["pdis"].high - rough["pdis"].low)
    deterministic = Chain(  # nothing random is left if the first step is the only one
        WeightedEpisodes(
            log_ratio=chain.data.log_ratio[:, :1],
            reward=chain.data.reward[:, :1],
            mask=chain.data.mask[:, :1],
        ),
        chain.state[:, :1],
        chain.action[:, :1],
    )
    q, v = REWARD[0, deterministic.action], np.zeros((200, 2))
    v[:, 0] = (TARGET[0] * REWARD[0]).sum()
    one = estimate_dr(deterministic.data, q, v, GAMMA, 0.95)
    assert (one.low, one.high) == pytest.approx((v[0, 0], v[0, 0]), abs=1e-9)


def test_any_model_is_corrected_by_exact_probabilities() -> None:
    chain = play(100_000, 5)
    rng = np.random.default_rng(0)
    wrong = rng.normal(size=(HORIZON, 2, 2))
    mean = (TARGET * wrong).sum(axis=2)  # of the wrong model, by the right policy
    estimate = estimate_dr(chain.data, *look_up(chain, wrong, mean), GAMMA, 0.95)
    assert estimate.value == pytest.approx(TRUTH, abs=0.05)


def test_long_episodes_do_not_overflow_weighted_estimates() -> None:
    rng = np.random.default_rng(0)
    shape = 20, 1000
    data = WeightedEpisodes(
        log_ratio=rng.normal(1.0, 1.0, shape), reward=np.ones(shape), mask=np.ones(shape, bool)
    )
    for estimate in (
        estimate_wis(data, 1.0, 0.95, rng),
        estimate_wpdis(data, 1.0, 0.95, rng),
    ):
        assert estimate.value == pytest.approx(1000.0)
    assert estimate_is(data, 1.0, 0.95).value == np.inf


def test_a_policy_without_support_has_no_weighted_estimate() -> None:
    data = WeightedEpisodes(
        log_ratio=np.full((3, 2), -np.inf), reward=np.ones((3, 2)), mask=np.ones((3, 2), bool)
    )
    assert np.isnan(estimate_wis(data, 1.0, 0.95, np.random.default_rng(0)).value)
    assert estimate_is(data, 1.0, 0.95).value == 0.0
    assert data.compute_effective_size() == (0.0, 0.0)


def test_one_episode_has_no_interval() -> None:
    assert estimate_mean(np.array([3.0]), 0.95) == Estimate(3.0, -np.inf, np.inf)


def test_student_interval_is_scipys() -> None:
    from scipy import stats

    samples = np.random.default_rng(0).normal(size=17)
    low, high = stats.ttest_1samp(samples, 0.0).confidence_interval(0.9)
    got = estimate_mean(samples, 0.9)
    assert (got.low, got.high) == pytest.approx((low, high))


def test_bootstrap_interval_is_scipys() -> None:
    from scipy import stats

    chain = play(200, 6)
    log_weights = chain.data.compute_log_weights()[:, -1]
    weights = np.exp(log_weights)
    top = weights * chain.data.discount_rewards(GAMMA).sum(axis=1)
    expected = stats.bootstrap(
        (top, weights),
        lambda a, b, axis=-1: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        n_resamples=20_000,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    got = estimate_wis(chain.data, GAMMA, 0.95, np.random.default_rng(1))
    width = expected.high - expected.low
    assert got.low == pytest.approx(expected.low, abs=0.1 * width)
    assert got.high == pytest.approx(expected.high, abs=0.1 * width)


@pytest.mark.slow
def test_intervals_cover_the_value() -> None:
    covered = dict.fromkeys(("is", "pdis", "wis", "wpdis", "dr"), 0)
    for seed in range(400):
        for name, estimate in estimate_all(play(200, 1000 + seed), seed).items():
            covered[name] += estimate.low <= TRUTH <= estimate.high
    shares = {name: number / 400 for name, number in covered.items()}
    print(shares)
    assert all(0.92 <= share <= 0.98 for share in shares.values()), shares
