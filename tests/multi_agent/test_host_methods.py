"""Methods of a run whose environments of several agents are in Python: what they take and refuse."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import Algorithm, import_weights
from jaxrl.cli.evaluation import _evaluate_and_record
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
        _evaluate_and_record(run, 1, Path("rows.npz"))


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
