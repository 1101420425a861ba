"""An encoder with a memory behind it, for observations with a past."""

from typing import Any, cast

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from jaxrl.core.types import PyTree, Remembered, Sequence, Successors
from jaxrl.modules.attention import GTrXL
from jaxrl.modules.model_config import DefaultModelConfig
from jaxrl.modules.recurrent import Memory, make_memory
from jaxrl.modules.unroll import at_rows, swapped

MEMORY, REMEMBERED, CARRY = "memory", "remembered", "carry"
"""The collections of what is remembered before and after, and the name in both."""


class RecurrentEncoder(nn.Module):
    """The memory of an encoder's features. Parameters: `features`, `memory`.

    Its carry comes as `carry` in the collection "memory", that of an episode's start if there is
    none, and goes to the collection "remembered" if that is mutable: `[N, ...]` after one step,
    `[N, L, ...]` after each row of a sequence.
    """

    features: nn.Module
    memory: Memory

    def __call__(self, obs: Any) -> Float[Array, "*batch n"]:
        """For observations with a past: Remembered, a Sequence or Successors."""
        past: Remembered | Sequence | Successors = obs
        match past:
            case Remembered():
                y, carry = self.memory(self._features(past.obs), self._start(past))
                self._keep(carry)
                return y
            case Sequence():
                y, carries = self._through(past)
                self._keep(carries)
                return y
            case Successors():
                carry = at_rows(self._through(past.sequence)[1], past.after)
                x = self._features(past.obs)
                y, _ = self.memory(x.reshape(-1, x.shape[-1]), carry)
                return y.reshape(*x.shape[:-1], -1)

    def _features(self, obs: PyTree) -> Float[Array, "*batch m"]:
        features: Any = self.features
        return features(obs)

    def _start(self, obs: Remembered | Sequence) -> PyTree:
        if self.has_variable(MEMORY, CARRY):
            return cast(PyTree, self.get_variable(MEMORY, CARRY))
        return self.memory.initial_carry(jax.tree.leaves(obs.obs)[0].shape[0])

    def _keep(self, carry: PyTree) -> None:
        self.sow(REMEMBERED, CARRY, carry, reduce_fn=lambda _, new: new, init_fn=lambda: None)

    def _through(self, sequence: Sequence) -> tuple[Float[Array, "N L n"], PyTree]:
        """The memory's outputs and carries at every row behind the burn-in."""
        carry, is_first, cut = self._start(sequence), sequence.is_first, sequence.burn_in
        if cut:
            head = jax.tree.map(lambda x: x[:, :cut], sequence.obs)
            x = self._features(head)
            _, carries = self.memory.sequence(swapped(x), carry, is_first[:, :cut].T)
            carry = jax.lax.stop_gradient(jax.tree.map(lambda leaf: leaf[-1], carries))
        x = self._features(sequence.rows)
        y, carries = self.memory.sequence(swapped(x), carry, is_first[:, cut:].T)
        return swapped(y), swapped(carries)


def remembered_before(obs: PyTree) -> dict[str, PyTree]:
    """What the observations say is remembered before them, as a collection."""
    if isinstance(obs, Successors):
        obs = obs.sequence
    has_past = isinstance(obs, Remembered | Sequence) and obs.carry is not None
    return {MEMORY: obs.carry} if has_past else {}


def memory_of(config: DefaultModelConfig) -> Memory | None:
    """What an encoder remembers with, as the model settings say; None for nothing."""
    if config.use_attention:
        return GTrXL(
            num_units=config.attention_num_transformer_units,
            dim=config.attention_dim,
            num_heads=config.attention_num_heads,
            head_dim=config.attention_head_dim,
            memory=config.attention_memory_inference,
            position_wise_mlp_dim=config.attention_position_wise_mlp_dim,
            init_gru_gate_bias=config.attention_init_gru_gate_bias,
        )
    if config.use_lstm:
        kind, layers = config.recurrent_layer_type, config.recurrent_num_layers
        return make_memory(kind, config.lstm_cell_size, layers)
    return None
