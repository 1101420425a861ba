"""Table of the modules of a config for several agents, with their rows and bytes."""

from typing import TYPE_CHECKING

from jaxrl.config.batch_plan import MultiAgentPlan, ReplayPlan
from jaxrl.config.multi_agent import AnyMadeMulti, make_agents_env
from jaxrl.core.space_arrays import count_bytes, get_flat_size
from jaxrl.core.spaces import without_parts

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

FLOAT_BYTES = 4
HEADER = ("module", "agents", "learns", "rows", "observation", "critic", "all rows")
MAX_NAMES = 3
"""Number of agents that are named; more are counted."""


def describe_modules(config: "AlgorithmConfig", plan: MultiAgentPlan) -> str:
    """Return a table of modules: agents, rows, and the bytes of what they observe.

    Rows are those of a train batch, and of the replay buffer where there is one. What a critic of
    the whole state sees is stored in every row. "all rows" are the bytes of both, once.
    """
    made = make_agents_env(config)
    lines = [HEADER, *(_describe_module(config, plan, made, m) for m in plan.modules)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )
    return "\n".join(f"  {row}".rstrip() for row in rows)


def _describe_module(
    config: "AlgorithmConfig", plan: MultiAgentPlan, made: AnyMadeMulti, module: str
) -> tuple[str, ...]:
    agents = plan.agents.get_agents(module)
    own = plan.modules[module]
    learns = module in plan.agents.trained
    rows = own.num_envs * own.rollout_fragment_length
    stored = own.buffer_length * own.num_envs if learns and isinstance(own, ReplayPlan) else rows
    observed = count_bytes(made.observation_spaces[agents[0]])
    seen = _count_critic_bytes(config, made, agents) if learns else 0
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
    config: "AlgorithmConfig", made: AnyMadeMulti, agents: tuple[str, ...]
) -> int:
    """Return the bytes of what a row's critic sees beside its own observation; 0 without."""
    kind = config.training_settings.central_critic
    if kind is None:
        return 0
    number = len(agents)
    size = number if number > 1 else 0
    mask_key, state = config.environment_settings.action_mask_key, made.state_space
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
