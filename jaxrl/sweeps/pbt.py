"""Population based training (Jaderberg et al. 2017): exploit and explore steps between lanes."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.markers import Marker
from jaxrl.config.pbt import PopulationBasedTraining, check_mutable
from jaxrl.config.sweep import Lane
from jaxrl.core.seeds import make_seed_sequence
from jaxrl.errors import ConfigError, UnknownNameError
from jaxrl.metrics import KNOWN_KEYS, lookup
from jaxrl.runs import results
from jaxrl.runtime import files

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

SCHEDULE_FILE = "pbt.jsonl"
_SEED_DOMAIN = 0x706274
"""Constant that separates this module's random draws from others with the same seed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Exploit:
    """Exploit step: a lane replaced by a copy of another one, with perturbed hyperparameters.

    Args:
        training_iteration: Iteration after which the lane was replaced.
        lane: Index of the lane that was replaced.
        source: Index of the lane that was copied.
        score: Score of the replaced lane; None if it had none.
        source_score: Score of the copied lane.
        old: Values of the mutated settings in the copied lane.
        new: Values of the mutated settings that the replaced lane continues with.
        diverged: Reason why the replaced lane had diverged; None if it had not.
    """

    training_iteration: int
    lane: int
    source: int
    score: float | None
    source_score: float
    old: Mapping[str, float]
    new: Mapping[str, float]
    diverged: str | None = None


