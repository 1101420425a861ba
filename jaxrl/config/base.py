"""AlgorithmConfig, the config builder with the API of RLlib's class of the same name."""

from typing import TYPE_CHECKING, Any

from jaxrl.config.config import Config
from jaxrl.config.registry import find_config_class
from jaxrl.core.algorithms import load_run_class
from jaxrl.errors import HostLanesError

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm


class AlgorithmConfig(Config):
    """Settings of a run, and what builds it.

    Every group is a frozen dataclass in `<group>_settings`, changed by the method `<group>()`,
    which returns the config. A setting can also be read and set flat: `config.lr`,
    `config["lr"]`, `config.lr = 3e-4`.
    """

    def explain(self, **facts: Any) -> str:
        """Describe the effective settings, the batch arithmetic and the placement, with reasons.

        For a sweep, list the lanes and describe the first.

        Args:
            **facts: Facts that only a built Algorithm has, see `jaxrl.config.explain.explain`.
        """
        from jaxrl.config.explain import explain
        from jaxrl.config.sweep import is_sweep, make_lanes

        if not is_sweep(self):
            return explain(self, **facts)
        lanes = make_lanes(self)
        return "\n".join([*map(str, lanes), explain(lanes[0].config, **facts)])

    def build(
        self, env: object = None, logger_creator: None = None, use_copy: bool = True
    ) -> "Algorithm":
        """Build the Algorithm of this config, or a `jaxrl.Population` if it describes a sweep.

        A sweep whose environments are stepped on the host becomes `jaxrl.Trials` of Ray Tune.

        Args:
            env: Environment that replaces `environment(env=...)`.
            logger_creator: Argument of RLlib's; must be None, use `debugging(loggers=[...])`.
            use_copy: Whether to build from a copy; otherwise this config itself is frozen.

        Returns:
            An Algorithm, Population or Trials.
        """
        from jaxrl.config.sweep import is_sweep
        from jaxrl.config.validate import check_sweep

        if logger_creator is not None:
            self._apply({"logger_creator": logger_creator})
        config = self.copy(copy_frozen=False) if use_copy else self
        if env is not None:
            config.environment(env)
        config.draw_seed()
        if is_sweep(config):
            check_sweep(config.env_runners_settings.num_envs_per_env_runner)
            return _build_sweep(config)
        return (config.algo_class or load_run_class("algorithm"))(config)

    build_algo = build
    """Alias of `build`, RLlib's newer name."""


def _build_sweep(config: AlgorithmConfig) -> Any:
    """Build the runs of a sweep as lanes of shared programs or, where impossible, as trials."""
    try:
        return load_run_class("population")(config)
    except HostLanesError:
        return load_run_class("trials")(config)


def get_algorithm_config_class(name: str) -> type[AlgorithmConfig]:
    """Return the config class of an algorithm.

    Raises:
        UnknownNameError: If no algorithm of this name is registered.
    """
    return find_config_class(name)


def get_algorithm_config(name: str) -> AlgorithmConfig:
    """Return a config of an algorithm with its defaults."""
    return get_algorithm_config_class(name)()
