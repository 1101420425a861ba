"""Atari games behind their preprocessing."""

import re
import sys
from typing import Any

import numpy as np
import pytest

from jaxrl.envs import EnvContext, MadeHostEnv, make
from jaxrl.envs.adapters.atari import StackFrames, is_atari_id
from jaxrl.envs.host_vector import make_vector
from jaxrl.errors import EnvError, UnknownNameError


def host(*arguments: Any, **keywords: Any) -> MadeHostEnv:
    made = make(*arguments, **keywords)
    assert isinstance(made, MadeHostEnv)
    return made


@pytest.fixture
def _emulator() -> None:
    for package in ("ale_py", "cv2"):
        pytest.importorskip(package, reason="needs the atari extra")


@pytest.mark.usefixtures("_emulator")
@pytest.mark.parametrize("spec", ["ALE/Pong-v5", "gymnasium:ALE/Pong-v5", "PongNoFrameskip-v4"])
def test_a_game_is_84_by_84_grey_four_frames(spec: str) -> None:
    made = host(spec)
    assert made.is_atari
    assert made.max_episode_steps == 27_000
    assert (made.observation_space.shape, made.observation_space.dtype) == ((84, 84, 4), np.uint8)
    assert made.action_space.n == 6  # pyright: ignore[reportAttributeAccessIssue]
    assert any("preprocessed: 84x84 grayscale" in note for note in made.notes)


@pytest.mark.usefixtures("_emulator")
def test_steps_skip_four_frames_and_move_the_stack() -> None:
    vector = make_vector(host("ALE/Pong-v5", max_episode_steps=40), num_envs=2, seed=1)
    obs = vector.reset()
    assert obs.dtype == np.uint8
    assert (obs == obs[..., :1]).all()  # the first frame, four times
    frames: list[int] = []
    for number in range(40):
        step = vector.step(np.array([2, 3], np.int32))
        np.testing.assert_array_equal(step.final_obs[..., :3], obs[..., 1:])
        frames.append(step.infos(0)["episode_frame_number"])
        assert set(step.reward.tolist()) <= {-1.0, 0.0, 1.0}
        assert step.truncated.all() == (number == 39)
        obs = step.obs
    assert set(np.diff(frames)) == {4}
    assert step.infos(1)["frame_number"] != step.infos(0)["frame_number"]  # waits of their own
    assert (obs == obs[..., :1]).all()
    assert (step.final_obs[..., 3] != step.final_obs[..., 0]).any()


@pytest.mark.usefixtures("_emulator")
def test_the_emulators_own_vector_prepares_alike() -> None:
    config = {"max_num_frames_per_episode": 160}
    vector = make_vector(host("ALE/Pong-v5", config), num_envs=3, seed=1, mode="vector_entry_point")
    obs = vector.reset()
    assert obs.shape == (3, 84, 84, 4)
    frames, masks, ends = [], [], []
    for number in range(60):
        step = vector.step(np.array([2, 3, number % 6], np.int32))
        going = step.mask & ~step.starts
        np.testing.assert_array_equal(step.final_obs[going][..., :3], obs[going][..., 1:])
        frames.append(step.infos(0)["frame_number"])
        masks.append(step.mask)
        ends.append(step.truncated)
        obs = step.obs
    assert set(np.diff(frames[:20])) == {4}
    assert np.sum(ends) >= 3
    np.testing.assert_array_equal(masks[1:], ~np.stack(ends[:-1]))
    limited = host("ALE/Pong-v5", max_episode_steps=5)
    with pytest.raises(EnvError, match="max_episode_steps has no effect"):
        make_vector(limited, num_envs=1, mode="vector_entry_point", check=False)
    raw = host("ALE/Pong-v5", is_atari=False)
    with pytest.raises(EnvError, match=r"observation space .*84, 84.* one environment has"):
        make_vector(raw, num_envs=1, mode="vector_entry_point", check=False)


@pytest.mark.usefixtures("_emulator")
def test_another_frame_skip_and_other_arguments() -> None:
    made = host("ALE/Pong-v5", {"frameskip": 2, "repeat_action_probability": 0.0})
    assert made.max_episode_steps == 54_000
    env: Any = made.create(EnvContext(made.env_config))
    assert env.unwrapped.spec.kwargs["repeat_action_probability"] == 0.0
    _, info = env.reset(seed=0)
    frame = info["episode_frame_number"]
    assert env.step(0)[4]["episode_frame_number"] == frame + 2
    env.close()


@pytest.mark.usefixtures("_emulator")
def test_a_game_can_be_left_as_it_is() -> None:
    made = host("ALE/Pong-v5", is_atari=False)
    assert not made.is_atari
    assert made.observation_space.shape == (210, 160, 3)
    assert made.notes == ("ALE/Pong-v5: gymnasium's implementation, stepped on the host.",)


@pytest.mark.usefixtures("_emulator")
@pytest.mark.parametrize(
    ("spec", "config", "error", "message"),
    [
        ("ALE/Pnog-v5", {}, UnknownNameError, "Did you mean 'ALE/Pong-v5'"),
        ("ALE/Pong-v5", {"frameskip": (2, 5)}, EnvError, "frameskip (env_config) must be a pos"),
        ("ALE/Pong-v5", {"frame_skip": 2}, UnknownNameError, "Did you mean 'frameskip'"),
    ],
)
def test_bad_input(spec: str, config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make(spec, config)


@pytest.mark.parametrize("missing", ["ale_py", "cv2"])
def test_a_missing_package_is_named_with_its_extra(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "cv2":
        pytest.importorskip("ale_py", reason="needs the atari extra")
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(EnvError, match=r"ALE/Pong-v5.*pip install 'jaxrl\[atari\]'"):
        make("ALE/Pong-v5")


def test_which_ids_are_games() -> None:
    assert is_atari_id("ALE/Pong-v5")
    assert is_atari_id("BreakoutNoFrameskip-v4")
    assert not is_atari_id("CartPole-v1")
    assert not is_atari_id("mine/Pong-v5")


def test_the_stack_holds_the_newest_frame_last() -> None:
    import gymnasium
    from gymnasium import spaces

    class Frames(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(0, 255, (2, 2), np.uint8)
        action_space = spaces.Discrete(1)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.count = 7
            return np.full((2, 2), self.count, np.uint8), {}

        def step(self, action: Any) -> Any:
            self.count += 1
            return np.full((2, 2), self.count, np.uint8), 0.0, False, False, {}

    env = StackFrames(Frames(), 3)
    first, _ = env.reset()
    second = env.step(0)[0]
    third = env.step(0)[0]
    assert [obs[0, 0].tolist() for obs in (first, second, third)] == [
        [7, 7, 7],
        [7, 7, 8],
        [7, 8, 9],
    ]
    assert env.observation_space.contains(third)
    assert env.reset()[0][1, 1].tolist() == [7, 7, 7]
