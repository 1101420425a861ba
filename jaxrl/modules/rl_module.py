"""RLModule: networks behind pure methods, shared by all runners and learners."""

import copy
import dataclasses
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import flax.linen as nn
import gymnasium
import jax
import jax.numpy as jnp
from gymnasium import spaces
from jaxtyping import Array, Float, Int

from jaxrl.compat import lookup
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import check_supported, map_leaves
from jaxrl.core.types import (
    Columns,
    Key,
    Keys,
    ObsSequence,
    ObsWithCarry,
    Params,
    Progress,
    PyTree,
    SuccessorObs,
    obs_only,
)
from jaxrl.distributions.base import Distribution
from jaxrl.distributions.from_space import ActionDistribution, check_mask, make_action_distribution
from jaxrl.errors import (
    TRACING_ERRORS,
    JaxrlError,
    ModuleError,
    SpaceError,
    locate_in_user_code,
    summarize_exception,
)
from jaxrl.modules.networks import format_parameter_table
from jaxrl.modules.sequences import gather_rows, unroll_steps

if TYPE_CHECKING:
    from jaxrl.compat.rllib.distributions import DistributionClass

ACTION_MASK = "action_mask"
ORIG_OBS, PREV_ACTIONS, PREV_REWARDS = "_orig_obs", "prev_n_actions", "prev_n_rewards"
"""Parts of observations with previous actions and rewards; all but vectors become such a Dict."""
DEFAULT_MODULE_CLASS = "jaxrl.modules.actor_critic", "ActorCriticModule"
"""Module and name of the class of a spec that names none; a subclass, so it is named only."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Moment:
    """Point of a run at which actions are chosen.

    Attributes:
        hparams: Current hyperparameters of exploration by name.
        progress: Progress of the run, all environments together.
        env_index: Indices of the environments among all of the run.
    """

    hparams: Mapping[str, Any]
    progress: Progress
    env_index: Int[Array, " B"]


class RLModule:
    """Policy, and a value function where an algorithm needs one.

    A custom module sets `self.network` (a flax linen module) in `setup` and returns its outputs by
    RLlib's names in `_forward`; XLA removes what is not needed (the value while acting):

        class MyModule(RLModule):
            def setup(self):
                self.network = MyNetwork(self.distribution.input_dim)

            def _forward(self, params, obs):
                logits, value = self.network.apply({"params": params}, obs)
                return {Columns.ACTION_DIST_INPUTS: logits, Columns.VF_PREDS: value}

    A module without flax overrides `init` instead of setting `network`. Every method is pure; the
    object holds spaces and settings only. Observations have leading batch axes.

    A recurrent module defines its initial carry in `initial_carry` and one step in `_forward_step`,
    instead of `_forward`.

    Attributes:
        distribution: Distribution of the actions of `action_space`; set before `setup`.
        network: Flax module whose parameters `init` makes.
        algorithm_config: Settings of the algorithm that shape its modules, such as `dueling`.
        sequence_length: Number of rows of the sequences that a recurrent module learns from; None
            for a whole rollout.
    """

    log_std_clip: ClassVar[float] = 20.0
    trains_on_sequences: ClassVar[bool] = True
    """True if a carry matters to the loss; False where it only shapes the noise of exploration."""
    model_config_class: ClassVar[type[Any] | None] = None
    """Class that validates `model_config`; None leaves that to the module."""
    advice_on_missing: ClassVar[Mapping[str, str]] = {}

    @property
    def critic_only_observations(self) -> tuple[str, ...]:
        """Names of the parts of a Dict observation that no action depends on; () for none."""
        return ()

    network: nn.Module
    distribution: ActionDistribution
    sequence_length: int | None = None

    def __init__(
        self,
        *,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        model_config: Any = None,
        algorithm_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.algorithm_config = algorithm_config or {}
        self.observation_space = observation_space
        self.action_space = action_space
        self.model_config = {} if model_config is None else model_config
        self.distribution = self.make_distribution()
        self.setup()

    @property
    def has_density(self) -> bool:
        """True if exploring actions are drawn with the probability in `ACTION_LOGP`."""
        return True

    @property
    def explores_by_distribution(self) -> bool:
        """True if exploring actions are drawn from `ACTION_DIST_INPUTS`, apart from a warm-up."""
        return self.has_density

    def with_sequence_length(self, length: int | None) -> Self:
        """Return the module for learning from sequences of another length."""
        module = copy.copy(self)
        module.sequence_length = length
        return module

    def setup(self) -> None:
        """Build the networks; the spaces, `model_config` and `distribution` are set."""

    def make_learner_obs(self, num_rows: int) -> PyTree:
        """Return zeros shaped as the observations that the module learns from, `[num_rows, ...]`."""
        return make_zeros(self.observation_space, (num_rows,))

    def make_distribution(self) -> ActionDistribution:
        """Return the action distribution; override for another family, such as a squashed one."""
        return make_action_distribution(self.action_space, log_std_clip=self.log_std_clip)

    def init(self, key: Key) -> Params:
        """Make fresh parameters, a nested dict of arrays. Consumes the key."""
        network = getattr(self, "network", None)
        if not isinstance(network, nn.Module):
            raise ModuleError(
                f"{type(self).__name__}.network is {network!r}, not a flax linen module: set it in "
                "setup, override init and _forward, or pass an nnx class to rl_module(network=...)."
            )
        variables = network.init(key, make_zeros(self.observation_space, (1,)))
        return cast(Params, variables["params"])

    def initial_carry(self, batch_size: int) -> PyTree:
        """Return the recurrent state at an episode's start; None for a module without one."""
        return None

    @property
    def is_stateful(self) -> bool:
        """Return whether the module is recurrent, and learns from sequences."""
        has_own_step = type(self)._forward_step is not RLModule._forward_step
        return has_own_step and self.initial_carry(1) is not None

    def get_recurrent_carry(self, carry: PyTree) -> PyTree:
        """Return the part of a carry that matters to the loss."""
        return carry

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        """Compute all outputs for observations with leading batch axes."""
        return cast(dict[str, Any], self.network.apply({"params": params}, obs))

    def _forward_step(self, params: Params, obs: PyTree, carry: PyTree) -> dict[str, Any]:
        """Compute all outputs for observations `[B, ...]`, and the next carry as `STATE_OUT`.

        Recurrent modules define this. Where an episode begins, `carry` is that of its start.
        """
        raise NotImplementedError

    def unroll(self, params: Params, sequence: ObsSequence) -> dict[str, Any]:
        """Compute all outputs for a sequence, `[N, L, ...]`.

        `STATE_OUT` is the carry after each row.
        """
        blank = self.initial_carry(sequence.is_first.shape[0])
        return unroll_steps(partial(self._forward_step, params), blank, sequence)

    def _dispatch_forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        """Compute all outputs for observations with or without a carry."""
        match obs:
            case ObsWithCarry():
                return self._forward_step(params, obs.obs, obs.carry)
            case ObsSequence():
                return self.unroll(params, obs)
            case SuccessorObs():
                carries = self.unroll(params, obs.sequence)[Columns.STATE_OUT]
                shape = obs.after.shape
                flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), obs.obs)
                out = self._forward_step(params, flat, gather_rows(carries, obs.after))
                return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), out)
            case _:
                return self._forward(params, obs)

    def _forward_policy(self, params: Params, obs: PyTree) -> Float[Array, "*batch n"]:
        """Compute the distribution's inputs alone.

        Override it to avoid work that acting does not need.
        """
        return self._dispatch_forward(params, obs)[Columns.ACTION_DIST_INPUTS]

    def _policy_step(
        self, params: Params, obs: PyTree, carry: PyTree
    ) -> tuple[Float[Array, "B n"], PyTree]:
        """Compute the distribution's inputs and the next carry."""
        if not self.is_stateful:
            return self._forward_policy(params, obs), carry
        out = self._forward_step(params, obs, carry)
        return out[Columns.ACTION_DIST_INPUTS], out[Columns.STATE_OUT]

    def action_dist(
        self, inputs: Float[Array, "*batch n"], obs: PyTree | None = None
    ) -> Distribution:
        """Build the distribution of network outputs, with the observation's action mask if any."""
        return self.distribution.from_inputs(inputs, self.action_mask(obs))

    def action_mask(self, obs: PyTree | None) -> PyTree:
        """Return `obs["action_mask"]` if the observation space has one, else None."""
        if obs is None or not has_action_mask(self.observation_space):
            return None
        return obs_only(obs)[ACTION_MASK]

    def make_acting_params(self, params: Params, moment: Moment) -> Params:
        """Return the parameters that explore during a rollout, by default those of the learner.

        Override it for parameters that differ by environment or by rollout, as ES does.
        `forward_exploration` is then given what it returns, and also the learner's own where single
        actions are computed.

        Args:
            params: Parameters of the learner.
            moment: Start of the rollout.
        """
        del moment
        return params

    def bind(
        self, observe: Callable[[PyTree], PyTree], take: Callable[[PyTree], PyTree]
    ) -> "RLModule":
        """Return the module for acting between connectors, by default itself.

        Args:
            observe: Function from the environment's observations `[B, ...]` to the module's.
            take: Function from the module's actions `[B, ...]` to the environment's.
        """
        del observe, take
        return self

    def draw(self, keys: Keys) -> PyTree:
        """Draw all randomness of exploration from typed keys `[B]`, one per environment.

        It is drawn for a whole rollout at once, at a fraction of the cost of drawing it step by
        step. A module that explores in another way overrides this with what its
        `forward_exploration` takes, or returns the keys themselves. Consumes the keys.
        """
        return jax.vmap(self.distribution.sample_noise)(keys)

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
        """Return the most likely actions `[B, ...]`; the draws are unused."""
        del hparams, progress, env_index
        return self._infer(params, obs, carry, draws)

    def forward_exploration(
        self,
        params: Params,
        obs: PyTree,
        carry: PyTree,
        hparams: Mapping[str, Any],
        progress: Progress,
        env_index: Int[Array, " B"],
        draws: PyTree,
    ) -> dict[str, Any]:
        """Sample actions `[B, ...]` with their log-probabilities; values are not computed.

        Args:
            params: Parameters of the module.
            obs: Observations, `[B, ...]`.
            carry: Recurrent state.
            hparams: Current hyperparameters of exploration by name.
            progress: Progress of the run.
            env_index: Indices of the environments among all of the run.
            draws: Result of `draw` for one key per environment.
        """
        moment = Moment(hparams=hparams, progress=progress, env_index=env_index)
        return self._explore(params, obs, carry, draws, moment)

    def _infer(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        """Choose actions without exploring; returns the outputs of `forward_inference`."""
        del draws
        inputs, carry = self._policy_step(params, obs, carry)
        actions = self.action_dist(inputs, obs).mode()
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.STATE_OUT: carry,
        }

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree, moment: Moment
    ) -> dict[str, Any]:
        """Choose actions to explore, here from the action distribution."""
        del moment
        return self._sample(params, obs, carry, draws)

    def _sample(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        """Sample from the action distribution; returns the outputs of `forward_exploration`."""
        inputs, carry = self._policy_step(params, obs, carry)
        distribution = self.action_dist(inputs, obs)
        actions = distribution.from_noise(draws)
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: distribution.log_prob(actions),
            Columns.STATE_OUT: carry,
        }

    def forward_train(self, params: Params, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Compute all outputs for `batch["obs"]`, with the same leading axes.

        Observations may have a carry: `ObsWithCarry`, a `Sequence` or `SuccessorObs`.
        """
        return self._dispatch_forward(params, batch[Columns.OBS])

    def compute_values(self, params: Params, obs: PyTree) -> Float[Array, "*batch"]:
        """Compute state values, with the observations' leading axes."""
        return self._dispatch_forward(params, obs)[Columns.VF_PREDS]

    def get_inference_action_dist_cls(self) -> "DistributionClass":
        """Return what makes action distributions from `action_dist_inputs`, as in RLlib."""
        return lookup.load("rllib.distributions").DistributionClass(self.distribution)

    def get_exploration_action_dist_cls(self) -> "DistributionClass":
        """Return what makes action distributions from `action_dist_inputs`, as in RLlib."""
        return lookup.load("rllib.distributions").DistributionClass(self.distribution)

    def get_train_action_dist_cls(self) -> "DistributionClass":
        """Return what makes action distributions from `action_dist_inputs`, as in RLlib."""
        return lookup.load("rllib.distributions").DistributionClass(self.distribution)

    @classmethod
    def from_checkpoint(cls, path: object) -> "RLModule":
        """Return the module of a run's checkpoint, with its weights for calls with a batch.

        Args:
            path: Checkpoint; RLlib's folder of the module inside of it counts as the checkpoint, and
                names the module in a run of several agents, as `checkpoint/rl_module/p0`.
        """
        return lookup.load("rllib.modules").load_module(path)

    def summary(self) -> str:
        """Format the parameter table as plain text: layers, shapes, counts, whether trainable."""
        return format_parameter_table(
            type(self).__name__, jax.eval_shape(self.init, jax.random.key(0))
        )


def is_module_class(module: RLModule, given: object) -> bool:
    """Return whether a class is a module's, or that of the module with the weights of a run."""
    return given is type(module) or getattr(given, "pure_class", None) is type(module)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RLModuleSpec:
    """Specification to build a module from; the algorithm's config fills in what is None."""

    module_class: type[RLModule] | None = None
    observation_space: gymnasium.Space[Any] | None = None
    action_space: gymnasium.Space[Any] | None = None
    model_config: Any = None
    algorithm_config: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])

    @classmethod
    def from_module(cls, module: RLModule) -> "RLModuleSpec":
        """Return the specification of a module like another one, which may have weights."""
        return cls(
            module_class=type(getattr(module, "_pure", module)),
            observation_space=module.observation_space,
            action_space=module.action_space,
            model_config=module.model_config,
        )

    def build(self, *, needs_values: bool = False) -> RLModule:
        """Build the module and check it against its spaces by `check_module`.

        Raises:
            ModuleError: If a space is missing, or the class or its outputs do not fit.
            SpaceError: If a space is not supported.
            ConfigError: If a model setting is wrong.
        """
        for name, space in (
            ("observation_space", self.observation_space),
            ("action_space", self.action_space),
        ):
            if not isinstance(space, gymnasium.Space):
                raise ModuleError(
                    f"RLModuleSpec.{name} is {space!r}; it must be a gymnasium space."
                )
        module_class = self._resolve_class()
        kwargs = {"algorithm_config": self.algorithm_config} if self.algorithm_config else {}
        module = module_class(
            observation_space=cast(Any, self.observation_space),
            action_space=cast(Any, self.action_space),
            model_config=self.model_config,
            **kwargs,
        )
        check_module(module, needs_values=needs_values)
        return module

    def _resolve_class(self) -> type[RLModule]:
        if self.module_class is None:
            module, name = DEFAULT_MODULE_CLASS
            return getattr(importlib.import_module(module), name)
        if not (isinstance(self.module_class, type) and issubclass(self.module_class, RLModule)):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(
                f"RLModuleSpec.module_class is {self.module_class!r}; it must be a subclass of "
                "jaxrl.modules.rl_module.RLModule."
            )
        if lookup.is_defined_by_user(self.module_class):
            lookup.load("rllib.attributes").check_module_methods(self.module_class, RLModule)
        return self.module_class


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiRLModuleSpec:
    """Specifications of several modules, by their ids, for `rl_module(rl_module_spec=...)`.

    Attributes:
        rl_module_specs: Specification of each module that has one of its own.
    """

    rl_module_specs: Mapping[str, RLModuleSpec]

    def __post_init__(self) -> None:
        """Raise ModuleError if a value is no specification."""
        for name, spec in self.rl_module_specs.items():
            if not isinstance(spec, RLModuleSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ModuleError(
                    f"rl_module_specs[{name!r}] must be an RLModuleSpec, got {spec!r}."
                )


def check_module(module: RLModule, *, needs_values: bool = False) -> None:
    """Trace the module (without compiling) and check its outputs against its spaces.

    Raises:
        ModuleError: If an output does not fit.
        SpaceError: If the observation's action mask does not fit the action space.
    """
    name, rows = type(module).__name__, 3
    check_action_mask(module)

    def make_obs() -> PyTree:
        obs = module.make_learner_obs(rows)
        if not module.is_stateful:
            return obs
        return ObsWithCarry(obs=obs, carry=module.get_recurrent_carry(module.initial_carry(rows)))

    obs = jax.eval_shape(make_obs)
    try:
        params = jax.eval_shape(module.init, jax.random.key(0))
        outputs = jax.eval_shape(module.forward_train, params, {Columns.OBS: obs})
    except JaxrlError:
        raise
    except TRACING_ERRORS as error:
        raise ModuleError(
            f"{name} cannot be traced with observations of {module.observation_space}: "
            f"{summarize_exception(error)}{locate_in_user_code(error)}."
        ) from error
    expected: dict[str, tuple[int, ...]] = {
        Columns.ACTION_DIST_INPUTS: (rows, module.distribution.input_dim)
    }
    if needs_values or Columns.VF_PREDS in outputs:
        expected[Columns.VF_PREDS] = (rows,)
    for column, shape in expected.items():
        _check_output(name, module, outputs, column, shape)


def _check_output(
    name: str,
    module: RLModule,
    outputs: dict[str, jax.ShapeDtypeStruct],
    column: str,
    shape: tuple[int, ...],
) -> None:
    if not isinstance(outputs, dict) or column not in outputs:
        outputs_found = ", ".join(map(str, outputs)) if isinstance(outputs, dict) else repr(outputs)
        if column in module.advice_on_missing:
            raise ModuleError(f"{name} {module.advice_on_missing[column]}.")
        raise ModuleError(f"{name}._forward returns no {column!r}; it returns: {outputs_found}.")
    actual = tuple(outputs[column].shape)
    if actual != shape:
        reason = (
            f"the action space {module.action_space} needs {shape[-1]} numbers per action"
            if column == Columns.ACTION_DIST_INPUTS
            else "values are one number per observation"
        )
        raise ModuleError(
            f"{name} returns {column!r} of shape {actual} for {shape[0]} observations, not "
            f"{shape}: {reason}."
        )
    if not jnp.issubdtype(outputs[column].dtype, jnp.floating):
        raise ModuleError(
            f"{name} returns {column!r} of dtype {outputs[column].dtype}; it must be floating."
        )


def check_action_mask(module: RLModule) -> None:
    """Check the observation's action mask, if it has one, against the action space.

    Raises:
        SpaceError: If the actions cannot be masked, or the mask has another size.
    """
    space, distribution = module.observation_space, module.distribution
    if not (isinstance(space, spaces.Dict) and has_action_mask(space)):
        return
    if not distribution.maskable:
        raise SpaceError(
            f"The observation's 'action_mask' cannot mask the action space {module.action_space}; "
            "masks are for Discrete, MultiDiscrete and MultiBinary. Set action_mask_key=None to "
            "observe it."
        )
    size = distribution.mask_dim or distribution.input_dim
    check_mask(space.spaces[ACTION_MASK], module.action_space, size)


def has_action_mask(space: gymnasium.Space[Any]) -> bool:
    """Return whether observations are a Dict with an `action_mask` part."""
    return isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces


def make_zeros(space: gymnasium.Space[Any], batch_shape: tuple[int, ...]) -> PyTree:
    """Return zeros shaped and typed as values of `space` in a program, with leading batch axes.

    64-bit types become 32-bit types.

    Raises:
        SpaceError: If the space has no fixed shape.
    """
    check_supported(space, "space")
    return map_leaves(
        lambda leaf: jnp.zeros((*batch_shape, *leaf.shape), get_leaf_dtype(leaf)), space
    )
