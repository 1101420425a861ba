"""Evaluation as the config asks for it: the program is built once and kept."""

import dataclasses
from typing import TYPE_CHECKING, Any

from jaxrl.core.types import Key, PyTree
from jaxrl.envs.registry import MadeEnv
from jaxrl.runners.assemble import Assembly, make_env
from jaxrl.runners.evaluate import Evaluator
from jaxrl.runners.program import Program
from jaxrl.runners.results import evaluation_metrics, to_host
from jaxrl.runners.rollout import Actor, Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

DEFAULT_STEP_CAP = 10_000
MAX_EVALUATION_ENVS = 64
MAX_RECORDED = 1024


class Evaluation:
    """Plays episodes with the trained module under the evaluation's own settings.

    Args:
        config: The run's config; `evaluation_config` overrides are applied to a copy.
        assembly: The run's functions, whose module and connectors are used.
    """

    def __init__(self, config: "AlgorithmConfig", assembly: Assembly) -> None:
        self._config = config
        self._assembly = assembly
        self._kept: tuple[Program, PyTree] | None = None

    def run(self, actor: Actor, key: Key, num_episodes: int | None = None) -> dict[str, Any]:
        """The result's `env_runners` part, of `num_episodes` or the configured duration."""
        program, params = self._program(num_episodes)
        return evaluation_metrics(to_host(program(actor, params, key)))

    def _program(self, num_episodes: int | None) -> tuple[Program, PyTree]:
        if num_episodes is None and self._kept is not None:
            return self._kept
        config = self._config.get_evaluation_config_object()
        assert config is not None
        if num_episodes is not None:
            config.evaluation(
                evaluation_duration=num_episodes,
                evaluation_duration_unit="episodes",
                evaluation_num_envs="auto",
            )
        made = make_env(config)
        trained = self._assembly.sampler
        sampler = dataclasses.replace(trained, env=dataclasses.replace(trained.env, env=made.env))
        evaluator = make_evaluator(config, sampler, made)
        program = Program("evaluate", evaluator, enabled=config.debugging_settings.jit)
        if num_episodes is None:
            self._kept = (program, made.params)
        return program, made.params


def make_evaluator(config: "AlgorithmConfig", sampler: Sampler, made: MadeEnv) -> Evaluator:
    """The evaluation that an evaluation config asks for."""
    settings = config.evaluation_settings
    explore = config.env_runners_settings.explore
    duration = settings.evaluation_duration
    envs = _num_envs(settings.evaluation_num_envs, duration)
    share = -(-duration // envs)
    if settings.evaluation_duration_unit == "timesteps":
        return Evaluator(
            sampler=sampler,
            num_envs=envs,
            episodes_per_env=None,
            max_steps=share,
            recorded=min(share, MAX_RECORDED),
            explore=explore,
        )
    limit = made.max_episode_steps or DEFAULT_STEP_CAP
    return Evaluator(
        sampler=sampler,
        num_envs=envs,
        episodes_per_env=share,
        max_steps=share * limit,
        recorded=share,
        explore=explore,
    )


def _num_envs(setting: Any, duration: int) -> int:
    if setting != "auto":
        return setting
    candidates = range(1, min(duration, MAX_EVALUATION_ENVS) + 1)
    return max(n for n in candidates if duration % n == 0)
