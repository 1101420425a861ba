"""The network of a policy by the names of RLlib's models: `policy.model`, to read and to call."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxrl.config.rllib_api import FormerNames
from jaxrl.core.keys import make_key
from jaxrl.core.types import Columns, Params, PyTree
from jaxrl.errors import ConfigError, ModuleError, SpaceError
from jaxrl.modules.networks import format_parameter_table
from jaxrl.modules.q_network import ATOM_LOGITS, QUANTILES, QModule
from jaxrl.modules.rl_module import RLModule
from jaxrl.policy.bound_module import bind_module
from jaxrl.training.rollout import ActorState


@dataclasses.dataclass(frozen=True)
class _Pass:
    """A forward pass: its batch, its outputs, and the logits that were returned."""

    batch: Mapping[str, Any]
    outputs: Mapping[str, Any]
    logits: Array


class ModelPart(FormerNames):
    """A network, or one of its heads.

    Args:
        name: Name for the summary.
        params: Its parameters.
    """

    _former_kind = "model_part"

    def __init__(self, name: str, params: Params) -> None:
        self.name, self._params = name, params

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Print the table of parameters: layers, shapes, counts, whether trainable."""
        print_fn(format_parameter_table(self.name, self._params))

    @property
    def variables(self) -> list[np.ndarray]:
        """Copies of the parameters."""
        return [np.array(leaf) for leaf in jax.tree.leaves(self._params)]


