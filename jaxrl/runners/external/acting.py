"""Policies for simulators: actions for several episodes in one call, or the program and its weights."""

import collections
import dataclasses
import importlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

from jaxrl.core.types import Device, Keys, PyTree
from jaxrl.errors import JaxrlError
from jaxrl.external.frames import Arrays, Kind, LinkError, encode
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.env_keys import make_env_keys
from jaxrl.runners.external.schema import Schema
from jaxrl.runners.fragment import Weights
from jaxrl.runners.host_policy import ONE_AGENT, HostPolicy, PrevStep
from jaxrl.runtime.program import Program
from jaxrl.training.rollout import PolicyStep

_SENDING = "jaxrl.export.artifact"
"""Module that exports policies. It is above the runners, and imported when a simulator asks."""
_PER_ENV = ("epsilon_ladder", "exploration_sigma_max")
"""Settings by which environments explore differently from one another."""


MAX_ROWS = 64
"""Largest number of rows in one call; more requests take several calls."""


@dataclasses.dataclass(kw_only=True, eq=False)
class ActingEpisode:
    """Episode of a simulator as acting sees it.

    Args:
        slot: Place among the episodes of the run, which determines its random draws.
        explore: Whether to explore.
        latest_t: Time step of the latest action, whose answer is repeated if asked for again.
        is_resumed: Whether another process may have acted in it, with a memory that is lost.
    """

    slot: int
    explore: bool
    latest_t: int = -1
    is_resumed: bool = False
    carry: PyTree = None
    latest: "Answer | None" = None


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Arrays of one row of ACTIONS, and the version of the weights."""

    arrays: Arrays
    version: int


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ActRequest:
    """Rows of one ACT message, and the function that receives its answers."""

    episodes: Sequence[ActingEpisode]
    t: Sequence[int]
    obs: Sequence[Sequence[np.ndarray]]
    reward: np.ndarray
    answer: Callable[[Sequence[Answer]], None]
    fail: Callable[[BaseException], None]


@dataclasses.dataclass(frozen=True, eq=False)
class _Row:
    episode: ActingEpisode
    t: int
    obs: Sequence[np.ndarray]
    reward: float


class ActingThread:
    """Policy that acts for simulators, in a thread of its own.

    Calls have a power of two of rows, so that few programs are compiled; the policy is the one that
    acts on the host.

    Args:
        schema: Arrays of a step.
        num_envs: Number of environments that the run is configured for.
        seed: Seed of the run.
        window_s: Seconds that a request waits at most for others, of which as many are expected as
            came together last time.
        max_retraces: Maximum number of retraces, see `Program`.
        jit: Whether to compile.
    """

    def __init__(
        self,
        schema: Schema,
        num_envs: int,
        *,
        seed: int,
        window_s: float,
        max_retraces: int | None,
        jit: bool,
    ) -> None:
        self._schema, self._num_envs, self._seed = schema, num_envs, seed
        self.window_s = window_s
        self._options: dict[str, Any] = {"max_retraces": max_retraces, "jit": jit}
        self.policies: dict[tuple[int, bool], tuple[HostPolicy, Weights]] = {}
        self._key_data = np.zeros((0, 0), np.uint32)
        self._counts: collections.Counter[int] = collections.Counter()
        self._weights: Weights | None = None
        self._requests: collections.deque[ActRequest] = collections.deque()
        self._changed = threading.Condition()
        self._is_stopped = False
        self.num_expected = 1
        self.num_calls = 0
        self._thread = threading.Thread(target=self._run, name="jaxrl-acting", daemon=True)
        self._thread.start()

    @property
    def programs(self) -> list[Program]:
        """Compiled programs."""
        return [program for policy, _ in self.policies.values() for program in policy.programs]

    def set_weights(self, weights: Weights) -> None:
        """Act with these weights from the next call on."""
        with self._changed:
            self._weights = weights
            self._changed.notify_all()

    def wait_for_weights(self) -> Weights | None:
        """Return the newest weights, as soon as there are any; None if acting was stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or self._weights is not None)
            return None if self._is_stopped else self._weights

    def submit(self, request: ActRequest) -> None:
        """Queue a request; `answer` or `fail` is called in the acting thread."""
        with self._changed:
            self._requests.append(request)
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread; safe to call more than once."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    # --- thread ---

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            requests, weights = taken
            try:
                self._answer(requests, weights)
            except BaseException as error:  # noqa: BLE001  (the driver raises it)
                for request in requests:
                    request.fail(error)

    def _take(self) -> tuple[list[ActRequest], Weights] | None:
        """Wait for requests, and return those that arrived within the window.

        A single simulator never waits, and several wait for each other.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or (self._requests and self._weights is not None)
            )
            deadline = time.monotonic() + self.window_s
            while not self._is_stopped and self._count_rows() < self.num_expected:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    break
            if self._is_stopped or self._weights is None:
                return None
            self.num_expected = min(MAX_ROWS, self._count_rows())
            requests = list(self._requests)
            self._requests.clear()
            return requests, self._weights

    def _count_rows(self) -> int:
        return sum(len(request.episodes) for request in self._requests)

    def _answer(self, requests: Sequence[ActRequest], weights: Weights) -> None:
        rows = [
            _Row(episode, t, obs, float(reward))
            for request in requests
            for episode, t, obs, reward in zip(
                request.episodes, request.t, request.obs, request.reward, strict=True
            )
        ]
        while rows:
            rows = self._act_once_each(rows, weights)
        for request in requests:
            answers = [episode.latest for episode in request.episodes]
            request.answer([answer for answer in answers if answer is not None])

    def _act_once_each(self, rows: Sequence[_Row], weights: Weights) -> list[_Row]:
        """Act in the first row of each episode, and return those that follow.

        A row that was asked for again, after a connection was lost, has been acted in.
        """
        due: dict[ActingEpisode, _Row] = {}
        others: list[_Row] = []
        for row in rows:
            if row.t <= row.episode.latest_t:
                continue
            if due.setdefault(row.episode, row) is not row:
                others.append(row)
        for explore in (True, False):
            chosen = [row for row in due.values() if row.episode.explore == explore]
            for first in range(0, len(chosen), MAX_ROWS):
                self._act(chosen[first : first + MAX_ROWS], weights, explore)
        return others

    def _act(self, rows: Sequence[_Row], weights: Weights, explore: bool) -> None:
        number, size = len(rows), 1 << (len(rows) - 1).bit_length()
        policy = self._get_policy(size, weights, explore)
        padded = [*rows, *[rows[-1]] * (size - number)]
        slots = np.asarray([row.episode.slot for row in padded], np.int32)
        prev = PrevStep(
            reward=np.asarray([row.reward for row in padded], np.float32),
            is_first=np.asarray([row.t == 0 for row in padded]),
            paused=np.zeros(size, np.bool_),
        )
        policy.set_env_index(slots % self._num_envs)
        policy.set_carry({DEFAULT_MODULE: self._stack_carries(padded)})
        counts = np.asarray([self._counts[int(slot)] for slot in slots], np.uint32)
        keys = self._get_keys(slots, policy.device)
        before = policy.begin_fragment(keys, counts, 1, {DEFAULT_MODULE: prev})
        obs = [np.stack([row.obs[i] for row in padded]) for i in range(len(rows[0].obs))]
        words = policy.act(obs, {DEFAULT_MODULE: prev})
        recorded = dict(policy.unpack_recorded(words)[DEFAULT_MODULE])
        schema, action = self._schema, recorded.pop("actions")
        columns = {
            **schema.env_action.flatten(policy.unpack_env_action(words)[DEFAULT_MODULE]),
            **schema.module_action.flatten(action),
            **schema.extras.flatten(recorded),
            **schema.state.flatten(before[DEFAULT_MODULE]),
        }
        after = policy.carry[DEFAULT_MODULE]
        self.num_calls += 1
        for i, row in enumerate(rows):
            episode = row.episode
            episode.carry = jax.tree.map(lambda leaf, i=i: leaf[i], after)
            arrays = {name: column[i] for name, column in columns.items()}
            episode.latest = Answer(arrays=arrays, version=weights.version)
            episode.latest_t = row.t
            self._counts[episode.slot] += 1

    def _get_keys(self, slots: Int[np.ndarray, " B"], device: Device) -> Keys:
        """Return the keys of slots, which are those of environments with the same indices."""
        number = len(self._key_data)
        if slots.max() >= number:
            indices = np.arange(max(64, 2 * int(slots.max()) + 2), dtype=np.int32)
            keys = make_env_keys(self._seed, indices, device)
            self._key_data = np.asarray(jax.random.key_data(keys))
        return jax.random.wrap_key_data(jax.device_put(self._key_data[slots], device))

    def _stack_carries(self, rows: Sequence[_Row]) -> PyTree:
        blank = self._schema.make_blank_carry(1)
        first = jax.tree.map(lambda leaf: leaf[0], blank)
        carries = [first if (c := row.episode.carry) is None else c for row in rows]
        return jax.tree.map(lambda *leaves: np.stack(leaves), *carries)

    def _get_policy(self, size: int, weights: Weights, explore: bool) -> HostPolicy:
        policy, latest = self.policies.get((size, explore), (None, None))
        if policy is None:
            indices = np.zeros(size, np.int32)
            policies = {DEFAULT_MODULE: self._schema.policy_step}
            policy = HostPolicy(policies, ONE_AGENT, indices, explore=explore, **self._options)
        if latest is not weights:
            policy.set_actor({DEFAULT_MODULE: weights.actor})
            self.policies[size, explore] = policy, weights
        return policy


class PolicyExporter:
    """Frames of POLICY messages, of which those of the newest weights are kept.

    Args:
        policy_step: Module and connectors of the run.
    """

    def __init__(self, policy_step: PolicyStep) -> None:
        self._policy_step = policy_step
        self._lock = threading.Lock()
        self._export: Any = None
        self._failure: LinkError | None = None
        self._kept: tuple[Weights, dict[bool, Arrays]] | None = None

    def make_frame(self, weights: Weights, request: int, has_program: bool) -> bytes:
        """Return the frame that answers a request; called in a thread that may wait.

        Raises:
            LinkError: If the policy has no form that simulators can compute.
        """
        with self._lock:
            arrays = self._make_arrays(weights, has_program)
        head = {"request": request, "version": weights.version, "has_program": not has_program}
        return encode(Kind.POLICY, head, arrays)

    def _make_arrays(self, weights: Weights, has_program: bool) -> Arrays:
        if self._failure is not None:
            raise self._failure
        if self._kept is None or self._kept[0] is not weights:
            self._kept = weights, {}
        kept = self._kept[1]
        if has_program not in kept:
            kept[has_program] = self._export_arrays(weights, has_program)
        return kept[has_program]

    def _export_arrays(self, weights: Weights, has_program: bool) -> Arrays:
        sending = importlib.import_module(_SENDING)
        actor = jax.device_get(weights.actor)
        if found := [name for name in _PER_ENV if name in actor.hparams]:
            self._failure = LinkError(
                f"Simulators explore differently from one another, by {found[0]}, and one that computes "
                "its actions itself does not know its place: use inference_mode='remote'."
            )
            raise self._failure
        try:
            if self._export is None:
                self._export = sending.export_in_memory(self._policy_step, actor)
        except JaxrlError as error:
            self._failure = LinkError(
                f"The policy cannot be computed by simulators ({error}): use "
                "inference_mode='remote'."
            )
            raise self._failure from error
        arrays: Arrays = {} if has_program else sending.encode_program(self._export)
        named = self._export.collect_weights(actor)
        return {**arrays, **{f"weights/{name}": array for name, array in named.items()}}
