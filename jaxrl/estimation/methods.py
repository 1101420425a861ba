"""Methods of `Algorithm` that estimate its policy from recorded data."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxrl.errors import ConfigError
from jaxrl.offline.recorded import open_data
from jaxrl.offline.sources import Source

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.estimation.estimate import EstimateReport
    from jaxrl.policy.policy import Policy


class EstimationMethods:
    """Methods that estimate the current policy of an algorithm."""

    if TYPE_CHECKING:
        config: AlgorithmConfig

        def get_policy(self) -> Policy: ...

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
            input_: Recorded data: a folder, file or pattern, or a list of these; None for those that
                the run learns from, which flatter it.
            methods: "is", "pdis", "wis", "wpdis", "dm" (or "fqe", the same) and "dr"; None for "wis"
                and "dr" if the data and the policy have probabilities of actions, else for "dm".
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
        from jaxrl.estimation.estimate import estimate  # imports SciPy's statistics
        from jaxrl.estimation.target import Target

        offline = self.config.offline_data_settings
        if input_ is None:
            if not (self.config.is_offline or self.config.is_mixed):
                raise ConfigError(
                    "evaluate_offline needs recorded data: name a folder of them, "
                    "evaluate_offline('path/to/data')."
                )
            input_ = list(offline.sources) or cast("str | list[str]", offline.input_)
        policy = self.get_policy()
        inference, step = policy.inference, policy.inference.policy_step
        if explore is None:
            by_distribution = step.module.explores_by_distribution
            explore = self.config.env_runners_settings.explore and by_distribution
        target = Target(policy_step=step, actor=policy.actor, explore=explore)
        data = open_data(
            input_,
            observation_space=inference.observation_space,
            action_space=inference.action_space,
            actions_are_normalized=offline.actions_in_input_normalized,
            schema=offline.input_read_schema,
            ignore_final_observation=offline.ignore_final_observation,
        )
        return estimate(
            target,
            data,
            gamma=self.config.training_settings.gamma if gamma is None else gamma,
            methods=methods,
            confidence=confidence,
            fqe=fqe,
            seed=seed,
        )
