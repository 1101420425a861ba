"""Pipelines of connectors: fitted to their spaces, and editable before that."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, Self, TypeAlias, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxrl.compat import lookup
from jaxrl.connectors.base import (
    ActionConnector,
    Before,
    Connector,
    LearnerConnector,
    ObservationConnector,
    TemporalConnector,
)
from jaxrl.core.spaces import STATE
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import CentralObs, Key, Metrics, PyTree, Rollout
from jaxrl.errors import ConfigError, UnknownNameError, did_you_mean

C = TypeVar("C", bound=Connector)


def get_names(connectors: Sequence[Connector]) -> tuple[str, ...]:
    """Return the connectors' names in order."""
    return tuple(connector.unwrapped.name for connector in connectors)


def find_connector(connectors: Sequence[Connector], which: str | type[Any]) -> int:
    """Return the index of the connector with this name or of this class.

    Raises:
        UnknownNameError: If there is none or more than one.
    """
    known = get_names(connectors)
    if isinstance(which, str):
        found = [i for i, name in enumerate(known) if name == which]
    else:
        found = [i for i, c in enumerate(connectors) if isinstance(c.unwrapped, which)]
    if len(found) == 1:
        return found[0]
    name = which if isinstance(which, str) else which.__name__
    listed = ", ".join(known) or "none"
    if found:
        raise UnknownNameError(
            f"{len(found)} connectors of this pipeline are {name!r}: {listed}; give them a `name` "
            "of their own."
        )
    raise UnknownNameError(
        f"There is no connector {name!r} in this pipeline.{did_you_mean(name, known)} "
        f"It has: {listed}."
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Pipeline(Generic[C]):
    """Sequence of connectors fitted to their spaces.

    A `PipelineBuilder` edits a pipeline before it is fitted.
    """

    connectors: tuple[C, ...]

    def __len__(self) -> int:
        """Return the number of connectors."""
        return len(self.connectors)

    def __iter__(self) -> Iterator[C]:
        """Iterate over the connectors in order."""
        return iter(self.connectors)

    def __getitem__(self, which: str | type[Any]) -> C:
        """Return the connector with this name or of this class.

        Raises:
            UnknownNameError: If there is none or more than one.
        """
        return self.connectors[find_connector(self.connectors, which)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the connectors in order."""
        return get_names(self.connectors)


@pytree
class PreprocessedRollout:
    """Rollout as the module saw it, `[T, B, ...]`; `received` holds the input of each connector."""

    received: tuple[PyTree, ...]
    obs: PyTree
    final_obs: PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class ObservationPipeline(Pipeline[ObservationConnector]):
    """Sequence of observation connectors."""

    space: gymnasium.Space[Any]

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], ...]:
        """Input space of each connector, followed by the module's space."""
        spaces = [self.space]
        for connector in self.connectors:
            spaces.append(connector.output_space(spaces[-1]))
        return tuple(spaces)

    @property
    def temporal(self) -> tuple[TemporalConnector, ...]:
        """Temporal connectors; if there are none, no state is carried."""
        return tuple(
            connector.unwrapped
            for connector in self.connectors
            if isinstance(connector.unwrapped, TemporalConnector)
        )

    @property
    def has_statistics(self) -> bool:
        """True if a connector has statistics of the observations."""
        return bool(jax.tree.leaves(jax.eval_shape(self.init)))

    def init(self) -> PyTree:
        """Return the initial statistics of every connector."""
        return tuple(
            connector.init(space)
            for connector, space in zip(self.connectors, self.spaces, strict=False)
        )

    def init_carry(self, num_envs: int) -> tuple[PyTree, ...]:
        """Return the carry of every connector at an episode's start, `()` if it is not temporal."""
        return tuple(
            connector.init_carry(space, num_envs)
            if isinstance(connector, TemporalConnector)
            else ()
            for connector, space in zip(self.connectors, self.spaces, strict=False)
        )

    def __call__(self, states: PyTree, obs: PyTree) -> PyTree:
        """Transform observations with any leading batch axes; requires a pipeline without carry."""
        for connector, state in zip(self.connectors, states, strict=True):
            obs = connector(state, obs)
        return obs

    def step(
        self, states: PyTree, carries: tuple[PyTree, ...], obs: PyTree, before: Before
    ) -> tuple[tuple[PyTree, ...], PyTree]:
        """Return the next carries, and the module's observations `[B, ...]`."""
        blank = self.init_carry(before.is_first.shape[0])
        after: list[PyTree] = []
        for connector, state, carry, first in zip(
            self.connectors, states, carries, blank, strict=True
        ):
            if isinstance(connector, TemporalConnector):
                carry = where_rows(before.is_first, first, carry)
                carry, obs = connector.step(state, carry, obs, before)
            else:
                obs = connector(state, obs)
            after.append(carry)
        return tuple(after), obs

    def preprocess_rollout(
        self,
        states: PyTree,
        carries: tuple[PyTree, ...],
        rollout: Rollout,
        before: Before | None,
    ) -> PreprocessedRollout:
        """Recompute the module's observations at every row of a rollout and at its successor.

        Args:
            states: Statistics that were used for acting.
            carries: Carries before the first row.
            rollout: Rollout `[T, B, ...]` with the environment's own observations.
            before: Action and reward before each row, `[T, B]`; None without temporal connectors.
        """
        received: list[PyTree]
        obs, final_obs, received = rollout.obs, rollout.final_obs, []
        blank = () if before is None else self.init_carry(before.is_first.shape[1])
        for i, (connector, state) in enumerate(zip(self.connectors, states, strict=True)):
            received.append(obs)
            if isinstance(connector, TemporalConnector):
                assert before is not None
                after = Before(
                    is_first=jnp.zeros_like(before.is_first),
                    action=rollout.action,
                    reward=rollout.reward,
                )
                rows = _Rows(obs=obs, final_obs=final_obs, before=before, after=after)
                obs, final_obs = _recompute(connector, state, carries[i], blank[i], rows)
            else:
                obs, final_obs = connector(state, obs), connector(state, final_obs)
        return PreprocessedRollout(received=tuple(received), obs=obs, final_obs=final_obs)

    def update(
        self,
        states: PyTree,
        received: tuple[PyTree, ...],
        mask: Bool[Array, "T B"],
        axis_name: str | None,
    ) -> PyTree:
        """Update the statistics with a rollout, given the input of each connector."""
        return tuple(
            connector.update(state, obs, mask, axis_name)
            for connector, state, obs in zip(self.connectors, states, received, strict=True)
        )


@pytree
class _Rows:
    obs: PyTree
    final_obs: PyTree
    before: Before
    after: Before


def _recompute(
    connector: TemporalConnector, state: PyTree, carry: PyTree, blank: PyTree, rows: _Rows
) -> tuple[PyTree, PyTree]:
    """Recompute a connector's outputs for the rows of a rollout, and for their successors."""

    def step(carry: PyTree, row: _Rows) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        carry = where_rows(row.before.is_first, blank, carry)
        carry, obs = connector.step(state, carry, row.obs, row.before)
        _, final_obs = connector.step(state, carry, row.final_obs, row.after)
        return carry, (obs, final_obs)

    return jax.lax.scan(step, carry, rows)[1]


@dataclasses.dataclass(frozen=True, eq=False)
class ActionPipeline(Pipeline[ActionConnector]):
    """Sequence of action connectors, from the module's action to the environment's."""

    space: gymnasium.Space[Any]

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], ...]:
        """Input space of each connector, the module's first, followed by the environment's."""
        spaces = [self.space]
        for connector in reversed(self.connectors):
            spaces.insert(0, connector.module_space(spaces[0]))
        return tuple(spaces)

    @property
    def module_space(self) -> gymnasium.Space[Any]:
        """Space that the module acts in."""
        return self.spaces[0]

    def __call__(self, action: PyTree) -> PyTree:
        """Transform the module's actions, with any leading batch axes, into the environment's."""
        for connector in self.connectors:
            action = connector(action)
        return action

    def inverse(self, action: PyTree) -> PyTree:
        """Return an action of the module that is transformed into the environment's action.

        Raises:
            NotImplementedError: If a connector does not define its inverse.
        """
        for connector in reversed(self.connectors):
            action = connector.inverse(action)
        return action


