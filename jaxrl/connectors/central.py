"""Pipeline of observations beside which the inputs of a central critic pass unchanged."""

import dataclasses

from jaxrl.connectors.base import Before
from jaxrl.connectors.pipelines import ObservationPipeline, PreprocessedRollout
from jaxrl.core.struct import replace
from jaxrl.core.types import CentralObs, PyTree, Rollout


@dataclasses.dataclass(frozen=True, eq=False)
class CentralPipeline(ObservationPipeline):
    """Pipeline of rollouts with `CentralObs`, which transforms the agents' own observations."""

    def preprocess_rollout(
        self,
        states: PyTree,
        carries: tuple[PyTree, ...],
        rollout: Rollout,
        before: Before | None,
    ) -> PreprocessedRollout:
        obs: CentralObs = rollout.obs
        final_obs: CentralObs = rollout.final_obs
        own = super().preprocess_rollout(
            states, carries, replace(rollout, obs=obs.obs, final_obs=final_obs.obs), before
        )
        return replace(
            own,
            obs=replace(obs, obs=own.obs),
            final_obs=replace(final_obs, obs=own.final_obs),
        )
