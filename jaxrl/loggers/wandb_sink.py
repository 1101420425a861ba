"""Weights & Biases as an optional sink."""

import importlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from jaxrl.errors import ConfigError
from jaxrl.loggers.tensorboard_sink import curves
from jaxrl.runs import results
from jaxrl.runs.run_folder import RunFolder

_log = logging.getLogger(__name__)


class WandbSink:
    """Logs each result to a W&B run of the run folder's name.

    W&B's own settings apply (`WANDB_PROJECT`, `WANDB_ENTITY`, `WANDB_MODE`, ...). If W&B cannot be
    reached or nobody is logged in, the run is recorded offline in the run folder, to be sent later
    with `wandb sync`. A resumed run goes on with the same W&B run.

    Args:
        folder: The run folder; its name and id become the run's.
        params: The config, shown with the run.

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
                "Weights & Biases cannot be used now (%s); the run is recorded offline in %s.",
                error,
                folder.path,
            )
            self._run = wandb.init(**{**settings, "mode": "offline"})
        self._run.define_metric(results.ENV_STEPS)
        self._run.define_metric("*", step_metric=results.ENV_STEPS)

    def write(self, result: results.Result) -> None:
        self._run.log(
            {
                **curves(result),
                results.ENV_STEPS: results.env_steps(result),
            }
        )

    def close(self) -> None:
        self._run.finish()


def _import_wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise ConfigError(
            "The logger 'wandb' needs the package wandb: install it with "
            "\"pip install 'jaxrl[wandb]'\", or take 'wandb' out of the loggers."
        ) from error
