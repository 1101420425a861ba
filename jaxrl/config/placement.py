"""Placement of environments, and settings that only one placement supports."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.runners import ExternalSettings
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.config import Config

Placement = Literal["in_graph", "host", "ray", "external", "offline"]
"""Place where environments are stepped: in the compiled program, in Python, in Ray actors, or in
simulators that connect to the run; "offline" if none is, because rows are recorded ones."""

_EPISODES_REASON = (
    "episodes run inside the compiled program, which calls no Python; on_episode_end is called for "
    "each episode after the dispatch in which it ended"
)
HOST_ONLY_SETTINGS: dict[str, str] = {
    "on_episode_created": _EPISODES_REASON,
    "on_episode_start": _EPISODES_REASON,
    "on_episode_step": _EPISODES_REASON,
    "on_env_runners_recreated": "there are no runners besides the compiled program",
    "env_runner_cls": "the compiled program steps the environments, not a runner",
    "batch_mode": (
        "rows of a replay buffer or of several agents go on in the next fragment, and fragments of the "
        "compiled program have a fixed length"
    ),
    "gym_env_vectorize_mode": "environments are vectorized inside the compiled program",
    "restart_failed_sub_environments": (
        "a compiled environment cannot raise, and one with non-finite values is reset individually"
    ),
}
"""Settings that only have an effect on the host, with the reasons."""

_RLLIB_DEFAULTS = {"gym_env_vectorize_mode": "sync"}
"""RLlib's default values of such settings, which its configs have, where they differ from ours."""

HOST_REMEDIES = {
    False: "set placement='host' to step the environment from Python",
    True: "leave it out, or write the environment of several agents in Python (MultiAgentEnv)",
}
"""Ways to the host from the compiled program, by whether environments have several agents."""

_NO_ENV_REASON = "the simulators have the environments, and this process has none"
NOT_EXTERNAL_SETTINGS: dict[str, str] = {
    "env": f"{_NO_ENV_REASON}: declare observation_space and action_space instead",
    "env_config": _NO_ENV_REASON,
    "max_episode_steps": "a simulator ends its episodes itself, with truncated=True",
    "validate_env": _NO_ENV_REASON,
    "env_task_fn": _NO_ENV_REASON,
    "curriculum": _NO_ENV_REASON,
    "num_env_runners": "simulators take the place of actors",
    "env_runner_cls": "there is no runner",
    "batch_mode": "fragments have a fixed length, and are cut where an episode goes on",
    "gym_env_vectorize_mode": _NO_ENV_REASON,
    "restart_failed_sub_environments": _NO_ENV_REASON,
    **dict.fromkeys(
        (
            "on_environment_created",
            "on_episode_created",
            "on_episode_start",
            "on_episode_step",
            "on_episode_end",
            "on_sample_end",
        ),
        "episodes take place in the simulators; results have their returns",
    ),
    "on_env_runners_recreated": "there are no runners",
}
"""Settings that have no effect with placement='external', with the reasons."""


Fact = Literal["host", "external", "runners", "evaluation_runners", "learners"]
"""Something that a run has: environments on the host, simulators, or processes of a kind."""


@dataclasses.dataclass(frozen=True)
class Requirement:
    """Settings that have no effect unless something else is set, and are then noted.

    They limit or reserve something that is not used, so that a config that sets them for another
    placement means the same without them.

    Attributes:
        condition: What they need, for the note.
        any_of: Facts of which one is enough.
        names: Names of the settings.
    """

    condition: str
    any_of: frozenset[Fact]
    names: tuple[str, ...]


