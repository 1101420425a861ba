"""Where environments are stepped, and what only one of the places can do."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

Placement = Literal["in_graph", "host", "ray"]
"""Inside the compiled program, from Python in this process, or by Ray actors."""

_EPISODES = (
    "episodes run inside the compiled program, where no Python is called; on_episode_end is called "
    "for each episode after the dispatch in which it ended"
)
_ENVIRONMENTS = "an environment is pure functions inside the compiled program, so none is created"
IN_GRAPH_REFUSED: dict[str, str] = {
    "on_episode_created": _EPISODES,
    "on_episode_start": _EPISODES,
    "on_episode_step": _EPISODES,
    "on_environment_created": _ENVIRONMENTS,
    "on_env_runners_recreated": "there are no runners beside the compiled program",
    "env_runner_cls": "the compiled program steps the environments, not a runner",
    "batch_mode": (
        "fragments of the compiled program have a fixed length, those of whole episodes have not"
    ),
    "gym_env_vectorize_mode": "environments are vectorised inside the compiled program",
    "restart_failed_sub_environments": (
        "a compiled environment cannot raise, and one with non-finite values is reset by itself"
    ),
}
"""Settings that only mean something on the host, and why."""


def resolve_placement(config: "AlgorithmConfig", env_id: str, *, is_jax_env: bool) -> Placement:
    """Where the environments of a run are stepped.

    Args:
        config: Its `placement` and `num_env_runners` decide.
        env_id: For messages.
        is_jax_env: Whether the environment is a JaxEnv, or a Python object.

    Raises:
        ConfigError: It shall be in-graph and cannot, or what was set has no effect there.
    """
    runners = config.env_runners_settings
    if runners.placement == "in_graph" and not is_jax_env:
        raise ConfigError(
            f"placement='in_graph' needs an environment written in JAX, but {env_id} is a "
            "gymnasium environment, which runs on the host: use placement='auto'."
        )
    if runners.num_env_runners > 0:
        return "ray"
    if runners.placement == "host" or not is_jax_env:
        return "host"
    check_in_graph(config)
    return "in_graph"


def check_placement(config: "AlgorithmConfig") -> None:
    """Refuses what contradicts the placement that was set, before the environment is known."""
    runners = config.env_runners_settings
    if runners.placement != "in_graph":
        return
    if runners.num_env_runners > 0:
        raise ConfigError(
            "placement='in_graph' steps environments inside the compiled program of this process, "
            f"got num_env_runners={runners.num_env_runners}; set it to 0, or placement='auto'."
        )
    check_in_graph(config)


def check_in_graph(config: "AlgorithmConfig") -> None:
    """Refuses what has no effect inside the compiled program.

    Raises:
        ConfigError: Names the setting, why, and that placement='host' would do it.
    """
    for name, reason in IN_GRAPH_REFUSED.items():
        value, default = config[name], type(config)()[name]
        if name in config.explicit and value != default:
            raise ConfigError(
                f"'{name}' (got {value!r}) has no effect with this environment: {reason}; set "
                "placement='host' to step it from Python."
            )


def placement_notes(config: "AlgorithmConfig", placement: Placement | None) -> Iterator[str]:
    """Where environments are stepped, and what to change if that turns out to be slow.

    Args:
        config: The settings.
        placement: None if the environment is not known yet.
    """
    runners = config.env_runners_settings
    if placement is None and runners.num_env_runners > 0:
        placement = "ray"
    if placement is None and runners.placement != "auto":
        placement = runners.placement
    if placement is None:
        yield (
            "placement='auto': a JAX environment runs in-graph, any other on the host; settled "
            "when the Algorithm is built."
        )
        return
    if placement == "in_graph":
        yield "In-graph: rollout, targets and updates are one compiled program on the local devices."
        return
    if placement == "host":
        yield "Host: this process steps the environments, and learns in between."
    else:
        turns = "while the learner learns" if config.is_async else "in turns with the learner"
        yield f"Ray: actors on CPUs step the environments, {turns} (num_env_runners={runners.num_env_runners})."
    yield from _advice(config, placement)


def _advice(config: "AlgorithmConfig", placement: Placement) -> Iterator[str]:
    """RLlib's rules of thumb, for what the timers in the results may show."""
    slow_envs = "more num_env_runners for slow environments"
    slow_module = "more num_envs_per_env_runner for a large module, which is then called less often"
    if placement == "host":
        yield f"If sampling takes most of an iteration: {slow_envs}; {slow_module}."
    else:
        yield f"If the learner waits for samples: {slow_envs}; {slow_module}."
        if not config.is_async:
            yield "If runners and learner wait for each other: IMPALA and APPO do both at once."
    yield (
        "If learning takes most of an iteration: more runners gain nothing; learners(num_devices, "
        "num_learners) share the update."
    )
