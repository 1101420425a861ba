"""Videos of evaluations: real files, decoded again, of the episodes that were played."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import imageio_ffmpeg
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import Algorithm
from jaxrl.assembly.assemble import assemble
from jaxrl.envs.classic.mountain_car import MountainCar
from jaxrl.errors import ConfigError, EnvError, RunFolderError
from jaxrl.evaluation.evaluation import Evaluation
from jaxrl.evaluation.recording import check_ffmpeg, check_frame, write_video
from tests.helpers import small


def decoded(path: str | Path) -> tuple[float, np.ndarray]:
    """Pictures a second, and the pictures."""
    ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
    said = subprocess.run([ffmpeg, "-i", str(path)], capture_output=True, check=False)
    (line,) = [text for text in said.stderr.decode().splitlines() if "Video: h264" in text]
    (fps,) = re.findall(r"([\d.]+) fps", line)
    ((width, height),) = re.findall(r"(\d{2,})x(\d{2,})", line)
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    out = subprocess.run([ffmpeg, "-v", "error", "-i", str(path), *raw], capture_output=True)
    return float(fps), np.frombuffer(out.stdout, np.uint8).reshape(-1, int(height), int(width), 3)


# --- the file ---


def squares(number: int, height: int = 40, width: int = 60) -> Iterator[np.ndarray]:
    for place in range(number):
        picture = np.full((height, width, 3), 255, np.uint8)
        picture[10:20, 4 * place : 4 * place + 8] = 0
        yield picture


def test_a_video_shows_what_was_written(tmp_path: Path) -> None:
    path = write_video(tmp_path / "new" / "a.mp4", squares(9), 12.5)
    fps, seen = decoded(path)
    assert fps == 12.5
    assert seen.shape == (9, 40, 60, 3)
    for got, wanted in zip(seen, squares(9), strict=True):
        assert np.abs(got.astype(int) - wanted).mean() < 5
    assert np.abs(seen[0].astype(int) - seen[-1]).mean() > 10
    assert [entry.name for entry in path.parent.iterdir()] == ["a.mp4"]


def test_odd_sizes_get_a_row_or_a_column_more(tmp_path: Path) -> None:
    _, seen = decoded(write_video(tmp_path / "a.mp4", squares(2, 41, 61), 30))
    assert seen.shape == (2, 42, 62, 3)
    assert seen[:, -1].mean() > 250


def test_nothing_is_left_of_a_video_that_cannot_be_written(tmp_path: Path) -> None:
    def changing() -> Iterator[np.ndarray]:
        yield from squares(1)
        yield from squares(1, 50, 60)

    with pytest.raises(EnvError, match=r"the same size, got \[40, 60, 3\] and then \[50, 60, 3\]"):
        write_video(tmp_path / "a.mp4", changing(), 30)
    (tmp_path / "full").touch()
    with pytest.raises(RunFolderError, match=r"cannot write .*full/a\.mp4"):
        write_video(tmp_path / "full" / "a.mp4", squares(1), 30)
    assert [entry.name for entry in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        (None, "got a NoneType"),
        (np.zeros((4, 4, 3), np.float32), r"got float32\[4, 4, 3\]"),
        (np.zeros((4, 4), np.uint8), r"got uint8\[4, 4\]"),
        ([np.zeros((4, 4, 3), np.uint8)], "got a list"),
    ],
)
def test_what_is_no_picture_is_refused(picture: Any, words: str) -> None:
    with pytest.raises(EnvError, match=f"Toy must render frames of type uint8 .*{words}"):
        check_frame("Toy", picture)


# --- what cannot be filmed is refused before anything runs ---


def test_a_folder_that_takes_no_file_is_one_sentence() -> None:
    with pytest.raises(RunFolderError) as caught:
        write_video(Path("/proc/no.mp4"), [np.zeros((8, 8, 3), np.uint8)], 30.0)
    assert str(caught.value) == "record_video cannot write /proc/no.mp4: No such file or directory."


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    check_ffmpeg()
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"pip install 'jaxrl\[video\]'"):
        small().evaluation(record_video=True).build()


class Blind(gymnasium.Env[Any, Any]):
    """Has nothing to show."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, True, False, {}


