"""RandomAgent: uniformly random legal actions, without learning.

Its return is the zero of normalized scores. It runs on every placement and with every connector, so
the numbers compare with those of the algorithms.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.training import OnPolicyTraining
from jaxrl.core.hparams import HParams, build_hparams
from jaxrl.core.struct import pytree
from jaxrl.core.types import Key, Metrics, Params, Progress, PyTree, Rollout
from jaxrl.errors import ConfigError
from jaxrl.learners.base import BaseLearner
from jaxrl.learners.learner import NUM_NONFINITE_UPDATES, SgdState
from jaxrl.modules.rl_module import RLModule, RLModuleSpec
from jaxrl.modules.scripted import ParameterFreeModule


class RandomModule(ParameterFreeModule):
    """Module without parameters whose actions are uniformly random, with and without exploring."""

    def forward_inference(
        self,
        params: Params,
        obs: PyTree,
        carry: PyTree = None,
        hparams: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        env_index: Int[Array, " B"] | None = None,
        draws: PyTree = None,
    ) -> dict[str, Any]:
        """Sample actions `[B, ...]` from `draws`, as while exploring."""
        return self._sample_actions(params, obs, carry, draws)


@pytree
class RandomState:
    """Learner state of RandomAgent: no parameters."""

    sgd: SgdState
    hparams: HParams


@pytree
class RandomBatch:
    """Train batch, `[T, B]`; `weight` is 0 where a row is not a transition."""

    weight: Float[Array, "*batch"]


@dataclasses.dataclass(frozen=True, eq=False)
class RandomLearner(BaseLearner[RandomState]):
    """Learner that changes nothing."""

    module: RLModule
    settings: OnPolicyTraining

    def init(self, key: Key) -> RandomState:
        sgd = SgdState(params=self.module.init(key), opt_state=())
        return RandomState(sgd=sgd, hparams=build_hparams(self.settings))

    def prepare(
        self, state: RandomState, rollout: Rollout, progress: Progress
    ) -> tuple[RandomBatch, Metrics]:
        del state, progress
        return RandomBatch(weight=rollout.mask.astype(jnp.float32)), {}

    def update(
        self, state: RandomState, batch: RandomBatch, progress: Progress, key: Key
    ) -> tuple[RandomState, Metrics]:
        """Return the state unchanged. Does not consume the key."""
        del batch, progress, key
        zero = jnp.zeros((), jnp.float32)
        return state, {"total_loss": zero, "grad_norm": zero, NUM_NONFINITE_UPDATES: zero}

    def finish(self, state: RandomState, metrics: Metrics, progress: Progress) -> RandomState:
        """Return the state unchanged."""
        del metrics, progress
        return state


class RandomAgentConfig(AlgorithmConfig):
    """Configuration of RandomAgent."""

    algo_name = "RandomAgent"
    learns = False
    training_settings: OnPolicyTraining = OnPolicyTraining(
        lr=0.0, train_batch_size=4000, num_epochs=1, minibatch_size=None
    )
    training = fluent("training_settings", OnPolicyTraining)

    def get_default_learner_class(self) -> type[RandomLearner]:
        return RandomLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=RandomModule)

    def validate(self) -> None:
        super().validate()
        defaults = type(self).training_settings
        for setting in dataclasses.fields(defaults):
            value = getattr(self.training_settings, setting.name)
            if setting.name not in _USED and value != getattr(defaults, setting.name):
                raise ConfigError(
                    f"RandomAgent does not learn, so {setting.name}={value!r} has no effect; leave "
                    "it out."
                )


_USED = ("gamma", "train_batch_size", "train_batch_size_per_learner")
"""Settings with an effect: the batch, and the discount factor of normalized rewards."""
