"""Population based training of a sweep's lanes: who goes on as a copy of whom, with what values."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.pbt import PopulationBasedTraining, refuse_fixed
from jaxrl.config.sweep import Lane, Marker
from jaxrl.core.seeds import entropy_of
from jaxrl.errors import ConfigError, UnknownNameError
from jaxrl.metrics import KNOWN_KEYS, lookup
from jaxrl.runs import files, results

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

SCHEDULE_FILE = "pbt.jsonl"
_DRAWS = 0x706274
"""What tells the draws of this module from others of the same seed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exploit:
    """A lane that went on as a copy of another one.

    Args:
        training_iteration: After which.
        lane: Which goes on differently.
        source: Whose state it got.
        score: Its own, None where it had none.
        source_score: The other's.
        old: The source's values of what changes.
        new: The values that the lane goes on with.
        diverged: Why the lane was left behind before, None if it was not.
    """

    training_iteration: int
    lane: int
    source: int
    score: float | None
    source_score: float
    old: Mapping[str, float]
    new: Mapping[str, float]
    diverged: str | None = None


class Scheduler:
    """Decides, from the results of lanes alone, so that a restored sweep decides alike.

    Args:
        settings: The user's.
        mutations: The settings that change, and from what.
        seed: Of the sweep, from which the draws come.

    Attributes:
        schedule: All that was decided.
        last_time: The `time_attr` of the latest round.
    """

    def __init__(
        self, settings: PopulationBasedTraining, mutations: Mapping[str, Marker], seed: int
    ) -> None:
        self.settings, self._mutations, self._seed = settings, mutations, seed
        self.schedule: list[Exploit] = []
        self.last_time = 0.0

    def decide(
        self,
        latest: Mapping[int, Mapping[str, Any]],
        values: Sequence[Mapping[str, Any]],
        diverged: Mapping[int, str],
    ) -> list[Exploit]:
        """What is to be done after an iteration; nothing if it is not time, or nobody has a score.

        Args:
            latest: Results of the lanes that go on, by index; all of the same iteration.
            values: Of all lanes, what they have now.
            diverged: The others, and why they were left behind; they count as the worst.

        Raises:
            UnknownNameError: No result has the metric, and it is none that may come later.
        """
        result = next(iter(latest.values()))
        settings = self.settings
        time = float(lookup(result, settings.time_attr))
        due = time - self.last_time >= settings.perturbation_interval
        if not due or time < settings.burn_in_period:
            return []
        scores = self._scores(latest)
        if not scores:
            return []
        self.last_time = time
        iteration = int(result["training_iteration"])
        pairs = self._pairs(scores, sorted(diverged), iteration)
        done = [
            Exploit(
                training_iteration=iteration,
                lane=lane,
                source=source,
                score=scores.get(lane),
                source_score=scores[source],
                old={name: values[source][name] for name in self._mutations},
                new=self._explored(values[source], self._generator(iteration, lane, 1)),
                diverged=diverged.get(lane),
            )
            for lane, source in pairs
        ]
        self.schedule += done
        return done

    def _scores(self, latest: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
        metric = self.settings.metric
        found = {index: lookup(result, metric) for index, result in latest.items()}
        scores = {i: float(x) for i, x in found.items() if x is not None and math.isfinite(x)}
        if not scores and metric not in KNOWN_KEYS:
            raise UnknownNameError(f"No lane's result has '{metric}', the scheduler's metric.")
        return scores

    def _pairs(
        self, scores: Mapping[int, float], diverged: Sequence[int], iteration: int
    ) -> list[tuple[int, int]]:
        """The lanes to replace, each with the one to copy."""
        sign = 1.0 if self.settings.mode == "max" else -1.0
        ranked = sorted(scores, key=lambda index: (sign * scores[index], -index))
        compared = [*diverged, *ranked]
        share = math.ceil(len(compared) * self.settings.quantile_fraction)
        number = min(share, len(compared) // 2)
        replaced = compared[: max(number, len(diverged))]
        best = [index for index in ranked[-number:] if index not in replaced] if number else []
        if not best:
            return []
        return [
            (lane, best[int(self._generator(iteration, lane, 0).integers(len(best)))])
            for lane in replaced
        ]

    def _generator(self, iteration: int, lane: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng(entropy_of(self._seed, _DRAWS, iteration, lane, purpose))

    def _explored(
        self, values: Mapping[str, Any], generator: np.random.Generator
    ) -> dict[str, float]:
        return {
            name: self._changed(marker, values[name], generator)
            for name, marker in self._mutations.items()
        }

    def _changed(self, marker: Marker, value: float, generator: np.random.Generator) -> float:
        """The next value: drawn anew, a neighbour in a list, or a multiple within the bounds."""
        again = generator.random() < self.settings.resample_probability
        if marker.kind == "choice":
            if again or value not in marker.values:
                return marker.draw(generator)
            step = int(generator.choice((-1, 1)))
            place = marker.values.index(value) + step
            return marker.values[min(max(place, 0), len(marker.values) - 1)]
        if again:
            new = marker.draw(generator)
        else:
            new = value * float(generator.choice(self.settings.perturbation_factors))
        low, high = marker.values
        new = min(max(new, low), high)
        return round(new) if isinstance(low, int) and isinstance(high, int) else float(new)

    # --- what is written down ---

    def write(self, folder: Path) -> None:
        """The whole schedule, a line for each copy."""
        path = folder / SCHEDULE_FILE
        with files.one_sentence("write", path), files.replacing(path) as file:
            for exploit in self.schedule:
                line = results.to_json(dataclasses.asdict(exploit))
                file.write(json.dumps(line, allow_nan=False) + "\n")

    def go_on(self, schedule: Sequence[Exploit], last_time: float) -> None:
        """As it was when a sweep was saved."""
        self.schedule, self.last_time = list(schedule), last_time


def check_population(
    settings: PopulationBasedTraining, config: "AlgorithmConfig", groups: Sequence[Sequence[Lane]]
) -> None:
    """Refuse, before anything is built, lanes that could not go on as copies of one another.

    Args:
        settings: The user's.
        config: Of the sweep.
        groups: The lanes that can share a program, program by program.

    Raises:
        ConfigError: There are too few lanes, they differ in more than numbers of `training()`, or
            the metric will not be in any result.
    """
    lanes = [lane for group in groups for lane in group]
    if len(lanes) < 2:
        raise ConfigError(
            "PopulationBasedTraining compares lanes, and there is one: set sweep(seeds=8), or "
            "sweep(num_samples=8) for first values that are drawn."
        )
    training = config.name_table().groups["training_settings"]
    for name in lanes[0].values:
        if name not in training or not training[name].sweepable:
            raise ConfigError(
                f"{name} cannot be swept with a scheduler, since lanes go on as copies of one "
                "another in all but their keys: sweep traced numbers of training() alone."
            )
    if len(groups) > 1:
        raise ConfigError(
            f"The lanes are {len(groups)} different programs, and a scheduler needs one, in which "
            f"they can be copied: {', '.join(lanes[0].values)} must have numbers, or schedules of "
            "the same length, in all lanes."
        )
    interval = config.evaluation_settings.evaluation_interval
    if settings.metric.startswith("evaluation/") and not interval:
        raise ConfigError(
            f"metric={settings.metric!r} is in no result without evaluation(evaluation_interval=...)."
        )


def refuse_fixed_of(mutations: Mapping[str, Marker], assembly: Assembly) -> None:
    """See `refuse_fixed`; of a run's functions."""
    if mutations:
        total = assembly.plan.total_envs
        state = jax.eval_shape(
            lambda key: assembly.runner.init_learning(key, total), jax.random.key(0)
        )
        refuse_fixed(mutations, state.learner)


def read_schedule(folder: Path, *, before: int | None = None) -> list[Exploit]:
    """What was written; until an iteration, which a sweep is resumed from.

    Args:
        folder: The sweep's.
        before: Copies made after this iteration or a later one are left out; None takes all.
    """
    path = folder / SCHEDULE_FILE
    if not path.is_file():
        return []
    with files.one_sentence("read", path):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = [Exploit(**cast(dict[str, Any], row)) for row in rows]
    return [x for x in found if before is None or x.training_iteration < before]