REQUIREMENTS = (
    Requirement(
        "environments on the host (placement='host' or num_env_runners)",
        frozenset({"host", "runners", "evaluation_runners"}),
        ("episode_lookback_horizon", "evaluation_sample_timeout_s", "sample_timeout_s"),
    ),
    Requirement(
        "actors that sample (num_env_runners)",
        frozenset({"runners"}),
        ("max_requests_in_flight_per_env_runner",),
    ),
    Requirement(
        "actors or simulators that sample (num_env_runners or placement='external')",
        frozenset({"runners", "external"}),
        ("learner_queue_size",),
    ),
    Requirement(
        "simulators that connect (placement='external')",
        frozenset({"external"}),
        tuple(field.name for field in dataclasses.fields(ExternalSettings)),
    ),
    Requirement(
        "actors (num_env_runners or evaluation_num_env_runners)",
        frozenset({"runners", "evaluation_runners"}),
        (
            "custom_resources_per_env_runner",
            "delay_between_env_runner_restarts_s",
            "env_runner_health_probe_timeout_s",
            "env_runner_restore_timeout_s",
            "ignore_env_runner_failures",
            "max_num_env_runner_restarts",
            "num_consecutive_env_runner_failures_tolerance",
            "num_cpus_per_env_runner",
            "restart_failed_env_runners",
            "validate_env_runners_after_construction",
        ),
    ),
    Requirement(
        "actors that evaluate (evaluation_num_env_runners)",
        frozenset({"evaluation_runners"}),
        (
            "evaluation_error_after_n_consecutive_skips",
            "evaluation_unhealthy_workers_timeout_s",
        ),
    ),
    Requirement(
        "learner processes (num_learners)",
        frozenset({"learners"}),
        ("custom_resources_per_learner", "learner_health_probe_timeout_s"),
    ),
)
"""Settings that need processes or a placement, with a note where these are missing."""


def describe_idle_settings(config: "Config", placement: Placement) -> list[str]:
    """Return a sentence on the explicit settings that have no effect in a placement, if any.

    Args:
        config: Config of the run.
        placement: Where its environments are stepped.
    """
    facts: dict[Fact, bool] = {
        "host": placement != "in_graph",
        "external": placement == "external",
        "runners": config.env_runners_settings.num_env_runners > 0,
        "evaluation_runners": config.evaluation_settings.evaluation_num_env_runners > 0,
        "learners": config.learners_settings.num_learners > 0,
    }
    idle = [
        f"{name}={config[name]!r} needs {requirement.condition}"
        for requirement in REQUIREMENTS
        if not any(facts[fact] for fact in requirement.any_of)
        for name in requirement.names
        if config.is_changed(name)
    ]
    return [f"Settings without effect in this run: {'; '.join(idle)}."] if idle else []


def resolve_placement(config: "Config", env_id: str, *, is_jax_env: bool) -> Placement:
    """Return the placement of a run's environments.

    Args:
        config: Config with `placement` and `num_env_runners`.
        env_id: Name of the environment, for error messages.
        is_jax_env: Whether the environment is a JaxEnv instead of a Python object.

    Raises:
        ConfigError: If the requested placement is impossible, or a setting has no effect in it.
    """
    runners = config.env_runners_settings
    if runners.placement == "in_graph" and not is_jax_env:
        raise ConfigError(
            f"placement='in_graph' needs an environment written in JAX, but {env_id} is a "
            "gymnasium environment, which runs on the host: use placement='auto'."
        )
    if runners.placement == "external" and not config.in_evaluation:
        return "external"
    if config.is_offline and not config.in_evaluation:
        return "offline"
    if runners.num_env_runners > 0:
        return "ray"
    if runners.placement == "host" or not is_jax_env:
        return "host"
    check_in_graph(config)
    return "in_graph"


def check_placement(config: "Config") -> None:
    """Raise ConfigError if settings contradict an explicit placement.

    Unlike `resolve_placement`, this does not require the environment.
    """
    runners = config.env_runners_settings
    if runners.placement == "external":
        _check_external(config)
    if runners.placement != "in_graph":
        return
    if runners.num_env_runners > 0:
        raise ConfigError(
            "placement='in_graph' steps environments inside the compiled program of this process, "
            f"got num_env_runners={runners.num_env_runners}; set it to 0, or placement='auto'."
        )
    check_in_graph(config)


