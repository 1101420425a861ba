"""Plain-text description of a config's effective settings."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from jaxrl.config.batch_plan import BatchPlan, MultiAgentPlan, ReplayPlan, choose_num_devices
from jaxrl.config.multi_agent import AnyMadeMulti, make_agents_env
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.placement import Placement, describe_placement
from jaxrl.config.settings.runners import LearnersSettings
from jaxrl.core.space_arrays import count_bytes, get_flat_size
from jaxrl.core.spaces import without_parts
from jaxrl.learners.gradients import MicrobatchSize, get_num_microbatches

if TYPE_CHECKING:
    from jaxrl.config.config import Config


def explain(
    config: "Config",
    *,
    platform: str | None = None,
    local_device_count: int | None = None,
    devices: tuple[int, str] | None = None,
    placement: Placement | None = None,
    env_notes: Iterable[str] = (),
    notes: Iterable[str] = (),
    module_table: str | None = None,
) -> str:
    """Describe the effective settings, the batch arithmetic and the placement, with reasons.

    Args:
        config: Config to describe.
        platform: "cpu", "gpu" or "tpu", if known.
        local_device_count: Number of local devices, if known.
        devices: Number of devices that share the work and the reason, if already decided.
        placement: Where environments are stepped, if known.
        env_notes: Sentences about the environment, from `make`.
        notes: Additional sentences, e.g. that the backend had already started.
        module_table: Summary of the module.

    Returns:
        The description, of several lines.
    """
    plan = config.plan()
    batch = ["Batch", f"  {plan.describe()}", *(f"  {note}" for note in plan.notes)]
    blocks = [_format_settings(config, plan), "\n".join(batch)]
    if isinstance(plan, MultiAgentPlan):
        blocks.append("Modules\n" + describe_modules(config, plan))
    lines = [
        *describe_placement(config, placement),
        _format_devices(
            plan,
            config.learners_settings,
            config.training_settings.batch_use.microbatch_size,
            placement,
            platform,
            local_device_count,
            devices,
        ),
    ]
    blocks.append("\n".join(["Placement", *(f"  {line}" for line in lines)]))
    sentences = [*env_notes, *notes, *config.notes]
    if sentences:
        blocks.append("\n".join(["Notes", *(f"  {line}" for line in sentences)]))
    if module_table:
        blocks.append("Module\n" + module_table)
    return "\n\n".join(blocks)


def _format_settings(config: "Config", plan: BatchPlan) -> str:
    lines = [f"{type(config).__name__}, * = set by you"]
    adapted = {
        "train_batch_size": plan.train_batch_size,
        "num_envs_per_env_runner": plan.envs_per_runner,
        "rollout_fragment_length": plan.rollout_fragment_length,
        "minibatch_size": plan.minibatch_size,
        "num_shards": plan.num_shards,
    }
    table = config.get_name_table()
    for attribute, method in GROUP_METHODS.items():
        lines.append(f"{method}()")
        for name in table.groups[attribute]:
            mark = "*" if name in config.explicit else " "
            shown = f"{config[name]!r}"
            if name in adapted and adapted[name] != config[name]:
                shown = f"{adapted[name]!r} (from {shown})"
            lines.append(f" {mark} {name} = {shown}")
    return "\n".join(lines)


def _format_devices(
    plan: BatchPlan,
    learners: LearnersSettings,
    microbatch_size: MicrobatchSize,
    placement: Placement | None,
    platform: str | None,
    local_device_count: int | None,
    devices: tuple[int, str] | None,
) -> str:
    if learners.num_learners > 0:
        return (
            f"{learners.num_learners} learner processes under Ray share the {plan.num_shards} "
            "shards of each update."
        )
    if learners.local_device_idx is not None:
        return f"Local device {learners.local_device_idx}, as set."
    requested = learners.num_devices
    if platform is None or (local_device_count is None and devices is None):
        shards = f"{plan.num_shards} shard{'s' * (plan.num_shards > 1)}"
        if requested != "auto":
            return f"{shards} on {requested} device{'s' * (requested > 1)}, as set."
        return f"{shards}; num_devices='auto' is resolved when the Algorithm is built."
    number = None if requested == "auto" else requested
    number, reason = devices or choose_num_devices(
        plan,
        platform,
        local_device_count or 1,
        number,
        is_on_host=placement not in (None, "in_graph"),
    )
    rows = plan.minibatch_size // (number * (plan.sequence_length or 1))
    parts = get_num_microbatches(rows, microbatch_size, platform)
    if parts == 1:
        return reason
    return (
        f"{reason} The gradient of its {rows} rows (or sequences) of a minibatch is accumulated over "
        f"{parts} microbatches (microbatch_size={microbatch_size!r})."
    )


FLOAT_BYTES = 4
HEADER = ("module", "agents", "learns", "rows", "observation", "critic", "all rows")
MAX_NAMES = 3
"""Number of agents that are named; more are counted."""


def describe_modules(config: "Config", plan: MultiAgentPlan) -> str:
    """Return a table of modules: agents, rows, and the bytes of what they observe.

    Rows are those of a train batch, and of the replay buffer where there is one. What a critic of
    the whole state sees is stored in every row. "all rows" are the bytes of both, once.
    """
    made = make_agents_env(config.environment_settings, config.multi_agent_settings)
    kind = config.training_settings.central_critic
    mask_key = config.environment_settings.action_mask_key
    lines: list[tuple[str, ...]] = [HEADER]
    for module in plan.modules:
        seen = _count_critic_bytes(kind, mask_key, made, plan.agents.get_agents(module))
        lines.append(_describe_module(plan, made, module, seen))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(f"  {row}".rstrip() for row in rows)


def _describe_module(
    plan: MultiAgentPlan, made: AnyMadeMulti, module: str, critic_bytes: int
) -> tuple[str, ...]:
    agents = plan.agents.get_agents(module)
    own = plan.modules[module]
    learns = module in plan.agents.trained
    rows = own.num_envs * own.rollout_fragment_length
    stored = own.buffer_length * own.num_envs if learns and isinstance(own, ReplayPlan) else rows
    observed = count_bytes(made.observation_spaces[agents[0]])
    seen = critic_bytes if learns else 0
    names = ", ".join(agents) if len(agents) <= MAX_NAMES else f"{len(agents)} agents"
    return (
        module,
        names,
        "yes" if learns else "no",
        f"{rows:,}" if stored == rows else f"{rows:,}, {stored:,} stored",
        f"{observed:,} B",
        f"{seen:,} B" if seen else "-",
        f"{stored * (observed + seen) / 1e6:,.1f} MB" if learns else "-",
    )


def _count_critic_bytes(
    kind: str | None, mask_key: str | None, made: AnyMadeMulti, agents: tuple[str, ...]
) -> int:
    """Return the bytes of what a row's critic sees beside its own observation; 0 without."""
    if kind is None:
        return 0
    number = len(agents)
    size = number if number > 1 else 0
    state = made.state_space
    sizes = {
        agent: get_flat_size(without_parts(space, [mask_key]))
        for agent, space in made.observation_spaces.items()
    }
    if kind == "joint":
        size += sum(sizes.values())
    elif state is not None:
        size += get_flat_size(state)
        size += sizes[agents[0]] if kind == "agent_specific" else 0
    return size * FLOAT_BYTES
