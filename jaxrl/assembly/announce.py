"""What was built, in Python's log: INFO says what and why, DEBUG the shapes."""

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import jax

from jaxrl.assembly.assemble import Assembly, spaces_of
from jaxrl.config.modules import model_notes

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger(__name__)


def announce(config: "AlgorithmConfig", assembly: Assembly, notes: Iterable[str]) -> None:
    """Log the environment, the batch arithmetic, what adapted, and the sentences given."""
    made, plan = assembly.made, assembly.plan
    logger.info("%s on %s; %s", config.algo_name, made.id, plan.describe())
    for note in (*made.notes, *plan.notes, *notes, *config.notes, *model_notes(config)):
        logger.info(note)
    if not logger.isEnabledFor(logging.DEBUG):
        return
    observation_space, action_space = spaces_of(made)
    logger.debug("observation space %s", observation_space)
    logger.debug("action space %s", action_space)
    params = jax.eval_shape(assembly.module.init, jax.random.key(0))
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        logger.debug("parameter %s is %s%s", jax.tree_util.keystr(path), leaf.dtype, leaf.shape)