class Grey(Blind):
    """Takes the render mode and shows no colours."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.zeros((4, 4), np.uint8)


class Raising(Grey):
    """Cannot draw."""

    def render(self) -> Any:
        raise OSError("no display")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("gymnax:Catch-bsuite", "gymnax:Catch-bsuite cannot be rendered .*render"),
        (Blind, "copy of .*Blind with render_mode='rgb_array', which fails: .*'render_mode'"),
        (lambda context: Grey(), "was made with None: pass the render_mode of env_config on"),
        (Grey, r"Grey must render frames of type uint8 .*got uint8\[4, 4\]"),
        (Raising, "Raising cannot be rendered: OSError: no display"),
    ],
)
def test_environments_without_pictures_are_refused(env: Any, words: str) -> None:
    config = small(env=env).environment(max_episode_steps=9).evaluation(record_video=True)
    with pytest.raises(EnvError, match=words) as caught:
        Evaluation(config, assemble(config))
    assert "\n" not in str(caught.value)


# --- the episodes ---


@pytest.mark.slow
def test_videos_of_a_jax_environment_show_the_evaluations_own_episodes(tmp_path: Path) -> None:
    config = small().debugging(results_dir=str(tmp_path))
    config.evaluation(evaluation_interval=1, evaluation_duration=2, record_video=2)
    with config.build() as algorithm:
        result = algorithm.train()
        lengths = [
            algorithm.evaluate(num_episodes=1)["env_runners"]["episode_len_max"],
            result["evaluation"]["env_runners"]["num_env_steps_sampled"],
        ]
        videos = Path(algorithm.run_dir) / "videos"
    lengths[1] -= lengths[0]
    names = [f"iteration_000001_episode_{number}.mp4" for number in (1, 2)]
    assert result["evaluation"]["videos"] == [str(videos / name) for name in names]
    for name, length in zip(names, lengths, strict=True):
        fps, seen = decoded(videos / name)
        assert fps == 50
        assert seen.shape == (length + 1, 400, 600, 3)  # the first state and one after each step
        assert np.abs(seen[0].astype(int) - seen[-1]).mean() > 0.5


class Downhill(MountainCar):
    """One push from the goal."""

    def reset(self, key: Any, params: Any) -> Any:
        state, obs = super().reset(key, params)
        physics = jnp.array([0.48, 0.05], jnp.float32) + 0 * obs
        return type(state)(physics=physics), physics


def test_the_last_picture_is_that_of_the_end(tmp_path: Path) -> None:
    config = small(env=Downhill).evaluation(evaluation_duration=1, record_video=True)
    with config.build() as algorithm:
        (path,) = algorithm.evaluate(video_folder=tmp_path)["videos"]
        assert not algorithm._recorder.has_folder
    fps, seen = decoded(path)
    assert (fps, len(seen)) == (30, 2)
    made: Any = algorithm._assembly.made
    state, _ = made.env.reset(jax.random.key(0), made.params)
    end, step = made.env.step(jax.random.key(0), state, np.int32(2), made.params)
    assert step.terminated
    wanted = made.env.render(end, made.params).astype(int)
    assert np.abs(seen[1] - wanted).mean() < 1.0
    assert np.abs(seen[0] - wanted).mean() > np.abs(seen[1] - wanted).mean()


class Clock(gymnasium.Env[Any, Any]):
    """Shows how many steps it has gone; a seed says how many there are."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}
    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    modes: list[str | None] = []

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.modes.append(render_mode)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.age, self.end = 0, int(self.np_random.integers(5, 30))
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.age += 1
        return np.full(1, self.age, np.float32), 1.0, self.age == self.end, False, {}

    def render(self) -> Any:
        picture = np.zeros((34, 64, 3), np.uint8)
        picture[:, : 2 * self.age] = 255
        return picture


@pytest.fixture(scope="module")
def on_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Algorithm]:
    Clock.modes.clear()
    config = small(env=Clock).debugging(results_dir=str(tmp_path_factory.mktemp("results")))
    config.environment(max_episode_steps=60)
    config.evaluation(evaluation_interval=1, evaluation_duration=3, record_video=2)
    with config.build() as built:
        yield built


def test_videos_of_a_gymnasium_environment_show_whole_episodes(on_host: Algorithm) -> None:
    result = on_host.train()
    stats = result["evaluation"]["env_runners"]
    lengths = []
    for path in result["evaluation"]["videos"]:
        fps, seen = decoded(path)
        assert fps == 7
        assert seen.shape[1:] == (34, 64, 3)
        white = (seen.min(axis=(1, 3)) > 128).sum(axis=-1)
        np.testing.assert_allclose(white, 2 * np.arange(len(seen)), atol=1)
        lengths.append(len(seen) - 1)
    assert len(lengths) == 2
    first = on_host.evaluate(num_episodes=1)["env_runners"]
    assert lengths[0] == first["episode_len_max"]
    assert stats["episode_len_min"] <= min(lengths) <= max(lengths) <= stats["episode_len_max"]
    again = on_host.evaluate()["videos"]
    assert again == result["evaluation"]["videos"]  # the same weights, seen again
    assert [len(decoded(path)[1]) - 1 for path in again] == lengths


def test_only_the_copy_that_is_filmed_is_rendered(on_host: Algorithm) -> None:
    on_host.train()
    filmed = Clock.modes.count("rgb_array")
    assert filmed <= 4  # for its spaces, to see whether it can, and to play
    assert Clock.modes.count(None) >= 16 + 3  # of training and of evaluation
    assert set(Clock.modes) == {"rgb_array", None}


def test_a_custom_evaluation_is_filmed_too(tmp_path: Path) -> None:
    config = small(env=Clock).environment(max_episode_steps=60)
    config.evaluation(custom_evaluation_function=lambda algorithm: {"a": 1}, record_video=True)
    with config.build() as algorithm:
        result = algorithm.evaluate(video_folder=tmp_path)
    assert result["a"] == 1
    assert len(decoded(result["videos"][0])[1]) > 5
