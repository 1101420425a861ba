"""Deployable policy that keeps the state of an episode."""

import importlib
import os
from collections.abc import Sequence

from jaxrl.config.rllib_api import FormerNames
from jaxrl.core.types import Key, PyTree
from jaxrl.policy.inference import Inference
from jaxrl.policy.requests import ActionRequest, ActionResult, check_inputs, take_row
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState


class Policy(FormerNames):
    """Snapshot of parameters and connector statistics, with the state of one episode.

    Every action goes through the whole pipeline: filters, stacked frames, previous actions, masks,
    the module with its recurrent state, and the conversion to the environment's action space.

        policy = algorithm.get_policy(explore=False)
        policy.reset()
        action = policy.act(obs)

    Args:
        inference: Compiled forward passes of the run.
        actor: Parameters and connector statistics.
        key: Key from which the key of each action is folded.
        explore: Whether to sample actions; False takes the mode.
    """

    _former_kind = "policy"

    def __init__(self, inference: Inference, actor: ActorState, *, key: Key, explore: bool) -> None:
        self._inference = inference
        self._actor = actor
        self._key = key
        self._explore = explore
        self._num_actions = 0
        self._state: PyTree = None

    @property
    def inference(self) -> Inference:
        """Forward passes of the run."""
        return self._inference

    @property
    def actor(self) -> ActorState:
        """Parameters and connector statistics."""
        return self._actor

    @property
    def state(self) -> PyTree:
        """State of the module and connectors after the last action; None at an episode's start."""
        return self._state

    def initial_state(self) -> PyTree:
        """Return the state of the module and connectors at an episode's start."""
        return take_row(self._inference.initial_state(), 0)

    def compute(self, request: ActionRequest) -> ActionResult:
        """Compute the actions of a batch; the state of this policy's episode is neither read nor set.

        Args:
            request: Request with its own state, which says whether to explore.

        Raises:
            SpaceError: If an observation, or a previous action, is not in its space.
            ConfigError: If an input that a connector needs is missing, or one has no effect.
        """
        result = self._inference(lambda: self._actor, request, self._key, self._num_actions)
        self._num_actions += 1
        return result

    def with_inference(self, inference: Inference) -> "Policy":
        """Return a policy with these parameters and the programs of another one of the same config."""
        return Policy(inference, self._actor, key=self._key, explore=self._explore)

    def get_weights(self) -> PyTree:
        """Return the parameters of the module as NumPy copies."""
        return to_host(self._actor.params)

    def export(
        self,
        folder: str | os.PathLike[str],
        formats: Sequence[str] = ("numpy",),
        explore: Sequence[bool] = (False, True),
    ) -> str:
        """Write the policy as files that run without jaxrl; see `Algorithm.export`."""
        higher = importlib.import_module("jaxrl.export.artifact")  # by name: a higher layer
        export = higher.make_export(self._inference, self._actor, formats=formats, explore=explore)
        return str(export.write(folder))

    def reset(self) -> None:
        """Reset the state: the next observation starts an episode."""
        self._state = None

    def act(
        self, obs: object, *, prev_reward: float | None = None, prev_action: object = None
    ) -> PyTree:
        """Compute the environment action for the next observation of the episode.

        Args:
            obs: Observation as returned by the environment, NumPy.
            prev_reward: Reward of the previous step, for connectors that read it.
            prev_action: Action that the environment executed, if it is not the one computed last;
                for connectors that read it.

        Raises:
            SpaceError: If the observation is not in the observation space.
            ConfigError: If an input is not used, or one that a connector needs is missing.
        """
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        check_inputs("act", past, self._inference.get_read_inputs())
        request = ActionRequest.from_single(
            obs, self._state, past, explore=self._explore, should_return_state=True
        )
        action, self._state, _ = take_row(self.compute(request), 0)
        return action
