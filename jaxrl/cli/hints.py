"""What to change where a run is slow by its settings, told from counts and not by the clock."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import yaml

from jaxrl.cli.command import command
from jaxrl.config.batch_plan.arithmetic import BatchPlan
from jaxrl.config.batch_plan.replay import ReplayPlan
from jaxrl.config.load import load_experiment
from jaxrl.config.registry import shipped_configs
from jaxrl.loggers import text
from jaxrl.loggers.display import Display
from jaxrl.runs.results import Result

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

TIMES = 10.0
"""How often each environment step is learned from before it is worth a word. A row that is learned from
takes about three times what acting takes for it, so from there on acting is a thirtieth of the work."""


def following(
    display: Display, config: "AlgorithmConfig", devices: Sequence[Any], iteration: int
) -> Callable[[Result], None]:
    """Follow a run's iterations on a display, with a word after the first if its updates make it slow."""
    waiting = [] if iteration else [on_updates(config, devices)]

    def follow(result: Result) -> None:
        display.iteration(result)
        for words in waiting:
            if words:
                display.message(words)
        waiting.clear()

    return follow


def on_updates(config: "AlgorithmConfig", devices: Sequence[Any]) -> str | None:
    """What makes the updates that dominate a run on a CPU.

    None where they do not, where what decides it was set, or on an accelerator.
    """
    plan = config.plan()
    deciding, others = _settings_behind(plan)
    on_cpu = bool(devices) and all(device.platform == "cpu" for device in devices)
    if not on_cpu or times_learned(plan) <= TIMES or config.explicit & set(deciding):
        return None
    *first, last = (*deciding, *others)
    said = (
        f"most of the time goes into updates: {_counts(plan)} ({', '.join(first)} and {last} say how "
        "many and how large, model_config's fcnet_hiddens what each row costs)"
    )
    found = _shipped(config, times_learned(plan))
    if found is None:
        return f"{said}."
    name, other = found
    return f"{said}; the shipped file makes {_counts(other)}: {command('train', 'file', name)}"


def times_learned(plan: BatchPlan) -> float:
    """How often each environment step is learned from: the rows of all updates over the steps."""
    return plan.updates_per_iteration * plan.minibatch_size / _steps(plan)


def _steps(plan: BatchPlan) -> int:
    return plan.num_envs * plan.rollout_fragment_length


def _counts(plan: BatchPlan) -> str:
    updates, steps = plan.updates_per_iteration, _steps(plan)
    return (
        f"{text.number(updates)} of {text.number(plan.minibatch_size)} rows for "
        f"{'each environment step' if steps == 1 else f'every {text.number(steps)} environment steps'}, "
        f"so each step is learned from {text.number(times_learned(plan))} times"
    )


def _settings_behind(plan: BatchPlan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The settings that say how often a step is learned from, and those that cut it into updates."""
    if isinstance(plan, ReplayPlan):
        return ("training_intensity", "train_batch_size"), ("num_envs_per_env_runner",)
    return ("num_epochs",), ("minibatch_size", "train_batch_size")


def _shipped(config: "AlgorithmConfig", times: float) -> tuple[str, BatchPlan] | None:
    """The shipped file of this algorithm and environment that learns from a step least often, if less."""
    plans: dict[str, BatchPlan] = {}
    for name, path in shipped_configs().items():
        body: Mapping[str, Any] = next(iter(yaml.safe_load(path.read_text("utf-8")).values()))
        same = (body["run"], body.get("env")) == (config.algo_name, config.environment_settings.env)
        if same and "sweep" not in body:
            plans[name] = load_experiment(path).config.plan()
    least = min(plans, key=lambda name: times_learned(plans[name]), default=None)
    if least is None or times_learned(plans[least]) >= times:
        return None
    return least, plans[least]
