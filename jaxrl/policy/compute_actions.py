"""Methods of an Algorithm that compute actions for external observations."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl.core.keys import fold_in_uint64
from jaxrl.core.seeds import check_seed
from jaxrl.core.types import Key, PyTree
from jaxrl.errors import UnknownNameError
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.policy.inference import Inference
from jaxrl.policy.policy import Policy
from jaxrl.policy.requests import ActionRequest, ActionResult, check_inputs, split_by_name, take_row
from jaxrl.runs.host_state import RunMetadata
from jaxrl.runtime.exclusive import ExclusiveLock, single_threaded
from jaxrl.training.rollout import ActorState

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

_ACTIONS, _POLICY = 0x61637473, 0x706F6C69
"""Constants folded into the seed's key; far from all others that are."""


class ComputeActionsMixin(ABC):
    """Mixin of Algorithm with the methods that act on the caller's observations."""

    config: "AlgorithmConfig"
    _inference: Inference
    _host: RunMetadata
    _use: ExclusiveLock

    @abstractmethod
    def _get_actor_state(self) -> ActorState:
        """Return the current parameters and connector statistics, on one device."""

    @abstractmethod
    def _get_purpose_key(self, purpose: int) -> Key:
        """Return the base key for a purpose, from which the keys of its draws are folded."""

    @single_threaded
    def get_policy(
        self, policy_id: str = DEFAULT_MODULE, *, explore: bool | None = None, seed: int = 0
    ) -> Policy:
        """Return the current policy as an object that keeps the state of an episode.

        It has a copy of the parameters, so later training does not change it.

        Args:
            policy_id: Name of the module; there is only one.
            explore: Whether to sample actions; False takes the mode, None uses the config's
                `explore`.
            seed: Seed of the sampled actions.

        Raises:
            UnknownNameError: If there is no such module.
            ConfigError: If the seed is invalid.
        """
        check_module_id(policy_id)
        check_seed(seed)
        return Policy(
            self._inference,
            jax.tree.map(jnp.copy, self._get_actor_state()),
            key=fold_in_uint64(self._get_purpose_key(_POLICY), seed),
            explore=self._resolve_explore(explore),
        )

    def compute_single_action(
        self,
        obs: object,
        state: PyTree = None,
        *,
        explore: bool | None = None,
        full_fetch: bool = False,
        policy_id: str = DEFAULT_MODULE,
        unsquash_action: bool | None = None,
        clip_action: bool | None = None,
        prev_action: object = None,
        prev_reward: float | None = None,
        **unused: None,
    ) -> PyTree:
        """Compute the action for one observation, including all connectors.

        Args:
            obs: Observation as returned by the environment, NumPy.
            state: State that `full_fetch` returned for the previous observation, if the module or
                a connector (stacked frames, previous rewards) is stateful; None at an episode's
                start.
            explore: Whether to sample the action; False takes the mode, None uses the config's
                `explore`.
            full_fetch: Whether to also return the new state and the module's outputs.
            policy_id: Name of the module; there is only one.
            unsquash_action: Whether to unsquash a Box action; False leaves it in the module's
                range, None is as configured.
            clip_action: Whether to clip a Box action that is not unsquashed; None is as configured.
            prev_action: Action that the environment executed, if it is not the one computed with
                `state`; for connectors that read it.
            prev_reward: Reward of the previous step, for connectors that read it.
            **unused: RLlib's other inputs (`info`, `episode`, ...), which must be None.

        Returns:
            The environment action; `(action, state_out, outputs)` with `full_fetch` or a `state`.

        Raises:
            SpaceError: If the observation is not in the observation space.
            ConfigError: If an input is not used, or a state that a connector needs is missing.
        """
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        check_inputs("compute_single_action", {**past, **unused}, self._inference.get_read_inputs())
        request = ActionRequest.from_single(
            obs,
            state,
            past,
            explore=self._resolve_explore(explore),
            unsquash=unsquash_action,
            clip=clip_action,
            should_return_state=full_fetch or state is not None,
            should_return_outputs=full_fetch or state is not None,
        )
        result = self._act(request, policy_id)
        return take_row(result if request.should_return_state else result[0], 0)

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
        prev_action: object = None,
        prev_reward: object = None,
        **unused: None,
    ) -> PyTree:
        """Compute actions for several observations: a dictionary for a dictionary, else a batch.

        `state`, `prev_action`, `prev_reward` and the values that `full_fetch` returns are also by
        name, or have a leading batch axis. The other arguments are those of
        `compute_single_action`.
        """
        past = {"prev_action": prev_action, "prev_reward": prev_reward}
        check_inputs("compute_actions", {**past, **unused}, self._inference.get_read_inputs())
        request = ActionRequest.from_batch(
            observations,
            state,
            past,
            explore=self._resolve_explore(explore),
            unsquash=unsquash_action,
            clip=clip_action,
            should_return_state=full_fetch or state is not None,
            should_return_outputs=full_fetch or state is not None,
        )
        names = list(observations) if isinstance(observations, Mapping) else None
        result = split_by_name(self._act(request, policy_id), names)
        return result if request.should_return_state else result[0]

    @single_threaded
    def _act(self, request: ActionRequest, policy_id: str) -> ActionResult:
        check_module_id(policy_id)
        self._host.actions_drawn += 1
        base_key, number = self._get_purpose_key(_ACTIONS), self._host.actions_drawn
        return self._inference(self._get_actor_state, request, base_key, number)

    def _resolve_explore(self, explore: bool | None) -> bool:
        return self.config.env_runners_settings.explore if explore is None else explore


def check_module_id(module_id: str) -> None:
    """Raise UnknownNameError unless the name is that of the only module."""
    if module_id != DEFAULT_MODULE:
        raise UnknownNameError(
            f"There is no module '{module_id}'; the only one is '{DEFAULT_MODULE}'."
        )
