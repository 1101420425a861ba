"""Tuning of `num_envs_per_env_runner='auto'`: the number of environments is chosen by measurement.

All candidates keep the train batch, the minibatches and hence the number of updates: with more
environments, rollouts are shorter. Shorter rollouts bootstrap more, which affects learning, so
rollouts keep a minimum length, and the fewest environments with about the fastest speed are chosen.
Measurements are cached in a file by machine and settings. The choice is written to the config, so a
resumed run measures nothing.
"""

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import jax
import numpy as np

from jaxrl.assembly.assemble import assemble
from jaxrl.config.batch_plan import BatchPlan, choose_num_devices, divisors, find_nearest
from jaxrl.config.serialize import serialize_for_display
from jaxrl.core.keys import make_key
from jaxrl.core.version import __version__
from jaxrl.errors import ConfigError
from jaxrl.runtime.compilation_cache import get_cache_file
from jaxrl.runtime.measurements import add_entries, describe_machine, read_entries
from jaxrl.training.sharding import make_runner_programs

if TYPE_CHECKING:
    from jaxrl.config.config import Config

ConfigT = TypeVar("ConfigT", bound="Config")
TimedRun = Callable[[], float]
"""Short run that returns its environment steps per second."""
PrepareRun = Callable[["Config", int], TimedRun]
"""Function that compiles a config for a number of devices."""