def _check_external(config: "Config") -> None:
    """Check that spaces are declared, and no setting is set that has no effect with simulators."""
    environment, evaluation = config.environment_settings, config.evaluation_settings
    config.refuse_changed(
        NOT_EXTERNAL_SETTINGS, "with placement='external'", neutral=_RLLIB_DEFAULTS
    )
    for name in ("observation_space", "action_space"):
        if getattr(environment, name) is None:
            raise ConfigError(
                f"placement='external' needs {name}, which no environment here could tell: "
                f"environment(observation_space=..., action_space=...), got {name}=None."
            )
    if evaluation.evaluation_interval and "env" not in (evaluation.evaluation_config or {}):
        raise ConfigError(
            f"evaluation_interval={evaluation.evaluation_interval} has no environment to evaluate "
            "in with placement='external': name one, evaluation_config={'env': ...}, or let "
            "simulators play episodes with training_enabled=False, which results report."
        )


def check_in_graph(config: "Config") -> None:
    """Check that no setting is set that has no effect inside the compiled program.

    Raises:
        ConfigError: If there is such a setting; the message gives the reason and the alternative.
    """
    remedy = HOST_REMEDIES[config.is_multi_agent]
    reasons = {name: f"{reason}; {remedy}" for name, reason in HOST_ONLY_SETTINGS.items()}
    has_buffer = isinstance(config.training_settings, OffPolicyTraining)
    if not (config.is_multi_agent or has_buffer):
        del reasons["batch_mode"]
    config.refuse_changed(reasons, "with this environment", neutral=_RLLIB_DEFAULTS)


def describe_placement(config: "Config", placement: Placement | None) -> Iterator[str]:
    """Yield sentences on where environments are stepped, and on remedies if that is slow.

    Args:
        config: Config of the run.
        placement: Placement, or None if the environment is not known yet.
    """
    runners = config.env_runners_settings
    if config.is_offline:
        placement = "offline"
    if placement is None and runners.num_env_runners > 0:
        placement = "ray"
    if placement is None and runners.placement != "auto":
        placement = runners.placement
    if placement is None:
        yield (
            "placement='auto': a JAX environment runs in-graph, any other on the host; resolved "
            "when the Algorithm is built."
        )
        return
    yield from describe_idle_settings(config, placement)
    if placement == "in_graph":
        yield "In-graph: rollout, targets and updates are one compiled program on local devices."
        return
    if placement == "offline":
        storage = config.offline_data_settings.dataset_storage
        until = ", which is decided when the Algorithm is built" if storage == "auto" else ""
        yield (
            f"Offline: rows are recorded ones (dataset_storage={storage!r}{until}), all updates of a "
            "train batch are one compiled program, and schedules are over the rows trained on."
        )
        return
    if placement == "external":
        external = config.external_settings
        yield (
            "External: simulators step the environments and connect to "
            f"{external.external_host}:{external.external_port}."
        )
        return
    if placement == "host":
        yield "Host: this process steps the environments, alternating with updates."
    else:
        turns = (
            "concurrently with the learner" if config.is_async else "alternating with the learner"
        )
        yield (
            f"Ray: actors on CPUs step the environments, {turns} "
            f"(num_env_runners={runners.num_env_runners})."
        )
    yield from _give_advice(placement, is_async=config.is_async)


def _give_advice(placement: Placement, *, is_async: bool) -> Iterator[str]:
    """Yield RLlib's rules of thumb for bottlenecks that the timers in the results show."""
    slow_envs = "more num_env_runners for slow environments"
    slow_module = "more num_envs_per_env_runner for a large module, which is then called less often"
    if placement == "host":
        yield f"If sampling takes most of an iteration: {slow_envs}; {slow_module}."
    else:
        yield f"If the learner waits for samples: {slow_envs}; {slow_module}."
        if not is_async:
            yield "If runners and learner wait for each other: IMPALA and APPO overlap them."
    yield (
        "If updates take most of an iteration: more runners do not help; learners(num_devices, "
        "num_learners) share the update."
    )
