"""Hints on settings that make a run slow, derived from counts rather than timings."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from jaxrl.cli.command import format_command
from jaxrl.config.batch_plan import BatchPlan, MultiAgentPlan, ReplayPlan
from jaxrl.config.load import load_experiment
from jaxrl.config.registry import find_shipped_configs
from jaxrl.loggers import text
from jaxrl.loggers.display import Display
from jaxrl.runs.results import Result

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

MAX_SAMPLE_REUSE = 10.0
"""Number of times that each environment step is learned from above which a hint is given.

Learning from a row takes about three times as long as acting for it, so at this number acting is a
thirtieth of the work.
"""


def make_iteration_callback(
    display: Display, config: "AlgorithmConfig", devices: Sequence[Any], iteration: int
) -> Callable[[Result], None]:
    """Return an iteration callback that updates a display and prints a hint after the first one."""
    pending = [] if iteration > 0 else [find_update_hint(config, devices)]

    def on_iteration(result: Result) -> None:
        display.update(result)
        for hint in pending:
            if hint:
                display.print_message(hint)
        pending.clear()

    return on_iteration


def find_update_hint(config: "AlgorithmConfig", devices: Sequence[Any]) -> str | None:
    """Return a hint on the settings behind the updates that dominate a run on a CPU.

    It is None if updates do not dominate, if the user chose the settings, or on an accelerator.
    """
    plan = _get_deciding_plan(config)
    if config.is_offline:  # there is no environment step to compare updates with
        return None
    deciding, others = _get_settings(config, plan)
    on_cpu = bool(devices) and all(device.platform == "cpu" for device in devices)
    if (
        not on_cpu
        or compute_sample_reuse(plan) <= MAX_SAMPLE_REUSE
        or config.explicit & set(deciding)
    ):
        return None
    *first, last = (*deciding, *others)
    hint = (
        f"most of the time goes into updates: {_format_counts(plan)} "
        f"({', '.join(first)} and {last} set their number and size, "
        "model_config's fcnet_hiddens the cost of each row)"
    )
    alternative = _find_shipped(config, compute_sample_reuse(plan))
    if alternative is None:
        return f"{hint}."
    name, other = alternative
    return f"{hint}; the shipped file makes {_format_counts(other)}: {format_command('train', 'file', name)}"


def _get_deciding_plan(config: "AlgorithmConfig") -> BatchPlan:
    """Return the plan of a config; of several modules, that of the one that learns most often."""
    plan = config.plan()
    if not isinstance(plan, MultiAgentPlan):
        return plan
    return max((plan.modules[m] for m in sorted(plan.agents.trained)), key=compute_sample_reuse)


def compute_sample_reuse(plan: BatchPlan) -> float:
    """Return how often each environment step is learned from: rows of all updates per step.

    A step of several agents is a row of each of a module's.
    """
    return plan.updates_per_iteration * plan.minibatch_size / _count_steps(plan)


def _count_steps(plan: BatchPlan) -> int:
    return plan.num_envs * plan.rollout_fragment_length


def _format_counts(plan: BatchPlan) -> str:
    updates, steps = plan.updates_per_iteration, _count_steps(plan)
    every = (
        "each environment step"
        if steps == 1
        else f"every {text.format_number(steps)} environment steps"
    )
    return (
        f"{text.format_number(updates)} of {text.format_number(plan.minibatch_size)} rows for {every}, "
        f"so each step is learned from {text.format_number(compute_sample_reuse(plan))} times"
    )


def _get_settings(
    config: "AlgorithmConfig", plan: BatchPlan
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the settings that decide how often a step is used, and those for the update size."""
    if isinstance(plan, ReplayPlan):
        return ("training_intensity", "train_batch_size"), ("num_envs_per_env_runner",)
    own = "circular_buffer_iterations_per_batch"
    repeats = (own,) if hasattr(config.training_settings, own) else ()
    return (*repeats, "num_epochs"), ("minibatch_size", "train_batch_size")


def _find_shipped(config: "AlgorithmConfig", times: float) -> tuple[str, BatchPlan] | None:
    """Return the matching shipped file that learns least often from each step, if it is less.

    Files of variants, such as `pendulum-c51-sac`, do not match.
    """
    plans: dict[str, BatchPlan] = {}
    for name, path in find_shipped_configs().items():
        body: Mapping[str, Any] = next(iter(yaml.safe_load(path.read_text("utf-8")).values()))
        is_match = (body["run"], body.get("env")) == (
            config.algo_name,
            config.environment_settings.env,
        )
        if is_match and "sweep" not in body and path.stem.count("-") == 1:
            plans[name] = _get_deciding_plan(load_experiment(path).config)
    least = min(plans, key=lambda name: compute_sample_reuse(plans[name]), default=None)
    if least is None or compute_sample_reuse(plans[least]) >= times:
        return None
    return least, plans[least]
