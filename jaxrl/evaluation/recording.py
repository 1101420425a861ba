"""Video recordings of evaluation episodes, replayed in a separate environment that is rendered.

Recorded episodes start from and are drawn with the keys of the evaluation: episode i is the first
one of the evaluation's environment i, if both run the same code. They do not count in any result.
"""

import contextlib
import dataclasses
import importlib
import subprocess
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, SupportsFloat

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, UInt8

from jaxrl.assembly.assemble import make_env
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import VectorEnv, VectorState
from jaxrl.errors import ConfigError, EnvError, JaxrlError, RunFolderError
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runtime.program import Program
from jaxrl.training.evaluate import DEFAULT_MAX_EPISODE_STEPS, EvaluationInputs
from jaxrl.training.report import to_host
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.runners.env_runner import EnvRunner


DEFAULT_FPS = 30.0
"""Frames per second for environments that do not specify it."""


class EpisodeRecording(Protocol):
    """Source of the frames of episodes."""

    @property
    def fps(self) -> float:
        """Frames per second."""
        ...

    def check(self) -> None:
        """Raise EnvError if the environment cannot be rendered."""
        ...

    def render_episode(self, policy: EvaluationInputs, episode: int) -> Iterator[np.ndarray]:
        """Run an episode and yield a frame of each state, from the first to the last.

        Args:
            policy: Policy to evaluate.
            episode: Index of the episode, from 0.
        """
        ...

    def close(self) -> None:
        """Release all resources; idempotent."""
        ...


class VideoRecorder:
    """Recorder of an evaluation's first episodes.

    Args:
        config: Config of the evaluation.
        made: Evaluation environment.
        policy_step: Module and connectors.

    Raises:
        JaxrlError: If the environment cannot be rendered, or the video encoder is not installed.
    """

    def __init__(
        self, config: "Config", made: MadeEnv | MadeHostEnv, policy_step: PolicyStep
    ) -> None:
        check_ffmpeg()
        self._num_episodes = int(config.evaluation_settings.record_video)
        self._recording: EpisodeRecording = (
            JaxEpisodeRecording(
                made,
                policy_step,
                explore=config.env_runners_settings.explore,
                compiles=config.debugging_settings.compiles,
            )
            if isinstance(made, MadeEnv)
            else HostEpisodeRecording(config, made.id)
        )
        self._recording.check()

    def record(self, policy: EvaluationInputs, folder: Path) -> list[str]:
        """Write the videos and return their paths."""
        paths: list[str] = []
        for episode in range(self._num_episodes):
            name = f"iteration_{policy.iteration:06d}_episode_{episode + 1}.mp4"
            frames = self._recording.render_episode(policy, episode)
            paths.append(str(write_video(folder / name, frames, self._recording.fps)))
        return paths

    def close(self) -> None:
        """Release all resources; idempotent."""
        self._recording.close()


# --- JAX environments ---


@pytree
class _EpisodeState:
    """State of an environment, and whether the episode ended with it."""

    inner: PyTree
    ended: Bool[Array, "*batch"]


class _NoAutoReset(JaxEnv[_EpisodeState, Any]):
    """Environment wrapper that hides episode ends from auto-reset, so that final states remain."""

    def __init__(self, env: JaxEnv[Any, Any]) -> None:
        self.env = env

    def reset(self, key: Key, params: PyTree) -> tuple[_EpisodeState, PyTree]:
        inner, obs = self.env.reset(key, params)
        return _EpisodeState(inner=inner, ended=jnp.zeros((), bool)), obs

    def step(
        self, key: Key, state: _EpisodeState, action: PyTree, params: PyTree
    ) -> tuple[_EpisodeState, TimeStep]:
        inner, step = self.env.step(key, state.inner, action, params)
        never = jnp.zeros((), bool)
        state = _EpisodeState(inner=inner, ended=step.terminated | step.truncated)
        return state, replace(step, terminated=never, truncated=never)


