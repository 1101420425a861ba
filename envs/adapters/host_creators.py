"""Picklable creators of gymnasium environments, called with an `EnvContext`."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from jaxrl.envs.adapters.host_spaces import log_warnings
from jaxrl.envs.adapters.host_state import with_time_limit
from jaxrl.envs.context import EnvContext
from jaxrl.errors import EnvError

Creator = Callable[[EnvContext], Any]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class NoContextCreator:
    """Creator that calls a function without arguments."""

    create: Callable[[], object]

    def __call__(self, context: EnvContext) -> object:
        return self.create()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class SpecCreator:
    """Creator from an entry of gymnasium's registry; the context's config holds the arguments.

    It stores the entry and not the id, since another process may not have registered the id.
    """

    spec: EnvSpec
    max_episode_steps: int | None = None

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        # Environments are checked once before the first step, and a runner never steps one that
        # it has not reset, so the checks at every step are switched off.
        spec = copy.copy(self.spec)
        spec.order_enforce = False
        with log_warnings(self.spec.id):
            return gymnasium.make(
                spec,
                max_episode_steps=self.max_episode_steps,
                disable_env_checker=True,
                **context,
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VectorSpecCreator:
    """Creator of the vector environment of an entry of gymnasium's registry."""

    spec: EnvSpec
    max_episode_steps: int | None = None

    def __call__(self, num_envs: int, context: EnvContext) -> VectorEnv[Any, Any, Any]:
        arguments = dict(context)
        if self.max_episode_steps is not None:
            arguments["max_episode_steps"] = self.max_episode_steps
        with log_warnings(self.spec.id):
            return gymnasium.make_vec(
                self.spec, num_envs, vectorization_mode="vector_entry_point", **arguments
            )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class VectorOnlyCreator:
    """Creator in place of that of an id that has a vector environment alone.

    Args:
        name: Name that the user gave.
    """

    name: str

    def __call__(self, context: EnvContext) -> NoReturn:
        raise EnvError(
            f"{self.name} is registered with a vector_entry_point and no entry_point, so that it "
            "has no single environment: set "
            "env_runners(gym_env_vectorize_mode='vector_entry_point')."
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ClassCreator:
    """Creator from a class, whose constructor takes arguments, or the context."""

    cls: type
    arguments: Mapping[str, Any]
    context_name: str | None

    def __call__(self, context: EnvContext) -> object:
        if self.context_name is not None:
            return self.cls(**{self.context_name: context}, **self.arguments)
        return self.cls(**self.arguments)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class InstanceCreator:
    """Creator of copies of an instance."""

    instance: object

    def __call__(self, context: EnvContext) -> object:
        del context
        return copy.deepcopy(self.instance)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class TimeLimitCreator:
    """Creator that changes the time limit of what another creator makes."""

    create: Creator
    max_episode_steps: int

    def __call__(self, context: EnvContext) -> gymnasium.Env[Any, Any]:
        return with_time_limit(self.create(context), self.max_episode_steps)
