"""Assembly of an RLModule from a config, with the checks of what its learner needs."""

import functools
import logging
import math
from typing import TYPE_CHECKING

import jax
import numpy as np
from gymnasium import spaces

from jaxrl.connectors.pipelines import ActionPipeline, ObservationPipeline
from jaxrl.core.dependence import find_dependence
from jaxrl.core.types import Columns, Key, Params, PyTree
from jaxrl.errors import ConfigError, ModuleError
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.autoregressive import check_exact_entropy
from jaxrl.modules.encoder_module import EncoderModule, explain_axes, is_image
from jaxrl.modules.rl_module import RLModule, RLModuleSpec, check_module, make_zeros
from jaxrl.modules.scripted import ParameterFreeModule

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger("jaxrl")

LARGE_IMAGE = 1024
"""Number of pixels from which an image that is flattened is worth a warning."""


def make_module(
    config: "AlgorithmConfig", obs_pipeline: ObservationPipeline, action_pipeline: ActionPipeline
) -> RLModule:
    """Make and check the module of the config's spec for the spaces between the pipelines."""
    spec = config.get_rl_module_spec(obs_pipeline.spaces[-1], action_pipeline.module_space)
    training = config.training_settings
    is_parameter_free = _is_subclass(spec.module_class, ParameterFreeModule)
    needs_values = config.is_trained and training.needs_values and not is_parameter_free
    if type(spec).build is RLModuleSpec.build:
        module = spec.build(needs_values=needs_values)
    else:  # of a user's class
        module = spec.build()
        check_module(module, needs_values=needs_values)
    if isinstance(module, EncoderModule):
        warn_if_flattened(module)
        _check_policy_reads(module)
    if _ignores_carry(module):
        raise ModuleError(
            f"{type(module).__name__} is recurrent (initial_carry is not None), but defines only "
            "how it acts: implement _forward_step(params, obs, carry), which learners unroll."
        )
    if not config.is_trained:
        return module
    of_several = "" if config.module_id is None else ", or name the others in policies_to_train"
    if config.learns and is_parameter_free:
        raise ModuleError(
            f"{type(module).__name__} has no parameters that {config.algo_name} could train: use "
            f"RandomAgentConfig, which learns nothing, to run it{of_several}."
        )
    check_exact_entropy(module, training)
    hidden = module.critic_only_observations
    if hidden and isinstance(module, ActorCriticModule) and not training.needs_values:
        raise ConfigError(
            f"critic_only_observations={list(hidden)} is for a critic, and {config.algo_name} learns no "
            "values with these settings: leave it out."
        )
    return module


def _check_policy_reads(module: EncoderModule) -> None:
    """Raise ModuleError if the module's actions depend on a part that is for critics alone."""
    hidden, rows = module.critic_only_observations, 2
    if not hidden:
        return

    def make_inputs(key: Key) -> tuple[PyTree, PyTree, PyTree]:
        obs = make_zeros(module.observation_space, (rows,))
        return module.init(key), obs, module.initial_carry(rows)

    def act(params: Params, obs: PyTree, carry: PyTree) -> tuple[PyTree, PyTree]:
        out = module.forward_inference(params, obs, carry)
        return out[Columns.ACTION_DIST_INPUTS], out.get(Columns.STATE_OUT)

    read, _ = find_dependence(act, *jax.eval_shape(make_inputs, jax.random.key(0)))
    seen = module.select_network_obs(read)
    name = next((name for name in hidden if any(jax.tree.leaves(seen[name]))), None)
    if name is not None:
        raise ModuleError(
            f"The actions of {type(module).__name__} depend on {name!r}, which critic_only_observations "
            "names: build its policy's encoder by make_policy_encoder()."
        )


def _is_subclass(found: object, expected: type) -> bool:
    return isinstance(found, type) and issubclass(found, expected)


def _ignores_carry(module: RLModule) -> bool:
    """Return whether learners would ignore the module's carry although the loss needs it."""
    has_carry = module.initial_carry(1) is not None
    return has_carry and module.trains_on_sequences and not module.is_stateful


def warn_if_flattened(module: EncoderModule) -> None:
    """Warn, once per process and shape, that an image becomes the inputs of a dense layer."""
    space = module.get_network_obs_space()
    if not isinstance(space, spaces.Box) or module.settings.conv_filters is not None:
        return
    if space.dtype == np.uint8 and len(space.shape) in (2, 3) and not is_image(space):
        _warn_of_shape(space.shape)


@functools.cache
def _warn_of_shape(shape: tuple[int, ...]) -> None:
    if math.prod(shape) >= LARGE_IMAGE:
        advice = explain_axes(shape) or " Images are [H, W, C]; set conv_filters for [H, W]."
        logger.warning(
            "Observations of shape %s are flattened to %d inputs of a dense layer.%s",
            shape,
            math.prod(shape),
            advice,
        )
