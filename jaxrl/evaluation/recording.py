"""Episodes of an evaluation, played once more in an environment of their own that is rendered.

They start and are drawn from as the evaluation's: the episode i is that which the evaluation's
environment i begins with, wherever the same code plays both. They count nowhere.
"""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxrl.assembly.assemble import make_env
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree, TimeStep
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import MadeHostEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.vector import VectorEnv, VectorState
from jaxrl.errors import EnvError, JaxrlError
from jaxrl.evaluation.video import DEFAULT_FPS, check_can_write, checked_picture, write_video
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import NoHooks
from jaxrl.runtime.program import Program
from jaxrl.training.evaluate import DEFAULT_STEP_CAP, Evaluated
from jaxrl.training.report import to_host
from jaxrl.training.rollout import Acting, Carry, Sampler

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig
    from jaxrl.runners.env_runner import EnvRunner


class Film(Protocol):
    """Pictures of episodes."""

    @property
    def fps(self) -> float:
        """Pictures a second."""
        ...

    def check(self) -> None:
        """Raises EnvError if the environment cannot be rendered."""
        ...

    def pictures(self, policy: Evaluated, episode: int) -> Iterator[np.ndarray]:
        """The first to the last state of an episode, counted from 0."""
        ...

    def close(self) -> None:
        """Let everything go; may be called twice."""
        ...


class Camera:
    """Writes videos of an evaluation's first episodes.

    Args:
        config: The evaluation's.
        made: Its environment.
        acting: The module and the connectors around it.

    Raises:
        JaxrlError: The environment has no pictures, or what writes videos is not installed.
    """

    def __init__(
        self, config: "AlgorithmConfig", made: MadeEnv | MadeHostEnv, acting: Acting
    ) -> None:
        check_can_write()
        self._number = int(config.evaluation_settings.record_video)
        self._film: Film = (
            JaxFilm(config, made, acting)
            if isinstance(made, MadeEnv)
            else HostFilm(config, made.id)
        )
        self._film.check()

    def record(self, policy: Evaluated, folder: Path) -> list[str]:
        """Write the videos and return their paths."""
        paths: list[str] = []
        for episode in range(self._number):
            name = f"iteration_{policy.iteration:06d}_episode_{episode + 1}.mp4"
            pictures = self._film.pictures(policy, episode)
            paths.append(str(write_video(folder / name, pictures, self._film.fps)))
        return paths

    def close(self) -> None:
        """Let everything go; may be called twice."""
        self._film.close()


# --- JAX environments ---


@pytree
class _Shown:
    """A state, and whether the episode ended with it."""

    inner: PyTree
    ended: Bool[Array, "*batch"]


class _OneEpisode(JaxEnv[_Shown, Any]):
    """An environment whose end is not told to what would reset it: its last state is to be seen."""

    def __init__(self, env: JaxEnv[Any, Any]) -> None:
        self.env = env

    def reset(self, key: Key, params: PyTree) -> tuple[_Shown, PyTree]:
        inner, obs = self.env.reset(key, params)
        return _Shown(inner=inner, ended=jnp.zeros((), bool)), obs

    def step(
        self, key: Key, state: _Shown, action: PyTree, params: PyTree
    ) -> tuple[_Shown, TimeStep]:
        inner, step = self.env.step(key, state.inner, action, params)
        never = jnp.zeros((), bool)
        shown = _Shown(inner=inner, ended=step.terminated | step.truncated)
        return shown, replace(step, terminated=never, truncated=never)


