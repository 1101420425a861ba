"""Deployable policy that keeps the state of an episode."""

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium

from jaxrl.compat.lookup import RLlibNames, load
from jaxrl.core.keys import make_key
from jaxrl.core.types import Key, PyTree
from jaxrl.errors import CheckpointError, ConfigError, UnknownNameError, did_you_mean
from jaxrl.policy.inference import (
    ActionRequest,
    ActionResult,
    Inference,
    check_inputs,
    check_names,
    read_input_dict,
    take_row,
)
from jaxrl.runs.weights import list_modules
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.compat.rllib.distributions import DistributionClass
    from jaxrl.compat.rllib.modules import ModelView
    from jaxrl.config.config import Config


_POLICIES_FOLDER = "policies"
_EXPORT_FILE = "policy.json"


class Policy(RLlibNames):
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

    _rllib_kind = "policy"

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

    # --- RLlib's names ---

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations, without parts that are for a critic alone."""
        return self._inference.observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Action space of the environment."""
        return self._inference.action_space

    @functools.cached_property
    def model(self) -> "ModelView":
        """The network with these parameters, to call with a batch of the module's observations."""
        view = load("rllib.modules").ModelView
        return view(self._inference.module, self._actor, self._inference.module_calls)

    @functools.cached_property
    def dist_class(self) -> "DistributionClass":
        """Class of action distributions: `policy.dist_class(logits, policy.model)` makes one."""
        return load("rllib.distributions").DistributionClass(self._inference.module.distribution)

    def compute_single_action(
        self,
        obs: object = None,
        state: PyTree = None,
        *,
        prev_action: object = None,
        prev_reward: float | None = None,
        input_dict: Mapping[str, Any] | None = None,
        explore: bool | None = None,
        **ignored: object,
    ) -> tuple[PyTree, PyTree, dict[str, Any]]:
        """Compute the module's action for one observation, as RLlib's policies do.

        As theirs, the action of a Box is in the module's range: `act` and
        `Algorithm.compute_single_action` return what the environment takes.

        Args:
            obs: Observation as returned by the environment, NumPy.
            state: State that the previous call returned; None at an episode's start.
            prev_action: Action that the environment executed, for connectors that read it.
            prev_reward: Reward of the previous step, for connectors that read it.
            input_dict: Dictionary with the observation as "obs", and what else is not given.
            explore: Whether to sample; None for the policy's choice.
            **ignored: RLlib's other inputs (`info`, `episode`, `timestep`), which nothing reads.

        Returns:
            The action, the state after it (None without one), and the module's outputs.
        """
        check_names("compute_single_action", ignored)
        given = {"state": state, "prev_action": prev_action, "prev_reward": prev_reward}
        obs, past = read_input_dict("compute_single_action", obs, given, input_dict)
        state = past.pop("state")
        read = self._inference.select_read(past)
        options = self._make_options(explore)
        request = ActionRequest.from_single(obs, state, read, **options)
        return take_row(self.compute(request), 0)

    def compute_actions(
        self,
        obs_batch: Sequence[Any],
        state_batches: PyTree = None,
        prev_action_batch: Sequence[Any] | None = None,
        prev_reward_batch: Sequence[Any] | None = None,
        *,
        explore: bool | None = None,
        **ignored: object,
    ) -> ActionResult:
        """Compute the module's actions for several observations; see `compute_single_action`.

        States and what is returned have a leading batch axis.
        """
        check_names("compute_actions", ignored)
        past = {"prev_action": prev_action_batch, "prev_reward": prev_reward_batch}
        read = self._inference.select_read(past)
        options = self._make_options(explore)
        return self.compute(ActionRequest.from_batch(obs_batch, state_batches, read, **options))

    def _make_options(self, explore: bool | None) -> dict[str, Any]:
        return {
            "explore": self._explore if explore is None else explore,
            "unsquash": False,
            "clip": False,
            "should_return_state": True,
            "should_return_outputs": True,
        }

    @staticmethod
    def from_checkpoint(
        checkpoint: str | os.PathLike[str], policy_ids: Sequence[str] | None = None
    ) -> "dict[str, Policy] | Policy | Any":
        """Return the policies of a run's checkpoint by id, as RLlib does for an Algorithm's.

        Args:
            checkpoint: Checkpoint, or a folder or run, whose newest checkpoint is used. RLlib's path
                of one policy inside of it, `checkpoint/policies/default_policy`, returns this one.
            policy_ids: Modules to return; None for all.

        Raises:
            CheckpointError: If the checkpoint is damaged or foreign, or a setting must be supplied.
            UnknownNameError: If there is no such module.
        """
        path, single = Path(checkpoint), None
        if path.parent.name == _POLICIES_FOLDER and not path.exists():
            path, single = path.parent.parent, path.name
        if (path / _EXPORT_FILE).is_file():
            raise CheckpointError(
                f"{path} is an export, which NumpyPolicy(folder) of export/numpy_program.py runs: "
                "Policy.from_checkpoint reads what algorithm.save() writes."
            )
        higher = importlib.import_module("jaxrl.algorithm")  # by name: a higher layer
        with higher.Algorithm.from_checkpoint(path) as algorithm:
            known = list_modules(algorithm.state)
            ids = known if policy_ids is None else policy_ids
            ids = ids if single is None else [single]
            unknown = next((name for name in ids if name not in known), None)
            if unknown is not None:
                raise UnknownNameError(
                    f"There is no module {unknown!r} in {path}; there are {', '.join(known)}."
                    f"{did_you_mean(unknown, known)}"
                )
            policies = {name: algorithm.get_policy(name) for name in ids}
        return policies if single is None else policies[single]


class RunnerPolicies:
    """Policies of the modules that a runner acts with, made when they are read.

    Args:
        steps: Module and its connectors by id.
        config: Config of the run.
        explore: Whether the runner samples actions.
    """

    def __init__(self, steps: Mapping[str, PolicyStep], config: "Config", *, explore: bool) -> None:
        self._steps, self._config, self._explore = steps, config, explore
        self._inferences: dict[str, Inference] = {}

    def read(self, module_id: str, get_actor: Callable[[str], ActorState | None]) -> Policy | None:
        """Return the policy of a module with the weights of now, None if there is no such module.

        Args:
            module_id: Id of the module.
            get_actor: Function that returns the weights of a module, None before some were set.

        Raises:
            ConfigError: If the runner has no weights yet.
        """
        if module_id not in self._steps:
            return None
        if (actor := get_actor(module_id)) is None:
            raise ConfigError(
                "This runner has no weights yet: reading algorithm.env_runner_group (or workers) "
                "sends them, and so does the first train()."
            )
        debugging = self._config.debugging_settings
        if module_id not in self._inferences:
            step = self._steps[module_id]
            self._inferences[module_id] = Inference(
                step.without_unread(),
                max_retraces=debugging.max_retraces,
                jit=debugging.compiles,
            )
        key = make_key(debugging.run_seed)
        return Policy(self._inferences[module_id], actor, key=key, explore=self._explore)
