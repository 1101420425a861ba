"""What makes one gymnasium environment for an `EnvContext`, and can be sent to another process.

Nothing here imports JAX: the processes of an asynchronous vector environment do without it.
"""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from jaxrl.envs.adapters.host_spaces import advice
from jaxrl.envs.adapters.host_state import with_time_limit
from jaxrl.envs.context import EnvContext

Creator = Callable[[EnvContext], Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class WithoutContext:
    """Calls a creator that takes no argument."""

    create: Callable[[], Any]

    def __call__(self, context: EnvContext) -> Any:
        return self.create()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FromSpec:
    """Makes an environment of gymnasium's registry; the context's config are arguments.

    It holds the entry itself: another process need not have registered the id.
    """

    spec: EnvSpec
    max_episode_steps: int | None = None

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        # Environments are checked by ourselves, once and before the first step, and a runner never
        # steps one that it has not reset: no need to ask at every step.
        spec = copy.copy(self.spec)
        spec.order_enforce = False
        with advice(self.spec.id):
            return gymnasium.make(
                spec,
                max_episode_steps=self.max_episode_steps,
                disable_env_checker=True,
                **context,
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VectorFromSpec:
    """Makes the vector environment that an entry of gymnasium's registry brings itself."""

    spec: EnvSpec
    max_episode_steps: int | None = None

    def __call__(self, num_envs: int, context: EnvContext) -> VectorEnv[Any, Any, Any]:
        arguments = dict(context)
        if self.max_episode_steps is not None:
            arguments["max_episode_steps"] = self.max_episode_steps
        with advice(self.spec.id):
            return gymnasium.make_vec(
                self.spec, num_envs, vectorization_mode="vector_entry_point", **arguments
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FromClass:
    """Makes an environment of a class, whose constructor gets arguments, or the context."""

    cls: type
    arguments: Mapping[str, Any]
    context_name: str | None

    def __call__(self, context: EnvContext) -> Any:
        if self.context_name is not None:
            return self.cls(**{self.context_name: context}, **self.arguments)
        return self.cls(**self.arguments)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FromInstance:
    """Makes copies of an instance."""

    instance: Any

    def __call__(self, context: EnvContext) -> Any:
        del context
        return copy.deepcopy(self.instance)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Limited:
    """What another creator makes, with another time limit."""

    create: Creator
    max_episode_steps: int

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        return with_time_limit(self.create(context), self.max_episode_steps)
