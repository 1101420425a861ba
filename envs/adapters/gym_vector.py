"""Gymnasium's vector environments as a `HostVector`, for each auto-reset mode, and a faster one."""

import dataclasses
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat, TypeVar

import gymnasium
import jax
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymnasiumVectorEnv
from gymnasium.vector.utils import concatenate as stack_rows
from gymnasium.vector.utils import create_empty_array, iterate
from jaxtyping import Bool

from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.spaces import map_leaves
from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.barrier import FAULT_KEY, SubEnvFault, close_quietly, reraise_interrupts
from jaxrl.envs.adapters.gym_processes import (
    RemoteTraceback,
    close_processes,
    describe_dead_processes,
    get_processes,
)
from jaxrl.envs.adapters.host_spaces import is_finite
from jaxrl.envs.host import HostFault, HostStep
from jaxrl.errors import EnvError, summarize_exception


def finite_rows(tree: PyTree) -> Bool[np.ndarray, " B"]:
    """Return whether every floating-point entry of a row is finite, for each row."""
    leaves = jax.tree.leaves(tree)
    rows = np.ones(len(leaves[0]), np.bool_)
    for leaf in leaves:
        if leaf.dtype.kind == "f":
            rows &= np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1)
    return rows


def all_finite(tree: PyTree) -> bool:
    """Return whether every floating-point entry is finite."""
    leaves = (tree,) if tree.__class__ is np.ndarray else jax.tree.leaves(tree)
    return all(map(is_finite, leaves))


