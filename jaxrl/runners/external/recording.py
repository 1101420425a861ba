"""Recording of what simulators send, as they send it."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.episodes.packing import EpisodePart
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.recording import Converter, FolderRecorder


class PartRecorder(FolderRecorder):
    """Recorder of the parts of episodes that simulators send for training, each once.

    They are recorded when they are received, whether they are trained on or too old for it. A
    simulator that has gone on cannot send them again, so they stay recorded when a run goes back to
    a checkpoint. See `Recorder`.
    """

    def add_parts(self, parts: Sequence[EpisodePart]) -> None:
        """Add parts of episodes, those of one episode in order of time.

        Raises:
            DataError: If the folder cannot be written.
        """
        self._put((parts,))

    def add_fragments(self, fragments: Sequence[Fragment]) -> None:
        """Do nothing: fragments are packed from parts, which are recorded."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing: recorded parts stay."""

    def leave_episodes(self) -> None:
        """Do nothing: the episodes are the simulators'."""

    @property
    def _has_density(self) -> bool:
        """Return False where simulators may choose actions themselves, by whatever probability."""
        may_log = isinstance(self._config.training_settings, OffPolicyTraining)
        return super()._has_density and not may_log

    def _make_converter(self, run: str) -> Converter:
        return _Renaming(run)


class _Renaming:
    """Parts as they are, with the name of the run in the ids of episodes, and without a memory.

    Args:
        run: Name of the run, which no earlier one in the folder has.
    """

    def __init__(self, run: str) -> None:
        self._run = run

    def add(self, parts: Sequence[EpisodePart]) -> list[EpisodePart]:
        return [
            dataclasses.replace(part, episode_id=f"{self._run}-{part.episode_id}", carry=None)
            for part in parts
        ]

    def leave_episodes(self) -> list[EpisodePart]:
        return []

    def flush(self) -> list[EpisodePart]:
        return []

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        del state
