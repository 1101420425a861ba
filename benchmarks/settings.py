"""Settings of PPO that every peer trains, sent to each of them as JSON.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Self

DEFAULT_SETTINGS = ("4x128", "64x32", "2048x16")

DEFAULT_STEPS = {"4x128": 512_000, "64x32": 614_400, "2048x16": 786_432}
"""Environment steps per measurement: two to four seconds on two cores of a laptop."""

FALLBACK_STEPS = 524_288

SLOW_STEPS = {"4x128": 5_120, "64x32": 10_240, "2048x16": 32_768}
"""Environment steps per measurement of a peer with environments and loop on the host: a second or
two."""

HOST_STEPS = 40_960
"""Environment steps per measurement in the host suite: half a second to seven seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """Setting of PPO with `num_envs` environments x `num_steps` steps per train batch.

    Other libraries always train on CartPole-v1; only jaxrl's worker reads `env` and `conv_filters`.
    """

    num_envs: int
    num_steps: int
    num_updates: int
    """Number of train batches per measurement."""
    seed: int = 0
    num_epochs: int = 4
    num_minibatches: int = 4
    hidden_size: int = 64
    lr: float = 2.5e-4
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_param: float = 0.2
    vf_loss_coeff: float = 0.5
    entropy_coeff: float = 0.01
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    second_size: int | None = None
    """Size of the second hidden layer; None for that of the first."""
    memory: str | None = None
    """Type of the recurrent layer that replaces the second hidden one; None for a dense layer."""
    max_seq_len: int = 16
    env: str = "CartPole-v1"
    conv_filters: tuple[tuple[int, int, int], ...] = ()
    """Channels, kernel, and stride of the convolutions before the hidden layers, for images."""

    @property
    def name(self) -> str:
        return f"{self.num_envs}x{self.num_steps}"

    @property
    def train_batch_size(self) -> int:
        return self.num_envs * self.num_steps

    @property
    def minibatch_size(self) -> int:
        return self.train_batch_size // self.num_minibatches

    @property
    def env_steps(self) -> int:
        """Environment steps per measurement."""
        return self.num_updates * self.train_batch_size

    def to_dict(self) -> dict[str, Any]:
        filters = [list(layer) for layer in self.conv_filters]
        return {**dataclasses.asdict(self), "conv_filters": filters}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        filters = tuple(tuple(layer) for layer in values.get("conv_filters", ()))
        given: dict[str, Any] = {**values, "conv_filters": filters}
        return cls(**given)


def parse_setting(text: str, *, steps: int | None = None) -> Setting:
    """Parse a setting such as `"64x32"`.

    Args:
        text: Number of environments and of steps per train batch, as `ENVSxSTEPS`.
        steps: Approximate number of environment steps per measurement.

    Raises:
        ValueError: If the text is not `ENVSxSTEPS`, or the batch does not divide into minibatches.
    """
    match = re.fullmatch(r"(\d+)x(\d+)", text.strip())
    if match is None or "0" in match.groups():
        raise ValueError(f"a setting must be ENVSxSTEPS, such as 64x32, got {text!r}")
    num_envs, num_steps = (int(group) for group in match.groups())
    batch = num_envs * num_steps
    if batch % Setting.num_minibatches:
        raise ValueError(
            f"{text}: a batch of {batch} steps does not divide into {Setting.num_minibatches} "
            "minibatches"
        )
    target = steps if steps is not None else DEFAULT_STEPS.get(text.strip(), FALLBACK_STEPS)
    return Setting(
        num_envs=num_envs, num_steps=num_steps, num_updates=max(1, round(target / batch))
    )


def adapt_to_peer(setting: Setting, *, is_slow: bool) -> Setting:
    """Return the setting with a shorter measurement for a slow peer, which changes no rate."""
    steps = SLOW_STEPS.get(setting.name) if is_slow else None
    if steps is None or steps >= setting.env_steps:
        return setting
    return dataclasses.replace(setting, num_updates=max(1, round(steps / setting.train_batch_size)))


def make_host_setting(*, steps: int | None = None) -> Setting:
    """Return the setting of peers on the host: 8 environments x 256 steps, minibatches of 128.

    Args:
        steps: Approximate number of environment steps per measurement.
    """
    batch = 8 * 256
    updates = max(1, round((steps or HOST_STEPS) / batch))
    return Setting(num_envs=8, num_steps=256, num_updates=updates, num_minibatches=batch // 128)
