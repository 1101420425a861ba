"""Critics of RLlib with two hidden layers on observations beside actions, as in other libraries."""

from __future__ import annotations

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from gymnasium.spaces import flatdim
from ray.rllib.algorithms.sac.sac_catalog import (  # pyright: ignore[reportMissingImports]
    SACCatalog,
)
from ray.rllib.core.columns import Columns  # pyright: ignore[reportMissingImports]
from ray.rllib.core.models.base import ENCODER_OUT  # pyright: ignore[reportMissingImports]
from ray.rllib.core.models.configs import (  # pyright: ignore[reportMissingImports]
    MLPEncoderConfig,
)
from ray.rllib.core.models.torch.encoder import (  # pyright: ignore[reportMissingImports]
    TorchMLPEncoder,
)


class CriticEncoder(TorchMLPEncoder):
    """Hidden layers of a critic."""

    def _forward(self, inputs: Any, **kwargs: Any) -> dict[str, Any]:
        pair = torch.cat([inputs[Columns.OBS], inputs[Columns.ACTIONS]], dim=-1)
        return {ENCODER_OUT: self.net(pair)}


class CriticCatalog(SACCatalog):
    """Catalog of SAC, CQL and IQL, whose critics have the policy's hidden layers."""

    def build_qf_encoder(self, framework: str) -> Any:
        settings: Any = self._model_config_dict
        hiddens, activation = settings["fcnet_hiddens"], settings["fcnet_activation"]
        self.qf_encoder_config = MLPEncoderConfig(
            input_dims=[flatdim(self.observation_space) + flatdim(self.action_space)],
            hidden_layer_dims=hiddens[:-1],
            hidden_layer_activation=activation,
            output_layer_dim=hiddens[-1],
            output_layer_activation=activation,
        )
        return CriticEncoder(self.qf_encoder_config)
