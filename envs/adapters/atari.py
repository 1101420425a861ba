"""Atari games, preprocessed as by Mnih et al. 2015: 84x84 grayscale, four frames, every fourth one.

Version 5 of the ids adds the sticky actions of Machado et al. 2018 (section 4): the emulator
repeats the last action with a probability of 0.25. The loss of a life ends no episode.
"""

import dataclasses
import importlib
import re
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import AtariPreprocessing, TimeLimit

from jaxrl.envs.adapters.host_creators import SpecCreator, VectorSpecCreator
from jaxrl.envs.context import EnvContext
from jaxrl.errors import EnvError

NUM_FRAMES = 4
FRAME_SKIP = 4
PREPROCESSING_NOTE = (
    f"preprocessed: 84x84 grayscale, the last {NUM_FRAMES} frames, each the maximum of the last "
    f"two of {FRAME_SKIP} (env_config's frameskip); is_atari=False leaves the game unchanged."
)

_ID = re.compile(r"(ALE/\w+-v\d+)|(\w+(NoFrameskip|Deterministic)-v\d+)")


def is_atari_id(env_id: str) -> bool:
    """Return whether an id looks like those that ale_py registers."""
    return _ID.fullmatch(env_id) is not None


def find_current_id(env_id: str) -> str:
    """Return the id of today's ale_py for a variant of a game that it has dropped, else the id."""
    return re.sub(r"^(\w+?)(NoFrameskip|Deterministic)-v\d+$", r"ALE/\1-v5", env_id)


def is_atari_spec(spec: EnvSpec) -> bool:
    """Return whether an entry of gymnasium's registry is one of ale_py's."""
    return isinstance(spec.entry_point, str) and spec.entry_point.startswith("ale_py")


def is_atari_env(env: gymnasium.Env[Any, Any]) -> bool:
    """Return whether the innermost environment is one of ale_py's."""
    return type(env.unwrapped).__module__.split(".")[0] == "ale_py"


def register(name: str) -> None:
    """Register the games with gymnasium.

    Raises:
        EnvError: If ale_py is not installed.
    """
    try:
        ale_py = importlib.import_module("ale_py")
    except ImportError as error:
        raise EnvError(f"{name} needs the Atari emulator: pip install 'jaxrl[atari]'.") from error
    gymnasium.register_envs(ale_py)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AtariCreator:
    """Creator of a preprocessed game; the context's config holds the emulator's arguments."""

    spec: EnvSpec
    max_episode_steps: int | None = None

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        frame_skip = self.get_frame_skip(context)
        # The emulator's own frame skip must be off, or frames would be skipped twice.
        raw = context.copy_with_overrides({**context, "frameskip": 1, "obs_type": "rgb"})
        game = SpecCreator(spec=self.spec)(raw)
        env = StackFrames(AtariPreprocessing(game, frame_skip=frame_skip), NUM_FRAMES)
        return env if self.max_episode_steps is None else TimeLimit(env, self.max_episode_steps)

    def get_time_limit(self, context: EnvContext) -> int | None:
        """Return the number of steps after which the emulator truncates, from its frame limit."""
        name = "max_num_frames_per_episode"
        frames = context.get(name, self.spec.kwargs.get(name))
        return None if not frames else -(-int(frames) // self.get_frame_skip(context))

    def get_frame_skip(self, context: EnvContext) -> int:
        """Return the number of frames per action.

        Raises:
            EnvError: If it is not a positive integer.
        """
        frame_skip = context.get("frameskip", FRAME_SKIP)
        if isinstance(frame_skip, bool) or not isinstance(frame_skip, int) or frame_skip < 1:
            raise EnvError(
                f"{self.spec.id}: frameskip (env_config) must be a positive integer with "
                f"preprocessing, got {frame_skip!r}."
            )
        return frame_skip


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class AtariVectorCreator:
    """Creator of the emulator's own vector environment, with preprocessing in C++ threads."""

    game: AtariCreator

    def __call__(self, num_envs: int, context: EnvContext) -> VectorEnv[Any, Any, Any]:
        spec = self.game.spec
        if self.game.max_episode_steps is not None:
            raise EnvError(
                f"{spec.id}: max_episode_steps has no effect with gym_env_vectorize_mode="
                f"'vector_entry_point'; set max_num_frames_per_episode in env_config."
            )
        arguments = {
            **context,
            "frameskip": self.game.get_frame_skip(context),
            "stack_num": NUM_FRAMES,
            "reward_clipping": False,  # rewards are clipped by the learner
            "use_fire_reset": False,
        }
        vector = VectorSpecCreator(spec=spec)
        return ChannelsLast(vector(num_envs, EnvContext(arguments)))


class ChannelsLast(VectorObservationWrapper):
    """Wrapper of stacked images `[B, frame, row, column]` that moves the frame to the last axis."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        stack = env.single_observation_space
        assert isinstance(stack, spaces.Box)
        shape = (*stack.shape[1:], stack.shape[0])
        self.single_observation_space = spaces.Box(0, 255, shape, np.uint8)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: Any) -> np.ndarray:
        return np.moveaxis(observations, 1, -1)


class StackFrames(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that stacks the last images as channels, newest last; a reset repeats the first."""

    def __init__(self, env: gymnasium.Env[Any, Any], num_frames: int) -> None:
        super().__init__(env)
        frame = env.observation_space
        assert isinstance(frame, spaces.Box)
        shape = (*frame.shape, num_frames)
        self.observation_space = spaces.Box(0, 255, shape, np.uint8)
        self._frames = np.zeros(shape, np.uint8)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self._frames = np.repeat(frame[..., None], self._frames.shape[-1], axis=-1)
        return self._frames, info

    def step(self, action: object) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self._frames = np.concatenate([self._frames[..., 1:], frame[..., None]], axis=-1)
        return self._frames, reward, terminated, truncated, info