SETTING = "num_envs_per_env_runner"
MIN_ROLLOUT_STEPS = 32
"""Minimum steps of a rollout: with lambda = 0.95, later steps carry a fifth of GAE's weight."""
MAX_CANDIDATES = 5
MAX_SLOWDOWN = 0.05
"""Relative slowdown accepted for fewer environments, or for the default number of devices."""
TRIAL_S, REPEATS = 0.3, 3
CACHE_FILE = "widths.json"
PROGRAM_SETTING_GROUPS = (
    "environment_settings",
    "env_runners_settings",
    "training_settings",
    "learners_settings",
    "rl_module_settings",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """Measured speed of a number of environments on a number of devices."""

    num_envs: int
    num_devices: int
    steps_per_s: float

    def __str__(self) -> str:
        return f"{self.num_envs} on {self.num_devices}: {self.steps_per_s:,.0f}"


def resolve_num_envs(
    config: ConfigT, prepare: PrepareRun | None = None
) -> tuple[ConfigT, list[str]]:
    """Replace 'auto' by a measured number of environments.

    Args:
        config: Config of the run.
        prepare: Replacement for measurements on this machine.

    Returns:
        A changed copy of the config and a message that explains the choice; the config itself and
        no message if the setting is not 'auto'.

    Raises:
        ConfigError: If the environment is not part of the compiled program.
    """
    if config.env_runners_settings.num_envs_per_env_runner != "auto":
        return config, []
    free = config.copy(copy_frozen=False).env_runners(num_envs_per_env_runner=None)
    assembly = assemble(free)
    if not assembly.is_in_graph:
        raise ConfigError(
            f"{SETTING}='auto' measures the compiled program, but {assembly.made.id} is stepped by "
            "runners on the host: set a number, or leave it out for the default nearest to 16."
        )
    widths = list_candidate_num_envs(free)
    cache = get_cache_file(config.debugging_settings.compilation_cache_dir, CACHE_FILE)
    name = make_cache_key(free, widths)
    trials, source = _read_cached(cache, name), "measured before on this machine"
    if trials is None:
        trials, source = _measure(free, widths, prepare or prepare_run), "measured just now"
        add_entries(cache, {name: [dataclasses.asdict(trial) for trial in trials]})
    chosen = select_fastest(trials)
    resolved = _with_num_envs(free, chosen.num_envs)
    if _can_choose_devices(free):
        resolved.preferred_devices = (chosen.num_devices, f"as {SETTING}='auto' measured")
    return resolved, [_describe_choice(trials, chosen, source, resolved.plan())]


def list_candidate_num_envs(free: "Config") -> list[int]:
    """Return candidate numbers of environments in ascending order, starting from the default.

    Each is about twice the previous one. All keep the train batch, minibatch and sequence sizes
    unchanged and leave rollouts of the minimum length; only the default may have shorter ones.
    """
    plan = free.plan()
    found = [plan.num_envs]
    largest = plan.train_batch_size // MIN_ROLLOUT_STEPS
    possible = [n for n in divisors(plan.train_batch_size) if plan.num_envs < n <= largest]
    target = plan.num_envs * 2
    while possible and target <= 2 * largest:
        num_envs = find_nearest(possible, target)
        assert num_envs is not None
        if num_envs not in found and _keeps_updates(plan, _with_num_envs(free, num_envs)):
            found.append(num_envs)
        target *= 2
    if len(found) <= MAX_CANDIDATES:
        return found
    indices = np.linspace(0, len(found) - 1, MAX_CANDIDATES).round().astype(int)
    return [found[index] for index in indices]


def select_fastest(trials: Sequence[Measurement]) -> Measurement:
    """Return the fewest environments with about the fastest speed, on the fastest devices.

    Among numbers of devices with about the same speed, the first one measured is preferred, which
    is the default.
    """
    threshold = (1 - MAX_SLOWDOWN) * max(trial.steps_per_s for trial in trials)
    num_envs = min(trial.num_envs for trial in trials if trial.steps_per_s >= threshold)
    candidates = [trial for trial in trials if trial.num_envs == num_envs]
    threshold = (1 - MAX_SLOWDOWN) * max(trial.steps_per_s for trial in candidates)
    return next(trial for trial in candidates if trial.steps_per_s >= threshold)


def prepare_run(config: "Config", num_devices: int) -> TimedRun:
    """Compile and warm up a run of rollouts and updates together."""
    assembly = assemble(config)
    runner, made = assembly.run, assembly.jax_env
    index = config.learners_settings.local_device_idx
    first = 0 if index is None else index
    devices = jax.local_devices()[first : first + num_devices]
    key = make_key(config.debugging_settings.run_seed)
    shapes = jax.eval_shape(runner.jitted_init, key, made.params)
    compiled = make_runner_programs(runner, shapes, devices, max_retraces=None, jit=True)
    state = compiled.init(key, made.params)

    def seconds(batches: int) -> float:
        nonlocal state
        start = time.perf_counter()
        state, _ = jax.block_until_ready(compiled.run(state, np.int32(1), np.int32(batches)))
        return time.perf_counter() - start

    seconds(1)  # compiles
    batches = max(1, math.ceil(TRIAL_S / seconds(1)))
    return lambda: batches * runner.batch_steps / seconds(batches)


def make_cache_key(free: "Config", candidates: Sequence[int]) -> str:
    """Return the cache key of the measurements: a hash of all that their outcome depends on."""
    settings, table = serialize_for_display(free)["settings"], free.get_name_table()
    named = [name for group in PROGRAM_SETTING_GROUPS for name in table.groups[group]]
    parts = {
        "algo": free.algo_name,
        "settings": {name: settings[name] for name in sorted(named)},
        "widths": list(candidates),
        "machine": describe_machine(),
        "version": __version__,
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _measure(free: "Config", widths: Sequence[int], prepare: PrepareRun) -> list[Measurement]:
    """Measure each candidate on the default devices, then the best on other numbers of devices."""

    def run(num_envs: int, num_devices: int) -> TimedRun:
        return prepare(_with_num_envs(free, num_envs), num_devices)

    pairs = [(n, _default_num_devices(_with_num_envs(free, n))) for n in widths]
    runs = {pair: run(*pair) for pair in pairs}
    trials = _run_in_turn(runs)
    chosen = select_fastest(trials)
    num_envs, default = chosen.num_envs, chosen.num_devices
    config = _with_num_envs(free, num_envs)
    others = {(num_envs, n): run(num_envs, n) for n in _other_num_devices(config, default)}
    if not others:
        return trials
    again = _run_in_turn({(num_envs, default): runs[num_envs, default], **others})
    return [*(trial for trial in trials if trial != chosen), *again]


def _run_in_turn(runs: Mapping[tuple[int, int], TimedRun]) -> list[Measurement]:
    """Measure all runs in turn; keep the best of a few rounds, since other load only slows down."""
    rounds = [{pair: run() for pair, run in runs.items()} for _ in range(REPEATS)]
    return [
        Measurement(num_envs=n, num_devices=devices, steps_per_s=max(r[n, devices] for r in rounds))
        for n, devices in runs
    ]


def _with_num_envs(free: ConfigT, num_envs: int) -> ConfigT:
    return free.copy(copy_frozen=False).env_runners(num_envs_per_env_runner=num_envs)


def _keeps_updates(plan: BatchPlan, config: "Config") -> bool:
    """Return whether a config is valid and has the same train batch and updates as a plan."""
    try:
        other = config.plan()
        _default_num_devices(config)
    except ConfigError:
        return False
    kept = ("train_batch_size", "minibatch_size", "updates_per_iteration", "sequence_length")
    return all(getattr(plan, name) == getattr(other, name) for name in kept)


def _can_choose_devices(config: "Config") -> bool:
    learners = config.learners_settings
    return learners.num_devices == "auto" and learners.local_device_idx is None


def _default_num_devices(config: "Config") -> int:
    """Return the number of devices that the config gets without measurements."""
    learners, devices = config.learners_settings, jax.local_devices()
    if learners.local_device_idx is not None:
        return 1
    requested = None if learners.num_devices == "auto" else learners.num_devices
    return choose_num_devices(config.plan(), devices[0].platform, len(devices), requested)[0]


def _other_num_devices(config: "Config", measured: int) -> Iterator[int]:
    """Yield the other numbers of devices that the config could use."""
    if _can_choose_devices(config):
        available = len(jax.local_devices())
        counts = divisors(config.plan().num_shards)
        yield from (n for n in counts if n <= available and n != measured)


def _describe_choice(
    trials: Sequence[Measurement], chosen: Measurement, source: str, plan: BatchPlan
) -> str:
    kept = (
        f"train_batch_size={plan.train_batch_size} and its {plan.updates_per_iteration} updates "
        f"stay, rollouts have {plan.rollout_fragment_length} steps"
    )
    rates = "; ".join(map(str, trials))
    return (
        f"{SETTING}='auto': {chosen.num_envs} on {chosen.num_devices} device"
        f"{'s' * (chosen.num_devices > 1)}, the fewest within {100 * MAX_SLOWDOWN:.0f} % of the fastest "
        f"({source}, steps/s by environments on devices: {rates}); {kept}."
    )


# --- cache of measurements ---


def _read_cached(cache: Path | None, name: str) -> list[Measurement] | None:
    """Return the cached measurements of this key; None if they are missing or unreadable."""
    try:
        return [Measurement(**trial) for trial in read_entries(cache)[name]]
    except (KeyError, TypeError):
        return None
