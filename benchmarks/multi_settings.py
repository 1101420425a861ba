"""Settings of the benchmark of several agents.

Uses the standard library alone, because peers in their own virtual environments import it too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

OURS, JAXMARL = "jaxrl-multi", "jaxmarl"

TASKS: Mapping[str, tuple[str, str]] = {
    "spread": ("SimpleSpread-v0", "MPE_simple_spread_v3"),
    "speaker-listener": ("SpeakerListener-v0", "MPE_simple_speaker_listener_v4"),
    "tag": ("SimpleTag-v0", "MPE_simple_tag_v3"),
}
"""Ids of each task, jaxrl's and JaxMARL's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlaySetting:
    """Random play of a task.

    Attributes:
        task: Key of `TASKS`.
        num_envs: Number of copies.
        num_steps: Steps of each copy in a measurement.
    """

    task: str
    num_envs: int
    num_steps: int
    seed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> PlaySetting:
        return PlaySetting(**values)