class _Recorder(Mapping[str, Float[Array, ""]]):
    """Mapping that knows which of its items were looked up."""

    def __init__(self, values: Mapping[str, Float[Array, ""]]) -> None:
        self._values, self.read = values, set[str]()

    def __getitem__(self, name: str) -> Float[Array, ""]:
        self.read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclasses.dataclass(frozen=True, eq=False)
class LearnerPipeline(Pipeline[LearnerConnector]):
    """Sequence of learner connectors."""

    def init(self, key: Key) -> PyTree:
        """Return the initial shared statistics of every connector. Consumes the key."""
        return tuple(
            connector.init(jax.random.fold_in(key, i))
            for i, connector in enumerate(self.connectors)
        )

    def compute_metrics(self, states: PyTree) -> Metrics:
        """Return the metrics of every connector, by name."""
        metrics: Metrics = {}
        for connector, state in zip(self.connectors, states, strict=True):
            metrics |= connector.compute_metrics(state)
        return metrics

    def init_per_env(self, num_envs: int) -> PyTree:
        """Return the initial per-environment state of every connector."""
        return tuple(connector.init_per_env(num_envs) for connector in self.connectors)

    def at(self, values: Mapping[str, Float[Array, ""]]) -> "LearnerPipeline":
        """Return the pipeline with the run's current hyperparameters, by name."""
        return LearnerPipeline(tuple(connector.at(values) for connector in self.connectors))

    def find_read_values(self, values: Mapping[str, Float[Array, ""]]) -> frozenset[str]:
        """Return the names of the hyperparameters that connectors read in `at`.

        Args:
            values: Current hyperparameters by name.
        """
        recorder = _Recorder(values)
        for connector in self.connectors:
            connector.at(recorder)
        return frozenset(recorder.read)

    def __call__(
        self, states: PyTree, per_env: PyTree, rollout: Rollout, axis_name: str | None
    ) -> tuple[PyTree, PyTree, Rollout]:
        """Transform a rollout.

        Returns:
            The new shared and per-environment states, and the rollout to learn from.
        """
        new_states: list[PyTree] = []
        new_per_env: list[PyTree] = []
        for connector, state, env_state in zip(self.connectors, states, per_env, strict=True):
            state, env_state, rollout = connector(state, env_state, rollout, axis_name)
            new_states.append(state)
            new_per_env.append(env_state)
        return tuple(new_states), tuple(new_per_env), rollout


