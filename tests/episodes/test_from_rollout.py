"""Episodes out of a rollout's rows: where they begin and end, and what they hold."""

from typing import Any

import numpy as np

from jaxrl.core.types import Rollout
from jaxrl.episodes.packing import episodes_from_rollout


def test_rows_become_episodes() -> None:
    flags = {name: np.zeros((6, 2), np.bool_) for name in ("terminated", "truncated", "is_first")}
    mask = np.ones((6, 2), np.bool_)
    # The first environment goes on, terminates at row 1, resets in row 2, is truncated at row 4.
    flags["terminated"][1, 0] = True
    mask[2, 0] = False
    flags["is_first"][3, 0] = flags["is_first"][5, 0] = True
    flags["truncated"][4, 0] = True
    # The second starts, has a fault at row 3, and goes on after the last row.
    flags["is_first"][0, 1] = flags["is_first"][4, 1] = True
    flags["truncated"][3, 1], mask[3, 1] = True, False
    obs = np.arange(12).reshape(6, 2)
    record: Any = Rollout
    rollout = record(
        obs={"x": obs},
        action=obs * 10,
        reward=obs.astype(np.float32),
        final_obs={"x": obs + 100},
        mask=mask,
        extras={"action_logp": -obs},
        **flags,
    )
    episodes = episodes_from_rollout(rollout, t_started=np.array([4, 9]))
    got = [
        (e.get_actions().tolist(), e.is_terminated, e.is_truncated, e.t_started, e.t)
        for e in episodes
    ]
    assert got == [
        ([0, 20], True, False, 4, 6),
        ([60, 80], False, True, 0, 2),
        ([100], False, False, 0, 1),
        ([10, 30, 50], False, False, 0, 3),
        ([90, 110], False, False, 0, 2),
    ]
    np.testing.assert_array_equal(episodes[0].get_observations()["x"], [0, 2, 102])
    np.testing.assert_array_equal(episodes[1].get_extra_model_outputs("action_logp"), [-6, -8])
    assert all(e.is_numpy for e in episodes)
    assert len({e.id_ for e in episodes}) == 5
