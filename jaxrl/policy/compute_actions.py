"""Actions for observations from outside, by what a run has learned."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.config.base import AlgorithmConfig
from jaxrl.core.seeds import check_seed, folded
from jaxrl.core.types import Key, PyTree
from jaxrl.errors import UnknownNameError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.policy.inference import Inference
from jaxrl.policy.policy import Policy
from jaxrl.policy.requests import Asked, Fetched, by_name, refuse_inputs, row
from jaxrl.runs.host_state import HostState
from jaxrl.runtime.exclusive import Exclusive, one_thread
from jaxrl.training.rollout import Actor

_ACTIONS, _POLICY = 0x61637473, 0x706F6C69
"""Far from what else the seed's key is folded with."""


class ComputesActions(ABC):
    """The methods of an Algorithm that act on observations of the caller's."""

    config: AlgorithmConfig
    _inference: Inference
    _host: HostState
    _use: Exclusive

    @abstractmethod
    def _actor(self) -> Actor:
        """The present parameters and connector statistics, on one device."""

    @abstractmethod
    def _stream(self, purpose: int) -> Key:
        """What the keys of a purpose's draws are folded from."""

    @one_thread
    def get_policy(
        self, policy_id: str = DEFAULT_MODULE, *, explore: bool | None = None, seed: int = 0
    ) -> Policy:
        """What was learned so far, as an object that plays episodes and remembers them.

        Later training does not change it.

        Args:
            policy_id: The module; there is one.
            explore: Sample, or take the mode; None for the config's `explore`.
            seed: Of what is sampled.

        Raises:
            UnknownNameError: There is no such module.
            ConfigError: The seed is none.
        """
        check_module_id(policy_id)
        check_seed(seed)
        return Policy(
            self._inference,
            jax.tree.map(jnp.copy, self._actor()),
            key=folded(self._stream(_POLICY), seed),
            explore=self._explores(explore),
        )

    def compute_single_action(
        self,
        obs: Any,
        state: PyTree = None,
        *,
        explore: bool | None = None,
        full_fetch: bool = False,
        policy_id: str = DEFAULT_MODULE,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
        prev_action: Any = None,
        prev_reward: float | None = None,
        **unused: None,
    ) -> Any:
        """The action for one observation of the environment, through the whole pipeline.

        Args:
            obs: As the environment gives it, NumPy.
            state: What `full_fetch` returned for the observation before, where the module or a
                connector (stacked frames, previous rewards) remembers; None at an episode's start.
            explore: Sample, or take the mode; None for the config's `explore`.
            full_fetch: Also return the state after it and the module's outputs.
            policy_id: The module; there is one.
            unsquash_action: None as configured; False leaves a Box action in the module's range.
            clip_action: Clip a Box action that is not unsquashed; None as configured.
            prev_action: For connectors that read it: what the environment was given since, if
                not the action that `state` came with.
            prev_reward: For connectors that read it: what the environment returned since.
            **unused: RLlib's other inputs (`info`, `episode`, ...) pass if they are None.

        Returns:
            The action as the environment takes it; `(action, state_out, outputs)` with
            `full_fetch` or a `state`.

        Raises:
            SpaceError: The observation is not in the observation space.
            ConfigError: An input that nothing reads, or a state that a connector needs is missing.
        """
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        refuse_inputs("compute_single_action", {**past, **unused}, self._inference.reads())
        asked = Asked.of_one(
            obs,
            state,
            past,
            explore=self._explores(explore),
            unsquash=unsquash_action,
            clip=clip_action,
            keeps_state=full_fetch or state is not None,
            wants_outputs=full_fetch or state is not None,
        )
        fetched = self._act(asked, policy_id)
        return row(fetched if asked.keeps_state else fetched[0], 0)

    def compute_actions(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree = None,
        *,
        explore: bool | None = None,
        full_fetch: bool = False,
        policy_id: str = DEFAULT_MODULE,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
        prev_action: Any = None,
        prev_reward: Any = None,
        **unused: None,
    ) -> Any:
        """Actions for several observations: a dictionary for a dictionary, else a batch.

        `state`, `prev_action` and `prev_reward` (and what `full_fetch` returns) are by name too, or
        have a leading batch axis; the other arguments are those of `compute_single_action`.
        """
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        refuse_inputs("compute_actions", {**past, **unused}, self._inference.reads())
        asked = Asked.of_several(
            observations,
            state,
            past,
            explore=self._explores(explore),
            unsquash=unsquash_action,
            clip=clip_action,
            keeps_state=full_fetch or state is not None,
            wants_outputs=full_fetch or state is not None,
        )
        names = list(observations) if isinstance(observations, Mapping) else None
        fetched = by_name(self._act(asked, policy_id), names)
        return fetched if asked.keeps_state else fetched[0]

    @one_thread
    def _act(self, asked: Asked, policy_id: str) -> Fetched:
        check_module_id(policy_id)
        self._host.actions_drawn += 1
        stream, number = self._stream(_ACTIONS), self._host.actions_drawn
        return self._inference(self._actor, asked, stream, number)

    def _explores(self, asked: bool | None) -> bool:
        return self.config.env_runners_settings.explore if asked is None else asked


def check_module_id(module_id: str) -> None:
    """Refuse a name other than that of the one module."""
    if module_id != DEFAULT_MODULE:
        raise UnknownNameError(
            f"There is no module '{module_id}'; the only one is '{DEFAULT_MODULE}'."
        )
