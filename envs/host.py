"""Interface between runners and Python environments that are stepped on the host."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import gymnasium
import numpy as np

from jaxrl.envs.context import EnvContext

if TYPE_CHECKING:  # the processes of copies import neither JAX nor jaxtyping
    from jaxtyping import Bool, Float

    from jaxrl.core.types import PyTree

VectorizeMode = Literal["auto", "sync", "async", "vector_entry_point"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFault:
    """A fault of one copy, which was restarted; its row is no transition.

    `what` is "raised", "reward" or "observation" (the latter two are not finite); `detail` is the
    original traceback, or a sentence. `silent` marks a restart that the environment requested.
    """

    row: int
    what: str
    detail: str
    silent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostStep:
    """One vector step of `B` copies, as NumPy arrays.

    `obs` is the observation to act on next. `final_obs` is the successor of the observation acted
    on, before any reset; it equals `obs` where no episode ended. `mask` is False where the row is
    no transition (the reset row of a vector environment that resets at the next step, a faulty
    copy). `starts[b]` is True if `obs[b]` begins an episode. `infos(b)` is the info of copy b's
    successor.
    """

    obs: "PyTree"
    reward: "Float[np.ndarray, ' B']"
    terminated: "Bool[np.ndarray, ' B']"
    truncated: "Bool[np.ndarray, ' B']"
    final_obs: "PyTree"
    mask: "Bool[np.ndarray, ' B']"
    starts: "Bool[np.ndarray, ' B']"
    faults: tuple[HostFault, ...] = ()
    infos: Callable[[int], dict[str, Any]] = lambda row: {}


class HostVector(Protocol):
    """`B` copies of an environment on the host, stepped together, with auto-reset."""

    num_envs: int
    can_pause: bool

    def reset(self, seeds: Sequence[int] | None = None) -> "PyTree":
        """Start new episodes in all copies and return their first observations, `[B, ...]`.

        Every copy has a seed of its own: the one that it was made with, or the given one.
        """
        ...

    def get_reset_info(self, row: int) -> dict[str, Any]:
        """Return the info of the latest reset of one copy."""
        ...

    def step(self, action: "PyTree", on_step: Callable[[HostStep], None] | None = None) -> HostStep:
        """Step every copy, and reset those whose episode ended.

        Args:
            action: Actions of the environment, `[B, ...]` NumPy arrays.
            on_step: Function that is called in between with the step, whose `obs` and `starts` are
                not yet those of the resets; copies that reset themselves are reset already.
        """
        ...

    def pause(self, paused: "Bool[np.ndarray, ' B']") -> None:
        """Pause the marked copies, and resume the others, until the next call.

        The row of a paused copy is no transition: its observation stays, its reward is 0, and its
        episode does not end.

        Raises:
            EnvError: If the copies can only be stepped together.
        """
        ...

    def get_state(self) -> "PyTree | None":
        """Return the state of all copies as arrays with a leading axis B, None if unavailable.

        It is available if the environment has both `get_state()` and `set_state(state)`.
        """
        ...

    def set_state(self, state: "PyTree") -> None:
        """Restore a state that `get_state` returned."""
        ...

    def set_task(self, task: "PyTree") -> None:
        """Change the task of every copy, also of those that are made again.

        Args:
            task: Argument of the environment's `set_task`; parameters for a JAX environment.

        Raises:
            EnvError: If the environment does not accept the task.
        """
        ...

    def call_task_method(self, name: str, *args: int) -> "PyTree":
        """Call `get_task` or `sample_tasks` of the first copy and return the result.

        Raises:
            EnvError: If the environment does not have the method, or the method raises.
        """
        ...

    def get_sub_environments(self) -> list[Any]:
        """Return the environments that live in this process, for callbacks and rendering."""
        ...

    def close(self) -> None:
        """Release all resources; may be called twice."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvRequest:
    """Arguments of `make` other than the environment."""

    context: EnvContext
    max_episode_steps: int | None = None
    is_atari: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeHostEnv:
    """Creator and description of a host environment; the counterpart of `MadeEnv`.

    Args:
        id: Name for messages.
        create: Function that makes one environment for an `EnvContext`; it is pickled for actors.
        observation_space: Observation space of one environment.
        action_space: Action space of one environment.
        max_episode_steps: Time limit, None if none is known.
        env_config: Config of every `EnvContext`.
        is_atari: Whether rewards are clipped by default.
        notes: Sentences for `config.explain()`.
        vector: Function that makes the environment's own vector environment with a given number of
            copies, None if it has none.
        prefers_vector: Whether that is how copies are stepped unless a mode is asked for.
        is_task_settable: Whether it has a method `set_task`.
        task: Task of every copy from its creation on, None for the environment's own.
    """

    is_jax: ClassVar[bool] = False

    id: str
    create: Callable[[EnvContext], gymnasium.Env[Any, Any]]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_steps: int | None
    env_config: dict[str, Any]
    is_atari: bool = False
    notes: tuple[str, ...] = ()
    vector: Callable[[int, EnvContext], gymnasium.vector.VectorEnv[Any, Any, Any]] | None = None
    prefers_vector: bool = False
    is_task_settable: bool = False
    task: "PyTree" = None

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation space and action space."""
        return self.observation_space, self.action_space

    def resolve_mode(self, mode: VectorizeMode) -> VectorizeMode:
        """Return the mode that "auto" stands for; any other is returned as it is."""
        if mode != "auto":
            return mode
        return "vector_entry_point" if self.prefers_vector else "sync"
