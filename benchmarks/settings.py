"""What every peer is asked to train: one description, sent to each of them as JSON.

Standard library only, because peers with an environment of their own import it too.
"""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT_SETTINGS = ("4x128", "64x32", "2048x16")

DEFAULT_STEPS = {"4x128": 512_000, "64x32": 614_400, "2048x16": 786_432}
"""Environment steps of one measurement: two to four seconds on two cores of a laptop."""

FALLBACK_STEPS = 524_288

SLOW_STEPS = {"4x128": 5_120, "64x32": 10_240, "2048x16": 32_768}
"""The same for a peer whose environments and loop are on the host: a second or two."""

HOST_STEPS = 40_960
"""Environment steps of one measurement on the host: half a second to seven seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """PPO: `num_envs` environments x `num_steps` steps per train batch.

    Beside other libraries the environment is CartPole-v1; only jaxrl's own worker reads `env` and
    `conv_filters`.
    """

    num_envs: int
    num_steps: int
    num_updates: int
    """Train batches in one measurement."""
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
    """Of the second hidden layer; None for the first one's."""
    memory: str | None = None
    """The kind of a recurrent layer in the place of the second hidden one; None for none."""
    max_seq_len: int = 16
    env: str = "CartPole-v1"
    conv_filters: tuple[tuple[int, int, int], ...] = ()
    """Channels, kernel and stride of the layers before the hidden ones, for images."""

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
        """Environment steps of one measurement."""
        return self.num_updates * self.train_batch_size

    def to_dict(self) -> dict[str, Any]:
        filters = [list(layer) for layer in self.conv_filters]
        return {**dataclasses.asdict(self), "conv_filters": filters}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Setting:
        filters = tuple(tuple(layer) for layer in values.get("conv_filters", ()))
        given: dict[str, Any] = {**values, "conv_filters": filters}
        return Setting(**given)


def parse_setting(text: str, *, steps: int | None = None) -> Setting:
    """`"64x32"` as a setting of about `steps` environment steps a measurement.

    Raises:
        ValueError: the text is not `ENVSxSTEPS`, or its batch does not divide into minibatches.
    """
    match = re.fullmatch(r"(\d+)x(\d+)", text.strip())
    if match is None or "0" in match.groups():
        raise ValueError(f"a setting is ENVSxSTEPS, such as 64x32; got {text!r}")
    num_envs, num_steps = (int(group) for group in match.groups())
    batch = num_envs * num_steps
    if batch % Setting.num_minibatches:
        raise ValueError(
            f"{text}: a batch of {batch} steps does not divide into {Setting.num_minibatches} "
            "minibatches"
        )
    wanted = steps if steps is not None else DEFAULT_STEPS.get(text.strip(), FALLBACK_STEPS)
    return Setting(
        num_envs=num_envs, num_steps=num_steps, num_updates=max(1, round(wanted / batch))
    )


def for_peer(setting: Setting, *, slow: bool) -> Setting:
    """The setting with a measurement that is as long as a peer needs, which changes no rate."""
    steps = SLOW_STEPS.get(setting.name) if slow else None
    if steps is None or steps >= setting.env_steps:
        return setting
    return dataclasses.replace(setting, num_updates=max(1, round(steps / setting.train_batch_size)))


def host_setting(*, steps: int | None = None) -> Setting:
    """What peers on the host train: 8 environments x 256 steps, minibatches of 128."""
    batch = 8 * 256
    updates = max(1, round((steps or HOST_STEPS) / batch))
    return Setting(num_envs=8, num_steps=256, num_updates=updates, num_minibatches=batch // 128)


def available_cores() -> int:
    """Cores this process may use: its affinity, and its cgroup's quota where there is one."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.exists():
        limit, period = quota.read_text(encoding="utf-8").split()
        if limit != "max":
            cores = min(cores, int(limit) // int(period))
    return max(1, cores)
