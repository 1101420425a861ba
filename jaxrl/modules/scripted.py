"""Policies that are written by hand instead of learned."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl.core.types import Columns, Key, Keys, Params, PyTree
from jaxrl.distributions.from_space import ActionDistribution
from jaxrl.errors import ModuleError
from jaxrl.modules.exploration import make_uniform_distribution
from jaxrl.modules.rl_module import Moment, RLModule, make_zeros


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
            Columns.ACTION_DIST_INPUTS: jnp.zeros(
                (*batch, self.distribution.input_dim), jnp.float32
            ),
            Columns.VF_PREDS: jnp.zeros(batch, jnp.float32),
        }


class RandomRLModule(ParameterFreeModule):
    """Policy without parameters whose legal actions are uniformly random, also without exploring.

    It is that of RandomAgent, and an opponent of several agents:
    `policies={"learned": None, "random": RandomRLModule}, policies_to_train=["learned"]`.
    """

    def _infer(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        """Sample actions `[B, ...]` from `draws`, as while exploring."""
        return self._sample(params, obs, carry, draws)


class HeuristicRLModule(ParameterFreeModule):
    """Policy written by hand for one agent, with memory and chance.

    Override `act`, and `initial_carry` if something is remembered. It plays beside modules that are
    trained, or alone with the algorithm that learns nothing, `RandomAgentConfig`:

        config.multi_agent(policies_to_train=["learned"], ...).rl_module(
            rl_module_spec=MultiRLModuleSpec(
                rl_module_specs={"heuristic": RLModuleSpec(module_class=MyHeuristic)}
            )
        )
    """

    trains_on_sequences: ClassVar[bool] = False
    _overridden: ClassVar[str] = "act"

    @property
    def has_density(self) -> bool:
        """False: how likely an action was is not known."""
        return False

    def act(self, obs: PyTree, carry: PyTree, key: Key) -> tuple[PyTree, PyTree]:
        """Return one agent's action and what it remembers; a pure function.

        Args:
            obs: Its observation, after all connectors.
            carry: What it remembers, without the batch axis of `initial_carry`, which is what it is
                at the start of an episode.
            key: Key for what is drawn. Consumed.

        Returns:
            An action of `action_space`, and the carry with the same shapes and types. With
            `normalize_actions`, the entries of a Box lie between -1 and 1.
        """
        raise ModuleError(f"{type(self).__name__} must override act(obs, carry, key).")

    def _act_all(self, obs: PyTree, carry: PyTree, keys: Keys) -> tuple[PyTree, PyTree]:
        """Return actions and carries of a batch."""
        return jax.vmap(self.act)(obs, carry, keys)

    def draw(self, keys: Keys) -> PyTree:
        """Return the keys themselves, which `act` takes. Does not consume them."""
        return keys

    def setup(self) -> None:
        """Check actions and carries for a batch of two observations.

        Raises:
            ModuleError: If the shapes or types are not those of the action space, or of
                `initial_carry`.
        """
        obs, carry = make_zeros(self.observation_space, (2,)), self.initial_carry(2)
        wanted = jax.eval_shape(lambda: (make_zeros(self.action_space, (2,)), carry))
        keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 2))
        got = jax.eval_shape(self._act_all, obs, carry, keys)
        for what, one, other in zip(("", " as carries"), got, wanted, strict=True):
            if _describe(one) != _describe(other):
                raise ModuleError(
                    f"{self._overridden}() of {type(self).__name__} must return {_describe(other)} "
                    f"for two observations{what}, got {_describe(one)}."
                )

    def _infer(self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree) -> dict[str, Any]:
        """Return the actions `[B, ...]`; `draws` are the keys."""
        inputs = self._forward(params, obs)[Columns.ACTION_DIST_INPUTS]
        actions, carry = self._act_all(obs, carry, draws)
        return {
            Columns.ACTIONS: actions,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: jnp.zeros(inputs.shape[0], jnp.float32),
            Columns.STATE_OUT: carry,
        }

    def _explore(
        self, params: Params, obs: PyTree, carry: PyTree, draws: PyTree, moment: Moment
    ) -> dict[str, Any]:
        """Return the actions, as without exploring; their log-probabilities are 0."""
        del moment
        return self._infer(params, obs, carry, draws)


class ScriptedModule(HeuristicRLModule):
    """Policy written by hand whose actions follow from the observation alone.

    Override `choose_actions`. It runs, on every placement and with every connector, with the
    algorithm that learns nothing:

        RandomAgentConfig().rl_module(rl_module_spec=RLModuleSpec(module_class=MyScript))
    """

    _overridden: ClassVar[str] = "choose_actions"

    def choose_actions(self, obs: PyTree) -> PyTree:
        """Return the actions of a batch of observations.

        Args:
            obs: Observations `[B, ...]`, after all connectors.

        Returns:
            Actions `[B, ...]` of `action_space`. With `normalize_actions`, those of a Box lie
            between -1 and 1.
        """
        raise ModuleError(f"{type(self).__name__} must override choose_actions(obs).")

    def _act_all(self, obs: PyTree, carry: PyTree, keys: Keys) -> tuple[PyTree, PyTree]:
        return self.choose_actions(obs), carry


def _describe(shapes: PyTree) -> str:
    parts = [f"{x.dtype}{list(x.shape)}" for x in jax.tree.leaves(shapes)]
    return " and ".join(parts) or "nothing"
