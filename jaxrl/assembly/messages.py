"""Log lines about what a run was assembled from."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax

from jaxrl.config.placement import describe_idle_settings, resolve_placement

if TYPE_CHECKING:
    from jaxrl.assembly.assemble import Assembly
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger(__name__)


def log_assembly(config: "AlgorithmConfig", assembly: "Assembly", notes: Iterable[str]) -> None:
    """Log the environment, the batch arithmetic, adapted defaults, and the given notes."""
    made, plan = assembly.made, assembly.plan
    logger.info("%s on %s; %s", config.algo_name, made.id, plan.describe())
    if plan.rounding is not None:
        logger.warning(plan.rounding)
    placement = resolve_placement(config, made.id, is_jax_env=made.is_jax)
    for note in describe_idle_settings(config, placement):
        logger.warning(note)
    for note in (*made.notes, *plan.notes, *notes):
        logger.info(note)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    observation_space, action_space = made.spaces
    logger.debug("observation space %s", observation_space)
    logger.debug("action space %s", action_space)
    params = assembly.make_abstract_params()
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        logger.debug("parameter %s is %s%s", jax.tree_util.keystr(path), leaf.dtype, leaf.shape)