class JaxFilm:
    """Films a JAX environment, step by step."""

    def __init__(self, config: "AlgorithmConfig", made: MadeEnv, acting: Acting) -> None:
        self._made = made
        self._explore = config.env_runners_settings.explore
        self._sampler = Sampler(
            module=acting.module,
            obs_pipeline=acting.obs_pipeline,
            action_pipeline=acting.action_pipeline,
            env=VectorEnv(_OneEpisode(made.env), made.env.reset_mode),
        )
        jit = config.debugging_settings.jit
        self._reset = Program("film_reset", self._first, enabled=jit)
        self._step = Program("film_step", self._next, enabled=jit)

    @property
    def fps(self) -> float:
        return float(self._made.env.render_fps)

    def check(self) -> None:
        first = self._reset(jax.random.key(0), np.zeros(1, np.int32), self._made.params)
        self._render(first[0], self._made.params)

    def pictures(self, policy: Evaluated, episode: int) -> Iterator[np.ndarray]:
        params, index = policy.env_params, np.array([episode], np.int32)
        # The evaluation has drawn from this key: the same is to be seen again.
        shown, state = self._reset(jax.random.clone(policy.key), index, params)
        carry = self._sampler.initial_carry(1)
        yield self._render(shown, params)
        for _ in range(self._made.max_episode_steps or DEFAULT_STEP_CAP):
            shown, over, state, carry = self._step(policy.actor, state, carry, params)
            yield self._render(shown, params)
            if over:
                return

    def close(self) -> None:
        """There is nothing to let go."""

    def _first(self, key: Key, index: Array, params: PyTree) -> tuple[PyTree, VectorState]:
        state = self._sampler.env.reset(key, jnp.asarray(index), params)
        return _row(state.env.inner), state

    def _next(
        self, actor: Any, state: VectorState, carry: Carry, params: PyTree
    ) -> tuple[PyTree, Array, VectorState, Carry]:
        row = jax.tree.map(lambda x: x[0], self._sampler.inputs(state, 1, params))
        state, carry, _, _ = self._sampler.step(actor, state, carry, row, params, self._explore)
        return _row(state.env.inner), (state.env.ended | state.is_first)[0], state, carry

    def _render(self, state: PyTree, params: PyTree) -> np.ndarray:
        try:
            picture = self._made.env.render(state, params)
        except NotImplementedError as error:
            raise EnvError(
                f"record_video: {self._made.id} has no pictures ({error}); give its JaxEnv a "
                "method render(state, params), or leave record_video out."
            ) from error
        return checked_picture(self._made.id, picture)


def _row(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: x[0], tree)


# --- gymnasium environments ---


class _Tape:
    """The pictures of one episode, until they are taken."""

    def __init__(self) -> None:
        self.fps = DEFAULT_FPS
        self.rewind()

    def rewind(self) -> None:
        self._pictures: list[Any] = []
        self.episodes = 0

    def add(self, picture: Any) -> None:
        if self.episodes == 1:
            self._pictures.append(picture)

    def take(self) -> list[Any]:
        taken, self._pictures = self._pictures, []
        return taken


class _Filmed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Renders after every reset and step, before anything resets the environment again."""

    def __init__(self, env: gymnasium.Env[Any, Any], tape: _Tape) -> None:
        super().__init__(env)
        self._tape = tape
        tape.fps = float(env.metadata.get("render_fps") or DEFAULT_FPS)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        result = self.env.reset() if seed is None else self.env.reset(seed=seed)
        self._tape.episodes += 1
        self._tape.add(self.env.render())
        return result

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self._tape.add(self.env.render())
        return result


@dataclasses.dataclass(frozen=True, eq=False)
class _FilmedCreator:
    """Makes what another creator makes, filmed."""

    create: Callable[[EnvContext], gymnasium.Env[Any, Any]]
    tape: _Tape

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        return _Filmed(self.create(context), self.tape)


class HostFilm:
    """Films a gymnasium environment made with `render_mode="rgb_array"`."""

    def __init__(self, config: "AlgorithmConfig", env_id: str) -> None:
        self._id = env_id
        self._tape = _Tape()
        self._made = self._rendered(config)
        self._config = config.copy(copy_frozen=False).env_runners(
            gym_env_vectorize_mode="sync", env_runner_cls=None
        )
        self._runner: EnvRunner | None = None

    def _rendered(self, config: "AlgorithmConfig") -> MadeHostEnv:
        env_config = dict(config.environment_settings.env_config or {})
        asked = config.copy(copy_frozen=False)
        if not isinstance(config.environment_settings.env, gymnasium.Env):
            asked.environment(env_config={**env_config, "render_mode": "rgb_array"})
        try:
            made = make_env(asked)
        except JaxrlError as error:
            raise EnvError(
                f"record_video makes a copy of {self._id} with render_mode='rgb_array', which "
                f"fails: {error}"
            ) from error
        assert isinstance(made, MadeHostEnv)
        return dataclasses.replace(made, create=_FilmedCreator(made.create, self._tape))

    @property
    def fps(self) -> float:
        return self._tape.fps

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
            (picture,) = self._tape.take()
        except JaxrlError:
            raise
        except Exception as error:
            raise EnvError(
                f"record_video: {self._id} cannot be rendered: {type(error).__name__}: "
                f"{str(error).rstrip('.')}."
            ) from error
        finally:
            env.close()
        checked_picture(self._id, picture)

    def pictures(self, policy: Evaluated, episode: int) -> Iterator[np.ndarray]:
        runner = self._started()
        runner.set_weights(Weights(version=policy.iteration, actor=to_host(policy.actor)))
        self._tape.rewind()
        runner.restart(policy.seed, np.array([episode], np.int32))
        for _ in range(self._made.max_episode_steps or DEFAULT_STEP_CAP):
            runner.sample(1)
            for picture in self._tape.take():
                yield checked_picture(self._id, picture)
            if self._tape.episodes > 1:
                return

    def _started(self) -> "EnvRunner":
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
