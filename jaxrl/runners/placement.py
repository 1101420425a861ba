"""Where a run goes: which local devices share it, and whether it fits there."""

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl.buffers.sequence import AnyReplay
from jaxrl.config.plan import choose_num_devices
from jaxrl.core.types import Device
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError
from jaxrl.runners.assemble import Assembly, spaces_of
from jaxrl.runners.blank import blank_rollout
from jaxrl.runners.devices import memory_limit, warn_of_lost_devices
from jaxrl.runners.host_memory import host_device
from jaxrl.runners.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def choose_devices(config: "AlgorithmConfig", assembly: Assembly) -> tuple[list[Device], str]:
    """The local devices that share the work, by the rule of `choose_num_devices`, and why.

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

    def chosen(count: int) -> tuple[int, str]:
        return choose_num_devices(
            assembly.plan,
            devices[0].platform,
            count if config.debugging_settings.jit else 1,
            None if requested == "auto" else requested,
            on_host=not assembly.in_graph,
        )

    number, why = chosen(len(devices))
    if requested == "auto":
        warn_of_lost_devices(lambda count: chosen(count)[0])
    return devices[:number], why


def check_memory(assembly: Assembly, devices: list[Device]) -> None:
    """Refuse, before compiling, what cannot fit.

    Raises:
        ConfigError: A lower bound of the memory needed is more than the device has.
    """
    check_buffer(assembly, devices)
    plan = assembly.plan
    limit = memory_limit(devices[0])
    shared = devices[0].platform == "cpu"
    needed = required_bytes(assembly) / (1 if shared else len(devices))
    if limit is not None and needed > limit:
        raise ConfigError(
            f"train_batch_size={plan.train_batch_size} needs at least {needed / 2**30:.1f} GiB for "
            f"the state, the rollout and its targets, and the device has {limit / 2**30:.1f} GiB: "
            "lower train_batch_size (or num_envs_per_env_runner)."
        )


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
    space = spaces_of(assembly.made)[0]
    observation = sum(part.nbytes for part in map(np.asarray, jax.tree.leaves(space.sample())))
    rows = plan.num_envs * plan.rollout_fragment_length
    return _bytes(state) + 2 * observation * rows
