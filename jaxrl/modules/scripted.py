"""Policies that are written by hand instead of learned."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from jaxrl.core.types import Columns, Key, Params, Progress, PyTree
from jaxrl.distributions.from_space import ActionDistribution
from jaxrl.errors import ModuleError
from jaxrl.modules.exploration import make_uniform_distribution
from jaxrl.modules.rl_module import RLModule, make_zeros


class ParameterFreeModule(RLModule):
    """Module without parameters, whose methods choose the actions."""

    def make_distribution(self) -> ActionDistribution:
        return make_uniform_distribution(self.action_space)

    def init(self, key: Key) -> Params:
        """Return no parameters. Does not consume the key."""
        return {}

    def _forward(self, params: Params, obs: PyTree) -> dict[str, Any]:
        leaf, one_row = jax.tree.leaves(obs)[0], make_zeros(self.observation_space, ())
        batch = leaf.shape[: leaf.ndim - jax.tree.leaves(one_row)[0].ndim]
        return {
            Columns.ACTION_DIST_INPUTS: jnp.zeros((*batch, self.distribution.input_dim)),
            Columns.VF_PREDS: jnp.zeros(batch),
        }


class ScriptedModule(ParameterFreeModule):
    """Policy written by hand, with RLlib's heuristic modules as the model.

    Override `choose_actions`. It runs, on every placement and with every connector, with the
    algorithm that learns nothing:

        RandomAgentConfig().rl_module(rl_module_spec=RLModuleSpec(module_class=MyScript))
    """

    @property
    def has_density(self) -> bool:
        """False: the action of an observation is one point."""
        return False

    def choose_actions(self, obs: PyTree) -> PyTree:
        """Return the actions of a batch of observations.

        Args:
            obs: Observations `[B, ...]`, after all connectors.

        Returns:
            Actions `[B, ...]` of `action_space`. With `normalize_actions`, those of a Box lie
            between -1 and 1.
        """
        raise ModuleError(f"{type(self).__name__} must override choose_actions(obs).")

    def setup(self) -> None:
        """Check the actions for a batch of two observations.

        Raises:
            ModuleError: If they are of another shape or dtype than those of the action space.
        """
        obs = make_zeros(self.observation_space, (2,))
        wanted = jax.eval_shape(lambda: make_zeros(self.action_space, (2,)))
        got = jax.eval_shape(self.choose_actions, obs)
        if _describe(got) != _describe(wanted):
            raise ModuleError(
                f"choose_actions() of {type(self).__name__} must return {_describe(wanted)} for two "
                f"observations, got {_describe(got)}."
            )

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
        """Return the chosen actions `[B, ...]`; the draws are unused."""
        inputs = self._forward(params, obs)[Columns.ACTION_DIST_INPUTS]
        return {
            Columns.ACTIONS: self.choose_actions(obs),
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: jnp.zeros(inputs.shape[0]),
            Columns.STATE_OUT: carry,
        }

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
        """Return the chosen actions, as without exploring; their log-probabilities are 0."""
        return self.forward_inference(params, obs, carry)


def _describe(shapes: PyTree) -> str:
    parts = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(shapes)]
    return " and ".join(parts)
