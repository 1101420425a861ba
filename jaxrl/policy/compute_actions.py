"""Actions and policies for external observations, with the current weights of a run."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl.compat.lookup import load
from jaxrl.core.keys import PurposeKeys, fold_in_uint64
from jaxrl.core.seeds import check_seed
from jaxrl.core.types import Key, PyTree
from jaxrl.errors import UnknownNameError
from jaxrl.loggers.recorder import RunRecord
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.modules.rl_module import RLModule
from jaxrl.policy.inference import Inference
from jaxrl.policy.policy import Policy
from jaxrl.policy.requests import ActionRequest, ActionResult, split_by_name, take_row
from jaxrl.run_parts import ActingState
from jaxrl.runtime.exclusive import ExclusiveLock, single_threaded
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import ActorState

_ACTIONS, _POLICY, _MODULE = 0x61637473, 0x706F6C69, 0x6D6F646C
"""Constants folded into the seed's key; far from all others that are."""


@dataclasses.dataclass(frozen=True)
class ActionOptions:
    """Options of a call for actions.

    Args:
        explore: Whether to sample actions; False takes the mode.
        full_fetch: Whether to also return the new state and the module's outputs.
        unsquash: Whether to unsquash Box actions; None is as configured.
        clip: Whether to clip Box actions that are not unsquashed; None is as configured.
    """

    explore: bool
    full_fetch: bool
    unsquash: bool | None
    clip: bool | None

    def make_request_fields(self, *, has_state: bool) -> dict[str, Any]:
        """Make the fields of the ActionRequest; a state is returned to whoever passed one."""
        return {
            "explore": self.explore,
            "unsquash": self.unsquash,
            "clip": self.clip,
            "should_return_state": self.full_fetch or has_state,
            "should_return_outputs": self.full_fetch or has_state,
        }


class _ModuleInputs:
    """Weights and keys for calls of the module, apart from `ComputeActions` to avoid a cycle."""

    def __init__(
        self, acting: ActingState, keys: PurposeKeys, record: RunRecord, lock: ExclusiveLock
    ) -> None:
        self._acting, self._keys, self._record, self._use = acting, keys, record, lock

    @single_threaded
    def get_actor(self) -> ActorState:
        """Return the current parameters and hyperparameters."""
        return self._acting.get_actor_state()

    @single_threaded
    def make_key(self) -> Key:
        """Return a key that no other call has had."""
        counters = self._record.host
        counters.actions_drawn += 1
        return fold_in_uint64(self._keys.get(_MODULE), counters.actions_drawn)


class ComputeActions:
    """Actions for the caller's observations, and policies, from the current state of a run.

    Args:
        inference: Compiled forward passes of the run.
        acting: Source of the current parameters and connector statistics.
        keys: Keys of the run outside of training.
        record: Record of the run, which counts the draws.
        lock: Lock of the run.
        module_id: Id of the module.
    """

    def __init__(
        self,
        inference: Inference,
        acting: ActingState,
        keys: PurposeKeys,
        record: RunRecord,
        lock: ExclusiveLock,
        module_id: str = DEFAULT_MODULE,
    ) -> None:
        self._inference, self._acting, self._module_id = inference, acting, module_id
        self._keys, self._record, self._use = keys, record, lock

    @functools.cached_property
    def _module(self) -> RLModule:
        inputs = _ModuleInputs(self._acting, self._keys, self._record, self._use)
        bind_module = load("rllib.modules").bind_module
        return bind_module(
            self._inference.module,
            inputs.get_actor,
            inputs.make_key,
            self._inference.module_calls,
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs, one per requested combination of options."""
        return self._inference.programs

    @property
    def ignored_parts(self) -> tuple[str, ...]:
        """Names of the parts of observations that acting ignores."""
        return self._inference.ignored_parts

    def check_id(self, module_id: str) -> str:
        """Return the id of a module.

        Raises:
            UnknownNameError: If it is not that of the only module.
        """
        if module_id != self._module_id:
            raise UnknownNameError(
                f"There is no module '{module_id}'; the only one is '{self._module_id}'."
            )
        return module_id

    def get_module(self, module_id: str) -> RLModule:
        """Return the module, with the current weights for calls with a batch."""
        self.check_id(module_id)
        return self._module

    @single_threaded
    def get_policy(self, policy_id: str, explore: bool, seed: int) -> Policy:
        """Return the current policy; see `Algorithm.get_policy`."""
        self.check_id(policy_id)
        check_seed(seed)
        return Policy(
            self._inference,
            jax.tree.map(jnp.copy, self._acting.get_actor_state()),
            key=fold_in_uint64(self._keys.get(_POLICY), seed),
            explore=explore,
        )

    def compute_one(
        self,
        obs: object,
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute the action for one observation; see `Algorithm.compute_single_action`.

        Args:
            obs: Observation as returned by the environment.
            state: State returned for the previous observation; None at an episode's start.
            past: Previous action and reward, which count if a connector reads them.
            policy_id: Name of the module.
            options: Options of the call.
        """
        fields = options.make_request_fields(has_state=state is not None)
        read = self._inference.select_read(past)
        request = ActionRequest.from_single(obs, state, read, **fields)
        result = self._act(request, policy_id)
        return take_row(result if request.should_return_state else result[0], 0)

    def compute_several(
        self,
        observations: Sequence[Any] | Mapping[Any, Any],
        state: PyTree,
        past: Mapping[str, Any],
        policy_id: str,
        options: ActionOptions,
    ) -> PyTree:
        """Compute actions for several observations; see `Algorithm.compute_actions`.

        Args:
            observations: Sequence of observations, or a mapping by name.
            state: State returned for the previous observations, by name or batched.
            past: Previous actions and rewards, likewise, which count if a connector reads them.
            policy_id: Name of the module.
            options: Options of the call.
        """
        fields = options.make_request_fields(has_state=state is not None)
        read = self._inference.select_read(past)
        request = ActionRequest.from_batch(observations, state, read, **fields)
        names = list(observations) if isinstance(observations, Mapping) else None
        result = split_by_name(self._act(request, policy_id), names)
        return result if request.should_return_state else result[0]

    @single_threaded
    def _act(self, request: ActionRequest, policy_id: str) -> ActionResult:
        self.check_id(policy_id)
        counters = self._record.host
        counters.actions_drawn += 1
        base_key, number = self._keys.get(_ACTIONS), counters.actions_drawn
        return self._inference(self._acting.get_actor_state, request, base_key, number)
