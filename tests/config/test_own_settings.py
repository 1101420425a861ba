"""Settings that a user's config class adds, and what a Learner finds of them."""

import dataclasses
from typing import Any, ClassVar

import jax
import pytest

from jaxrl import DQNConfig, PPOConfig
from jaxrl.algorithms.dqn import DQNLearner
from jaxrl.algorithms.ppo import PPOLearner, PPOTraining
from jaxrl.config import fluent
from jaxrl.errors import ConfigError, LossError, UnknownNameError, UnknownSettingError
from tests.helpers import small


class Declared(PPOConfig):
    """By annotated defaults."""

    scale: float = 0.5
    repeats: int = 2
    names: list[str] = ["a"]
    constant: ClassVar[int] = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnTraining(PPOTraining):
    """By a dataclass with plain defaults."""

    scale: float = 0.25
    lr: float = 3e-4


class OfADataclass(PPOConfig):
    """Says its group alone."""

    training = fluent("training_settings", OwnTraining)


class Scaled(PPOLearner):
    """Reads a number from the values and a whole number from the settings."""

    def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
        loss, metrics = super().compute_loss(params, batch, values, key)
        settings: Any = self.settings
        return values["scale"] * loss, {
            **metrics,
            "scale": values["scale"],
            "n": settings.repeats,
        }


def test_declared_settings_are_settings_of_training() -> None:
    config = Declared().training(scale=0.7, lr=1e-3)
    assert (config.scale, config["repeats"], config.names) == (0.7, 2, ["a"])
    assert config.num_epochs == PPOConfig().num_epochs
    assert config.explicit == {"scale", "lr"}
    config.names.append("b")
    assert Declared().names == ["a"]
    assert Declared.from_dict(config.to_dict()).scale == 0.7
    assert "constant" not in config
    with pytest.raises(UnknownSettingError, match="Did you mean 'scale'"):
        config.training(scales=1)
    with pytest.raises(ConfigError, match="repeats must be a whole number, got 'two'"):
        config.training(repeats="two")
    with pytest.raises(
        ConfigError, match="declares lr, which is already a setting of training_settings"
    ):
        type("Again", (PPOConfig,), {"__annotations__": {"lr": float}, "lr": 0.1})


def test_a_dataclass_needs_no_more_than_defaults() -> None:
    config = OfADataclass().training(scale=1)
    assert (config.scale, config.lr) == (1.0, 3e-4)
    assert config.num_epochs == PPOConfig().num_epochs


def test_a_loss_reads_what_was_declared_and_changing_it_compiles_nothing() -> None:
    plain = small("PPO").to_dict()
    config = Declared.from_dict(plain).learners(learner_class=Scaled)
    config.training(scale=0.25).debugging(max_retraces=0)
    with config.build() as algorithm:
        learned = algorithm.train()["learners"]["default_policy"]
        assert (learned["scale"], learned["n"]) == (0.25, 2.0)
        learner = algorithm.state.learner
        hparams = {**learner.hparams, "scale": 2 * learner.hparams["scale"]}
        learner = dataclasses.replace(learner, hparams=hparams)
        algorithm.state = dataclasses.replace(algorithm.state, learner=learner)
        assert algorithm.train()["learners"]["default_policy"]["scale"] == 0.5


class Wrong(PPOLearner):
    """Changes what PPO's loss returns."""

    def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
        return self.change(*super().compute_loss(params, batch, values, key), batch, values)

    def change(self, loss: Any, metrics: Any, batch: Any, values: Any) -> Any:
        return loss, metrics


def wrong(change: Any) -> type[Wrong]:
    return type("Mine", (Wrong,), {"change": change})


CASES: list[tuple[Any, str]] = [
    (
        lambda s, loss, m, b, v: loss,
        r"Mine.compute_loss must return \(loss, metrics\), got a \w*Tracer",
    ),
    (lambda s, loss, m, b, v: (loss, m, m), r"must return \(loss, metrics\), got a tuple of 3"),
    (lambda s, loss, m, b, v: (0.5, m), r"a loss that is computed from the parameters, got 0.5"),
    (lambda s, loss, m, b, v: (b.weight * loss, m), r"a loss that is float32 of shape \(32,\)"),
    (lambda s, loss, m, b, v: (loss, [m]), r"its metrics as a dictionary, got a list"),
    (lambda s, loss, m, b, v: (loss, {**m, "w": "x"}), r"metrics as numbers by name, got 'w': 'x'"),
    (lambda s, loss, m, b, v: (loss, {**m, "w": b.weight}), r"metric 'w' has shape \(32,\)"),
    (
        lambda s, loss, m, b, v: (loss if loss > 0 else -loss, m),
        r"learner_class=Mine.*test_own_settings.py:\d+",
    ),
    (lambda s, loss, m, b, v: (loss * b.wait, m), r"learner_class=Mine.*no attribute 'wait'"),
]


@pytest.mark.parametrize(("change", "message"), CASES)
def test_a_wrong_loss_is_one_sentence_before_anything_is_compiled(
    change: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jax.stages.Lowered, "compile", None)
    with pytest.raises(LossError, match=message):
        small("PPO").learners(learner_class=wrong(change)).build()


@pytest.mark.parametrize("given", [dict, DQNConfig, DQNLearner])
def test_a_learner_of_another_algorithm_is_refused(given: Any) -> None:
    with pytest.raises(
        LossError, match=f"must be a subclass of .*PPOLearner.* got {given.__name__}"
    ):
        small("PPO").learners(learner_class=given).build()


def test_a_loss_without_the_divergence_that_adapts_its_weight_is_refused() -> None:
    mine = wrong(lambda s, loss, m, b, v: (loss, {}))
    with pytest.raises(LossError, match=r"'mean_kl_loss'.*training\(use_kl_loss=False\)"):
        small("PPO").learners(learner_class=mine).training(use_kl_loss=True).build()


def test_unknown_values_are_answered_with_the_known_ones() -> None:
    mine = wrong(lambda s, loss, m, b, v: (loss * v["clip_parm"], m))
    with pytest.raises(UnknownNameError, match=r"'clip_parm'. Did you mean 'clip_param'.*Known: "):
        small("PPO").learners(learner_class=mine).build()


def test_what_prepare_reports_and_losses_of_replayed_rows_are_held_to_the_same() -> None:
    class Prepares(PPOLearner):
        def prepare(self, state: Any, rollout: Any, progress: Any) -> Any:
            batch, metrics = super().prepare(state, rollout, progress)
            return batch, {**metrics, "all": batch.advantages}

    class OfRows(DQNLearner):
        def compute_loss(self, params: Any, batch: Any, targets: Any, key: Any) -> Any:
            loss, metrics = super().compute_loss(params, batch, targets, key)
            return loss + 0.0 * batch.weight, metrics

    with pytest.raises(LossError, match=r"Prepares.prepare's metric 'all' has shape"):
        small("PPO").learners(learner_class=Prepares).build()
    config = DQNConfig().environment("CartPole-v1").learners(learner_class=OfRows)
    with pytest.raises(LossError, match=r"OfRows.compute_loss returned a loss that is float32 of"):
        config.rl_module(model_config={"fcnet_hiddens": [4]}).build()