class ModelView(FormerNames):
    """Network of a policy with its parameters, which are not changed.

        model = algorithm.get_policy().model
        logits, state = model({"obs": batch})

    Args:
        module: Pure module.
        actor: Its parameters and hyperparameters.
        compiled: Compiled calls of the module so far, to share with others that have it.
    """

    _former_kind = "model"

    def __init__(
        self, module: RLModule, actor: ActorState, compiled: dict[str, Callable[..., Any]]
    ) -> None:
        self._module, self._params = module, actor.params
        bound = bind_module(module, lambda: actor, lambda: make_key(0), compiled)
        self._bound = cast("Any", bound)
        self._latest: _Pass | None = None

    def __call__(
        self,
        input_dict: Mapping[str, Any],
        state: PyTree = None,
        seq_lens: object = None,
    ) -> tuple[Array, PyTree]:
        """Compute the inputs of the action distribution, and the recurrent state after it.

        Args:
            input_dict: Observations of the module with a batch axis as `obs`; for a recurrent
                module an axis of time may follow it.
            state: Recurrent state with a batch axis; None or an empty list at an episode's start.
            seq_lens: Lengths of sequences, which observations have as an axis of time here.

        Returns:
            Logits (for learners of action values: the values), and the state, [] without one.

        Raises:
            SpaceError: If the observations or the state are missing or have another shape.
            ConfigError: If there are lengths of sequences.
        """
        if not isinstance(input_dict, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise SpaceError(
                f"A model takes a dictionary with 'obs', got {type(input_dict).__name__}: write "
                "model({'obs': batch})."
            )
        if seq_lens is not None and self._module.is_stateful:
            raise ConfigError(
                f"seq_lens (got {seq_lens!s:.80}) has no effect: give 'obs' an axis of time after the "
                "batch axis, and leave seq_lens out."
            )
        batch = {name: input_dict[name] for name in (Columns.OBS,) if name in input_dict}
        if jax.tree.leaves(state):
            batch[Columns.STATE_IN] = state
        outputs = self._bound.forward_train(batch)
        logits = outputs[Columns.ACTION_DIST_INPUTS]
        self._latest = _Pass(batch, outputs, logits)
        return logits, outputs.get(Columns.STATE_OUT, [])

    def _get_latest(self, method: str) -> _Pass:
        if self._latest is None:
            raise ConfigError(f"{method} is about the latest forward pass: call the model before.")
        return self._latest

    def value_function(self) -> Float[Array, " *batch"]:
        """Return the state values of the latest forward pass; of action values, the best ones.

        Raises:
            ModuleError: If the module has no value function.
        """
        latest = self._get_latest("value_function()")
        if Columns.VF_PREDS in latest.outputs:
            return latest.outputs[Columns.VF_PREDS]
        return self._bound.compute_values(latest.batch)

    @property
    def action_mask(self) -> PyTree:
        """Legal actions of the observations of the latest forward pass, None without a mask."""
        if self._latest is None:
            return None
        return jax.tree.map(jnp.asarray, self._module.action_mask(self._latest.batch[Columns.OBS]))

    # --- action values ---

    def get_q_value_distributions(self, model_out: object) -> list[Array]:
        """Return action values `[B, actions]`, and the distributions of returns behind them.

        Args:
            model_out: Return value of the latest call of the model, or its first part.

        Returns:
            The values, logits and probabilities of each return `[B, actions, 1]`; with several
            atoms the values, the returns, the logits twice, and the probabilities, as RLlib; with
            quantiles the values, the quantiles, and their probabilities.

        Raises:
            ModuleError: If the module has no action values.
            ConfigError: If this is not from the latest call.
        """
        module, latest = self._get_values("get_q_value_distributions", model_out)
        values = latest.logits
        if ATOM_LOGITS in latest.outputs:
            logits = latest.outputs[ATOM_LOGITS]
            return [values, module.support, logits, logits, jax.nn.softmax(logits)]
        if QUANTILES in latest.outputs:
            quantiles = latest.outputs[QUANTILES]
            return [values, quantiles, jnp.full_like(quantiles, 1.0 / quantiles.shape[-1])]
        ones = jnp.ones_like(values)[..., None]
        return [values, ones, ones]

    def get_state_value(self, model_out: object) -> Float[Array, "*batch width"]:
        """Return the state values of a dueling network, `[B, 1]`, or for each atom or quantile.

        Args:
            model_out: Return value of the latest call of the model, or its first part.

        Raises:
            ModuleError: If the module has no head for them.
            ConfigError: If this is not from the latest call.
        """
        _, latest = self._get_values("get_state_value", model_out)
        self._get_head("state_value_head")
        outputs = latest.outputs
        values = outputs.get(ATOM_LOGITS, outputs.get(QUANTILES, latest.logits[..., None]))
        return jnp.mean(values, axis=-2)  # the advantages that are added to it have a mean of 0

    def _get_values(self, method: str, model_out: object) -> tuple[QModule, _Pass]:
        if not isinstance(self._module, QModule):
            raise ModuleError(
                f"{type(self._module).__name__} has no values of all actions, which {method} "
                "returns: they are DQN's; value_function() returns the values of states."
            )
        latest = self._get_latest(f"{method}()")
        logits = model_out[0] if isinstance(model_out, tuple) else model_out
        if logits is not latest.logits:
            raise ConfigError(
                f"{method} takes the return value of the latest call of the model: "
                f"model_out = model({{'obs': batch}}); model.{method}(model_out)."
            )
        return self._module, latest

    # --- parameters ---

    @property
    def base_model(self) -> ModelPart:
        """The whole network."""
        return ModelPart(type(self._module).__name__, self._params)

    @property
    def q_value_head(self) -> ModelPart:
        """Head of the action values, or of the advantages of a dueling network."""
        return self._get_head("q_value_head")

    @property
    def state_value_head(self) -> ModelPart:
        """Head of the state values of a dueling network."""
        return self._get_head("state_value_head")

    def _get_head(self, name: str) -> ModelPart:
        own = {"q_value_head": "q_head", "state_value_head": "vf_head"}[name]
        params = cast("dict[str, Params]", self._params)
        if not isinstance(self._module, QModule) or own not in params:
            needs = "training(dueling=True) of " if own == "vf_head" else ""
            raise ModuleError(
                f"{type(self._module).__name__} has no {name}, which is a part of {needs}DQN: it has "
                f"{', '.join(map(str, params))}."
            )
        return ModelPart(own, params[own])

    def variables(self, as_dict: bool = False) -> list[np.ndarray] | dict[str, np.ndarray]:
        """Return copies of the parameters, as a list or by their paths."""
        leaves = jax.tree_util.tree_flatten_with_path(self._params)[0]
        named = {
            jax.tree_util.keystr(path, simple=True, separator="/"): np.array(leaf)
            for path, leaf in leaves
        }
        return named if as_dict else list(named.values())

    def trainable_variables(
        self, as_dict: bool = False
    ) -> list[np.ndarray] | dict[str, np.ndarray]:
        """Return `variables`, all of which are trained."""
        return self.variables(as_dict)

    def get_initial_state(self) -> PyTree:
        """Return the recurrent state at an episode's start, without a batch axis; [] without one."""
        return self._bound.get_initial_state() or []
