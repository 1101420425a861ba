"""A policy that plays: it remembers the episode, so that its caller need not."""

from typing import Any

from jaxrl.core.types import Key, PyTree
from jaxrl.policy.inference import Inference
from jaxrl.policy.requests import Asked, refuse_inputs, row
from jaxrl.training.rollout import Actor


class Policy:
    """Parameters and connector statistics as they were, and what is remembered of one episode.

    The whole pipeline serves every action: filters, stacked frames, previous actions, masks, the
    module's memory, and what makes the environment's action of the module's.

        policy = algorithm.get_policy(explore=False)
        policy.reset()
        action = policy.act(obs)

    Args:
        inference: The run's compiled forward passes.
        actor: Parameters and statistics.
        key: What each action's own key is folded from.
        explore: Sample, or take the mode.
    """

    def __init__(self, inference: Inference, actor: Actor, *, key: Key, explore: bool) -> None:
        self._inference = inference
        self._actor = actor
        self._key = key
        self._explore = explore
        self._drawn = 0
        self._state: PyTree = None

    @property
    def state(self) -> PyTree:
        """What is remembered after the last action; None at an episode's start."""
        return self._state

    def initial_state(self) -> PyTree:
        """What a module and connectors begin an episode with."""
        return row(self._inference.initial_state(), 0)

    def reset(self) -> None:
        """Forget the episode: the next observation begins one."""
        self._state = None

    def act(self, obs: Any, *, prev_reward: float | None = None, prev_action: Any = None) -> Any:
        """The environment's action for the next observation of the episode.

        Args:
            obs: As the environment gives it, NumPy.
            prev_reward: For connectors that read it: what the environment returned since the last
                action.
            prev_action: For connectors that read it: what the environment was given since, if not
                the action that was computed.

        Raises:
            SpaceError: The observation is not in the observation space.
            ConfigError: An input that nothing reads, or one that a connector needs is missing.
        """
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        refuse_inputs("act", past, self._inference.reads())
        asked = Asked.of_one(obs, self._state, past, explore=self._explore, keeps_state=True)
        fetched = self._inference(lambda: self._actor, asked, self._key, self._drawn)
        action, self._state, _ = row(fetched, 0)
        self._drawn += 1
        return action
