"""Environments that are Python objects and run on the host: what runners need of them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

import gymnasium
import numpy as np
from jaxtyping import Bool, Float

from jaxrl.core.types import PyTree
from jaxrl.envs.context import EnvContext

VectorizeMode = Literal["sync", "async", "vector_entry_point"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostFault:
    """What went wrong in one copy: it was restarted, its row is no transition.

    `what` is "raised", "reward" or "observation" (the last two are not finite); `detail` is the
    original traceback, or a sentence. `silent` marks a restart that the environment asked for
    itself.
    """

    row: int
    what: str
    detail: str
    silent: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostStep:
    """One vector step of `B` copies, NumPy.

    `obs` is what to act on next. `final_obs` is the successor of what was acted on, before any
    reset; it is `obs` itself where no episode ended. `mask` is False where the row is no transition
    (the reset row of an environment that resets itself at the next step, a faulty copy).
    `starts[b]` says that `obs[b]` begins an episode. `infos` has one entry a copy, that of the
    successor.
    """

    obs: PyTree
    reward: Float[np.ndarray, " B"]
    terminated: Bool[np.ndarray, " B"]
    truncated: Bool[np.ndarray, " B"]
    final_obs: PyTree
    mask: Bool[np.ndarray, " B"]
    starts: Bool[np.ndarray, " B"]
    faults: tuple[HostFault, ...] = ()
    infos: Callable[[int], dict[str, Any]] = lambda row: {}


class HostVector(Protocol):
    """`B` copies of an environment on the host, stepped together, each resetting by itself."""

    num_envs: int

    def reset(self, seeds: Sequence[int] | None = None) -> PyTree:
        """First observations `[B, ...]` of new episodes in all copies.

        Every copy draws from a seed of its own: the one that it was made with, or the given one.
        """
        ...

    def step(self, action: PyTree) -> HostStep:
        """One step of every copy; `action` is the environment's, `[B, ...]`, NumPy."""
        ...

    def hold(self, held: Bool[np.ndarray, " B"]) -> None:
        """Leave the copies so marked as they are at every step, until told otherwise.

        A held copy's row is no transition: its observation stays, its reward is 0, it does not end.

        Raises:
            EnvError: The copies can only be stepped together.
        """
        ...

    def get_state(self) -> PyTree | None:
        """Everything that the copies are in as arrays with a leading axis B; None if they cannot.

        A copy can if its environment has both `get_state()` and `set_state(state)`.
        """
        ...

    def set_state(self, state: PyTree) -> None:
        """Put the copies into a state that `get_state` returned."""
        ...

    def envs(self) -> list[Any]:
        """The environments themselves where they are in this process, for hooks and rendering."""
        ...

    def close(self) -> None:
        """Let everything go; may be called twice."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """How an environment is to be made, whatever it is: the arguments of `make` beside the first."""

    context: EnvContext
    max_episode_steps: int | None = None
    is_atari: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MadeHostEnv:
    """A host environment that can be made, in this process or another. `MadeEnv`'s counterpart.

    Args:
        id: For messages.
        create: Makes one environment for an `EnvContext`; what an actor gets pickled.
        observation_space: Of one environment.
        action_space: Of one environment.
        max_episode_steps: Its time limit, None for none (known).
        env_config: What the contexts hold.
        is_atari: Whether rewards are clipped by default.
        notes: Sentences for `config.explain()`.
        vector: Makes the vector environment that it brings itself, of so many copies; None where
            it brings none.
    """

    id: str
    create: Callable[[EnvContext], gymnasium.Env[Any, Any]]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    max_episode_steps: int | None
    env_config: dict[str, Any]
    is_atari: bool = False
    notes: tuple[str, ...] = ()
    vector: Callable[[int, EnvContext], Any] | None = None
