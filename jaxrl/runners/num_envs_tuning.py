"""`num_envs_per_env_runner='auto'`: how many environments the compiled program steps, measured.

The widths tried leave the train batch, its minibatches and so the number of updates as they are: more
environments make rollouts shorter. That is not free for learning (shorter rollouts bootstrap more), so
rollouts keep at least `MIN_STEPS` steps, and of the widths that are about as fast as the fastest the
narrowest is taken. What was measured is kept in a file, by machine and settings; what was chosen is
written into the config, so that a run that goes on measures nothing.
"""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import numpy as np

import jaxrl
from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.config.batch_plan.arithmetic import BatchPlan, divisors, nearest
from jaxrl.config.batch_plan.on_policy import choose_num_devices
from jaxrl.config.serialize import describable_dict
from jaxrl.core.seeds import seed_key
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.runners.placement import choose_devices
from jaxrl.runtime.compilation_cache import file_beside_programs
from jaxrl.runtime.measurements import keep_entries, machine, read_entries
from jaxrl.training.sharding import compile_runner

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")
Run = Callable[[], float]
"""A short run; returns its environment steps a second."""
Prepare = Callable[["AlgorithmConfig", int], Run]
"""Compiles a config for so many devices."""

SETTING = "num_envs_per_env_runner"
MIN_STEPS = 32
"""Of a rollout: with a lambda of 0.95, what lies behind has a fifth of the weight."""
MAX_WIDTHS = 5
SLACK = 0.05
"""A narrower width, or the rule's number of devices, may be so much slower than the fastest."""
TRIAL_S, REPEATS = 0.3, 3
FILE = "widths.json"
READ_BY_THE_PROGRAM = (
    "environment_settings",
    "env_runners_settings",
    "training_settings",
    "learners_settings",
    "rl_module_settings",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One measurement."""

    num_envs: int
    num_devices: int
    steps_per_s: float

    def __str__(self) -> str:
        return f"{self.num_envs} on {self.num_devices}: {self.steps_per_s:,.0f}"


def settle_width(config: ConfigT, prepare: Prepare | None = None) -> tuple[ConfigT, list[str]]:
    """The config with a number in the place of 'auto', and a sentence on why it is this one.

    Args:
        config: Returned as it is where it has a number, or none; else a changed copy.
        prepare: In place of trials on this machine.

    Raises:
        ConfigError: The environment is not part of the compiled program.
    """
    if config.env_runners_settings.num_envs_per_env_runner != "auto":
        return config, []
    free = config.copy(copy_frozen=False).env_runners(num_envs_per_env_runner=None)
    assembly = assemble(free)
    if not assembly.in_graph:
        raise ConfigError(
            f"{SETTING}='auto' measures the compiled program, and {assembly.made.id} is stepped by "
            "runners on the host: set a number, or leave it out for the one nearest to 16."
        )
    widths = candidate_widths(free)
    store = file_beside_programs(config.debugging_settings.compilation_cache_dir, FILE)
    name = key_of(free, widths)
    trials, where = _stored(store, name), "measured before on this machine"
    if trials is None:
        trials, where = _tried(free, widths, prepare or prepared), "measured just now"
        keep_entries(store, {name: [dataclasses.asdict(trial) for trial in trials]})
    chosen = best(trials)
    settled = _with_width(free, chosen.num_envs)
    if _free_devices(free):
        settled.preferred_devices = (chosen.num_devices, f"as {SETTING}='auto' measured")
    return settled, [_sentence(trials, chosen, where, settled.plan())]


def candidate_widths(free: "AlgorithmConfig") -> list[int]:
    """Numbers of environments from the default on, each about twice the last, in ascending order.

    All of them keep the train batch, the minibatches and what remembers of them together, and leave
    rollouts of `MIN_STEPS` steps; the default itself may be less than that.
    """
    plan = free.plan()
    found = [plan.num_envs]
    most = plan.train_batch_size // MIN_STEPS
    possible = [n for n in divisors(plan.train_batch_size) if plan.num_envs < n <= most]
    wanted = plan.num_envs * 2
    while possible and wanted <= 2 * most:
        width = nearest(possible, wanted)
        assert width is not None
        if width not in found and _keeps(plan, _with_width(free, width)):
            found.append(width)
        wanted *= 2
    if len(found) <= MAX_WIDTHS:
        return found
    places = np.linspace(0, len(found) - 1, MAX_WIDTHS).round().astype(int)
    return [found[place] for place in places]


def best(trials: Sequence[Trial]) -> Trial:
    """The narrowest that is about as fast as the fastest, on its fastest devices.

    Of two numbers of devices that are about as fast, the one that was tried first: the rule's.
    """
    enough = (1 - SLACK) * max(trial.steps_per_s for trial in trials)
    width = min(trial.num_envs for trial in trials if trial.steps_per_s >= enough)
    of_it = [trial for trial in trials if trial.num_envs == width]
    enough = (1 - SLACK) * max(trial.steps_per_s for trial in of_it)
    return next(trial for trial in of_it if trial.steps_per_s >= enough)


def prepared(config: "AlgorithmConfig", num_devices: int) -> Run:
    """A run of rollouts and learning together, compiled and warm."""
    assembly = assemble(config)
    runner, made = assembly.in_graph_runner, assembly.made
    assert isinstance(made, MadeEnv)
    devices = _devices(config, assembly, num_devices)
    key = seed_key(config.debugging_settings.seed)
    shapes = jax.eval_shape(runner.first_state, key, made.params)
    compiled = compile_runner(runner, shapes, devices, max_retraces=None, jit=True)
    state = compiled.init(key, made.params)

    def seconds(batches: int) -> float:
        nonlocal state
        start = time.perf_counter()
        state, _ = jax.block_until_ready(compiled.run(state, np.int32(1), np.int32(batches)))
        return time.perf_counter() - start

    seconds(1)  # compiles
    batches = max(1, math.ceil(TRIAL_S / seconds(1)))
    return lambda: batches * runner.batch_steps / seconds(batches)


def key_of(free: "AlgorithmConfig", widths: Sequence[int]) -> str:
    """What the outcome of the trials depends on, as a name."""
    settings, table = describable_dict(free)["settings"], free.name_table()
    named = [name for group in READ_BY_THE_PROGRAM for name in table.groups[group]]
    parts = {
        "algo": free.algo_name,
        "settings": {name: settings[name] for name in sorted(named)},
        "widths": list(widths),
        "machine": machine(),
        "version": jaxrl.__version__,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _tried(free: "AlgorithmConfig", widths: Sequence[int], prepare: Prepare) -> list[Trial]:
    """Each width on the devices of the rule, then the best one on other numbers of them."""

    def run(width: int, num_devices: int) -> Run:
        return prepare(_with_width(free, width), num_devices)

    pairs = [(width, _rule(_with_width(free, width))) for width in widths]
    runs = {pair: run(*pair) for pair in pairs}
    trials = _in_turn(runs)
    chosen = best(trials)
    width, rule = chosen.num_envs, chosen.num_devices
    others = {(width, n): run(width, n) for n in _other_devices(_with_width(free, width), rule)}
    if not others:
        return trials
    again = _in_turn({(width, rule): runs[width, rule], **others})
    return [*(trial for trial in trials if trial != chosen), *again]


def _in_turn(runs: Mapping[tuple[int, int], Run]) -> list[Trial]:
    """The best of a few rounds: what else the machine does slows some runs down, and none up."""
    rounds = [{pair: run() for pair, run in runs.items()} for _ in range(REPEATS)]
    return [
        Trial(num_envs=width, num_devices=number, steps_per_s=max(r[width, number] for r in rounds))
        for width, number in runs
    ]


def _with_width(free: ConfigT, width: int) -> ConfigT:
    return free.copy(copy_frozen=False).env_runners(num_envs_per_env_runner=width)


def _keeps(plan: BatchPlan, config: "AlgorithmConfig") -> bool:
    """Whether a config has the train batch and the updates of a plan, and can be run."""
    try:
        other = config.plan()
        _rule(config)
    except ConfigError:
        return False
    kept = ("train_batch_size", "minibatch_size", "updates_per_iteration", "sequence_length")
    return all(getattr(plan, name) == getattr(other, name) for name in kept)


def _free_devices(config: "AlgorithmConfig") -> bool:
    learners = config.learners_settings
    return learners.num_devices == "auto" and learners.local_device_idx is None


def _rule(config: "AlgorithmConfig") -> int:
    """The number of devices that the config gets without a trial."""
    learners, devices = config.learners_settings, jax.local_devices()
    if learners.local_device_idx is not None:
        return 1
    requested = None if learners.num_devices == "auto" else learners.num_devices
    return choose_num_devices(config.plan(), devices[0].platform, len(devices), requested)[0]


def _other_devices(config: "AlgorithmConfig", tried: int) -> Iterator[int]:
    """Numbers of devices that the config could have as well."""
    if _free_devices(config):
        most = len(jax.local_devices())
        yield from (n for n in divisors(config.plan().num_shards) if n <= most and n != tried)


def _devices(config: "AlgorithmConfig", assembly: Assembly, number: int) -> list[Any]:
    if config.learners_settings.local_device_idx is not None:
        return choose_devices(config, assembly)[0]
    return jax.local_devices()[:number]


def _sentence(trials: Sequence[Trial], chosen: Trial, where: str, plan: BatchPlan) -> str:
    kept = (
        f"train_batch_size={plan.train_batch_size} and its {plan.updates_per_iteration} updates stay, "
        f"rollouts have {plan.rollout_fragment_length} steps"
    )
    rates = "; ".join(map(str, trials))
    return (
        f"{SETTING}='auto': {chosen.num_envs} on {chosen.num_devices} device"
        f"{'s' * (chosen.num_devices > 1)}, the fewest within {100 * SLACK:.0f} % of the fastest "
        f"({where}, steps/s by environments on devices: {rates}); {kept}."
    )


# --- what was measured before ---


def _stored(store: Path | None, name: str) -> list[Trial] | None:
    """The trials of this name; None where there are none, or none that can be read."""
    try:
        return [Trial(**trial) for trial in read_entries(store)[name]]
    except (KeyError, TypeError):
        return None
