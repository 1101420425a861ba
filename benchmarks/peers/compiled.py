"""Peers whose measurement is one call of a compiled program."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.peers.protocol import Peer, Request
from benchmarks.settings import PlaySetting


class CompiledPeer(Peer):
    """Peer with one program, from a state to the next one or to a pair of it and a report.

    Attributes:
        state: State of the last run.
        report: Report of the last run.
    """

    has_report = False

    def __init__(self) -> None:
        self.state: Any = None
        self.report: Any = None
        self._program: Any = None
        self._constants: tuple[Any, ...] = ()
        self._env_steps = 0

    def compile(
        self,
        program: Callable[..., Any],
        state: Any,
        *constants: Any,
        env_steps: int = 0,
        is_donated: bool = False,
    ) -> dict[str, Any]:
        """Compile a program, and return the reply of `setup`.

        Args:
            program: Function of a state and of constants.
            state: First state.
            *constants: Further arguments.
            env_steps: Environment steps of a run.
            is_donated: Whether a run may overwrite the state that it is given.
        """
        self.state, self._constants, self._env_steps = state, constants, env_steps
        start = time.perf_counter()
        jitted = jax.jit(program, donate_argnums=(0,) if is_donated else ())
        self._program = jitted.lower(state, *constants).compile()
        return {"compile_s": time.perf_counter() - start}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement."""
        start = time.perf_counter()
        found = jax.block_until_ready(self._program(self.state, *self._constants))
        seconds = time.perf_counter() - start
        self.state, self.report = found if self.has_report else (found, None)
        return {"seconds": seconds, "env_steps": self._env_steps}


class PlayPeer(CompiledPeer):
    """Peer with copies of a task in random play, which ends its state with the sum of rewards."""

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement, with the mean reward of a step."""
        reply = super().run(request)
        return {**reply, "reward_mean": float(self.state[-1]) / self._env_steps}


def open_copies(name: str, setting: PlaySetting) -> tuple[Any, Any, Any]:
    """Make and reset the copies of an environment of jaxrl, vectorized as in training.

    Returns:
        The environment, its vector, and the state of the copies.
    """
    from jaxrl.envs.multi.vector import (
        MultiVectorEnv,  # environments of peers may lack jaxrl's needs
    )
    from jaxrl.envs.registry import make_multi

    made = make_multi(name)
    vector = MultiVectorEnv(made.env, made.env.reset_mode)
    index = jnp.arange(setting.num_envs)
    state = jax.jit(vector.reset)(jax.random.key(setting.seed), index, made.params)
    return made, vector, state
