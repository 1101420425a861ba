"""RandomAgent: uniformly random legal actions, without learning.

Its return is the zero of normalized scores. It runs on every placement and with every connector, so
the numbers compare with those of the algorithms.
"""

import dataclasses

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.fields import fluent
from jaxrl.config.settings.training import OnPolicyTraining
from jaxrl.errors import ConfigError
from jaxrl.learners.fixed import FixedLearner
from jaxrl.modules.rl_module import RLModuleSpec
from jaxrl.modules.scripted import RandomRLModule


class RandomAgentConfig(AlgorithmConfig):
    """Configuration of RandomAgent."""

    algo_name = "RandomAgent"
    learns = False
    training_settings: OnPolicyTraining = OnPolicyTraining(
        lr=0.0, train_batch_size=4000, num_epochs=1, minibatch_size=None
    )
    training = fluent("training_settings", OnPolicyTraining)

    def get_default_learner_class(self) -> type[FixedLearner]:
        return FixedLearner

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=RandomRLModule)

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
