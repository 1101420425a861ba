"""Device placement of a run: choice of local devices and memory checks."""

from typing import TYPE_CHECKING, TypeVar

import jax

from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.assembly.device_trial import DeviceTrials
from jaxrl.config.batch_plan import BatchPlan, choose_num_devices
from jaxrl.config.settings.runners import LearnersSettings
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.types import Device
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import get_num_microbatches
from jaxrl.runners.host_memory import get_host_device
from jaxrl.runtime.devices import get_memory_limit, warn_about_unused_cores, warn_without_gpu

if TYPE_CHECKING:
    from jaxrl.config.config import Config


ConfigT = TypeVar("ConfigT", bound="Config")


def choose_devices(
    learners: LearnersSettings,
    plan: BatchPlan,
    preferred: tuple[int, str] | None,
    *,
    is_in_graph: bool,
    compiles: bool,
    trials: DeviceTrials | None = None,
) -> tuple[list[Device], str]:
    """Choose the local devices of a run, by the rule of `choose_num_devices`.

    Args:
        learners: Settings, of which `num_devices` has precedence over `preferred`.
        plan: Batch arithmetic.
        preferred: Number that the run had before or was measured, and why; None for none.
        is_in_graph: Whether the environments are in the compiled program.
        compiles: Whether functions are compiled, rather than run step by step.
        trials: Measurements that decide if the settings do not; None to use the rule alone.

    Returns:
        The devices and the reason for choosing them.

    Raises:
        ConfigError: If configured devices do not exist or do not divide the work.
    """
    devices = jax.local_devices()
    if number := learners.num_learners:
        why = f"{number} learner process{'es' * (number > 1)}, as set by num_learners."
        return devices[:1], why
    warn_without_gpu(learners.num_gpus_per_learner)
    index = learners.local_device_idx
    if index is not None:
        if index >= len(devices):
            raise ConfigError(
                f"local_device_idx={index} is not one of the {len(devices)} local devices; use a "
                f"number from 0 to {len(devices) - 1}."
            )
        return [devices[index]], f"Local device {index}, as set."
    requested = learners.num_devices
    if requested == "auto" and preferred is not None:
        number, why = preferred
        if number <= len(devices) and plan.num_shards % number == 0:
            why = f"{number} {devices[0].platform} device{'s' * (number > 1)}, {why}."
            return devices[:number], why
    usable = trials if trials and trials.is_possible and is_in_graph else None

    def choose(count: int) -> tuple[int, str]:
        return choose_num_devices(
            plan,
            devices[0].platform,
            count if compiles else 1,
            None if requested == "auto" else requested,
            is_on_host=not is_in_graph,
            is_faster=usable.is_faster if usable else None,
        )

    number, why = choose(len(devices))
    if requested == "auto":
        warn_about_unused_cores(lambda count: choose(count)[0])
    return devices[:number], why


def resolve_microbatch_size(config: ConfigT, trials: DeviceTrials) -> ConfigT:
    """Replace `microbatch_size="auto"` by a number or None, if the choice makes a difference.

    Args:
        config: Config of the run.
        trials: Measurements on this machine.

    Returns:
        A changed copy of the config; the config itself if nothing needs to be chosen or measured.
    """
    if config.training_settings.batch_use.microbatch_size != "auto":
        return config
    plan = config.plan()
    rows = plan.minibatch_size // (plan.sequence_length or 1)
    if get_num_microbatches(rows, "auto", "cpu") == 1 or not trials.is_possible:
        return config
    devices, _ = choose_devices(
        config.learners_settings,
        plan,
        config.preferred_devices,
        is_in_graph=assemble(config).is_in_graph,
        compiles=config.debugging_settings.compiles,
        trials=trials,
    )
    rows //= len(devices)
    parts = get_num_microbatches(rows, "auto", "cpu")
    if parts == 1:
        return config
    size = rows // parts if trials.is_faster_in_parts(rows, parts, len(devices)) else None
    return config.copy(copy_frozen=False).update_from_dict({"microbatch_size": size})


def check_memory(assembly: Assembly, devices: list[Device]) -> None:
    """Check before compiling that a run can fit into memory.

    Raises:
        ConfigError: If a lower bound of the required memory exceeds that of the device.
    """
    check_buffer_size(assembly, devices)
    plan = assembly.plan
    limit = get_memory_limit(devices[0])
    if limit is None:
        return
    if assembly.is_in_graph:
        rows = plan.train_batch_size * count_bytes(assembly.made.spaces[0])
        if 1000 * (assembly.state_bytes + rows) < limit:  # without tracing a train batch
            return
    is_shared = devices[0].platform == "cpu"
    needed = (assembly.state_bytes + assembly.batch_bytes) / (1 if is_shared else len(devices))
    if needed <= limit:
        return
    available = f"and the device has {limit / 2**30:.1f} GiB"
    learned = assembly.learner_bytes
    if learned > limit / 2:
        raise ConfigError(
            f"The module and its optimizer need at least {learned / 2**30:.1f} GiB of "
            f"{needed / 2**30:.1f} GiB for one train batch, {available}: make the layers of "
            "model_config or the observations smaller."
        )
    raise ConfigError(
        f"train_batch_size={plan.train_batch_size} needs at least {needed / 2**30:.1f} GiB for "
        f"the state, the rollout and its targets, {available}: lower train_batch_size (or "
        "num_envs_per_env_runner)."
    )


def check_buffer_size(assembly: Assembly, devices: list[Device]) -> None:
    """Check the size of each module's replay buffer before it is allocated.

    Raises:
        ConfigError: If a buffer is too large; the message gives a capacity that fits.
    """
    for part in assembly.parts.values():
        if (replay := part.replay) is None:
            continue
        number, limit = part.num_buffers, part.max_buffer_bytes
        if limit == "auto":
            holders = [get_host_device()] if replay.in_host_memory else devices
            memory = get_memory_limit(holders[0])
            is_shared = holders[0].platform == "cpu"
            limit = None if memory is None else memory * (1 if is_shared else len(holders)) // 2
        if limit is None or part.buffer_bytes <= (limit := limit // number):
            continue
        fits = part.find_capacity(limit)
        lower = f"set the capacity to at most {fits}, or " if fits else ""
        each = f" for each of {number} modules" if number > 1 else ""
        raise ConfigError(
            f"replay_buffer_config['capacity']={replay.length * replay.num_envs} needs "
            f"{part.buffer_bytes / 2**20:.2f} MiB, and max_buffer_bytes="
            f"{part.max_buffer_bytes!r} allows {limit / 2**20:.2f} MiB{each}: {lower}raise "
            "max_buffer_bytes."
        )
