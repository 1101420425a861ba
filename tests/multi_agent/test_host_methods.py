"""Methods of a run whose environments of several agents are in Python: what they take and refuse."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm, MultiAgentEnv, PPOConfig, import_weights
from jaxrl.cli.evaluation import evaluate_and_record
from jaxrl.errors import ConfigError, UnknownNameError
from jaxrl.runs.checkpoint import get_named_leaves
from tests.multi_agent.test_host_training import MAPPING, make_config

OBS = {agent: np.zeros(3, np.float32) for agent in MAPPING}


@pytest.fixture(scope="module")
def run() -> Iterator[Algorithm]:
    with make_config().build() as built:
        yield built


def test_methods_of_the_compiled_program_say_what_there_is_instead(run: Algorithm) -> None:
    with pytest.raises(ConfigError, match="written in Python: leave opponents out"):
        run.evaluate(opponents=["two"], module_id="one")
    for call in (lambda: run.snapshot("one", as_="v1"), lambda: run.set_mapping(MAPPING)):
        with pytest.raises(ConfigError, match="in Python, add a copy by add_module"):
            call()
    with pytest.raises(ConfigError, match=r"those of a single agent.*--out FILE\.json"):
        evaluate_and_record(run, 1, Path("rows.npz"))


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ([None, None], "state of type list: give state by the same names"),
        ({"left": None}, "observation of 'right', for which state has nothing"),
    ],
)
def test_the_state_of_agents_is_by_name(run: Algorithm, state: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        run.compute_actions(OBS, state=state)


def test_an_unknown_module_to_train_is_named_with_its_setting(run: Algorithm) -> None:
    def train_only(names: Any) -> None:
        run.learner_group.foreach_learner(
            lambda learner: learner.config.multi_agent(policies_to_train=names)
        )

    train_only(["on"])
    with pytest.raises(UnknownNameError, match=r"^policies_to_train names 'on'.*mean 'one'"):
        run._follow_changes()
    train_only(["one", "two"])
    run._follow_changes()


def test_weights_are_imported_into_a_module(run: Algorithm) -> None:
    before = run.get_weights()
    leaves = get_named_leaves(before["two"])
    source = {name: np.full(np.shape(leaf), 0.5) for name, leaf in leaves.items()}
    own = {name: name.replace(".", "/") for name in leaves}
    assert import_weights(run, source, own, module_id="two") == []
    after = run.get_weights()
    assert all((leaf == 0.5).all() for leaf in jax.tree.leaves(after["two"]))
    jax.tree.map(np.testing.assert_array_equal, after["one"], before["one"])
    with pytest.raises(UnknownNameError, match=r"modules are one, two.*mean 'two'"):
        import_weights(run, source, own, module_id="tw")
    with pytest.raises(UnknownNameError, match="'default_policy'"):
        import_weights(run, source, own)


class Boxes(MultiAgentEnv):
    """Two agents whose actions are Boxes of whole numbers from 0 to 5; keeps what it got."""

    received: ClassVar[list[np.ndarray]] = []

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.agents = self.possible_agents = ["left", "right"]
        whole = spaces.Box(0, 5, (2,), config["dtype"])
        self.observation_spaces = dict.fromkeys(self.agents, spaces.Box(-1.0, 1.0, (1,)))
        self.action_spaces = dict.fromkeys(self.agents, whole)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return dict.fromkeys(self.agents, np.zeros(1, np.float32)), {}

    def step(self, action_dict: dict[str, Any]) -> tuple[Any, ...]:
        self.received.extend(action_dict.values())
        obs, _ = self.reset()
        never = {"__all__": False}
        return obs, dict.fromkeys(self.agents, 0.0), never, never, {}


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_boxes_of_whole_numbers_get_the_nearest_ones(dtype: str) -> None:
    Boxes.received.clear()
    config = PPOConfig().environment(Boxes, env_config={"dtype": dtype})
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=200)
    config.training(train_batch_size=400, num_epochs=1).debugging(loggers=[])
    with config.rl_module(model_config={"fcnet_hiddens": [4]}).build() as algorithm:
        algorithm.train()
        obs = dict.fromkeys(("left", "right"), np.zeros(1, np.float32))
        assert algorithm.compute_actions(obs)["left"].dtype.kind in "iu"
    values = np.stack(Boxes.received)
    assert values.dtype == dtype
    low, *_, high = np.bincount(values.ravel(), minlength=6)
    assert 0.8 < low / high < 1.25  # a new policy is symmetric, and cut fractions are not
