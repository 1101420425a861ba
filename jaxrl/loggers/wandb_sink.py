"""Optional Weights & Biases sink."""

import importlib
import logging
import os
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from jaxrl.errors import ConfigError
from jaxrl.loggers.tensorboard_sink import extract_curves
from jaxrl.runs import results
from jaxrl.runs.run_folder import RunFolder

_log = logging.getLogger(__name__)


class WandbSink:
    """Sink that logs each result to a W&B run named after the run folder.

    W&B's own settings apply (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, ...). If W&B cannot be
    reached or no user is logged in, the run is recorded offline in the run folder and can be
    uploaded later with `wandb sync`. A resumed run continues the same W&B run.

    Args:
        folder: Run folder, whose name and id become those of the W&B run.
        params: Config, shown with the run.

    Raises:
        ConfigError: If the package `wandb` is not installed.
    """

    def __init__(self, folder: RunFolder, params: Mapping[str, Any]) -> None:
        wandb = _import_wandb()
        settings: dict[str, Any] = {
            "project": os.environ.get("WANDB_PROJECT", "jaxrl"),
            "name": folder.name,
            "id": folder.run_id,
            "resume": "allow",
            "dir": str(folder.path),
            "config": results.to_json(params),
        }
        try:
            self._run = wandb.init(**settings)
        except wandb.Error as error:
            _log.warning(
                "Weights & Biases is unavailable (%s); the run is recorded offline in %s.",
                error,
                folder.path,
            )
            self._run = wandb.init(**{**settings, "mode": "offline"})
        self._step_metric: str | None = None

    def write(self, result: results.Result) -> None:
        if self._step_metric is None:
            self._step_metric = results.get_steps_key(result)
            self._run.define_metric(self._step_metric)
            self._run.define_metric("*", step_metric=self._step_metric)
        self._run.log({**extract_curves(result), self._step_metric: results.get_steps(result)})

    def close(self) -> None:
        self._run.finish()


def _import_wandb() -> ModuleType:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            "The logger 'wandb' needs the package wandb: install it with "
            "\"pip install 'jaxrl[wandb]'\", or remove 'wandb' from the loggers."
        ) from error