@dataclasses.dataclass(frozen=True, eq=False)
class CentralPipeline(ObservationPipeline):
    """Pipeline of rollouts with `CentralObs`, which transforms the agents' own observations."""

    def preprocess_rollout(
        self,
        states: PyTree,
        carries: tuple[PyTree, ...],
        rollout: Rollout,
        before: Before | None,
    ) -> PreprocessedRollout:
        obs: CentralObs = rollout.obs
        final_obs: CentralObs = rollout.final_obs
        own = super().preprocess_rollout(
            states, carries, replace(rollout, obs=obs.obs, final_obs=final_obs.obs), before
        )
        return replace(
            own,
            obs=replace(obs, obs=own.obs),
            final_obs=replace(final_obs, obs=own.final_obs),
        )


@dataclasses.dataclass(frozen=True, eq=False)
class StatePipeline(ObservationPipeline):
    """Pipeline around which the environment's state passes, the part `"state"` of an observation.

    Connectors, and so their statistics, are those of observations without a state.

    Attributes:
        own: Pipeline of the observations without a state.
        get_plain: Function of an observation that returns it without the state.
        keeps_state: Whether the module is given the state as well, as a Dict with `"obs"` and
            `"state"`.
    """

    own: ObservationPipeline
    get_plain: Callable[[PyTree], PyTree]
    keeps_state: bool

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], ...]:
        assert isinstance(self.space, gymnasium.spaces.Dict)
        own = self.own.spaces
        if not self.keeps_state:
            return own
        both = gymnasium.spaces.Dict({"obs": own[-1], STATE: self.space.spaces[STATE]})
        return (*own[:-1], both)

    def init(self) -> PyTree:
        return self.own.init()

    def init_carry(self, num_envs: int) -> tuple[PyTree, ...]:
        return self.own.init_carry(num_envs)

    def _join(self, seen: PyTree, obs: PyTree) -> PyTree:
        return {"obs": seen, STATE: obs[STATE]} if self.keeps_state else seen

    def __call__(self, states: PyTree, obs: PyTree) -> PyTree:
        return self._join(self.own(states, self.get_plain(obs)), obs)

    def step(
        self, states: PyTree, carries: tuple[PyTree, ...], obs: PyTree, before: Before
    ) -> tuple[tuple[PyTree, ...], PyTree]:
        after, seen = self.own.step(states, carries, self.get_plain(obs), before)
        return after, self._join(seen, obs)

    def preprocess_rollout(
        self,
        states: PyTree,
        carries: tuple[PyTree, ...],
        rollout: Rollout,
        before: Before | None,
    ) -> PreprocessedRollout:
        obs, final_obs = rollout.obs, rollout.final_obs
        plain = replace(rollout, obs=self.get_plain(obs), final_obs=self.get_plain(final_obs))
        seen = self.own.preprocess_rollout(states, carries, plain, before)
        return replace(
            seen,
            obs=self._join(seen.obs, obs),
            final_obs=self._join(seen.final_obs, final_obs),
        )


