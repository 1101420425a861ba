"""What a config amounts to, in plain text."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxrl.config.batch_plan.on_policy import choose_num_devices
from jaxrl.config.modules import model_notes
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.placement import Placement, placement_notes
from jaxrl.config.settings.training import OnPolicyTraining
from jaxrl.learners.microbatches import num_parts

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


def explain(
    config: "AlgorithmConfig",
    *,
    platform: str | None = None,
    local_device_count: int | None = None,
    devices: tuple[int, str] | None = None,
    placement: Placement | None = None,
    env_notes: Iterable[str] = (),
    notes: Iterable[str] = (),
    module_table: str | None = None,
) -> str:
    """The effective settings, batch arithmetic, placement and why.

    Args:
        config: Explained, not changed.
        platform: "cpu", "gpu" or "tpu", where known.
        local_device_count: Devices there are, where known.
        devices: How many of them share the work, and why, where that is settled.
        placement: Where environments are stepped, where known.
        env_notes: Sentences about the environment, from `make`.
        notes: More sentences, e.g. that the backend had already started.
        module_table: The module's summary.
    """
    blocks = [_settings(config), _batch(config)]
    lines = [
        *placement_notes(config, placement),
        _devices(config, placement, platform, local_device_count, devices),
    ]
    blocks.append("\n".join(["Placement", *(f"  {line}" for line in lines)]))
    said = [*env_notes, *notes, *config.notes, *model_notes(config)]
    if said:
        blocks.append("\n".join(["Notes", *(f"  {line}" for line in said)]))
    if module_table:
        blocks.append("Module\n" + module_table)
    return "\n\n".join(blocks)


def _settings(config: "AlgorithmConfig") -> str:
    lines = [f"{type(config).__name__}, * = set by you"]
    adapted = _adapted(config)
    table = config.name_table()
    for attribute, method in GROUP_METHODS.items():
        lines.append(f"{method}()")
        for name in table.groups[attribute]:
            mark = "*" if name in config.explicit else " "
            shown = f"{config[name]!r}"
            if name in adapted and adapted[name] != config[name]:
                shown = f"{adapted[name]!r} (from {shown})"
            lines.append(f" {mark} {name} = {shown}")
    return "\n".join(lines)


def _adapted(config: "AlgorithmConfig") -> dict[str, int]:
    plan = config.plan()
    return {
        "train_batch_size": plan.train_batch_size,
        "num_envs_per_env_runner": plan.envs_per_runner,
        "rollout_fragment_length": plan.rollout_fragment_length,
        "minibatch_size": plan.minibatch_size,
        "num_shards": plan.num_shards,
    }


def _batch(config: "AlgorithmConfig") -> str:
    plan = config.plan()
    return "\n".join(["Batch", f"  {plan.describe()}", *(f"  {note}" for note in plan.notes)])


def _devices(
    config: "AlgorithmConfig",
    placement: Placement | None,
    platform: str | None,
    local_device_count: int | None,
    settled: tuple[int, str] | None,
) -> str:
    plan = config.plan()
    learners = config.learners_settings
    if learners.num_learners > 0:
        return (
            f"{learners.num_learners} learner processes under Ray share the {plan.num_shards} "
            "shards of each update."
        )
    if learners.local_device_idx is not None:
        return f"Local device {learners.local_device_idx}, as set."
    requested = learners.num_devices
    if platform is None or (local_device_count is None and settled is None):
        return (
            f"{plan.num_shards} shard{'s' * (plan.num_shards > 1)}; num_devices={requested!r} is settled "
            "when the Algorithm is built."
        )
    number = None if requested == "auto" else requested
    number, why = settled or choose_num_devices(
        plan, platform, local_device_count or 1, number, on_host=placement in ("host", "ray")
    )
    rows = plan.minibatch_size // (number * (plan.sequence_length or 1))
    return why + _parts(config, platform, rows)


def _parts(config: "AlgorithmConfig", platform: str, num_rows: int) -> str:
    """In which parts gradients are taken, if they are."""
    training = config.training_settings
    if not isinstance(training, OnPolicyTraining):
        return ""
    parts = num_parts(num_rows, training.microbatch_size, platform)
    if parts == 1:
        return ""
    return (
        f" The gradient of its {num_rows} rows (or sequences) of a minibatch is taken in {parts} "
        f"parts, one after another (microbatch_size={training.microbatch_size!r})."
    )
