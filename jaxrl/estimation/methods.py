"""Methods of `Algorithm` that estimate its policy from recorded data."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxrl.errors import ConfigError
from jaxrl.estimation.held_out import HeldOutEvaluation, MissingEvaluation, resolve_explore
from jaxrl.offline.recorded import open_data
from jaxrl.offline.sources import Source
from jaxrl.runtime.exclusive import ExclusiveLock, single_threaded

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.estimation.episodes import WholeEpisodes
    from jaxrl.estimation.estimate import EstimateReport
    from jaxrl.offline.recorded import RecordedData
    from jaxrl.policy.policy import Policy
    from jaxrl.training.train_state import TrainState


class EstimationMethods:
    """Methods that estimate the current policy of an algorithm."""

    if TYPE_CHECKING:
        config: AlgorithmConfig

        on_phase: Callable[[str], None]
        _held_out: HeldOutEvaluation | MissingEvaluation | None
        _use: ExclusiveLock

        @property
        def state(self) -> TrainState: ...
        def get_policy(self) -> Policy: ...
        def _call(self, hook: str, **kwargs: object) -> None: ...

    def evaluate_offline(
        self,
        input_: Source | None = None,
        methods: Sequence[str] | None = None,
        *,
        gamma: float | None = None,
        explore: bool | None = None,
        confidence: float = 0.95,
        fqe: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> "EstimateReport":
        """Estimate the value of the current policy from recorded data, without an environment.

        Args:
            input_: Recorded data: a folder, file or pattern, or a list of these; None for the episodes
                that the run holds out (`offline_evaluation_interval`), or else for those that it learns
                from, which flatter it.
            methods: "is", "pdis", "wis", "wpdis", "dm" (or "fqe", the same) and "dr"; None for "wis"
                and "dr" if the data and the policy have probabilities of actions, else for "dm"; for
                "wis" alone if actions are neither Discrete nor a Box.
            gamma: Discount factor; None for the config's.
            explore: Whether the policy samples its actions; None for the config's `explore`, if it
                samples with known probabilities.
            confidence: Probability that the intervals contain the value.
            fqe: Settings of fitted Q evaluation: `num_updates`, `batch_size`, `lr`, `tau`.
            seed: Seed of resampling, sampled actions and fits.

        Raises:
            ConfigError: If a setting or method is invalid, or there are no data.
            DataError: If the data are damaged, of other spaces, or lack what a method needs.
        """
        # These import SciPy's statistics.
        from jaxrl.estimation.estimate import estimate
        from jaxrl.estimation.target import Target

        policy = self.get_policy()
        step = policy.inference.policy_step
        target = Target(
            policy_step=step,
            actor=policy.actor,
            explore=resolve_explore(self.config, step.module, explore),
        )
        data = self._open_estimated(input_, policy)
        return estimate(
            target,
            data,
            gamma=self.config.training_settings.gamma if gamma is None else gamma,
            methods=methods,
            confidence=confidence,
            fqe=fqe,
            seed=seed,
            ignore_final_observation=self.config.offline_data_settings.ignore_final_observation,
        )

    def _open_estimated(
        self, input_: Source | None, policy: "Policy"
    ) -> "RecordedData | WholeEpisodes":
        """Return the data to estimate from: those named, held-out episodes, or those of the run."""
        config, offline = self.config, self.config.offline_data_settings
        if input_ is None and self._held_out is not None:
            return self._held_out.read_episodes(config)
        if input_ is None:
            if not (config.is_offline or config.is_mixed):
                raise ConfigError(
                    "evaluate_offline needs recorded data: name a folder of them, "
                    "evaluate_offline('path/to/data')."
                )
            input_ = list(offline.sources) or cast("str | list[str]", offline.input_)
        return open_data(
            input_,
            observation_space=policy.inference.observation_space,
            action_space=policy.inference.action_space,
            actions_are_normalized=offline.actions_in_input_normalized,
            schema=offline.input_read_schema,
            ignore_final_observation=offline.ignore_final_observation,
            ignore_unused_schema=True,
        )

    @single_threaded
    def evaluate_held_out(self) -> dict[str, Any]:
        """Evaluate the current policy on the held-out episodes, as every offline_evaluation_interval.

        Returns:
            What a result has under "evaluation": `{"offline_eval_runners": {...}}` with the losses or
            the estimate of `offline_evaluation_type`, and the estimates of
            `off_policy_estimation_methods` under "off_policy_estimator".

        Raises:
            ConfigError: If no episodes are held out.
            DataError: If the run was restored without its data.
        """
        if self._held_out is None:
            raise ConfigError(
                "evaluate_held_out() has no held-out episodes: set offline_evaluation_interval, or call "
                "evaluate_offline('path/to/data')."
            )
        self.on_phase("evaluating")
        self._call("on_evaluate_offline_start")
        result = self._held_out.evaluate(self.config, self.state, lambda: self.get_policy().actor)
        self._call("on_evaluate_offline_end", evaluation_metrics=result)
        return result
