"""Gymnasium's vector environments as a `HostVector`, in each of their ways to reset themselves."""

import dataclasses
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from jaxtyping import Bool

from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import close_quietly, raise_if_users
from jaxrl.envs.adapters.gym_processes import close_processes, dead_copies
from jaxrl.envs.adapters.host_arrays import (
    CopyInfos,
    all_finite,
    copy_infos,
    finite_or_zero,
    finite_rows,
    where_rows,
)
from jaxrl.envs.host import HostFault, HostStep
from jaxrl.envs.space_checks import leaf_dtype
from jaxrl.errors import EnvError, in_one_line


class RemoteTraceback(Exception):  # noqa: N818  (it is the cause of an error, and none itself)
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class GymVector:
    """`B` copies in one of gymnasium's vector environments.

    A copy that ended is reset within the step (SAME_STEP), right after it (DISABLED, by a reset
    mask), or by the next step (NEXT_STEP), whose row is then no transition. The transitions are
    the same in all three.

    A copy that returns a reward or an observation that is not finite is reset, and the row is no
    transition, as in `jaxrl.envs.vector`; so is a copy that its barrier restarted.
    """

    def __init__(
        self,
        vector: GymnasiumVectorEnv[Any, Any, Any],
        *,
        name: str,
        seeds: list[int],
        observation_space: gymnasium.Space[Any],
        timeout_s: float | None = None,
    ) -> None:
        """Takes `vector` over and closes it in the end.

        Args:
            vector: Whose `metadata["autoreset_mode"]` says how it resets.
            name: For messages.
            seeds: Of each copy's first reset.
            observation_space: Of one copy, as modules see it.
            timeout_s: How long a step or reset of copies in processes may take; None for ever.
        """
        self._timeout_s = timeout_s
        self.num_envs = vector.num_envs
        self.vector = vector
        self._name = name
        self._seeds = seeds
        self._observation_space = observation_space
        self._mode = _autoreset_mode(vector, name)
        # Gymnasium's own take a reset mask in every mode, others only where they must.
        own = isinstance(vector, SyncVectorEnv | AsyncVectorEnv)
        self._seed_each = own
        self._takes_mask = own or self._mode is AutoresetMode.DISABLED
        self._copy_obs = None if own else True
        is_array = isinstance(observation_space, gymnasium.spaces.Box)
        self._array_dtype = leaf_dtype(observation_space) if own and is_array else None
        self._obs: PyTree = None
        self._nobody = np.zeros(self.num_envs, np.bool_)
        self._everybody = np.ones(self.num_envs, np.bool_)
        self._to_reset = self._nobody
        self._faulty = self._nobody
        self._held, self._calm = self._nobody, True
        self._earlier_faults: list[HostFault] = []
        self._closed = False
        self._failed = False

    def reset(self, seeds: Sequence[int] | None = None) -> PyTree:
        chosen: Any = self._seeds if seeds is None else list(seeds)
        if not self._seed_each:
            chosen = chosen[0]
        obs, infos = self._call(lambda: self._reset_vector(seed=chosen))
        self._to_reset = self._nobody
        self._earlier_faults = self._restarts(copy_infos(infos, self.num_envs))
        self._obs, self._faulty = finite_or_zero(self._as_runner(obs))
        self._look_around()
        return self._obs

    def step(self, action: PyTree) -> HostStep:
        space: Any = self.vector.single_action_space
        action = map_leaves(_action_batch, space, action)
        obs, reward, terminated, truncated, infos = self._call(lambda: self._step_vector(action))
        result = _Result(
            obs=self._as_runner(obs),
            reward=_float32(reward),
            terminated=np.asarray(terminated),
            truncated=np.asarray(truncated),
            infos=copy_infos(infos, self.num_envs),
        )
        return self._calm_step(result) or self._eventful_step(result)

    def _calm_step(self, result: "_Result") -> HostStep | None:
        """A step in which at most some episodes ended, at little cost; None if more happened."""
        if not self._calm or result.infos.faults:
            return None
        if not (all_finite(result.reward) and all_finite(result.obs)):
            return None
        ended, final_obs = result.terminated | result.truncated, result.obs
        if not np.count_nonzero(ended):  # several times as fast as any()
            ended = self._nobody
        elif self._mode is AutoresetMode.SAME_STEP:
            final_obs = self._final_obs(result)
            if not all_finite(final_obs):
                return None
        else:
            return None
        self._obs = result.obs
        return HostStep(
            obs=result.obs,
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated,
            final_obs=final_obs,
            mask=self._everybody,
            starts=ended,
            infos=result.infos,
        )

    def hold(self, held: Bool[np.ndarray, " B"]) -> None:
        if not isinstance(self.vector, SyncVectorEnv | AsyncVectorEnv):
            raise EnvError(
                f"{self._name}: copies of a vector environment of its own can only be stepped "
                f"together; set gym_env_vectorize_mode to 'sync' or 'async'."
            )
        self._held = np.array(held, np.bool_)
        self._look_around()
        self.vector.set_attr("held", self._held.tolist())

    def get_state(self) -> PyTree | None:
        if self._failed or not isinstance(self.vector, SyncVectorEnv | AsyncVectorEnv):
            return None
        copies = self.vector.get_attr("copy_state")
        if any(copy is None for copy in copies):
            return None
        flags = {"to_reset": self._to_reset, "faulty": self._faulty}
        stacked = jax.tree.map(lambda *rows: np.stack(rows), *copies)
        return {"copies": stacked, "flags": flags, "obs": self._obs}

    def set_state(self, state: PyTree) -> None:
        def row(index: int) -> PyTree:
            return jax.tree.map(lambda x: np.asarray(x)[index], state["copies"])

        vector: Any = self.vector
        self._call(lambda: vector.set_attr("copy_state", [row(i) for i in range(self.num_envs)]))
        self._to_reset = np.asarray(state["flags"]["to_reset"], np.bool_)
        self._faulty = np.asarray(state["flags"]["faulty"], np.bool_)
        self._obs = jax.tree.map(np.asarray, state["obs"])
        self._earlier_faults = []
        self._look_around()

    def envs(self) -> list[Any]:
        """The copies where they are in this process; the one vector environment if it is its own.

        Empty where the copies are in processes of their own.
        """
        if isinstance(self.vector, SyncVectorEnv):
            barriers: Any = self.vector.envs
            return [barrier.inner for barrier in barriers]
        return [] if isinstance(self.vector, AsyncVectorEnv) else [self.vector]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if isinstance(self.vector, AsyncVectorEnv):
            close_processes(self.vector)
        else:
            close_quietly(self._name, self.vector)

    def _eventful_step(self, result: "_Result") -> HostStep:
        """A step in which something failed, was held, or has to be reset."""
        before, was_reset, held = self._obs, self._to_reset, self._held
        faults = [*self._earlier_faults, *self._restarts(result.infos)]
        ended = (result.terminated | result.truncated) & ~was_reset
        # A restart during the reset after an end leaves the step itself whole.
        restarted = np.isin(np.arange(self.num_envs), list(result.infos.faults))
        replaced = restarted & ~ended & ~was_reset
        final_obs = self._final_obs(result)
        sound = ~(was_reset | replaced | held)
        bad_obs = (~finite_rows(final_obs) | self._faulty) & sound
        bad_reward = ~np.isfinite(result.reward) & sound & ~bad_obs
        faults += self._nonfinite_faults(bad_reward, "reward")
        faults += self._nonfinite_faults(bad_obs, "observation")
        mask = sound & ~bad_reward & ~bad_obs
        fresh = self._reset_where(ended, bad_reward | bad_obs)
        mask = mask & ~(fresh.rows & ~ended)
        obs = result.obs if fresh.obs is None else where_rows(fresh.rows, fresh.obs, result.obs)
        starts = was_reset | replaced | fresh.rows
        if self._mode is AutoresetMode.SAME_STEP:
            starts = starts | ended
        self._obs, unfit = finite_or_zero(obs)
        self._faulty = unfit & (starts | held)
        self._to_reset = ended if self._mode is AutoresetMode.NEXT_STEP else self._nobody
        self._earlier_faults = fresh.faults
        self._look_around()
        return HostStep(
            obs=self._obs,
            reward=np.where(mask, result.reward, np.float32(0.0)),
            terminated=result.terminated & mask,
            truncated=(result.truncated | ~mask) & ~was_reset & ~held,
            final_obs=where_rows(mask, final_obs, before),
            mask=mask,
            starts=starts,
            faults=tuple(faults),
            infos=result.infos,
        )

    def _look_around(self) -> None:
        """Remember whether the next step has something to take care of."""
        flags = self._to_reset, self._faulty, self._held
        self._calm = not self._earlier_faults and not any(flag.any() for flag in flags)

    def _final_obs(self, result: "_Result") -> PyTree:
        """The successors: with those that were put aside where an episode ended."""
        if not result.infos.final_obs:
            return result.obs
        final = jax.tree.map(np.copy, result.obs)
        for row, obs in result.infos.final_obs.items():
            one = self._as_runner(obs)
            jax.tree.map(lambda all_, x, row=row: all_.__setitem__(row, x), final, one)
        return final

    def _reset_where(self, ended: Bool[np.ndarray, " B"], bad: Bool[np.ndarray, " B"]) -> "_Fresh":
        """Reset the copies that the vector environment does not reset itself."""
        rows = bad & ~ended
        if self._mode is AutoresetMode.DISABLED:
            rows = rows | ended
        if not rows.any():
            return _Fresh(rows=rows)
        if not self._takes_mask:
            rows = self._everybody if self._mode is AutoresetMode.SAME_STEP else ~ended
        mask = {"reset_mask": rows.copy()}
        options = mask if self._takes_mask else None
        obs, infos = self._call(lambda: self._reset_vector(options=options))
        faults = self._restarts(copy_infos(infos, self.num_envs))
        return _Fresh(rows=rows, obs=self._as_runner(obs), faults=faults)

    def _restarts(self, infos: CopyInfos) -> list[HostFault]:
        """The faults that barriers report.

        Raises:
            EnvError: One is fatal.
        """
        found: list[HostFault] = []
        for row, fault in infos.faults.items():
            if fault.fatal:
                self._failed = True
                cause = fault.error
                if cause is None and fault.trace:
                    cause = RemoteTraceback(fault.trace)
                raise EnvError(fault.detail) from cause
            detail = f"{fault.detail}\n{fault.trace}"
            found.append(HostFault(row=row, what="raised", detail=detail, silent=fault.silent))
        return found

    def _nonfinite_faults(self, rows: Bool[np.ndarray, " B"], what: str) -> list[HostFault]:
        detail = f"{self._name}: the {what} is not finite."
        return [HostFault(row=int(row), what=what, detail=detail) for row in np.flatnonzero(rows)]

    def _as_runner(self, obs: PyTree) -> PyTree:
        if obs.__class__ is np.ndarray and obs.dtype is self._array_dtype:
            return obs
        return map_leaves(self._cast_obs, self._observation_space, obs)

    def _cast_obs(self, space: gymnasium.Space[Any], value: Any) -> np.ndarray:
        return np.array(value, leaf_dtype(space), copy=self._copy_obs)

    def _reset_vector(self, **arguments: Any) -> Any:
        if not isinstance(self.vector, AsyncVectorEnv):
            return self.vector.reset(**arguments)
        self.vector.reset_async(**arguments)
        return self.vector.reset_wait(timeout=self._timeout_s)

    def _step_vector(self, action: PyTree) -> Any:
        if not isinstance(self.vector, AsyncVectorEnv):
            return self.vector.step(action)
        self.vector.step_async(action)
        return self.vector.step_wait(timeout=self._timeout_s)

    def _call(self, function: Callable[[], Any]) -> Any:
        """What the vector environment returns.

        Raises:
            EnvError: It raised, or one of its processes died.
        """
        try:
            return function()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._failed = True
            raise EnvError(
                f"{self._name}: {dead_copies(self.vector)}; look for what it printed, or use "
                f"gym_env_vectorize_mode='sync'."
            ) from error
        except multiprocessing.TimeoutError as error:
            self._failed = True
            raise EnvError(
                f"{self._name}: the process of a copy has not answered within "
                f"sample_timeout_s={self._timeout_s:g} seconds, so its environment hangs; raise "
                f"sample_timeout_s if it is only slow."
            ) from error
        except BaseException as error:
            self._failed = True
            raise_if_users(error)
            raise EnvError(
                f"{self._name}: the vector environment raised {in_one_line(error)}."
            ) from error


@dataclasses.dataclass(kw_only=True, slots=True)
class _Result:
    """What a vector environment returned, in the dtypes of runners."""

    obs: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: CopyInfos


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Fresh:
    """Copies that were reset on demand."""

    rows: np.ndarray
    obs: PyTree = None
    faults: list[HostFault] = dataclasses.field(default_factory=list)


def _action_batch(space: gymnasium.Space[Any], value: Any) -> np.ndarray:
    """A copy in the environment's dtype, which it may write to."""
    return np.array(value, space.dtype)


def _float32(reward: Any) -> np.ndarray:
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and so a fault
        return np.asarray(reward).astype(np.float32)


def _autoreset_mode(vector: GymnasiumVectorEnv[Any, Any, Any], name: str) -> AutoresetMode:
    mode = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvError(
            f"{name}: metadata['autoreset_mode'] of the vector environment must be one of "
            f"gymnasium.vector.AutoresetMode, got {mode!r}."
        ) from None