class JaxEpisodeRecording:
    """Recording of a JAX environment.

    Args:
        made: Evaluation environment.
        policy_step: Module and connectors.
        explore: Whether the module explores.
        compiles: Whether to compile.
    """

    def __init__(
        self, made: MadeEnv, policy_step: PolicyStep, *, explore: bool, compiles: bool
    ) -> None:
        self._made, self._explore = made, explore
        env = VectorEnv(_NoAutoReset(made.env), made.env.reset_mode)
        self._rollout_worker = policy_step.with_envs(env)
        self._reset_program = Program("film_reset", self._reset, enabled=compiles)
        self._step_program = Program("film_step", self._step, enabled=compiles)

    @property
    def fps(self) -> float:
        return float(self._made.env.render_fps)

    def check(self) -> None:
        env_state, _ = self._reset_program(
            jax.random.key(0), np.zeros(1, np.int32), self._made.params
        )
        self._render(env_state, self._made.params)

    def render_episode(self, policy: EvaluationInputs, episode: int) -> Iterator[np.ndarray]:
        params, index = policy.env_params, np.array([episode], np.int32)
        # The evaluation has consumed this key; the clone reproduces its draws.
        env_state, state = self._reset_program(jax.random.clone(policy.key), index, params)
        carry = self._rollout_worker.initial_carry(1)
        yield self._render(env_state, params)
        for _ in range(self._made.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS):
            env_state, is_over, state, carry = self._step_program(
                policy.actor, state, carry, params
            )
            yield self._render(env_state, params)
            if is_over:
                return

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def _reset(self, key: Key, index: Array, params: PyTree) -> tuple[PyTree, VectorState]:
        state = self._rollout_worker.env.reset(key, jnp.asarray(index), params)
        return _get_first_row(state.env.inner), state

    def _step(
        self, actor: ActorState, state: VectorState, carry: ActorCarry, params: PyTree
    ) -> tuple[PyTree, Array, VectorState, ActorCarry]:
        inputs = _get_first_row(self._rollout_worker.sample_inputs(state, 1, params))
        state, carry, _, _ = self._rollout_worker.step(
            actor, state, carry, inputs, params, self._explore
        )
        is_over = (state.env.ended | state.is_first)[0]
        return _get_first_row(state.env.inner), is_over, state, carry

    def _render(self, state: PyTree, params: PyTree) -> np.ndarray:
        try:
            frame = self._made.env.render(state, params)
        except NotImplementedError as error:
            raise EnvError(
                f"record_video: {self._made.id} cannot be rendered ({error}); give its JaxEnv a "
                "method render(state, params), or leave record_video out."
            ) from error
        return check_frame(self._made.id, frame)


def _get_first_row(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], tree)


# --- gymnasium environments ---


class _FrameBuffer:
    """Buffer for the frames of one episode."""

    def __init__(self) -> None:
        self.fps = DEFAULT_FPS
        self.clear()

    def clear(self) -> None:
        self._frames: list[object] = []
        self.num_episodes = 0

    def add(self, frame: object) -> None:
        if self.num_episodes == 1:
            self._frames.append(frame)

    def take(self) -> list[object]:
        frames, self._frames = self._frames, []
        return frames


class _RenderAfterStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment wrapper that renders after every reset and step, before any auto-reset."""

    def __init__(self, env: gymnasium.Env[Any, Any], frames: _FrameBuffer) -> None:
        super().__init__(env)
        self._frames = frames
        frames.fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._frames.num_episodes += 1
        self._frames.add(self.env.render())
        return result

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._frames.add(self.env.render())
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class _RenderedEnvCreator:
    """Environment creator that wraps another creator's environments for rendering."""

    create: Callable[[EnvContext], gymnasium.Env[Any, Any]]
    frames: _FrameBuffer

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        return _RenderAfterStep(self.create(context), self.frames)


