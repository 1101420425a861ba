"""Recorded actions against the masks of their own observations."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

from jaxrl import BCConfig, EpisodeWriter
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, DataError
from jaxrl.offline.checks import MaskChecker
from jaxrl.offline.recorded import open_data

LENGTH = 6
FLAT = spaces.Dict(
    {
        "action_mask": spaces.MultiBinary(3),
        "x": spaces.Box(-1.0, 1.0, (2,), np.float32),
    }
)
ACTIONS = spaces.Discrete(3)


def make_part(**changes: Any) -> EpisodePart:
    """Make an episode whose masks allow what was taken, and nothing at its final observation."""
    action = np.arange(LENGTH, dtype=np.int32) % 3
    mask = np.eye(3, dtype=np.int8)[np.append(action, 0)]
    mask[-1] = 0
    part = EpisodePart(
        episode_id="7",
        t_started=0,
        obs={"action_mask": mask, "x": np.zeros((LENGTH + 1, 2), np.float32)},
        action=action,
        reward=np.zeros(LENGTH, np.float32),
        extras={},
        version=np.zeros(LENGTH, np.int64),
        truncated=True,
    )
    return dataclasses.replace(part, **changes)


def write(folder: Path, part: EpisodePart) -> str:
    with EpisodeWriter(folder, FLAT, ACTIONS) as writer:
        writer.add_parts([part])
    return str(folder)


def make_illegal() -> EpisodePart:
    part = make_part()
    mask = part.obs["action_mask"].copy()
    mask[4] = [1, 0, 1]  # the recorded action is 1
    return dataclasses.replace(part, obs={**part.obs, "action_mask": mask})


def make_config(source: str) -> BCConfig:
    return BCConfig().offline_data(input_=source).training(train_batch_size_per_learner=4)


def test_an_illegal_action_is_refused_with_file_episode_and_step(tmp_path: Path) -> None:
    source = write(tmp_path, make_illegal())
    with pytest.raises(DataError, match="illegal") as caught:
        make_config(source).build()
    for said in (".parquet", "episode '7'", "actions is 1 at t=4", "action_mask_key=None"):
        assert said in str(caught.value), said


def test_an_observed_mask_forbids_nothing(tmp_path: Path) -> None:
    config = make_config(write(tmp_path, make_illegal())).environment(action_mask_key=None)
    with config.build() as algo:
        assert np.isfinite(algo.train()["learners"]["default_policy"]["total_loss"])


def test_legal_actions_are_learned_and_masks_without_a_legal_action_are_passed(
    tmp_path: Path,
) -> None:
    part = make_part()
    mask = part.obs["action_mask"].copy()
    mask[2] = 0
    part = dataclasses.replace(part, obs={**part.obs, "action_mask": mask})
    with make_config(write(tmp_path, part)).build() as algo:
        assert abs(algo.train()["learners"]["default_policy"]["total_loss"]) < 10.0


def test_what_an_input_transform_returns_is_checked(tmp_path: Path) -> None:
    def add_one(part: EpisodePart) -> EpisodePart:
        return dataclasses.replace(part, action=(part.action + 1) % 3)

    source = write(tmp_path, make_part())
    config = make_config(source).offline_data(input_=source, input_transform=add_one)
    with pytest.raises(ConfigError, match=r"actions is 1 at t=0, which its own 'action_mask'"):
        config.build()


def test_an_input_transform_can_leave_illegal_steps_out(tmp_path: Path) -> None:
    def end_before(part: EpisodePart) -> EpisodePart:
        obs = jax.tree.map(lambda leaf: leaf[:5], part.obs)
        kept = {name: getattr(part, name)[:4] for name in ("action", "reward", "version")}
        return dataclasses.replace(part, obs=obs, **kept)

    source = write(tmp_path, make_illegal())
    config = make_config(source).offline_data(input_=source, input_transform=end_before)
    with config.build() as algo:
        assert abs(algo.train()["learners"]["default_policy"]["total_loss"]) < 10.0


def test_rows_of_which_no_order_is_known_are_checked(tmp_path: Path) -> None:
    """Rows without an episode are read many at once, and with each their own successor."""
    part = make_illegal()
    flat = np.concatenate([part.obs["x"], part.obs["action_mask"]], axis=1)
    columns = {
        "obs": [{"x": row[:2], "action_mask": row[2:].astype(np.int8)} for row in flat[:-1]],
        "new_obs": [{"x": row[:2], "action_mask": row[2:].astype(np.int8)} for row in flat[1:]],
        "actions": part.action,
        "rewards": part.reward,
        "terminateds": np.zeros(LENGTH, np.bool_),
    }
    pq.write_table(
        pa.table({name: pa.array(list(x)) for name, x in columns.items()}), tmp_path / "a.parquet"
    )
    given = {"observation_space": FLAT, "action_space": ACTIONS}
    assert len(list(open_data(tmp_path, **given).iter_parts())) == LENGTH
    checked = open_data(tmp_path, **given, action_mask_key="action_mask").iter_parts()
    with pytest.raises(DataError, match=r"a\.parquet, episode 'row-4': actions is 1 at t=0, which"):
        list(checked)


SIMPLE = [
    (spaces.Discrete(4, start=2), [4], 2),
    (spaces.MultiDiscrete([[2, 3], [4, 2]]), [2, 3, 4, 2], 0),
    (spaces.MultiDiscrete([3, 2], start=[5, -1]), [3, 2], np.asarray([5, -1])),
    (spaces.MultiBinary(3), [2, 2, 2], 0),
]


@pytest.mark.parametrize("is_normalized", [False, True])
@pytest.mark.parametrize(("space", "sizes", "start"), SIMPLE)
def test_each_choice_is_that_of_a_walk(
    space: Any, sizes: list[int], start: Any, *, is_normalized: bool
) -> None:
    rng = np.random.default_rng(0)
    size, counted_from = sum(sizes), 0 if is_normalized else start
    obs_space = spaces.Dict({"m": spaces.MultiBinary(size), "x": spaces.Discrete(2)})
    checker = MaskChecker.make(obs_space, space, "m", actions_are_normalized=is_normalized)
    assert checker is not None
    outcomes = []
    for _ in range(200):
        mask = rng.random(size) < 0.7
        choices = [int(rng.integers(n)) for n in sizes]
        offset, is_legal = 0, True
        for choice, n in zip(choices, sizes, strict=True):
            own = mask[offset : offset + n]
            is_legal &= bool(own[choice]) or not own.any()
            offset += n
        outcomes.append(is_legal)
        part = make_part(
            obs={"m": np.stack([mask, mask]).astype(np.int8), "x": np.zeros(2, np.int32)},
            action=(np.reshape(choices, space.shape) + counted_from)[None],
            reward=np.zeros(1, np.float32),
            version=np.zeros(1, np.int64),
        )
        if is_legal:
            checker.check(part, "")
            continue
        with pytest.raises(DataError, match=re.escape("at t=0, which its own 'm' says")):
            checker.check(part, "")
    assert 20 < sum(outcomes) < 180


def test_parts_of_a_dict_have_masks_of_their_own() -> None:
    space = spaces.Dict(
        {"a": spaces.Discrete(2), "b": spaces.Box(-1.0, 1.0, (1,)), "c": spaces.Discrete(3)}
    )
    masks = spaces.Dict({"a": spaces.MultiBinary(2), "c": spaces.MultiBinary(3)})
    checker = MaskChecker.make(
        spaces.Dict({"action_mask": masks, "x": spaces.Discrete(2)}),
        space,
        "action_mask",
        actions_are_normalized=False,
    )
    assert checker is not None
    mask = {"a": np.asarray([[0, 1]] * 2, np.int8), "c": np.asarray([[1, 1, 0]] * 2, np.int8)}
    one = {"reward": np.zeros(1, np.float32), "version": np.zeros(1, np.int64)}
    action = {"a": np.asarray([1]), "b": np.zeros((1, 1)), "c": np.asarray([1])}
    part = make_part(obs={"action_mask": mask, "x": np.zeros(2)}, action=action, **one)
    checker.check(part, "")
    action = jax.tree.map(np.copy, action)
    action["c"][0] = 2
    with pytest.raises(DataError, match=r"actions\.c is 2 at t=0"):
        checker.check(dataclasses.replace(part, action=action), "")


@pytest.mark.parametrize("key", [None, "other"])
def test_there_is_nothing_to_check_without_a_mask(key: str | None) -> None:
    assert MaskChecker.make(FLAT, ACTIONS, key, actions_are_normalized=False) is None
    box = FLAT.spaces["x"]
    assert MaskChecker.make(box, ACTIONS, "action_mask", actions_are_normalized=False) is None
