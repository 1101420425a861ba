"""The module of a run with RLlib's dictionaries: calls, states, distributions, bad batches."""

import gc
import weakref
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import RLModule
from jaxrl.core.types import Columns
from jaxrl.errors import ModuleError, SpaceError
from jaxrl.modules.actor_critic import ActorCriticModule
from tests.helpers import small

OBS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture(scope="module")
def algorithm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = small().debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    with config.build() as built:
        yield built


@pytest.fixture(scope="module")
def recurrent() -> Any:
    model = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [8], "max_seq_len": 4}
    with small().rl_module(model_config=model).debugging(loggers=[]).build() as built:
        yield built.get_module()


@pytest.mark.slow
def test_a_batch_gives_what_the_pure_methods_give_for_the_current_weights(algorithm: Any) -> None:
    module = algorithm.get_module()
    assert type(module).__name__ == "ActorCriticModule"
    assert isinstance(module, ActorCriticModule)
    for _ in range(2):
        params = algorithm.get_weights()["default_policy"]
        pure = module.forward_train(params, {"obs": OBS})
        out = module.forward_train({Columns.OBS: OBS})
        for name in (Columns.ACTION_DIST_INPUTS, Columns.VF_PREDS):
            np.testing.assert_allclose(out[name], pure[name], atol=1e-6)
        np.testing.assert_allclose(module.compute_values({"obs": OBS}), pure["vf_preds"], atol=1e-6)
        best = module.forward_inference({"obs": OBS})["actions"]
        assert (np.asarray(best) == np.argmax(pure["action_dist_inputs"], axis=-1)).all()
        assert jax.tree.all(jax.tree.map(np.array_equal, module.get_state(), params))
        algorithm.train()


def test_exploration_draws_anew_and_keeps_leading_axes(algorithm: Any) -> None:
    module = algorithm.get_module()
    many = np.zeros((50, 4, 4), np.float32)
    first, second = (module.forward_exploration({"obs": many}) for _ in range(2))
    assert first["actions"].shape == first["action_logp"].shape == (50, 4)
    assert not np.array_equal(first["actions"], second["actions"])
    assert "state_out" not in first


def test_distributions_come_from_logits(algorithm: Any) -> None:
    module = algorithm.get_module()
    logits = np.array([[0.0, 2.0], [3.0, 0.0]], np.float32)
    for make in (
        module.get_inference_action_dist_cls,
        module.get_exploration_action_dist_cls,
        module.get_train_action_dist_cls,
    ):
        dist = make().from_logits(logits)
        assert dist.to_deterministic().sample().tolist() == [1, 0]
        probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        np.testing.assert_allclose(dist.logp([1, 0]), np.log([probs[0, 1], probs[1, 0]]), 1e-5)
        np.testing.assert_allclose(dist.entropy(), -(probs * np.log(probs)).sum(-1), 1e-5)
        np.testing.assert_allclose(dist.kl(dist), 0.0, atol=1e-6)
    drawn = {tuple(dist.sample().tolist()) for _ in range(40)}
    assert len(drawn) > 1
    again = [make().from_logits(logits).sample().tolist() for _ in range(2)]
    assert again[0] == again[1]
    assert make().required_input_dim() == 2


def test_a_recurrent_module_reads_state_in_and_returns_state_out(recurrent: Any) -> None:
    state = jax.tree.map(lambda x: x[None], recurrent.get_initial_state())
    two = OBS[None, :2]
    together = recurrent.forward_inference({"obs": two, "state_in": state})
    first = recurrent.forward_inference({"obs": two[:, 0], "state_in": state})
    second = recurrent.forward_inference({"obs": two[:, 1], "state_in": first["state_out"]})
    trained = recurrent.forward_train({"obs": two, "state_in": state})
    name = Columns.ACTION_DIST_INPUTS
    np.testing.assert_allclose(together[name][:, 1], second[name], atol=1e-6)
    np.testing.assert_allclose(trained[name], together[name], atol=1e-6)
    for out in (together, trained):
        same = jax.tree.map(
            lambda a, b: bool(jnp.allclose(a, b, atol=1e-6)), out["state_out"], second["state_out"]
        )
        assert jax.tree.all(same)
    assert not np.allclose(
        recurrent.forward_inference({"obs": two[:, 1]})[name], second[name], atol=1e-6
    )
    assert recurrent.compute_values({"obs": two}).shape == (1, 2)


def test_a_module_is_read_from_a_checkpoint(algorithm: Any, tmp_path: Path) -> None:
    saved = algorithm.save(str(tmp_path))
    folder = Path(saved) / "learner_group" / "learner" / "rl_module" / "default_policy"
    module: Any = RLModule.from_checkpoint(folder)
    out, own = (m.forward_inference({"obs": OBS}) for m in (module, algorithm.get_module()))
    np.testing.assert_allclose(out["action_dist_inputs"], own["action_dist_inputs"], atol=1e-6)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ({"observations": OBS}, "no 'obs', .* it has 'observations'"),
        ({}, "it has nothing"),
        ({"obs": OBS[0]}, r"with a batch axis, got shape \(4,\)"),
        ({"obs": OBS[:, :3]}, r"got shape \(3, 3\)"),
        ({"obs": {"a": OBS}}, "must be observations|structure"),
    ],
)
def test_a_bad_batch_is_one_sentence(algorithm: Any, batch: Any, words: str) -> None:
    with pytest.raises(SpaceError, match=words):
        algorithm.get_module().forward_inference(batch)


def test_a_bad_state_is_one_sentence(recurrent: Any) -> None:
    with pytest.raises(SpaceError, match="'state_in' must be the module's state"):
        recurrent.forward_train({"obs": OBS, "state_in": recurrent.get_initial_state()})
    with pytest.raises(SpaceError, match="an axis of time after it"):
        recurrent.forward_train({"obs": OBS[None, None]})


def test_a_module_without_values_says_so() -> None:
    with (
        small("SAC").debugging(loggers=[]).build() as built,
        pytest.raises(ModuleError, match="has no value function"),
    ):
        built.get_module().compute_values({"obs": np.zeros((1, 3), np.float32)})


class ForwardOfBatch(RLModule):
    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:  # pyright: ignore
        return {}


class ForwardOfKeywords(RLModule):
    def _forward(self, batch: Any, embeddings: Any = None) -> dict[str, Any]:  # pyright: ignore
        return {}


class OwnInference(ActorCriticModule):
    def _forward_inference(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {}


class ValuesOfBatch(ActorCriticModule):
    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:  # pyright: ignore
        return 0


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (ForwardOfBatch, r"_forward\(self, batch.*RLlib's signature.*write _forward\(self, params"),
        (ForwardOfKeywords, "RLlib's signature"),
        (OwnInference, "_forward_inference is never called here"),
        (ValuesOfBatch, r"compute_values\(self, batch.*RLlib's signature"),
    ],
)
def test_a_module_written_for_rllib_is_told_what_to_write(module: Any, words: str) -> None:
    config = small().rl_module(rl_module_spec=module)
    with pytest.raises(ModuleError, match=words):
        config.build()


def test_a_module_outlives_its_algorithm_which_is_freed_at_once() -> None:
    built = small().debugging(loggers=[]).build()
    module, gone = built.get_module(), weakref.ref(built)
    built.stop()
    gc.disable()
    try:
        del built
        assert gone() is None
        assert module.forward_inference({"obs": OBS})["actions"].shape == (3,)
    finally:
        gc.enable()
