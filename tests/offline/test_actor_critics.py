"""CQL on recorded data, in Discrete and Box action spaces."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.algorithms.cql import CQLConfig
from jaxrl.errors import ConfigError
from tests.recorded_data import ACTION_SPACE, make_parts, write_data

BOX = spaces.Box(-2.0, 2.0, (1,), np.float32)


@pytest.mark.parametrize("action_space", [ACTION_SPACE, BOX], ids=["Discrete", "Box"])
def test_trains_from_recorded_data(tmp_path: Path, action_space: Any) -> None:
    data = write_data(tmp_path / "data", make_parts(action_space=action_space), action_space)
    config = CQLConfig().offline_data(input_=data, num_updates_per_iteration=5)
    config.training(train_batch_size=16, bc_iters=5).rl_module(model_config={"fcnet_hiddens": [8]})
    algorithm = config.build()
    for _ in range(2):
        learned = algorithm.train()["learners"]["default_policy"]
    assert np.isfinite(learned["total_loss"] if "total_loss" in learned else learned["cql_loss"])
    assert learned["num_updates_lifetime"] == 10


def test_needs_recorded_data() -> None:
    with pytest.raises(ConfigError, match=r"CQL learns from recorded data: name a folder of them"):
        CQLConfig().environment("Pendulum-v1").build()