Offers: TypeAlias = Mapping[str, Callable[[], object]]
"""Functions that make the arguments of RLlib's signatures, by name; they are called on demand."""


class PipelineBuilder(Generic[C]):
    """Connectors in the order in which they will run, edited in place.

    A function given as `env_to_module_connector`, `module_to_env_connector` or `learner_connector`
    may take one, which holds the default connectors. Every edit returns the builder, so edits can
    be chained. Connectors are found by name or class. They are fitted to their spaces once the
    order is final; a connector that has nothing to do at its position is left out.

    Args:
        kind: Class of the connectors.
        connectors: Initial connectors.

    Raises:
        ConfigError: If an object is not a connector of this kind.
        UnknownNameError: If an edit names a connector that is missing or ambiguous.
    """

    def __init__(self, kind: type[C], connectors: Sequence[C] = ()) -> None:
        self._kind = kind
        self._connectors: list[C] = []
        self.num_edits = 0
        for connector in connectors:
            self._connectors.append(self._check_kind(connector))

    def prepend(self, connector: C) -> Self:
        """Insert the connector at the beginning."""
        return self._insert(0, connector)

    def append(self, connector: C) -> Self:
        """Insert the connector at the end."""
        return self._insert(len(self._connectors), connector)

    def insert_before(self, name_or_class: str | type[Any], connector: C) -> Self:
        """Insert the connector directly before the named one."""
        return self._insert(find_connector(self._connectors, name_or_class), connector)

    def insert_after(self, name_or_class: str | type[Any], connector: C) -> Self:
        """Insert the connector directly after the named one."""
        return self._insert(find_connector(self._connectors, name_or_class) + 1, connector)

    def remove(self, name_or_class: str | type[Any]) -> Self:
        """Remove the named connector."""
        del self._connectors[find_connector(self._connectors, name_or_class)]
        self.num_edits += 1
        return self

    def __len__(self) -> int:
        """Return the number of connectors."""
        return len(self._connectors)

    def __iter__(self) -> Iterator[C]:
        """Iterate over the connectors in order."""
        return iter(self._connectors)

    def __getitem__(self, name_or_class: str | type[Any]) -> C:
        """Return the named connector."""
        return self._connectors[find_connector(self._connectors, name_or_class)]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the connectors in order."""
        return get_names(self._connectors)

    def _insert(self, place: int, connector: C) -> Self:
        self._connectors.insert(place, self._check_kind(connector))
        self.num_edits += 1
        return self

    def _check_kind(self, connector: object) -> C:
        if isinstance(connector, self._kind):
            return connector
        got = type(connector).__name__
        if isinstance(connector, type):
            got = f"the class {connector.__name__} (make one with {connector.__name__}(...))"
        raise ConfigError(f"expected {self._kind.__name__}s, got {got}.")

    def __getattr__(self, name: str) -> NoReturn:
        """Raise for attributes of an environment, which a parameter called `env` receives."""
        raise AttributeError(
            f"the pipeline of default connectors has no '{name}'; name the parameter env to receive "
            "the environment."
        )


def merge_user_connectors(
    setting: str,
    function: Callable[..., Any] | None,
    builder: PipelineBuilder[C],
    *,
    should_prepend: bool,
    offers: Offers | None = None,
    agents: Sequence[str] | None = None,
    accept: Callable[[object], bool] = lambda piece: False,
) -> tuple[C, ...]:
    """Merge the user's connectors into the default ones.

    Args:
        setting: Name of the setting, for messages.
        function: Function that returns one or several connectors, or that takes the builder and
            edits it (and may return it); `jaxrl.compat.rllib.connectors.choose_arguments` says with
            which arguments it is called.
        builder: Builder with the default connectors.
        should_prepend: Whether returned connectors come before the default ones instead of after them.
        offers: RLlib's arguments for the function; None for none.
        agents: Agents whose pipeline it is, of several; None for a single agent.
        accept: Function of a returned object that is True if its work is done elsewhere; it is then
            left out.

    Returns:
        The connectors in order.

    Raises:
        ConfigError: If the function has another signature, raises, or returns something else.
    """
    if function is None:
        return tuple(builder)
    if isinstance(function, Connector):
        name = type(function).__name__
        raise ConfigError(
            f"{setting} is an object of {name}, and must be a function that makes connectors: pass "
            f"the class, or lambda: {name}(...)."
        )
    rllib = lookup.load("rllib.connectors")
    arguments, named = rllib.choose_arguments(setting, function, builder, offers or {})
    try:
        returned = function(*arguments, **named)
        pieces = _list_returned(returned, builder, was_taken=builder in arguments)
        own = [piece for piece in pieces if rllib.is_for_agents(piece, agents)]
        others = [piece for piece in own if not (accept(piece) or rllib.is_implied(piece))]
        for connector in reversed(others) if should_prepend else others:
            _ = builder.prepend(connector) if should_prepend else builder.append(connector)
    except ConfigError as error:
        raise ConfigError(f"{setting}: {error}") from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{setting} raised {type(error).__name__}: {reason}") from error
    return tuple(builder)


def _list_returned(
    returned: object, builder: PipelineBuilder[Any], *, was_taken: bool
) -> list[Any]:
    """Return the connectors that a function returned, none if it edited the pipeline."""
    if returned is builder:
        return []
    if returned is None:
        if was_taken and builder.num_edits:
            return []
        raise ConfigError(
            "the function returned None; let it return connectors, or edit the pipeline that it "
            "takes as its argument."
        )
    if builder.num_edits:
        raise ConfigError(
            "the function edited the pipeline and returned something else; let it return the "
            "pipeline, or connectors alone."
        )
    return list(returned) if isinstance(returned, list | tuple | PipelineBuilder) else [returned]