def where_rows(condition: Bool[np.ndarray, " B"], new: PyTree, old: PyTree) -> PyTree:
    """Select rows of `new` where the condition holds, else of `old`."""

    def select(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.where(condition.reshape(-1, *(1,) * (x.ndim - 1)), x, y)

    return jax.tree.map(select, new, old)


def replace_non_finite(obs: PyTree) -> tuple[PyTree, Bool[np.ndarray, " B"]]:
    """Replace non-finite entries by zero; also return which rows had some."""
    is_bad = ~finite_rows(obs)
    if not is_bad.any():
        return obs, is_bad

    def clean(leaf: np.ndarray) -> np.ndarray:
        return np.nan_to_num(leaf, nan=0.0, posinf=0.0, neginf=0.0)

    return jax.tree.map(lambda x: clean(x) if x.dtype.kind == "f" else x, obs), is_bad


@dataclasses.dataclass(frozen=True, kw_only=True)
class SubEnvInfos:
    """Infos of the copies at a step, with final observations and faults.

    `rows` are the infos of the successors, `first_rows` those of the observations returned, which
    a reset within the step replaced. `final_obs` are the observations that it replaced, `faults`
    the reports of barriers, the latter two by row.
    """

    rows: Sequence[dict[str, Any]]
    first_rows: Sequence[dict[str, Any]]
    final_obs: dict[int, PyTree] = dataclasses.field(default_factory=dict)
    faults: dict[int, SubEnvFault] = dataclasses.field(default_factory=dict)

    def __call__(self, row: int) -> dict[str, Any]:
        """Return the info of one copy's successor."""
        return _drop_fault(self.rows[row])

    def get_first(self, row: int) -> dict[str, Any]:
        """Return the info of the reset of a copy that was reset."""
        return _drop_fault(self.first_rows[row])


def _drop_fault(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != FAULT_KEY}


def split_infos(infos: dict[str, Any] | SubEnvInfos, num_envs: int) -> SubEnvInfos:
    """Split the one dictionary into which gymnasium's vector environments merge infos."""
    if isinstance(infos, SubEnvInfos):
        return infos
    ended = _rows_with_key(infos, "final_obs", num_envs)
    last = _rows_with_key(infos, "final_info", num_envs)
    return SubEnvInfos(
        rows=_MergedRows(infos, last),
        first_rows=_MergedRows(infos, np.zeros(num_envs, np.bool_)),
        final_obs={int(row): infos["final_obs"][row] for row in np.flatnonzero(ended)},
        faults={
            int(row): infos[FAULT_KEY][row]
            for row in np.flatnonzero(_rows_with_key(infos, FAULT_KEY, num_envs))
        },
    )


class _MergedRows(Sequence[dict[str, Any]]):
    """Infos of rows, split on access; the marked ones are those below `final_info`."""

    def __init__(self, infos: dict[str, Any], is_final: Bool[np.ndarray, " B"]) -> None:
        self._infos, self._is_final = infos, is_final

    def __len__(self) -> int:
        return len(self._is_final)

    def __getitem__(self, row: Any) -> Any:
        if self._is_final[row]:
            return _info_row(self._infos["final_info"], row)
        own = _info_row(self._infos, row)
        return {key: own[key] for key in own if key not in ("final_obs", "final_info")}


def _info_row(infos: dict[str, Any], row: int) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        present = infos.get(f"_{key}")
        if isinstance(values, dict):
            kept[key] = _info_row(values, row)
        elif isinstance(values, np.ndarray) and (present is None or present[row]):
            kept[key] = values[row]
    return kept


def _rows_with_key(infos: dict[str, Any], key: str, num_envs: int) -> Bool[np.ndarray, " B"]:
    """Return which copies' infos have the key."""
    return infos[f"_{key}"] if key in infos else np.zeros(num_envs, np.bool_)


class FastSyncVectorEnv(SyncVectorEnv):
    """`SyncVectorEnv` in DISABLED mode, which returns the copies' infos unmerged.

    Gymnasium merges them key by key into arrays and copies every observation twice; for small
    environments that costs as much as stepping them. Copies are reset by a mask after the step, so
    that what looks at them in between sees how the episode ended.
    """

    def __init__(self, copies: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        super().__init__(copies, autoreset_mode=AutoresetMode.DISABLED)

    def step(self, actions: PyTree) -> Any:
        infos: list[dict[str, Any]] = []
        observations: list[PyTree] = []
        rewards: list[SupportsFloat] = []
        terminations: list[bool] = []
        truncations: list[bool] = []
        action_rows = iterate(self.action_space, actions)
        for copy, action in zip(self.envs, action_rows, strict=True):
            obs, reward, terminated, truncated, info = copy.step(action)
            infos.append(info)
            observations.append(obs)
            rewards.append(reward)
            terminations.append(terminated)
            truncations.append(truncated)
        self._env_obs = observations
        return (
            self._stack(),
            np.array(rewards),
            np.array(terminations),
            np.array(truncations),
            _collect_infos(infos),
        )

    def reset(
        self, *, seed: Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> Any:
        """Reset the copies of `options["reset_mask"]`, or all; `seed` is a list of their seeds."""
        seeds = [None] * self.num_envs if seed is None else seed
        rows = range(self.num_envs) if options is None else np.flatnonzero(options["reset_mask"])
        infos: list[dict[str, Any]] = [{} for _ in self.envs]
        for row in rows:
            self._env_obs[row], infos[row] = self.envs[row].reset(seed=seeds[row])
        return self._stack(), _collect_infos(infos)

    def _stack(self) -> PyTree:
        """Copy the latest observations into one new batch."""
        space = self.single_observation_space
        fresh: PyTree = create_empty_array(space, self.num_envs, np.empty)
        if not isinstance(space, Box):
            return stack_rows(space, self._env_obs, fresh)
        for row, obs in enumerate(self._env_obs):
            fresh[row] = obs
        return fresh


def _collect_infos(infos: list[dict[str, Any]]) -> SubEnvInfos:
    faults = {row: info[FAULT_KEY] for row, info in enumerate(infos) if FAULT_KEY in info}
    return SubEnvInfos(rows=infos, first_rows=infos, faults=faults)


ResultT = TypeVar("ResultT")


class GymVector:
    """`B` copies in one of gymnasium's vector environments.

    A copy whose episode ended is reset within the step (SAME_STEP), right after it (DISABLED, by a
    reset mask), or by the next step (NEXT_STEP), whose row is then no transition. The transitions
    are the same in all three modes. In the first, `on_step` is called after the reset.

    A copy that returns a non-finite reward or observation is reset, and its row is no transition,
    as in `jaxrl.envs.vector`; the same holds for a copy that its barrier restarted.
    """

    def __init__(
        self,
        vector: GymnasiumVectorEnv[Any, Any, Any],
        *,
        name: str,
        seeds: list[int],
        observation_space: gymnasium.Space[Any],
        timeout_s: float | None = None,
        task: PyTree = None,
    ) -> None:
        """Take ownership of `vector`, which `close` closes.

        Args:
            vector: Vector environment, with its auto-reset mode in `metadata["autoreset_mode"]`.
            name: Name for messages.
            seeds: Seed of each copy's first reset.
            observation_space: Observation space of one copy, as modules see it.
            timeout_s: Time limit in seconds of a step or reset of copies in processes, None for no
                limit.
            task: Task that every copy has been made with; None for the environment's own.
        """
        self._timeout_s = timeout_s
        self._task = task
        self.num_envs = vector.num_envs
        self.vector = vector
        self._name = name
        self._seeds = seeds
        self._observation_space = observation_space
        self._mode = _autoreset_mode(vector, name)
        # Gymnasium's own take a reset mask in every mode, others only where they must.
        is_gymnasium = isinstance(vector, SyncVectorEnv | AsyncVectorEnv)
        self.can_pause = is_gymnasium
        self._seed_each = is_gymnasium or vector.metadata.get("seeds_each", False)
        self._takes_mask = is_gymnasium or self._mode is AutoresetMode.DISABLED
        self._copy_obs = None if is_gymnasium else True
        is_array = isinstance(observation_space, gymnasium.spaces.Box)
        self._array_dtype = get_leaf_dtype(observation_space) if is_gymnasium and is_array else None
        self._obs: PyTree = None
        self._no_rows = np.zeros(self.num_envs, np.bool_)
        self._all_rows = np.ones(self.num_envs, np.bool_)
        self._to_reset = self._no_rows
        self._faulty = self._no_rows
        self._paused, self._is_quiet = self._no_rows, True
        self._pending_faults: list[HostFault] = []
        self._reset_infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._closed = False
        self._failed = False

    def reset(self, seeds: Sequence[int] | None = None) -> PyTree:
        chosen: Any = self._seeds if seeds is None else list(seeds)
        if not self._seed_each:
            chosen = chosen[0]
        obs, infos = self._call(lambda: self._reset_vector(seed=chosen))
        self._to_reset = self._no_rows
        split = split_infos(infos, self.num_envs)
        self._pending_faults = self._collect_restarts(split)
        self._keep_reset_infos(self._all_rows, split)
        self._obs, self._faulty = replace_non_finite(self._to_runner_obs(obs))
        self._update_is_quiet()
        return self._obs

    def get_reset_info(self, row: int) -> dict[str, Any]:
        return self._reset_infos[row]

    def step(self, action: PyTree, on_step: Callable[[HostStep], None] | None = None) -> HostStep:
        space: gymnasium.Space[Any] = self.vector.single_action_space
        action = map_leaves(_action_batch, space, action)
        obs, reward, terminated, truncated, infos = self._call(lambda: self._step_vector(action))
        result = _Result(
            obs=self._to_runner_obs(obs),
            reward=_to_float32(reward),
            terminated=np.asarray(terminated),
            truncated=np.asarray(truncated),
            infos=split_infos(infos, self.num_envs),
        )
        return self._step_quiet(result, on_step) or self._step_eventful(result, on_step)

    def _step_quiet(
        self, result: "_Result", on_step: Callable[[HostStep], None] | None
    ) -> HostStep | None:
        """Return a step in which at most some episodes ended, at low cost; None for any other."""
        if not self._is_quiet or result.infos.faults:
            return None
        if not (all_finite(result.reward) and all_finite(result.obs)):
            return None
        ended, final_obs = result.terminated | result.truncated, result.obs
        if not np.count_nonzero(ended):  # several times as fast as any()
            ended = self._no_rows
        elif self._mode is AutoresetMode.SAME_STEP:
            final_obs = self._get_final_obs(result, ended)
            if not all_finite(final_obs):
                return None
            self._keep_reset_infos(ended, result.infos)
        elif self._mode is AutoresetMode.NEXT_STEP:
            return None
        step = HostStep(
            obs=result.obs,
            reward=result.reward,
            terminated=result.terminated,
            truncated=result.truncated,
            final_obs=final_obs,
            mask=self._all_rows,
            starts=ended,
            infos=result.infos,
        )
        if on_step is not None:
            on_step(step)
        self._obs = result.obs
        if self._mode is not AutoresetMode.DISABLED or ended is self._no_rows:
            return step
        fresh = self._reset_rows(ended)
        self._obs, self._faulty = replace_non_finite(where_rows(ended, fresh.obs, result.obs))
        self._update_is_quiet()
        return dataclasses.replace(step, obs=self._obs, faults=tuple(fresh.faults))

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        if not isinstance(self.vector, SyncVectorEnv | AsyncVectorEnv):
            raise EnvError(
                f"{self._name}: its own vector environment can only step all copies together; "
                f"set gym_env_vectorize_mode to 'sync' or 'async'."
            )
        self._paused = np.array(paused, np.bool_)
        self._update_is_quiet()
        self.vector.set_attr("paused", self._paused.tolist())

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
        self._pending_faults = []
        self._update_is_quiet()

    def set_task(self, task: PyTree) -> None:
        if task != self._task:
            self._call_copies("set_task", task)
            self._task = task

    def call_task_method(self, name: str, *args: int) -> PyTree:
        return self._call_copies("call_task_method", name, *args)[0]

    def _call_copies(self, name: str, *args: PyTree) -> Sequence[PyTree]:
        """Call a method of every copy's barrier, which returns errors."""
        results: Sequence[PyTree] = self._call(lambda: self.vector.call(name, *args))
        for result in results:
            if isinstance(result, EnvError):
                raise result
        return results

    def get_sub_environments(self) -> list[Any]:
        """Return the copies that live in this process, or the environment's own vector environment.

        Copies that do not exist yet are made now. The list is empty if they are in other processes,
        or closed.
        """
        if self._closed:
            return []
        if isinstance(self.vector, SyncVectorEnv):
            barriers: Any = self.vector.envs
            return [barrier.make() for barrier in barriers]
        return [] if isinstance(self.vector, AsyncVectorEnv) else [self.vector]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if isinstance(self.vector, AsyncVectorEnv):
            close_processes(self.vector)
        else:
            close_quietly(self._name, self.vector)

    def _step_eventful(
        self, result: "_Result", on_step: Callable[[HostStep], None] | None
    ) -> HostStep:
        """Return a step in which a copy failed, was paused, or has to be reset."""
        prev_obs, was_reset, paused = self._obs, self._to_reset, self._paused
        faults = [*self._pending_faults, *self._collect_restarts(result.infos)]
        ended = (result.terminated | result.truncated) & ~was_reset
        # A restart in the reset after an episode's end leaves the step valid.
        was_restarted = np.isin(np.arange(self.num_envs), list(result.infos.faults))
        was_replaced = was_restarted & ~ended & ~was_reset
        final_obs = self._get_final_obs(result, ended)
        is_valid = ~(was_reset | was_replaced | paused)
        bad_obs = (~finite_rows(final_obs) | self._faulty) & is_valid
        bad_reward = ~np.isfinite(result.reward) & is_valid & ~bad_obs
        faults += self._nonfinite_faults(bad_reward, "reward")
        faults += self._nonfinite_faults(bad_obs, "observation")
        to_reset = self._find_rows_to_reset(ended, bad_reward | bad_obs)
        mask = is_valid & ~bad_reward & ~bad_obs & ~(to_reset & ~ended)
        step = HostStep(
            obs=result.obs,
            reward=np.where(mask, result.reward, np.float32(0.0)),
            terminated=result.terminated & mask,
            truncated=(result.truncated | ~mask) & ~was_reset & ~paused,
            final_obs=where_rows(mask, final_obs, prev_obs),
            mask=mask,
            starts=self._no_rows,
            infos=result.infos,
        )
        if on_step is not None:
            on_step(step)
        was_reset_within = was_reset | was_replaced
        if self._mode is AutoresetMode.SAME_STEP:
            was_reset_within = was_reset_within | ended
        self._keep_reset_infos(was_reset_within, result.infos)
        fresh = self._reset_rows(to_reset)
        obs = result.obs if fresh.obs is None else where_rows(fresh.rows, fresh.obs, result.obs)
        starts = was_reset_within | fresh.rows
        self._obs, is_bad = replace_non_finite(obs)
        self._faulty = is_bad & (starts | paused)
        self._to_reset = ended if self._mode is AutoresetMode.NEXT_STEP else self._no_rows
        self._pending_faults = []
        self._update_is_quiet()
        faults = (*fresh.faults, *faults)  # a row has the code of its last fault
        return dataclasses.replace(step, obs=self._obs, starts=starts, faults=faults)

    def _keep_reset_infos(self, rows: Bool[np.ndarray, " B"], infos: SubEnvInfos) -> None:
        """Keep the infos of copies that were reset."""
        for row in np.flatnonzero(rows):
            self._reset_infos[row] = infos.get_first(int(row))

    def _update_is_quiet(self) -> None:
        """Update whether the next step needs no special handling."""
        flags = self._to_reset, self._faulty, self._paused
        self._is_quiet = not self._pending_faults and not any(flag.any() for flag in flags)

    def _get_final_obs(self, result: "_Result", ended: Bool[np.ndarray, " B"]) -> PyTree:
        """Return the successors, from the infos where an episode ended.

        Raises:
            EnvError: If a copy was reset in this step and the infos have no last observation of it.
        """
        found = result.infos.final_obs
        if self._mode is AutoresetMode.SAME_STEP:
            reset = {int(row) for row in np.flatnonzero(ended)}
            if missing := sorted(reset - found.keys() - result.infos.faults.keys()):
                raise EnvError(
                    f"{self._name}: its metadata say AutoresetMode.SAME_STEP, but the info of the "
                    f"step that ended an episode of copy {missing[0]} has no 'final_obs', the last "
                    "observation of that episode, which the value of a truncated step requires."
                )
        if not found:
            return result.obs
        final = jax.tree.map(np.copy, result.obs)
        for row, obs in result.infos.final_obs.items():
            one = self._to_runner_obs(obs)
            jax.tree.map(lambda target, x, row=row: target.__setitem__(row, x), final, one)
        return final

    def _find_rows_to_reset(
        self, ended: Bool[np.ndarray, " B"], bad: Bool[np.ndarray, " B"]
    ) -> Bool[np.ndarray, " B"]:
        """Return which copies to reset, as the vector environment does not do so by itself."""
        rows = bad & ~ended
        if self._mode is AutoresetMode.DISABLED:
            rows = rows | ended
        if not rows.any() or self._takes_mask:
            return rows
        return self._all_rows if self._mode is AutoresetMode.SAME_STEP else ~ended

    def _reset_rows(self, rows: Bool[np.ndarray, " B"]) -> "_ResetRows":
        """Reset copies."""
        if not rows.any():
            return _ResetRows(rows=rows)
        mask = {"reset_mask": rows.copy()}
        options = mask if self._takes_mask else None
        obs, merged = self._call(lambda: self._reset_vector(options=options))
        infos = split_infos(merged, self.num_envs)
        faults = self._collect_restarts(infos)
        self._keep_reset_infos(rows, infos)
        return _ResetRows(rows=rows, obs=self._to_runner_obs(obs), faults=faults)

    def _collect_restarts(self, infos: SubEnvInfos) -> list[HostFault]:
        """Collect the faults that barriers report.

        Raises:
            EnvError: If one is fatal.
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

    def _to_runner_obs(self, obs: PyTree) -> PyTree:
        if obs.__class__ is np.ndarray and obs.dtype is self._array_dtype:
            return obs
        return map_leaves(self._cast_obs, self._observation_space, obs)

    def _cast_obs(self, space: gymnasium.Space[Any], value: object) -> np.ndarray:
        return np.array(value, get_leaf_dtype(space), copy=self._copy_obs)

    def _reset_vector(self, **arguments: Any) -> tuple[PyTree, dict[str, Any]]:
        if not isinstance(self.vector, AsyncVectorEnv):
            return self.vector.reset(**arguments)
        self.vector.reset_async(**arguments)
        return self.vector.reset_wait(timeout=self._timeout_s)

    def _step_vector(
        self, action: PyTree
    ) -> tuple[PyTree, np.ndarray, np.ndarray, np.ndarray, dict[str, Any] | SubEnvInfos]:
        if not isinstance(self.vector, AsyncVectorEnv):
            return self.vector.step(action)
        self.vector.step_async(action)
        return self.vector.step_wait(timeout=self._timeout_s)

    def _call(self, function: Callable[[], ResultT]) -> ResultT:
        """Call the vector environment.

        Raises:
            EnvError: If it raises, or one of its processes has died.
        """
        try:
            return function()
        except (EOFError, BrokenPipeError, ConnectionResetError) as error:
            self._failed = True
            raise EnvError(
                f"{self._name}: {describe_dead_processes(get_processes(self.vector))}; check its output, or use "
                f"gym_env_vectorize_mode='sync'."
            ) from error
        except multiprocessing.TimeoutError as error:
            self._failed = True
            raise EnvError(
                f"{self._name}: the process of a copy has not responded within "
                f"sample_timeout_s={self._timeout_s:g} seconds, so its environment hangs; increase "
                f"sample_timeout_s if it is only slow."
            ) from error
        except BaseException as error:
            self._failed = True
            reraise_interrupts(error)
            raise EnvError(
                f"{self._name}: the vector environment raised {summarize_exception(error)}."
            ) from error


@dataclasses.dataclass(kw_only=True, slots=True)
class _Result:
    """Result of a vector environment, in the dtypes of runners."""

    obs: PyTree
    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    infos: SubEnvInfos


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ResetRows:
    """Copies that were reset on demand."""

    rows: np.ndarray
    obs: PyTree = None
    faults: list[HostFault] = dataclasses.field(default_factory=list)


def _action_batch(space: gymnasium.Space[Any], value: object) -> np.ndarray:
    """Return a writable copy in the environment's dtype."""
    return np.array(value, space.dtype)


def _to_float32(reward: object) -> np.ndarray:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, a fault
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
