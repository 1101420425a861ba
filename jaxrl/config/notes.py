"""Notes on a config: old names of settings, and values that were accepted without effect."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxrl.config.modules import find_renamed_settings
from jaxrl.errors import JaxrlError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

logger = logging.getLogger("jaxrl.config")


def describe_notes(config: "AlgorithmConfig") -> list[str]:
    """Return the notes on a config, one of which lists all old names."""
    return [*config.remarks, *_describe_old_names(_find_old_names(config))]


def announce_notes(config: "AlgorithmConfig") -> None:
    """Log the notes that have not been logged yet for this config or a copy of it."""
    announced = config.announced
    old_names = _find_old_names(config)
    new = {old: call for old, call in old_names.items() if old not in announced}
    remarks = [remark for remark in config.remarks if remark not in announced]
    for sentence in (*remarks, *_describe_old_names(new)):
        logger.warning(sentence)
    announced.update(new, remarks)


def _find_old_names(config: "AlgorithmConfig") -> dict[str, str]:
    try:
        renamed = find_renamed_settings(config)
    except JaxrlError:  # of an invalid module, which the config's validation reports
        renamed = {}
    in_model = {old: f"model_config[{new!r}]" for old, new in renamed.items()}
    return {**config.old_names, **in_model}


def _describe_old_names(old_names: Mapping[str, str]) -> list[str]:
    if not old_names:
        return []
    pairs = ", ".join(f"'{old}' is now {call}" for old, call in old_names.items())
    return [f"Old names were accepted: {pairs}."]
