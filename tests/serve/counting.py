"""A backend without JAX that counts: its actions say what it was given."""

import threading
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from jaxrl.errors import SpaceError
from jaxrl.serve.backend import Batch, State, Structure, Value


class Counting:
    """Observes a number, remembers how many steps the episode has had, and answers with both.

    The action is `[observation + offset, steps, explore, previous reward]`.
    """

    def __init__(self, version: str = "first", offset: float = 0.0, memory: int = 1) -> None:
        self.version, self.offset, self.memory = version, offset, memory
        self.spaces: Mapping[str, Any] = {"observation_space": {"kind": "Box"}, "action_space": {}}
        self.observation_structure: Structure = None
        self.action_structure: Structure = None
        self.reads: Collection[str] = ()
        self.batches: list[int] = []
        self.may_act = threading.Event()
        self.may_act.set()
        self.entered = threading.Event()

    def initial_state(self) -> State:
        return [np.zeros(self.memory, np.float32)] if self.memory else []

    def conform(self, observation: Value) -> Value:
        array = np.asarray(observation)
        if array.shape != () or array.dtype.kind not in "if" or not np.isfinite(array):
            raise SpaceError(f"obs is {observation!r}, not a finite number.")
        return array

    def conform_action(self, action: Value) -> Value:
        return np.asarray(action)

    def act(self, batch: Batch) -> tuple[Value, State]:
        self.entered.set()
        assert self.may_act.wait(20)
        num = len(batch.observations)
        self.batches.append(num)
        values = np.asarray(batch.observations, np.float64)
        if (values == 13).any():
            raise SpaceError("13 brings bad luck.")
        if (values == 14).any():
            raise ZeroDivisionError("14")
        state = [np.where(batch.is_first[:, None], 0.0, leaf) + 1.0 for leaf in batch.state]
        steps = state[0][:, 0] if state else np.zeros(num)
        explore = np.full(num, float(batch.explore))
        rewards = np.zeros(num) if batch.prev_reward is None else batch.prev_reward
        actions = np.stack([values + self.offset, steps, explore, rewards], axis=1)
        return actions, [leaf.astype(np.float32) for leaf in state]
