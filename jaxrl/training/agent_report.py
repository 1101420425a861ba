"""Results of every agent and module of a run of several, with RLlib's keys."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.config.agent_mapping import DRAWN
from jaxrl.core.types import Counter
from jaxrl.envs.multi.base import is_slot
from jaxrl.metrics import ALL_MODULES, EPISODE_RETURN_MEAN
from jaxrl.training.episode_metrics import add_sums, compute_episode_metrics
from jaxrl.training.episode_stats import AgentReturns, AgentSums, EpisodeSums
from jaxrl.training.nonfinite import drop_counts, select_counts
from jaxrl.training.train_state import ReportRow, Summary


def counter_to_int(counter: Counter) -> int:
    """Convert a fetched counter to an integer."""
    return (int(counter.high) << 32) + int(counter.low)


def counters_to_ints(counter: Counter) -> list[int]:
    """Convert fetched counters to integers."""
    pairs = zip(counter.high, counter.low, strict=True)
    return [(int(high) << 32) + int(low) for high, low in pairs]


@dataclasses.dataclass
class ModuleTotals:
    """Totals of one module over the dispatches of an iteration."""

    learned_batches: int = 0
    updates: int = 0
    rows: int = 0
    metrics: dict[str, float] = dataclasses.field(default_factory=dict[str, float])
    episode_sums: EpisodeSums | None = None

    def add(self, summary: Summary) -> None:
        """Add a dispatch."""
        self.learned_batches += int(summary.learned_batches)
        self.updates += int(summary.updates)
        self.rows += int(summary.env_steps)
        for name, value in summary.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(value)
        self.episode_sums = add_sums(self.episode_sums, summary.episodes)

    def compute_means(self) -> dict[str, Any]:
        """Return the means of the metrics, NaN if every update was skipped."""
        batches = self.learned_batches
        return {
            name: value / batches if batches else np.nan
            for name, value in sorted(drop_counts(self.metrics).items())
            if batches or self.updates
        }


@dataclasses.dataclass
class AgentTotals:
    """Totals of agents and modules over the dispatches of an iteration.

    Args:
        patterns: Module of each agent, in the copies of the environment in turn; empty for a single
            agent, which has no totals.
        buffers: Replay buffer of each module that has one.
    """

    patterns: Sequence[Mapping[str, str]] = ()
    buffers: Mapping[str, AnyReplayBuffer] = dataclasses.field(
        default_factory=dict[str, AnyReplayBuffer]
    )
    modules: dict[str, ModuleTotals] = dataclasses.field(default_factory=dict[str, ModuleTotals])
    sums: AgentSums | None = None

    def add(self, summary: Summary) -> None:
        """Add a dispatch."""
        for name, module in summary.modules.items():
            self.modules.setdefault(name, ModuleTotals()).add(module)
        if summary.agents is not None:
            before = self.sums
            self.sums = AgentSums(
                episodes=add_sums(before and before.episodes, summary.agents.episodes),
                steps=summary.agents.steps + (0 if before is None else before.steps),
            )

    @property
    def nonfinite_counts(self) -> dict[str, float]:
        """Number of skipped updates in which each metric of each module was not finite."""
        return {
            f"{name}/{metric}": count
            for name, module in self.modules.items()
            for metric, count in select_counts(module.metrics).items()
        }

    def make_learners_result(self, latest: ReportRow, env_steps: int) -> dict[str, Any]:
        """Return the results of every module that was trained, and of all together."""
        trained = {name: own for name, own in self.modules.items() if own.updates}
        sampled = self._count_module_steps(latest)
        results: dict[str, Any] = {}
        for name, own in trained.items():
            updates, buffer = counter_to_int(latest.modules[name].updates), self.buffers.get(name)
            rows, lifetime = own.rows, sampled[name]
            if buffer is not None:  # a row counts once per draw
                rows, lifetime = (n * buffer.rows_per_update for n in (own.updates, updates))
            results[name] = {
                **own.compute_means(),
                "num_module_steps_trained": rows,
                "num_module_steps_trained_lifetime": lifetime,
                "num_updates_lifetime": updates,
            }
        totals = {
            key: sum(result[key] for result in results.values())
            for key in ("num_module_steps_trained", "num_module_steps_trained_lifetime")
        }
        results[ALL_MODULES] = {
            "num_env_steps_trained": env_steps,
            **totals,
            "num_updates_lifetime": counter_to_int(latest.updates),
        }
        return results

    def make_buffers_result(self, latest: ReportRow) -> dict[str, Any]:
        """Return RLlib's `replay_buffer` results of every module; rows of updates count as sampled."""
        lifetime = self._count_module_steps(latest)
        results: dict[str, Any] = {}
        for name, buffer in self.buffers.items():
            own, row = self.modules[name], latest.modules[name]
            place, is_full = row.buffer_position
            if is_full is None:
                stored = int(place.sum())
            else:  # all columns are written at the same position
                stored = buffer.num_envs * (buffer.length if is_full else int(place))
            capacity = buffer.num_envs * buffer.length
            results[name] = {
                "capacity": capacity,
                "num_module_steps_stored": stored,
                "fill": stored / capacity,
                "num_module_steps_added": own.rows,
                "num_module_steps_added_lifetime": lifetime[name],
                "num_module_steps_sampled": own.updates * buffer.rows_per_update,
                "num_module_steps_sampled_lifetime": counter_to_int(row.updates)
                * buffer.rows_per_update,
            }
        return results

    def _count_module_steps(self, latest: ReportRow) -> dict[str, int]:
        """Return the number of rows that each module ever had."""
        if latest.agents.module_steps:  # whose agents change
            by_module: Mapping[str, Counter] = latest.agents.module_steps
            return {name: counter_to_int(steps) for name, steps in by_module.items()}
        steps = counters_to_ints(latest.agents.steps)
        totals = dict.fromkeys(self.modules, 0)
        for module, number in zip(self.patterns[0].values(), steps, strict=True):
            if module in totals:
                totals[module] += number
        return totals

    def make_agents_result(self, latest: ReportRow, smoothing: int) -> dict[str, Any]:
        """Return RLlib's results of every agent and module below `env_runners`."""
        assert self.sums is not None
        agents = tuple(self.patterns[0])
        agent_steps = dict(zip(agents, counters_to_ints(latest.agents.steps), strict=True))
        agent_returns: dict[str, float] = {}
        sampled = dict(zip(agents, map(int, self.sums.steps), strict=True))
        for i, agent in enumerate(agents):
            if is_slot(agent):  # of other agents one after the other: modules have the results
                del agent_steps[agent], sampled[agent]
                continue
            ring, sums = jax.tree.map(lambda x, i=i: x[i], (latest.agents.ring, self.sums.episodes))
            metrics = compute_episode_metrics(ring, sums, smoothing)
            agent_returns[agent] = metrics[EPISODE_RETURN_MEAN]
        module_returns: dict[str, float] = {}
        for name, own in self.modules.items():
            assert own.episode_sums is not None
            metrics = compute_episode_metrics(
                latest.modules[name].ring, own.episode_sums, smoothing
            )
            module_returns[name] = metrics[EPISODE_RETURN_MEAN]
        return {
            "agent_episode_returns_mean": agent_returns,
            "module_episode_returns_mean": module_returns,
            "num_agent_steps_sampled": sampled,
            "num_agent_steps_sampled_lifetime": agent_steps,
            "num_module_steps_sampled": {name: own.rows for name, own in self.modules.items()},
            "num_module_steps_sampled_lifetime": self._count_module_steps(latest),
        }


def compute_agent_means(
    returns: AgentReturns, patterns: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the mean return of each agent's episodes, and of each module's; NaN without any.

    Args:
        returns: Sums of the agents in each pattern.
        patterns: Module of each agent, DRAWN where it is drawn.
    """
    means: dict[str, dict[str, float]] = {}
    labels = np.array([list(own.values()) for own in patterns])
    agents = list(patterns[0])
    modules = sorted({str(module) for module in labels.flat if module != DRAWN})
    for name, labels_of, wanted in (
        ("agent_episode_returns_mean", np.array([agents] * len(patterns)), agents),
        ("module_episode_returns_mean", labels, modules),
    ):
        means[name] = {}
        for label in wanted:
            chosen = labels_of == label
            count = int(returns.count[chosen].sum())
            total = float(returns.total[chosen].sum(dtype=np.float64))
            means[name][label] = total / count if count else math.nan
    return means
