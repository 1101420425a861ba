"""Modules that remember, from the shipped files: five seeds, greedy evaluation, fixed budgets.

`python -m pytest -m slow tests/learning/test_memory.py -s` prints every seed.
"""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import pytest

from jaxrl.config.load import load_experiment
from jaxrl.evaluation.trials import evaluate_trials
from jaxrl.modules.encoder_module import RecurrentEncoder
from tests.learning.test_thresholds import CONFIGS, all_seeds, evaluated, interquartile_mean

pytestmark = pytest.mark.slow

PPO, PPO_STEPS = "memory/statelesscartpole-ppo", 300_000
RECALL, RECALL_STEPS = "memory/proberecall-ppo", 100_000


def with_model(**settings: Any) -> Any:
    """A change of settings of the file's module."""

    def change(config: Any) -> None:
        config.rl_module(model_config={**config.rl_module_settings.model_config, **settings})

    return change


def without_memory(config: Any) -> None:
    """The file's module, its memory left out."""
    settings = config.rl_module_settings.model_config
    kept = {name: x for name, x in settings.items() if name.startswith(("fcnet_", "vf_share"))}
    config.rl_module(model_config=kept)


def with_mingru(config: Any) -> None:
    """The file's module, with a recurrent layer in the place of its attention."""
    without_memory(config)
    memory = {"use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 32}
    with_model(**memory, recurrent_layer_type="mingru")(config)


@pytest.mark.parametrize("layer", ["lstm", "gru", "lru", "mingru"])
def test_ppo_stateless_cartpole(layer: str) -> None:
    scores = all_seeds(PPO, PPO_STEPS, with_model(recurrent_layer_type=layer))
    assert interquartile_mean(scores) >= 350


def test_impala_stateless_cartpole() -> None:
    assert interquartile_mean(all_seeds("memory/statelesscartpole-impala", 2_000_000)) >= 350


def test_dqn_stateless_cartpole() -> None:
    assert interquartile_mean(all_seeds("memory/statelesscartpole-dqn", 200_000)) >= 400


def test_positions_alone_do_not_balance_the_pole() -> None:
    assert evaluated(PPO, PPO_STEPS, 0, without_memory) < 200


@pytest.mark.parametrize("change", [None, with_mingru], ids=["attention", "mingru"])
def test_resetting_a_row_late_fails_the_threshold(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning forgets the first observation of an episode, which acting remembers."""
    honest = RecurrentEncoder._unroll

    def broken(self: Any, sequence: Any) -> Any:
        late = jnp.pad(sequence.is_first[:, :-1], ((0, 0), (1, 0)))
        return honest(self, replace(sequence, is_first=late))

    monkeypatch.setattr(RecurrentEncoder, "_unroll", broken)
    assert evaluated(RECALL, RECALL_STEPS, 0, change) < 0.9


@pytest.mark.parametrize("change", [None, with_mingru], ids=["attention", "mingru"])
def test_a_memory_recalls_what_was_seen_first(change: Any) -> None:
    scores = all_seeds(RECALL, RECALL_STEPS, change)
    assert interquartile_mean(scores) >= 0.95


def test_without_memory_it_is_a_coin() -> None:
    """The last observation says nothing of the first: every policy of it earns 0 on average."""
    scores = all_seeds(RECALL, RECALL_STEPS, without_memory)
    assert max(abs(score) for score in scores) < 0.4  # 100 episodes of -1 or 1, deviation 0.1


@pytest.mark.parametrize("seed", range(2))
def test_the_last_pull_of_a_trial_pays_more_than_the_first(seed: int) -> None:
    config = load_experiment(CONFIGS / "memory/linearbandit-trials-ppo.yaml").config
    with config.debugging(seed=seed, loggers=[]).build() as algorithm:
        while int(algorithm.state.progress.env_steps) < 2_000_000:
            algorithm.train()
        found = evaluate_trials(algorithm, num_trials=2_000)["custom_metrics"]
    print(f"\nlinearbandit-trials-ppo, seed {seed}: {found}")
    assert abs(found["episode_1_return_mean"]) < 0.05
    assert found["gain_low"] > 0.4
