"""Recorded actions as those of the module: bounds, inverses of connectors, and how they compile."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import BCConfig, CQLConfig, TD3Config
from jaxrl.assembly.assemble import assemble
from jaxrl.assembly.offline import ActionConversion, convert_rows, open_sources, prepare_parts
from jaxrl.connectors import ActionConnector
from jaxrl.connectors.pipelines import ActionPipeline
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError
from jaxrl.estimation.target import read_whole_episodes
from jaxrl.offline.recorded import open_data
from tests.recorded_data import make_part, make_parts, write_data

BOX = spaces.Box(-2.0, 6.0, (1,), np.float32)


class Negate(ActionConnector):
    """Connector whose inverse counts how often it is traced."""

    def __init__(self) -> None:
        self.num_traces = 0

    def __call__(self, action: PyTree) -> PyTree:
        return -action

    def inverse(self, action: PyTree) -> PyTree:
        self.num_traces += 1
        return -action


class OneWay(ActionConnector):
    """Connector without an inverse."""

    def __call__(self, action: PyTree) -> PyTree:
        return 0.5 * action


class Halved(OneWay):
    """Connector whose inverse returns other shapes than the module's."""

    def inverse(self, action: PyTree) -> PyTree:
        return action[..., 0]


@pytest.mark.parametrize(
    ("algorithm", "largest"), [(CQLConfig, 1.0), (TD3Config, 1.0), (BCConfig, 4.5)]
)
def test_bounded_policies_learn_from_actions_as_they_were_played(
    tmp_path: Path, algorithm: Any, largest: float
) -> None:
    """Those of a policy without bounds are played at the module's bounds; imitation keeps them."""
    beyond = make_part(0, 4, terminated=True, action_space=BOX)
    beyond = dataclasses.replace(beyond, action=np.array([[-4.5], [0.5], [4.5], [1.0]], np.float32))
    data = write_data(tmp_path / "data", [beyond], BOX, actions_are_normalized=True)
    config = algorithm().offline_data(input_=data).training(train_batch_size=4)
    policy_step = assemble(config).policy_step
    (source,) = open_sources(config.offline_data_settings, config.environment_settings)
    (part,) = prepare_parts(config.offline_data_settings, source, source.iter_parts(), policy_step)
    want = np.clip(beyond.action, -largest, largest)
    np.testing.assert_array_equal(part.action, want)
    assert part.action.dtype == np.float32


def test_parts_of_many_lengths_are_converted_by_one_program() -> None:
    connector = Negate()
    conversion = ActionConversion(pipeline=ActionPipeline((connector,), BOX))
    parts = [make_part(i, 1 + i, action_space=BOX) for i in range(30)]
    converted = conversion.convert_parts(parts)
    assert connector.num_traces == 1
    for part, other in zip(parts, converted, strict=True):
        np.testing.assert_array_equal(other.action, -part.action)


def test_rows_of_a_nested_action_are_converted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.assembly.offline.BLOCK_ROWS", 4)
    rows = {"a": np.arange(10), "b": np.arange(20.0).reshape(10, 2)}
    sizes = []

    def double(tree: Any) -> Any:
        sizes.append(len(tree["a"]))
        return {name: 2 * leaf for name, leaf in tree.items()}

    found = convert_rows(double, rows)
    for name, leaf in rows.items():
        np.testing.assert_array_equal(found[name], 2 * leaf)
    assert sizes == [4, 4, 4]


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        (OneWay, r"OneWay has no inverse, and the recorded actions are the environment's"),
        (Halved, r"Halved.inverse must return"),
    ],
)
def test_actions_that_cannot_be_converted_are_one_sentence(
    tmp_path: Path, connector: type[ActionConnector], message: str
) -> None:
    data = write_data(tmp_path / "data", make_parts(action_space=BOX), BOX)
    config = BCConfig().offline_data(input_=data).training(train_batch_size=4)
    config.env_runners(module_to_env_connector=lambda *_: connector())
    with pytest.raises(ConfigError, match=message) as caught:
        config.build()
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match=message):
        read_whole_episodes(open_data(data), ActionPipeline((connector(),), BOX))
