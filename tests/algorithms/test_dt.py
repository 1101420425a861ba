"""DT: the transformer against a NumPy one, what rows see, returns-to-go, and settings."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, DTConfig, RLModuleSpec
from jaxrl.algorithms.dt import DTLearner
from jaxrl.assembly.offline import concatenate_sources
from jaxrl.buffers.dataset import DatasetSampler, DrawnRows, compute_returns_to_go
from jaxrl.connectors import MeanStdFilter, PipelineBuilder, PrevActionsPrevRewards
from jaxrl.core.space_arrays import get_flat_size
from jaxrl.core.types import Columns, ObsSequence, ReturnColumns, Transition
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.decision_transformer import DecisionTransformerModule
from jaxrl.offline.held_out import is_held_out
from tests.recorded_data import ACTION_SPACE, OBS_SPACE, make_part, make_parts, write_data

LENGTH, TARGET, SCALE, SPLIT = 4, 7.0, 2.0, 0.3
MODEL = {
    "attention_dim": 6,
    "attention_head_dim": 4,
    "attention_num_heads": 2,
    "attention_num_transformer_units": 2,
    "attention_position_wise_mlp_dim": 5,
}
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)
MASKED = spaces.Dict({"seen": OBS_SPACE, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
CASES = {
    "vector": (OBS_SPACE, ACTION_SPACE),
    "Box": (OBS_SPACE, BOX),
    "choice": (spaces.Discrete(5), ACTION_SPACE),
    "masks": (MASKED, ACTION_SPACE),
}


def make_config(**training: Any) -> DTConfig:
    config = DTConfig().rl_module(model_config=MODEL).debugging(loggers=[], seed=1)
    return config.training(
        context_length=LENGTH,
        **{"target_return": TARGET, "return_scale": SCALE, "train_batch_size": 16, **training},
    )


@functools.cache
def make_learner(case: str) -> tuple[DTLearner, Any]:
    """Make a learner of observations after the connector, and parameters that are far from zero."""
    observation_space, action_space = CASES[case]
    past = PrevActionsPrevRewards().bind(observation_space, action_space)
    config = make_config()
    spec = config.get_rl_module_spec(past.output_space(observation_space), action_space)
    learner = DTLearner(module=spec.build(), settings=config.training_settings)
    rng = np.random.default_rng(0)

    def move(x: Any) -> Any:
        return x + jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32)

    return learner, jax.tree.map(move, jax.jit(learner.module.init)(jax.random.key(0)))


def make_rows(case: str, number: int, length: int, seed: int = 0) -> Any:
    """Make observations `[number, length, ...]` as the module sees them."""
    space = make_learner(case)[0].module.observation_space
    rng = np.random.default_rng(seed)

    def draw(leaf: Any) -> Any:
        shape = number, length, *leaf.shape
        if isinstance(leaf, spaces.Discrete):
            return rng.integers(leaf.n, size=shape).astype(np.int32)
        if leaf.dtype == np.int8:
            return (rng.integers(2, size=shape) | np.eye(3, dtype=int)[0]).astype(np.int8)
        return rng.normal(size=shape).astype(np.float32)

    if isinstance(space, spaces.Dict):
        return {name: draw(leaf) for name, leaf in space.spaces.items()}
    return draw(space)


@functools.partial(jax.jit, static_argnums=0)
def forward(module: DecisionTransformerModule, params: Any, obs: Any, first: Any, returns: Any):
    sequence = ObsSequence(obs=obs, carry=None, is_first=first)
    return module.compute_dist_inputs(params, sequence, returns)


def take(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda x: x[index], tree)


FIRST = np.array([[True, False, False, False], [False, False, True, False]])


PARAMS = [
    pytest.param(case, marks=[pytest.mark.slow] * (case in ("Box", "choice"))) for case in CASES
]


@pytest.mark.representatives("masks")
@pytest.mark.parametrize("case", PARAMS)
def test_later_rows_and_other_episodes_change_no_output(case: str) -> None:
    (learner, params), obs = make_learner(case), make_rows(case, 2, LENGTH)
    returns = np.random.default_rng(1).normal(size=(2, LENGTH)).astype(np.float32)
    other, changed = make_rows(case, 2, LENGTH, seed=2), returns + 1.0
    plain = np.asarray(forward(learner.module, params, obs, FIRST, returns))
    for row in range(LENGTH):

        def mix(x: Any, y: Any, row: int = row) -> Any:
            return np.concatenate([x[:, :row], y[:, row : row + 1], x[:, row + 1 :]], axis=1)

        inputs = jax.tree.map(mix, obs, other), FIRST, mix(returns, changed)
        found = np.asarray(forward(learner.module, params, *inputs))
        differs = (found != plain).any(axis=-1)
        assert not differs[:, :row].any()
        assert differs[:, row].all()
        assert differs[0, row:].all()
        assert differs[1].tolist() == [(t >= row) and (t >= 2) == (row >= 2) for t in range(LENGTH)]


@pytest.mark.representatives("masks")
@pytest.mark.parametrize("case", PARAMS)
def test_acting_step_by_step_is_the_forward_pass_over_the_latest_rows(case: str) -> None:
    """The second episode begins at row 5; rewards lower the target from there on."""
    (learner, params), total = make_learner(case), 11
    module, obs = learner.module, make_rows(case, 1, total)
    is_first = np.zeros((1, total), bool)
    is_first[0, [0, 5]] = True
    obs, rewards = set_past(obs, is_first)
    step = jax.jit(module._forward_step)
    blank = carry = module.initial_carry(1)
    returns = np.zeros((1, total), np.float32)
    for t in range(total):
        start = 5 if t >= 5 else 0
        returns[0, t] = TARGET - rewards[0, start : t + 1].sum()
        out = step(params, take(obs, (slice(None), t)), blank if t == start else carry)
        carry = out[Columns.STATE_OUT]
        rows = slice(max(start, t + 1 - LENGTH), t + 1)
        window = take(obs, (slice(None), rows)), is_first[:, rows], returns[:, rows]
        want = forward(module, params, *window)[:, -1]
        np.testing.assert_allclose(out[Columns.ACTION_DIST_INPUTS], want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(carry.return_to_go, returns[:, t], rtol=1e-5)


def set_past(obs: Any, is_first: np.ndarray) -> tuple[Any, np.ndarray]:
    """Set actions and rewards before first rows to zero, as the connector does."""
    kept = ~is_first[..., None]
    if isinstance(obs, dict):
        names = ("prev_n_actions", "prev_n_rewards")
        obs = {**obs, **{name: obs[name] * kept for name in names}}
        return obs, obs["prev_n_rewards"][..., 0]
    past = obs.shape[-1] - 2
    obs = np.concatenate([obs[..., :2], obs[..., 2:] * kept], axis=-1)
    assert past > 0
    return obs, obs[..., -1]


def normalize(x: np.ndarray, params: Any) -> np.ndarray:
    centered = x - x.mean()
    return centered / np.sqrt(x.var() + 1e-6) * params["scale"] + params["bias"]


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def dense(x: np.ndarray, params: Any) -> np.ndarray:
    return x @ params["kernel"] + params["bias"]


def attend(x: np.ndarray, params: Any, sees: Any) -> np.ndarray:
    """Attend from each token to those that it sees, one head and one token at a time."""
    out = np.zeros_like(x)
    for t in range(len(x)):
        for h in range(MODEL["attention_num_heads"]):

            def project(name: str, token: np.ndarray, h: int = h) -> np.ndarray:
                return token @ params[name]["kernel"][:, h] + params[name]["bias"][h]

            query, seen = project("query", x[t]), [j for j in range(len(x)) if sees(t, j)]
            scores = np.array([query @ project("key", x[j]) for j in seen])
            weights = np.exp(scores / np.sqrt(len(query)))
            value = sum(
                w * project("value", x[j])
                for w, j in zip(weights / weights.sum(), seen, strict=True)
            )
            out[t] += value @ params["out"]["kernel"][h]
    return out + params["out"]["bias"]


def compute_logits(params: Any, obs: np.ndarray, returns: np.ndarray, first: int) -> np.ndarray:
    """Compute the logits of the rows of one episode of a window, which begins in row `first`.

    Tokens are those of Chen et al.'s sequence R, s, a, R, s, a, ..., without the last action.
    """
    tokens: list[np.ndarray] = []
    for place, t in enumerate(range(first, len(obs))):
        seen, action = obs[t, :2], obs[t, 2:-1]
        embedded = [
            dense(action, params["embed_action"]),
            dense(np.array([returns[t] / SCALE]), params["embed_return"]),
            dense(seen, params["embed_obs"]),
        ]
        added = [x + params["embed_place"]["embedding"][place] for x in embedded]
        tokens += added[1:] if place == 0 else added
    x = np.stack([normalize(token, params["norm_in"]) for token in tokens])
    for i in range(MODEL["attention_num_transformer_units"]):
        block = params[f"blocks_{i}"]
        normed = np.stack([normalize(row, block["norm_attention"]) for row in x])
        x = x + attend(normed, block["attention"], lambda t, j: j <= t)
        normed = np.stack([normalize(row, block["norm_mlp"]) for row in x])
        x = x + dense(gelu(dense(normed, block["mlp_hidden"])), block["mlp_out"])
    last = np.stack([normalize(row, params["norm_out"]) for row in x[1::3]])
    return dense(last, params["pi_head"]["out"])


def test_the_loss_is_that_of_a_transformer_in_numpy() -> None:
    """With a window of one episode, one that another episode begins in, and rows without weight."""
    (learner, params), obs = make_learner("vector"), make_rows("vector", 2, LENGTH)
    rng = np.random.default_rng(3)
    returns = rng.normal(size=(2, LENGTH)).astype(np.float32)
    action = rng.integers(3, size=(2, LENGTH)).astype(np.int32)
    weight = np.array([[1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 1.0]], np.float32)
    plain = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    losses = np.zeros((2, LENGTH))
    for window, pieces in enumerate([[(0, 4)], [(0, 2), (2, 4)]]):
        for first, end in pieces:
            logits = compute_logits(plain, obs[window, :end], returns[window], first)
            for t, row in enumerate(logits, first):
                losses[window, t] = np.log(np.exp(row).sum()) - row[action[window, t]]
    batch = Transition(
        obs=ObsSequence(obs=obs, carry=None, is_first=FIRST),
        action=action,
        reward=np.zeros((2, LENGTH), np.float32),
        discount=np.ones((2, LENGTH), np.float32),
        next_obs=(),
        weight=weight,
        extras={ReturnColumns.RETURN_TO_GO: returns},
    )
    found, metrics = jax.jit(learner.compute_loss)(params, batch, {}, jax.random.key(0))
    np.testing.assert_allclose(found, (weight * losses).mean(), rtol=1e-4)
    assert metrics["policy_loss"] == found


def test_returns_to_go_are_sums_to_the_end_of_the_part() -> None:
    parts = [make_part(0, 5, terminated=True), make_part(1, 3, truncated=True), make_part(2, 4)]
    want = [part.reward[t:].sum() for part in parts for t in range(len(part))]
    data = jax.tree.map(jnp.asarray, concatenate_sources([parts]))
    sampler = DatasetSampler(
        batch_size=3, num_updates=1, num_shards=1, sequence_length=LENGTH, needs_returns=True
    )
    starts = np.array([0, 3, 7])
    drawn = DrawnRows(rows=jnp.asarray(starts), learns=jnp.ones(3, bool))
    gamma = jnp.float32(DTConfig().gamma)
    batch = sampler.gather(
        data, drawn, compute_returns_to_go(data, gamma), gamma, jax.random.key(0)
    )
    found = batch.extras[ReturnColumns.RETURN_TO_GO]
    rows = starts[:, None] + np.arange(LENGTH)
    np.testing.assert_allclose(found, np.asarray(want)[rows], rtol=1e-5, atol=1e-6)
    assert batch.obs.is_first.tolist() == [
        [True, False, False, False],
        [False, False, True, False],
        [False, True, False, False],
    ]


# --- runs ---


def filter_rewards(builder: PipelineBuilder[Any]) -> None:
    builder.append(MeanStdFilter())


@pytest.mark.parametrize(
    ("action_space", "storage"),
    [
        pytest.param(ACTION_SPACE, "device", id="Discrete"),
        pytest.param(BOX, "host", id="Box", marks=pytest.mark.slow),
    ],
)
def test_trains_acts_and_resumes_to_the_bit(
    tmp_path: Path, action_space: Any, storage: Any
) -> None:
    parts = make_parts(action_space=action_space)
    data = write_data(tmp_path / "data", parts, action_space)
    config = make_config().offline_data(
        input_=data, num_updates_per_iteration=5, dataset_storage=storage
    )
    config.rl_module(model_config={**MODEL, "attention_num_transformer_units": 1})
    with config.build() as algorithm:
        learned = algorithm.train()
        assert learned["num_env_steps_trained_lifetime"] == 5 * 16
        path = algorithm.save(tmp_path / "checkpoint")
        want = algorithm.train()["learners"]["default_policy"]["total_loss"]
    assert np.isfinite(want)
    with Algorithm.from_checkpoint(path) as resumed:
        assert resumed.train()["learners"]["default_policy"]["total_loss"] == want
    with Algorithm.from_checkpoint(path, target_return=3.0) as other:
        carry = check_returns_in_acting(other, 3.0)
    assert carry.module.action.shape == (2, LENGTH, get_flat_size(action_space))


def check_returns_in_acting(algorithm: Algorithm, target: float) -> Any:
    """Check that rewards lower the return-to-go of two environments until their next episodes."""
    step, train_step = algorithm._assembly.policy_step, algorithm._assembly.train_step
    actor = train_step.make_actor_state(algorithm.state)
    act = jax.jit(functools.partial(step.act, explore=False))
    index, draws = jnp.arange(2), step.module.draw(jax.random.split(jax.random.key(0), 2))
    rng, carry = np.random.default_rng(0), step.initial_carry(2)
    is_first, want = np.ones(2, bool), np.full(2, target)
    for t in range(8):
        obs = rng.normal(size=(2, 2)).astype(np.float32)
        out = act(actor, obs, carry, is_first, index, draws)
        after = out[Columns.STATE_OUT]
        np.testing.assert_allclose(after.module.return_to_go, want, rtol=1e-5)
        reward = rng.normal(size=2).astype(np.float32)
        is_first = np.array([t == 2, t in (3, 4)])
        want = np.where(is_first, target, want - reward)
        carry = step.advance(after, jnp.asarray(reward), jnp.asarray(is_first))
    return carry


def write_shifted(folder: Path) -> tuple[str, np.ndarray, np.ndarray]:
    """Write observations around 100; return the mean and deviation of those that are trained on."""
    parts = [dataclasses.replace(part, obs=100.0 + 5.0 * part.obs) for part in make_parts()]
    rows = np.concatenate([p.obs[:-1] for p in parts if not is_held_out(p.episode_id, SPLIT)])
    return write_data(folder, parts), rows.mean(axis=0), rows.std(axis=0, ddof=1)


def test_a_filter_has_the_statistics_of_all_rows_in_learning_and_in_acting(tmp_path: Path) -> None:
    data, mean, std = write_shifted(tmp_path / "data")
    config = make_config().offline_data(input_=data, num_updates_per_iteration=2)
    config.env_runners(observation_filter="MeanStdFilter")
    config.evaluation(offline_evaluation_interval=1, offline_evaluation_split=SPLIT)
    config.rl_module(model_config={**MODEL, "attention_num_transformer_units": 1})
    with config.build() as algorithm:
        held_out_loss = algorithm.train()["evaluation"]
        dataset = algorithm.learner_group.dataset
        first, reward = np.asarray(dataset.obs)[:, :2], np.asarray(dataset.reward)
        trained = np.asarray(dataset.obs_index)
        np.testing.assert_allclose(first[trained].mean(axis=0), 0.0, atol=1e-4)
        np.testing.assert_allclose(first[trained].std(axis=0, ddof=1), 1.0, atol=1e-3)
        inner = ~np.asarray(dataset.is_first)  # after it, the reward before as it is
        before = np.asarray(dataset.obs)[trained[inner], -1]
        np.testing.assert_allclose(before, reward[np.flatnonzero(inner) - 1], rtol=1e-6)
        step = algorithm._assembly.policy_step
        actor = algorithm._assembly.train_step.make_actor_state(algorithm.state)
        draws = step.module.draw(jax.random.split(jax.random.key(0), 2))
        seen = jax.jit(functools.partial(step.act, explore=False))(
            actor,
            np.full((2, 2), 104.0, np.float32),
            step.initial_carry(2),
            np.ones(2, bool),
            jnp.arange(2),
            draws,
        )[Columns.STATE_OUT].module.obs[:, -1]
        np.testing.assert_allclose(seen, np.tile((104.0 - mean) / std, (2, 1)), rtol=1e-2)
        evaluated = np.asarray(algorithm._held_out._losses[0].obs)[:, :2]
        assert np.abs(evaluated).max() < 5.0
        assert np.isfinite(
            held_out_loss["offline_eval_runners"]["default_policy"]["total_eval_loss"]
        )
        with pytest.raises(ConfigError, match="see all rows once, through the statistics of these"):
            algorithm.set_state(algorithm.get_state(), component="connectors")


@pytest.mark.slow
def test_devices_change_nothing(tmp_path: Path) -> None:
    data, losses = write_data(tmp_path / "data"), []
    for devices in (1, 2):
        config = make_config().offline_data(input_=data, num_updates_per_iteration=5)
        with config.learners(num_devices=devices, num_shards=2).build() as algorithm:
            losses.append(algorithm.train()["learners"]["default_policy"]["total_loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"target_return": None},
            "target_return=None does not say which: set it, such as training",
        ),
        ({"target_return": float("inf")}, "target_return must be finite"),
        ({"return_scale": 0.0}, "return_scale must be above 0"),
        ({"context_length": 0}, "context_length must be at least 1"),
        ({"gamma": 0.99}, "gamma=0.99 discounts rewards, and DT's returns-to-go are plain sums"),
        ({"burn_in_len": 2}, "burn_in_len=2 has no effect on DT, whose context is the window"),
        ({"clip_rewards": True}, "clip_rewards=True changes the rewards that returns-to-go are"),
        ({"normalize_rewards": True}, "normalize_rewards=True changes the rewards"),
        ({"train_batch_size": 15}, "whole sequences of context_length=4 rows for each of"),
        (
            {"env_to_module_connector": filter_rewards},
            "MeanStdFilter would change the previous rewards, by which returns-to-go become lower",
        ),
        ({"dataset_storage": "stream"}, "PrevActionsPrevRewards"),
        ({"model_config": {"max_seq_len": 8}}, "max_seq_len=8 has no effect on a decision trans"),
        ({"model_config": {"vf_share_layers": True}}, "vf_share_layers=True has no effect"),
        (
            {"model_config": {"use_attention": False}},
            "use_attention=False leaves nothing of a decision transformer",
        ),
        ({"model_config": {"use_lstm": True}}, "exclude each other"),
        (
            {"model_config": {"attention_use_n_prev_rewards": 0}},
            "attention_use_n_prev_rewards=0 contradicts a decision transformer",
        ),
    ],
)
def test_wrong_settings_are_one_sentence(
    tmp_path: Path, settings: dict[str, Any], said: str
) -> None:
    data = write_data(tmp_path / "data", make_parts(2))
    with pytest.raises(ConfigError) as caught:
        make_config().offline_data(input_=data).update_from_dict(settings).build()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_needs_recorded_data() -> None:
    with pytest.raises(ConfigError, match="DT learns from recorded data: name a folder"):
        make_config().environment("CartPole-v1").build()


def test_the_module_needs_its_algorithm() -> None:
    model = {**MODEL, "use_attention": True}
    spec = RLModuleSpec(module_class=DecisionTransformerModule, model_config=model)
    spec = dataclasses.replace(spec, observation_space=OBS_SPACE, action_space=ACTION_SPACE)
    with pytest.raises(ModuleError, match="needs context_length and target_return and return_sc"):
        spec.build()


def test_defaults_are_those_of_the_paper() -> None:
    training = DTConfig().training_settings
    assert (training.context_length, training.lr, training.grad_clip) == (20, 1e-4, 0.25)
    assert training.train_batch_size == 64 * training.context_length
