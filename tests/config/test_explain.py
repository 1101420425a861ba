"""`explain()` and the settings page say what is there."""

from pathlib import Path

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config import list_algorithms
from jaxrl.config.base import get_algorithm_config
from jaxrl.config.page import render_settings_page

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_effective_values_are_shown() -> None:
    text = PPOConfig().environment("CartPole-v1").training(train_batch_size=4000).explain()
    assert " * env = 'CartPole-v1'" in text
    assert " * train_batch_size = 4000" in text
    assert "   minibatch_size = 125 (from 128)" in text
    assert "   rollout_fragment_length = 250 (from 'auto')" in text
    assert "16 envs x 250 steps = 4000; 32 minibatches of 125 x 30 epochs = 960 updates" in text
    for name in PPOConfig().keys():  # noqa: SIM118 (the config is not a dictionary)
        assert f" {name} = " in text


def test_placement_says_why() -> None:
    config = PPOConfig().env_runners(num_envs_per_env_runner=64, rollout_fragment_length=32)
    config.training(minibatch_size=512)
    assert (
        "8 shards; num_devices='auto' is resolved when the Algorithm is built" in config.explain()
    )
    assert "8 shards on 1 device, as set." in config.copy().learners(num_devices=1).explain()
    assert "8 shards on 2 devices, as set." in config.copy().learners(num_devices=2).explain()
    text = config.explain(platform="cpu", local_device_count=2, module_table="layer | shape")
    assert "2 cpu devices: the largest divisor of num_shards=8 up to 2" in text
    assert "Module\nlayer | shape" in text
    for placement in ("host", "ray"):
        hosted = config.explain(platform="cpu", local_device_count=2, placement=placement)
        assert "1 cpu device: XLA's threads share each update" in hosted


def test_notes_are_shown() -> None:
    config = PPOConfig().training(num_sgd_iter=3)
    text = config.explain(env_notes=["CartPole-v1: ours."], notes=["JAX had started."])
    for sentence in (
        "CartPole-v1: ours.",
        "JAX had started.",
        "'num_sgd_iter' is now training(num_epochs=...)",
    ):
        assert sentence in text


def test_settings_page_is_current() -> None:
    assert PAGE.read_text() == render_settings_page(), (
        "python -m jaxrl.config.page > docs/settings.md"
    )


def test_every_setting_is_documented() -> None:
    page = PAGE.read_text()
    for algo in list_algorithms():
        config = get_algorithm_config(algo)
        for name in config.keys():  # noqa: SIM118
            setting = config.get_name_table().get_setting(name)
            assert setting.doc.endswith("."), name
            assert len(setting.doc) > 10, name
            assert f"| `{name}` |" in page
