"""Gradients in parts: the same step, one part at a time, and when that is chosen."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import accumulate_gradients, get_num_microbatches
from tests.helpers import assert_close, slow_but, small

NUM_ROWS = 1024
PARAMS = {"w": jnp.array([0.5, -1.0, 2.0])}


def rows() -> dict[str, Any]:
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 3)).astype(np.float32)
    return {"x": jnp.asarray(x), "y": jnp.sin(x.sum(1))}


def loss_fn(params: Any, batch: Any, key: Any) -> Any:
    error = jnp.square(batch["x"] @ params["w"] - batch["y"])
    seen = {"rows": jnp.asarray(batch["y"].shape[0], jnp.float32), "draw": jax.random.uniform(key)}
    return jnp.mean(error), seen


@pytest.mark.parametrize(("size", "part"), [(None, 1024), (1024, 1024), (256, 256), (100, 64)])
def test_parts_have_the_gradient_of_the_whole(size: Any, part: int) -> None:
    batch, key = rows(), jax.random.key(3)
    (loss, metrics), grads = jax.jit(
        lambda: accumulate_gradients(loss_fn, PARAMS, batch, key, size)
    )()
    x, w = np.asarray(batch["x"], np.float64), np.asarray(PARAMS["w"], np.float64)
    error = x @ w - np.asarray(batch["y"], np.float64)
    np.testing.assert_allclose(loss, np.mean(error**2), rtol=1e-5)
    np.testing.assert_allclose(grads["w"], 2 * (error[:, None] * x).mean(0), rtol=1e-4)
    assert metrics["rows"] == part
    alone = jax.random.uniform(jax.random.key(3))
    assert (metrics["draw"] == alone) == (part == NUM_ROWS)  # each part draws by itself


@pytest.mark.parametrize(
    ("num_rows", "size", "platform", "parts"),
    [
        (4096, "auto", "cpu", 16),
        (4096, "auto", "gpu", 1),
        (512, "auto", "cpu", 1),  # two parts are not worth it
        (1000, "auto", "cpu", 4),
        (1021, "auto", "cpu", 1),  # a prime number has no parts
        (4096, None, "cpu", 1),
        (4096, 1024, "gpu", 4),
        (96, 40, "cpu", 3),
    ],
)
def test_how_many_parts(num_rows: int, size: Any, platform: str, parts: int) -> None:
    assert get_num_microbatches(num_rows, size, platform) == parts


@pytest.mark.parametrize(("platform", "in_parts"), [("cpu", True), ("cuda", False)])
def test_auto_depends_on_what_the_program_is_for(platform: str, in_parts: bool) -> None:
    fn = jax.jit(lambda batch, key: accumulate_gradients(loss_fn, PARAMS, batch, key, "auto"))
    lowered = fn.trace(rows(), jax.random.key(0)).lower(lowering_platforms=(platform,))
    assert ("tensor<256x3xf32>" in lowered.as_text()) == in_parts


def trained(config: Any) -> tuple[Any, set[tuple[int, ...]]]:
    """The result of one train batch, and the shapes of rows that the loss was given."""
    shapes: set[tuple[int, ...]] = set()

    class Watched(config.get_learner_class()):
        def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
            shapes.add(batch.weight.shape)
            return super().compute_loss(params, batch, values, key)

    with config.copy().learners(learner_class=Watched).build() as algo:
        learned = algo.train()["learners"]["default_policy"]
        return {"params": algo.get_weights(), "said": learned}, shapes


@pytest.mark.parametrize("algo", slow_but("PPO", of=["PPO", "IMPALA", "APPO", "PQN"]))
def test_the_setting_reaches_every_loss_over_minibatches(algo: str) -> None:
    config = small(algo)
    whole, shapes = trained(config.copy().training(microbatch_size=None))
    assert shapes == {(config.plan().minibatch_size,)}
    parts, shapes = trained(config.copy().training(microbatch_size=9))
    assert shapes == {(8,)}
    assert_close(parts, whole, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_sequence_is_never_cut() -> None:
    config = small("PPO")
    config.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
    whole, shapes = trained(config.copy().training(microbatch_size=None))
    assert shapes == {(8, 4)}
    parts, shapes = trained(config.copy().training(microbatch_size=2))
    assert shapes == {(2, 4)}
    assert_close(parts, whole, rtol=1e-3, atol=1e-4)


def test_explain_says_it() -> None:
    config = small("PPO").training(train_batch_size=4096, minibatch_size=2048)
    config.env_runners(num_envs_per_env_runner=64).learners(num_devices=2)
    said = config.explain(platform="cpu", local_device_count=2)
    assert "its 1024 rows (or sequences) of a minibatch is accumulated over 4 microbatches" in said
    assert "over 4 microbatches" not in config.explain(platform="gpu", local_device_count=2)
    config.rl_module(model_config={"use_lstm": True, "max_seq_len": 8})  # 128 sequences
    assert "microbatches" not in config.explain(platform="cpu", local_device_count=2)
    config.training(microbatch_size=64)
    said = config.explain(platform="cpu", local_device_count=2)
    assert "its 128 rows (or sequences) of a minibatch is accumulated over 2 microbatches" in said


@pytest.mark.parametrize("size", [0, -1, 2.5, "all"])
def test_other_sizes_are_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match="microbatch_size"):
        PPOConfig().training(microbatch_size=size)