class PBTScheduler:
    """Population based training scheduler.

    Its decisions depend only on the lanes' results and the seed, so a restored sweep makes the same
    ones.

    Args:
        settings: User settings of the scheduler.
        mutations: Markers of the settings that change, by name.
        seed: Seed of the sweep, from which all draws are derived.

    Attributes:
        schedule: All exploit steps so far.
        last_time: Value of `time_attr` at the latest round.
    """

    def __init__(
        self, settings: PopulationBasedTraining, mutations: Mapping[str, Marker], seed: int
    ) -> None:
        self.settings, self._mutations, self._seed = settings, mutations, seed
        self.schedule: list[Exploit] = []
        self.last_time = 0.0

    def select_exploits(
        self,
        latest: Mapping[int, Mapping[str, Any]],
        values: Sequence[Mapping[str, Any]],
        diverged: Mapping[int, str],
    ) -> list[Exploit]:
        """Return the exploit steps after an iteration; none if not due or without any score.

        Args:
            latest: Results of the active lanes by index, all of the same iteration.
            values: Current values of the swept settings of all lanes.
            diverged: Reasons why the other lanes diverged, by index; they rank as the worst.

        Raises:
            UnknownNameError: If no result has the metric and it is not a known result key, which
                might appear later.
        """
        result = next(iter(latest.values()))
        settings = self.settings
        time = float(lookup(result, settings.time_attr))
        is_due = time - self.last_time >= settings.perturbation_interval
        if not is_due or time < settings.burn_in_period:
            return []
        scores = self._get_scores(latest)
        if not scores:
            return []
        self.last_time = time
        iteration = int(result["training_iteration"])
        pairs = self._match_lanes(scores, sorted(diverged), iteration)
        exploits = [
            Exploit(
                training_iteration=iteration,
                lane=lane,
                source=source,
                score=scores.get(lane),
                source_score=scores[source],
                old={name: values[source][name] for name in self._mutations},
                new=self._explore(values[source], self._make_generator(iteration, lane, 1)),
                diverged=diverged.get(lane),
            )
            for lane, source in pairs
        ]
        self.schedule += exploits
        return exploits

    def _get_scores(self, latest: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
        metric = self.settings.metric
        values = {index: lookup(result, metric) for index, result in latest.items()}
        scores = {i: float(x) for i, x in values.items() if x is not None and math.isfinite(x)}
        if not scores and metric not in KNOWN_KEYS:
            raise UnknownNameError(f"No lane's result has '{metric}', the scheduler's metric.")
        return scores

    def _match_lanes(
        self, scores: Mapping[int, float], diverged: Sequence[int], iteration: int
    ) -> list[tuple[int, int]]:
        """Return the lanes to replace, each paired with the lane to copy."""
        sign = 1.0 if self.settings.mode == "max" else -1.0
        ranked = sorted(scores, key=lambda index: (sign * scores[index], -index))
        compared = [*diverged, *ranked]
        quantile_size = math.ceil(len(compared) * self.settings.quantile_fraction)
        number = min(quantile_size, len(compared) // 2)
        replaced = compared[: max(number, len(diverged))]
        best = [index for index in ranked[-number:] if index not in replaced] if number else []
        if not best:
            return []
        return [
            (lane, best[int(self._make_generator(iteration, lane, 0).integers(len(best)))])
            for lane in replaced
        ]

    def _make_generator(self, iteration: int, lane: int, purpose: int) -> np.random.Generator:
        return np.random.default_rng(
            make_seed_sequence(self._seed, _SEED_DOMAIN, iteration, lane, purpose)
        )

    def _explore(
        self, values: Mapping[str, Any], generator: np.random.Generator
    ) -> dict[str, float]:
        return {
            name: self._perturb(marker, values[name], generator)
            for name, marker in self._mutations.items()
        }

    def _perturb(self, marker: Marker, value: float, generator: np.random.Generator) -> float:
        """Return a resampled value, a neighbor in a list, or a multiple clipped to the bounds."""
        should_resample = generator.random() < self.settings.resample_probability
        if marker.kind == "choice":
            if should_resample or value not in marker.values:
                return marker.sample(generator)
            step = int(generator.choice((-1, 1)))
            position = marker.values.index(value) + step
            return marker.values[min(max(position, 0), len(marker.values) - 1)]
        if should_resample:
            new = marker.sample(generator)
        else:
            new = value * float(generator.choice(self.settings.perturbation_factors))
        low, high = marker.values
        new = min(max(new, low), high)
        return round(new) if isinstance(low, int) and isinstance(high, int) else float(new)

    # --- persistence ---

    def write_schedule(self, folder: Path) -> None:
        """Write the whole schedule to the sweep's folder, one JSON line per exploit step."""
        path = folder / SCHEDULE_FILE
        with files.translate_os_errors("write", path), files.open_atomic(path) as file:
            for exploit in self.schedule:
                line = results.to_json(dataclasses.asdict(exploit))
                file.write(json.dumps(line, allow_nan=False) + "\n")

    def restore(self, schedule: Sequence[Exploit], last_time: float) -> None:
        """Restore the scheduler to its state when the sweep was saved."""
        self.schedule, self.last_time = list(schedule), last_time


def check_population(
    settings: PopulationBasedTraining, config: "AlgorithmConfig", groups: Sequence[Sequence[Lane]]
) -> None:
    """Raise if lanes cannot be copied to one another; called before anything is built.

    Args:
        settings: User settings of the scheduler.
        config: Config of the sweep.
        groups: Lanes that can share a program, one sequence per program.

    Raises:
        ConfigError: If there are fewer than two lanes, they differ in more than numbers of
            `training()`, or no result will have the metric.
    """
    lanes = [lane for group in groups for lane in group]
    if len(lanes) < 2:
        raise ConfigError(
            "PopulationBasedTraining compares lanes, but there is only one: set sweep(seeds=8), or "
            "sweep(num_samples=8) to draw initial values."
        )
    training = config.get_name_table().groups["training_settings"]
    for name in lanes[0].values:
        if name not in training or not training[name].sweepable:
            raise ConfigError(
                f"{name} cannot be swept with a scheduler, which copies everything but the keys "
                "from one lane to another: sweep only traced numbers of training()."
            )
    if len(groups) > 1:
        raise ConfigError(
            f"The lanes need {len(groups)} different programs, but a scheduler can copy lanes only "
            f"within one: {', '.join(lanes[0].values)} must be numbers, or schedules of the same "
            "length, in all lanes."
        )
    interval = config.evaluation_settings.evaluation_interval
    if settings.metric.startswith("evaluation/") and not interval:
        raise ConfigError(
            f"metric={settings.metric!r} is in no result without "
            "evaluation(evaluation_interval=...)."
        )


def check_mutations(mutations: Mapping[str, Marker], assembly: Assembly) -> None:
    """Raise if the scheduler mutates a setting that is not a traced number; see `check_mutable`.

    Args:
        mutations: Markers of the settings that change, by name.
        assembly: Functions of the run whose learner state has the hyperparameters.

    Raises:
        ConfigError: If a mutated setting cannot change during training.
    """
    if mutations:
        for part in assembly.parts.values():
            total = part.plan.total_envs
            make = partial(part.train_step.init_without_envs, total_envs=total)
            check_mutable(mutations, jax.eval_shape(make, jax.random.key(0)).learner)


def read_schedule(folder: Path, *, before: int | None = None) -> list[Exploit]:
    """Return the exploit steps that `PBTScheduler.write_schedule` wrote.

    Args:
        folder: Folder of the sweep.
        before: Iteration at which the sweep is resumed; only earlier steps are returned. None
            returns all.
    """
    path = folder / SCHEDULE_FILE
    if not path.is_file():
        return []
    with files.translate_os_errors("read", path):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    exploits = [Exploit(**cast(dict[str, Any], row)) for row in rows]
    return [x for x in exploits if before is None or x.training_iteration < before]