class HostEpisodeRecording:
    """Recording of a gymnasium environment made with `render_mode="rgb_array"`.

    Args:
        config: Config of the evaluation.
        env_id: Name of the environment.
    """

    def __init__(self, config: "Config", env_id: str) -> None:
        self._id = env_id
        self._frames = _FrameBuffer()
        env_config = dict(config.environment_settings.env_config or {})
        changed = config.copy(copy_frozen=False)
        if not isinstance(config.environment_settings.env, gymnasium.Env):
            changed.environment(env_config={**env_config, "render_mode": "rgb_array"})
        try:
            made = make_env(changed)
        except JaxrlError as error:
            raise EnvError(
                f"record_video makes a copy of {env_id} with render_mode='rgb_array', which "
                f"fails: {error}"
            ) from error
        assert isinstance(made, MadeHostEnv)
        create = _RenderedEnvCreator(made.create, self._frames)
        self._made = dataclasses.replace(made, create=create)
        self._config = config.copy(copy_frozen=False).env_runners(
            gym_env_vectorize_mode="sync", env_runner_cls=None
        )
        self._runner: EnvRunner | None = None

    @property
    def fps(self) -> float:
        return self._frames.fps

    def check(self) -> None:
        env = self._made.create(EnvContext(self._made.env_config))
        mode = env.render_mode
        try:
            if mode != "rgb_array":
                raise EnvError(
                    f"record_video needs render_mode='rgb_array', but {self._id} was made with "
                    f"{mode!r}: pass the render_mode of env_config on to the environment."
                )
            env.reset(seed=0)
            (frame,) = self._frames.take()
        except JaxrlError:
            raise
        except Exception as error:
            raise EnvError(
                f"record_video: {self._id} cannot be rendered: {type(error).__name__}: "
                f"{str(error).rstrip('.')}."
            ) from error
        finally:
            env.close()
        check_frame(self._id, frame)

    def render_episode(self, policy: EvaluationInputs, episode: int) -> Iterator[np.ndarray]:
        runner = self._get_runner()
        actor = to_host(policy.actor)
        runner.set_weights(Weights(version=policy.iteration, actor=actor, task=policy.task))
        self._frames.clear()
        runner.restart(policy.seed, np.array([episode], np.int32))
        for _ in range(self._made.max_episode_steps or DEFAULT_MAX_EPISODE_STEPS):
            runner.sample_fragment(1)
            for frame in self._frames.take():
                yield check_frame(self._id, frame)
            if self._frames.num_episodes > 1:
                return

    def _get_runner(self) -> "EnvRunner":
        from jaxrl.runners.env_runner import make_env_runner

        if self._runner is None:
            self._runner = make_env_runner(
                self._config, made=self._made, num_envs=1, first_env_index=0, hooks=NoHooks()
            )
        return self._runner

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
            self._runner = None


# --- mp4 files ---


def check_ffmpeg() -> None:
    """Raise if videos cannot be written.

    Raises:
        ConfigError: If imageio-ffmpeg is not installed, or has no ffmpeg for this machine.
    """
    try:
        _get_ffmpeg()
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"record_video writes mp4 files with imageio-ffmpeg, which is not available ({error}): "
            "pip install 'jaxrl[video]'."
        ) from error


def check_frame(name: str, frame: object) -> UInt8[np.ndarray, "height width 3"]:
    """Check a frame rendered by an environment and return it.

    Args:
        name: Name of the environment, for the error message.
        frame: Return value of the environment's `render`.

    Raises:
        EnvError: If it is not an RGB image.
    """
    if not isinstance(frame, np.ndarray):
        got = f"a {type(frame).__name__}"
    elif frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype}{list(frame.shape)}"
    else:
        return frame
    raise EnvError(
        f"record_video: {name} must render frames of type uint8 and shape [height, width, 3], "
        f"got {got}."
    )


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float) -> Path:
    """Write a video frame by frame; the file appears when it is complete.

    Frames are padded to an even height and width, which most players require.

    Args:
        path: Path of the file, ending in .mp4; its folder is created.
        frames: Frames, uint8 `[height, width, 3]`, at least one.
        fps: Frames per second.

    Returns:
        The path of the file.

    Raises:
        EnvError: If the frames differ in size.
        RunFolderError: If the file cannot be written.
    """
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    encoder: _Encoder | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()  # the encoder's messages are of many lines
        for picture in frames:
            if encoder is None:
                encoder = _Encoder(partial, picture.shape, fps)
            encoder.add(picture)
        assert encoder is not None
        encoder.finish()
        partial.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"record_video cannot write {path}: {reason}.") from error
    finally:
        if encoder is not None:
            encoder.kill()
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return path


class _Encoder:
    """ffmpeg process that encodes frames.

    The process is started here because imageio-ffmpeg forks in a way that JAX warns about.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self._shape = shape
        height, width = (length + length % 2 for length in shape[:2])
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        target = ["-an", "-vcodec", "libx264", "-crf", "23", "-pix_fmt", "yuv420p"]
        rate = ["-r", f"{fps:g}"]
        self._process = subprocess.Popen(
            [_get_ffmpeg(), "-y", "-v", "error", *source, *rate, "-i", "-", *target, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # keeps Ctrl-C from reaching ffmpeg
        )

    def add(self, frame: np.ndarray) -> None:
        if frame.shape != self._shape:
            raise EnvError(
                f"record_video: all frames of an episode must have the same size, got "
                f"{list(self._shape)} and then {list(frame.shape)}."
            )
        height, width = frame.shape[:2]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(even.tobytes())
        except BrokenPipeError:
            self.finish()  # raises ffmpeg's error

    def finish(self) -> None:
        _, stderr = self._process.communicate()
        if self._process.returncode:
            raise OSError(stderr.decode(errors="replace").strip() or "ffmpeg failed")

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _get_ffmpeg() -> str:
    return importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
