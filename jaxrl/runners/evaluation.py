"""Evaluation as the config asks for it: a program is built once for each duration and kept."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from jaxrl.config.checks import evaluation_arguments
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import VectorEnv
from jaxrl.envs.wrappers import OwnTimeLimit
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.runners.assemble import Assembly, in_one_line, make_env, spaces_of
from jaxrl.runners.evaluate import Evaluator
from jaxrl.runners.program import Program
from jaxrl.runners.results import evaluation_metrics, to_host
from jaxrl.runners.rollout import Actor, Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

DEFAULT_STEP_CAP = 10_000
MAX_EVALUATION_ENVS = 64
MAX_RECORDED = 1024
EPISODES_BY_STEPS = 4
ENV_SETTINGS = ("env", "env_config", "max_episode_steps")
"""What makes another environment of the evaluation's."""


class Evaluation:
    """Plays episodes with the trained module under the evaluation's own settings.

    Args:
        config: The run's config; `evaluation_config` overrides are applied to a copy.
        assembly: The run's functions, whose module and connectors are used.

    Raises:
        JaxrlError: The environment of `evaluation_config` cannot be made or has other spaces.
    """

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly) -> None:
        changed = config.get_evaluation_config_object()
        assert changed is not None
        self._config = changed
        self._made = _evaluation_env(config, changed, assembly.made)
        self._trained_limit = assembly.made.max_episode_steps
        # Runners on the host have parameters of their own, which cannot be changed here.
        self._same_env = assembly.in_graph and not _has_overrides(config, ("env", "env_config"))
        self._acting = assembly.acting
        self._programs: dict[int | None, Program] = {}

    @property
    def programs(self) -> list[Program]:
        """One for each duration that was asked for."""
        return list(self._programs.values())

    def run(
        self, actor: Actor, env_params: PyTree, key: Key, num_episodes: int | None = None
    ) -> dict[str, Any]:
        """The result's `env_runners` part, of `num_episodes` or the configured duration.

        Args:
            actor: Parameters and connector statistics.
            env_params: Training's, which count here too unless this is another environment.
            key: Consumed.
            num_episodes: Instead of `evaluation_duration`.
        """
        program = self._program(num_episodes)
        return evaluation_metrics(to_host(program(actor, self._params(env_params), key)))

    def _params(self, trained: PyTree) -> PyTree:
        assert isinstance(self._made, MadeEnv)
        env, limit = self._made.env, self._made.max_episode_steps
        if not self._same_env:
            return self._made.params
        if isinstance(env, OwnTimeLimit) and limit is not None and limit != self._trained_limit:
            return env.with_time_limit(trained, limit)
        return trained

    def _program(self, num_episodes: int | None) -> Program:
        if num_episodes in self._programs:
            return self._programs[num_episodes]
        name, config = "evaluate", self._config
        if num_episodes is not None:
            name = f"evaluate_{num_episodes}_episodes"
            config = config.copy().evaluation(
                evaluation_duration=num_episodes,
                evaluation_duration_unit="episodes",
                evaluation_num_envs="auto",
            )
        assert isinstance(self._made, MadeEnv)
        mode = config.environment_settings.reset_mode
        env = VectorEnv(self._made.env, self._made.env.reset_mode if mode == "auto" else mode)
        acting = self._acting
        sampler = Sampler(
            env=env,
            module=acting.module,
            obs_pipeline=acting.obs_pipeline,
            action_pipeline=acting.action_pipeline,
        )
        program = Program(
            name,
            make_evaluator(config, sampler, self._made),
            max_retraces=config.debugging_settings.max_retraces,
            enabled=config.debugging_settings.jit,
        )
        self._programs[num_episodes] = program
        return program


def _has_overrides(config: "AlgorithmConfig", names: tuple[str, ...]) -> bool:
    overrides = config.overrides(**(config.evaluation_settings.evaluation_config or {}))
    return any(name in overrides for name in names)


def _evaluation_env(
    config: "AlgorithmConfig", changed: "AlgorithmConfig", trained: MadeEnv | MadeHostEnv
) -> MadeEnv | MadeHostEnv:
    """The environment to evaluate in, with the spaces that the module was built for."""
    if not _has_overrides(config, ENV_SETTINGS):
        return trained
    try:
        made = make_env(changed)
    except JaxrlError as error:
        raise type(error)(f"evaluation_config: {error}") from error
    names = ("observation space", "action space")
    for name, own, wanted in zip(names, spaces_of(made), spaces_of(trained), strict=True):
        if own != wanted:
            raise ConfigError(
                f"evaluation_config: {made.id} has the {name} {in_one_line(own)}, but the module "
                f"is trained for {in_one_line(wanted)} of {trained.id}; evaluate in an environment "
                "with the same spaces."
            )
    return made


def custom_evaluation(function: Callable[..., Any], algorithm: Any) -> dict[str, Any]:
    """What the user's function of `(algorithm)` or `(algorithm, eval_workers)` returns.

    Raises:
        ConfigError: It is no dictionary.
    """
    no_workers = [None] * (evaluation_arguments(function) - 1)
    metrics = function(algorithm, *no_workers)
    if not isinstance(metrics, Mapping):
        raise ConfigError(
            "custom_evaluation_function must return a dictionary of metrics, such as "
            f"{{'custom_metrics': {{...}}}}, got {metrics!r}."
        )
    return dict(cast(Mapping[str, Any], metrics))


def make_evaluator(config: "AlgorithmConfig", sampler: Sampler, made: MadeEnv) -> Evaluator:
    """The evaluation that an evaluation config asks for."""
    settings = config.evaluation_settings
    explore = config.env_runners_settings.explore
    duration = settings.evaluation_duration
    limit = made.max_episode_steps or DEFAULT_STEP_CAP
    by_steps = settings.evaluation_duration_unit == "timesteps"
    # By steps every environment must have room for several episodes, or short ones are favoured.
    least = EPISODES_BY_STEPS * limit if by_steps else 1
    envs = _num_envs(settings.evaluation_num_envs, duration, least)
    share = -(-duration // envs)
    if by_steps:
        return Evaluator(
            sampler=sampler,
            num_envs=envs,
            episodes_per_env=None,
            max_steps=share,
            recorded=min(share, MAX_RECORDED),
            explore=explore,
        )
    return Evaluator(
        sampler=sampler,
        num_envs=envs,
        episodes_per_env=share,
        max_steps=share * limit,
        recorded=share,
        explore=explore,
    )


def _num_envs(setting: Any, duration: int, least: int) -> int:
    """The largest divisor of the duration that leaves each environment its least, else 1."""
    if setting != "auto":
        return setting
    candidates = range(2, min(duration, MAX_EVALUATION_ENVS) + 1)
    fitting = (n for n in candidates if duration % n == 0 and duration // n >= least)
    return max(fitting, default=1)
