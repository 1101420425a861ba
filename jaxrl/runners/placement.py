"""Where a run goes: which local devices share it, and whether it fits there."""

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

import jax

from jaxrl.assembly.assemble import Assembly, assemble, spaces_of
from jaxrl.assembly.device_trial import DeviceTrials
from jaxrl.buffers.sequence import AnyReplay
from jaxrl.config.batch_plan.on_policy import choose_num_devices
from jaxrl.config.settings.training import OnPolicyTraining
from jaxrl.core.spaces import num_bytes
from jaxrl.core.types import Device
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.learners.microbatches import num_parts
from jaxrl.runners.host_replay import host_device
from jaxrl.runtime.devices import memory_limit, warn_of_lost_devices
from jaxrl.training.rollout import blank_rollout
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


ConfigT = TypeVar("ConfigT", bound="AlgorithmConfig")


def choose_devices(
    config: "AlgorithmConfig", assembly: Assembly, trials: DeviceTrials | None = None
) -> tuple[list[Device], str]:
    """The local devices that share the work, by the rule of `choose_num_devices`, and why.

    Args:
        config: Its `num_devices` counts, then its `preferred_devices`.
        assembly: The run's functions.
        trials: What decides where both leave it open; None for the rule alone.

    Raises:
        ConfigError: Devices were set that there are not, or that do not divide the work.
    """
    devices = jax.local_devices()
    if config.learners_settings.num_learners:
        number = config.learners_settings.num_learners
        return devices[:1], f"{number} learner process{'es' * (number > 1)}, as num_learners says."
    index = config.learners_settings.local_device_idx
    if index is not None:
        if index >= len(devices):
            raise ConfigError(
                f"local_device_idx={index} is none of the {len(devices)} local devices; use a "
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
    measuring = trials if trials and trials.is_possible and assembly.in_graph else None

    def chosen(count: int) -> tuple[int, str]:
        return choose_num_devices(
            assembly.plan,
            devices[0].platform,
            count if config.debugging_settings.jit else 1,
            None if requested == "auto" else requested,
            on_host=not assembly.in_graph,
            is_worth=measuring.is_worth if measuring else None,
        )

    number, why = chosen(len(devices))
    if requested == "auto":
        warn_of_lost_devices(lambda count: chosen(count)[0])
    return devices[:number], why


def settle_parts(config: ConfigT, trials: DeviceTrials) -> ConfigT:
    """The config with a number, or None, in the place of `microbatch_size="auto"` where it matters.

    Args:
        config: Returned as it is where nothing is to be decided, or measured; else a changed copy.
        trials: Those of this machine.
    """
    training = config.training_settings
    if not isinstance(training, OnPolicyTraining) or training.microbatch_size != "auto":
        return config
    plan = config.plan()
    rows = plan.minibatch_size // (plan.sequence_length or 1)
    if num_parts(rows, "auto", "cpu") == 1 or not trials.is_possible:
        return config
    devices, _ = choose_devices(config, assemble(config), trials)
    rows //= len(devices)
    parts = num_parts(rows, "auto", "cpu")
    if parts == 1:
        return config
    size = rows // parts if trials.are_parts_worth(rows, parts, len(devices)) else None
    return config.copy(copy_frozen=False).update_from_dict({"microbatch_size": size})


def check_memory(assembly: Assembly, devices: list[Device]) -> None:
    """Refuse, before compiling, what cannot fit.

    Raises:
        ConfigError: A lower bound of the memory needed is more than the device has.
    """
    check_buffer(assembly, devices)
    plan = assembly.plan
    limit = memory_limit(devices[0])
    if limit is not None and _is_tiny(assembly, limit):
        return
    shared = devices[0].platform == "cpu"
    needed = required_bytes(assembly) / (1 if shared else len(devices))
    if limit is None or needed <= limit:
        return
    has = f"and the device has {limit / 2**30:.1f} GiB"
    learned = learned_bytes(assembly)
    if learned > limit / 2:
        raise ConfigError(
            f"The module and its optimizer need at least {learned / 2**30:.1f} GiB of "
            f"{needed / 2**30:.1f} GiB for one train batch, {has}: make the layers of model_config "
            "smaller, or the observations that they read."
        )
    raise ConfigError(
        f"train_batch_size={plan.train_batch_size} needs at least {needed / 2**30:.1f} GiB for "
        f"the state, the rollout and its targets, {has}: lower train_batch_size (or "
        "num_envs_per_env_runner)."
    )


def _is_tiny(assembly: Assembly, limit: int) -> bool:
    """Whether a thousand times the state and the observations fit, so that nothing else need be traced."""
    if not assembly.in_graph:
        return False
    rows = assembly.plan.train_batch_size * num_bytes(spaces_of(assembly.made)[0])
    return 1000 * (state_bytes(assembly) + rows) < limit


def check_buffer(assembly: Assembly, devices: list[Device]) -> None:
    """Refuse a replay buffer that is too large, before it is allocated.

    Raises:
        ConfigError: Names its size, and a capacity that fits.
    """
    replay = assembly.runner.experience
    if not isinstance(replay, AnyReplay):
        return
    limit = assembly.max_buffer_bytes
    if limit == "auto":
        places = [host_device()] if replay.in_host_memory else devices
        memory = memory_limit(places[0])
        shared = places[0].platform == "cpu"
        limit = None if memory is None else memory * (1 if shared else len(places)) // 2
    if limit is None or assembly.buffer_bytes <= limit:
        return
    fits = _capacity_for(assembly, replay, limit)
    lower = f"set the capacity to at most {fits}, or " if fits else ""
    raise ConfigError(
        f"replay_buffer_config['capacity']={replay.length * replay.num_envs} needs "
        f"{assembly.buffer_bytes / 2**20:.2f} MiB, and max_buffer_bytes="
        f"{assembly.max_buffer_bytes!r} allows {limit / 2**20:.2f} MiB: {lower}raise "
        "max_buffer_bytes."
    )


def _capacity_for(assembly: Assembly, replay: AnyReplay, limit: int) -> int:
    """A number of transitions, in whole rollouts, that takes no more than so many bytes."""
    unit = assembly.plan.num_envs * assembly.plan.rollout_fragment_length
    least, most = 0, replay.length * replay.num_envs // unit
    while least < most:  # a tree of priorities grows in jumps, so it is asked for its size
        middle = (least + most + 1) // 2
        length = middle * assembly.plan.rollout_fragment_length
        fits = assembly.buffer_bytes_of(dataclasses.replace(replay, length=length)) <= limit
        least, most = (middle, most) if fits else (least, middle - 1)
    return least * unit


def required_bytes(assembly: Assembly) -> int:
    """A lower bound of the memory of one train batch: the state, the rollout and the targets."""
    if not assembly.in_graph:
        return _state_and_rollout_bytes(assembly)
    runner, made = assembly.in_graph_runner, assembly.made
    assert isinstance(made, MadeEnv)

    def batch(state: TrainState) -> Any:
        actor = runner.actor(state)
        rollout = blank_rollout(runner.sampler, actor, runner.num_steps, runner.num_envs)
        if isinstance(runner.experience, AnyReplay):
            return rollout
        seen = runner.sampler.observed(state.connectors.obs, rollout)
        return rollout, runner.learner.prepare(state.learner, seen, state.progress)[0]

    state = jax.eval_shape(runner.first_state, jax.random.key(0), made.params)
    return _bytes((state, jax.eval_shape(batch, state)))


def learned_bytes(assembly: Assembly) -> int:
    """The size of the parameters and what the optimizer keeps of them."""
    runner, num_envs = assembly.runner, assembly.plan.total_envs
    state = jax.eval_shape(lambda key: runner.init_learning(key, num_envs), jax.random.key(0))
    return _bytes(state.learner)


def state_bytes(assembly: Assembly) -> int:
    """The size of the state of a run whose environments are in the compiled program."""
    made = assembly.made
    assert isinstance(made, MadeEnv)
    runner = assembly.in_graph_runner
    return _bytes(jax.eval_shape(runner.first_state, jax.random.key(0), made.params))


def _bytes(shapes: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))


def _state_and_rollout_bytes(assembly: Assembly) -> int:
    """The state, and the observations of a train batch and of its successors."""
    runner, plan = assembly.runner, assembly.plan
    state = jax.eval_shape(
        lambda key: runner.init_learning(key, plan.total_envs), jax.random.key(0)
    )
    observation = num_bytes(spaces_of(assembly.made)[0])
    rows = plan.num_envs * plan.rollout_fragment_length
    return _bytes(state) + 2 * observation * rows
