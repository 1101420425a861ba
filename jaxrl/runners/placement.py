"""Device placement of a run: choice of local devices and memory checks."""

import dataclasses
from typing import TYPE_CHECKING, TypeVar

import jax

from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.assembly.device_trial import DeviceTrials
from jaxrl.assembly.multi_agent import MultiAgentAssembly
from jaxrl.buffers.sequence import AnyReplayBuffer
from jaxrl.config.batch_plan import choose_num_devices
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.types import Device, PyTree
from jaxrl.errors import ConfigError
from jaxrl.learners.gradients import get_num_microbatches
from jaxrl.runners.host_memory import get_host_device
from jaxrl.runtime.devices import get_memory_limit, warn_about_unused_cores, warn_without_gpu
from jaxrl.training.rollout import make_blank_rollout
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


def choose_devices(
    config: "AlgorithmConfig", assembly: Assembly, trials: DeviceTrials | None = None
) -> tuple[list[Device], str]:
    """Choose the local devices of a run, by the rule of `choose_num_devices`.

    Args:
        config: Config of the run; `num_devices` has precedence over `preferred_devices`.
        assembly: Pure functions of the run.
        trials: Measurements that decide if the config does not; None to use the rule alone.

    Returns:
        The devices and the reason for choosing them.

    Raises:
        ConfigError: If configured devices do not exist or do not divide the work.
    """
    devices = jax.local_devices()
    if config.learners_settings.num_learners:
        number = config.learners_settings.num_learners
        return devices[
            :1
        ], f"{number} learner process{'es' * (number > 1)}, as set by num_learners."
    warn_without_gpu(config.learners_settings.num_gpus_per_learner)
    index = config.learners_settings.local_device_idx
    if index is not None:
        if index >= len(devices):
            raise ConfigError(
                f"local_device_idx={index} is not one of the {len(devices)} local devices; use a "
                f"number from 0 to {len(devices) - 1}."
            )
        return [devices[index]], f"Local device {index}, as set."
    requested = config.learners_settings.num_devices
    preferred = config.preferred_devices
    if requested == "auto" and preferred is not None:
        number, why = preferred
        if number <= len(devices) and assembly.plan.num_shards % number == 0:
            return devices[
                :number
            ], f"{number} {devices[0].platform} device{'s' * (number > 1)}, {why}."
    usable = trials if trials and trials.is_possible and assembly.is_in_graph else None

    def choose(count: int) -> tuple[int, str]:
        return choose_num_devices(
            assembly.plan,
            devices[0].platform,
            count if config.debugging_settings.compiles else 1,
            None if requested == "auto" else requested,
            is_on_host=not assembly.is_in_graph,
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
    devices, _ = choose_devices(config, assemble(config), trials)
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
    if limit is not None and _is_tiny(assembly, limit):
        return
    is_shared = devices[0].platform == "cpu"
    needed = estimate_required_bytes(assembly) / (1 if is_shared else len(devices))
    if limit is None or needed <= limit:
        return
    available = f"and the device has {limit / 2**30:.1f} GiB"
    learned = compute_learner_bytes(assembly)
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


def _is_tiny(assembly: Assembly, limit: int) -> bool:
    """Return whether 1000 times the state and observations fit, which makes tracing unnecessary."""
    if not assembly.is_in_graph:
        return False
    rows = assembly.plan.train_batch_size * count_bytes(assembly.made.spaces[0])
    return 1000 * (compute_state_bytes(assembly) + rows) < limit


def check_buffer_size(assembly: Assembly, devices: list[Device]) -> None:
    """Check the size of the replay buffer before it is allocated.

    Raises:
        ConfigError: If the buffer is too large; the message gives a capacity that fits.
    """
    for part in assembly.parts.values():
        if part.replay is not None:
            _check_buffer_size(part, part.replay, devices)


def _check_buffer_size(assembly: Assembly, replay: AnyReplayBuffer, devices: list[Device]) -> None:
    """Check the size of one of several equally limited buffers."""
    number, limit = assembly.num_buffers, assembly.max_buffer_bytes
    if limit == "auto":
        holders = [get_host_device()] if replay.in_host_memory else devices
        memory = get_memory_limit(holders[0])
        is_shared = holders[0].platform == "cpu"
        limit = None if memory is None else memory * (1 if is_shared else len(holders)) // 2
    if limit is not None:
        limit //= number
    if limit is None or assembly.buffer_bytes <= limit:
        return
    fits = _find_capacity(assembly, replay, limit)
    lower = f"set the capacity to at most {fits}, or " if fits else ""
    each = f" for each of {number} modules" if number > 1 else ""
    raise ConfigError(
        f"replay_buffer_config['capacity']={replay.length * replay.num_envs} needs "
        f"{assembly.buffer_bytes / 2**20:.2f} MiB, and max_buffer_bytes="
        f"{assembly.max_buffer_bytes!r} allows {limit / 2**20:.2f} MiB{each}: {lower}raise "
        "max_buffer_bytes."
    )


def _find_capacity(assembly: Assembly, replay: AnyReplayBuffer, limit: int) -> int:
    """Return the largest capacity in whole rollouts that takes at most `limit` bytes."""
    unit = assembly.plan.num_envs * assembly.plan.rollout_fragment_length
    low, high = 0, replay.length * replay.num_envs // unit
    while low < high:  # bisection, because the tree of priorities grows in jumps
        middle = (low + high + 1) // 2
        length = middle * assembly.plan.rollout_fragment_length
        fits = assembly.compute_buffer_bytes(dataclasses.replace(replay, length=length)) <= limit
        low, high = (middle, high) if fits else (low, middle - 1)
    return low * unit


def estimate_required_bytes(assembly: Assembly) -> int:
    """Return a lower bound in bytes for one train batch: the state, the rollout and the targets."""
    if isinstance(assembly, MultiAgentAssembly):
        modules = sum(estimate_required_bytes(own) for own in assembly.modules.values())
        return compute_state_bytes(assembly) + modules
    if not assembly.is_in_graph:
        return _count_state_and_rollout_bytes(assembly)
    runner, made = assembly.in_graph_runner, assembly.jax_env

    def batch(state: TrainState) -> PyTree:
        actor = runner.make_actor_state(state)
        rollout = make_blank_rollout(
            runner.rollout_worker, actor, runner.num_steps, runner.num_envs
        )
        if runner.replay is not None:
            return rollout
        seen = runner.rollout_worker.preprocess_rollout(state.connectors.obs, rollout)
        return rollout, runner.on_policy_learner.prepare(state.learner, seen, state.progress)[0]

    state = jax.eval_shape(runner.jitted_init, jax.random.key(0), made.params)
    return _count_bytes((state, jax.eval_shape(batch, state)))


def compute_learner_bytes(assembly: Assembly) -> int:
    """Return the size in bytes of the parameters and the optimizer state."""
    if isinstance(assembly, MultiAgentAssembly):
        return sum(compute_learner_bytes(own) for own in assembly.modules.values())
    return _count_bytes(_make_state_shapes(assembly).learner)


def compute_state_bytes(assembly: Assembly) -> int:
    """Return the size in bytes of the state of a run, with environments in the compiled program."""
    if not assembly.is_in_graph:
        return _count_bytes(_make_state_shapes(assembly))
    runner, made = assembly.in_graph_runner, assembly.jax_env
    return _count_bytes(jax.eval_shape(runner.jitted_init, jax.random.key(0), made.params))


def _count_bytes(shapes: PyTree) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _count_state_and_rollout_bytes(assembly: Assembly) -> int:
    """Return the size of the state and of a train batch's observations and successors."""
    plan = assembly.plan
    observation = count_bytes(assembly.made.spaces[0])
    rows = plan.num_envs * plan.rollout_fragment_length
    if assembly.is_offline:
        rows = plan.train_batch_size
    return _count_bytes(_make_state_shapes(assembly)) + 2 * observation * rows


def _make_state_shapes(assembly: Assembly) -> TrainState:
    """Return the shapes of the state of a run, without environments."""
    step, num_envs = assembly.train_step, assembly.plan.total_envs
    return jax.eval_shape(lambda key: step.init_without_envs(key, num_envs), jax.random.key(0))
