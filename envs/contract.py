"""Check of the environment contract, without compiling or running anything."""

import functools
import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from jaxrl.core.spaces import is_same_space
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.multi.base import (
    ALL,
    Acting,
    Entry,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    get_entries,
    number_agents,
)
from jaxrl.envs.multi.made import (
    ONLY_AGENT,
    MadeMultiEnv,
    MultiTimeLimit,
    OneAgentEnv,
    describe_type,
)
from jaxrl.envs.registry import MadeEnv
from jaxrl.envs.space_checks import abstract_value, check_space, check_struct
from jaxrl.envs.wrappers import TimeLimit
from jaxrl.errors import TRACING_ERRORS, EnvError, locate_in_user_code, summarize_exception


def check_signatures(made: MadeEnv | MadeMultiEnv) -> None:
    """Check agents, spaces, states and steps against the contract by tracing; nothing is compiled.

    An environment of one agent is checked as one of several with a single entry.

    Raises:
        EnvError: If the contract is violated; the message names the first violation and its place.
    """
    name, params = made.id, made.params
    _check_hashable(made.env, name)
    if isinstance(made, MadeMultiEnv):
        check_agents(made.env, name)
        env = made.env.env if isinstance(made.env, MultiTimeLimit) else made.env
    else:
        env = OneAgentEnv(made.env.env if isinstance(made.env, TimeLimit) else made.env, name)
    entries = get_entries(env)
    _check_spaces(name, env, params)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state, start = _trace_reset(name, env, params)
    _check_obs(f"{name}: reset's", env, entries, start.obs, params)
    _check_flags(f"{name}: reset's acts", entries, start.acts)
    _check_no_weak_types(f"{name}: reset's state", state)

    actions = _make_abstract_actions(env, params)
    step_output = trace_abstractly(f"{name}: step", env.step, key, state, actions, params)
    step = _get_second(f"{name}: step must return (state, MultiStep)", step_output, MultiStep)
    _check_obs(f"{name}: step's", env, entries, step.obs, params)
    _check_flags(f"{name}: step's acts", entries, step.acts)
    _check_keys(f"{name}: reward", [entry.key for entry in entries], step.reward)
    for entry in entries:
        label = "the reward" if entry.key == ONLY_AGENT else f"reward[{entry.key!r}]"
        check_reward(f"{name}: {label}", step.reward[entry.key], entry.shape)
    ends = (*entries, Entry(key=ALL, agents=()))
    _check_flags(f"{name}: terminated", ends, step.terminated)
    _check_flags(f"{name}: truncated", ends, step.truncated)
    if not isinstance(step.info, dict):
        raise EnvError(f"{name}: info must be a dictionary, got {describe_type(step.info)}.")
    _check_same_state(name, state, step_output[0])
    _check_no_weak_types(f"{name}: step's state", step_output[0])
    _check_global_state(name, env, state, params)


def _check_hashable(env: object, name: str) -> None:
    """Check that programs can be cached by the environment."""
    try:
        hash(env)
    except TypeError as error:
        raise EnvError(
            f"{name}: the environment object must be hashable, since jit caches by it; a class "
            f"that defines __eq__ must define __hash__."
        ) from error


def trace_abstractly(
    label: str,
    function: Callable[..., PyTree],
    *arguments: PyTree,
    trace: Callable[..., PyTree] = jax.eval_shape,
) -> PyTree:
    """Return the abstract result of a function; all arguments, including `params`, are traced."""
    try:
        return trace(function, *arguments)
    except TRACING_ERRORS as error:
        raise EnvError(
            f"{label} cannot be traced by jax.jit ({summarize_exception(error)}){locate_in_user_code(error)}."
        ) from error


def check_reward(label: str, value: object, shape: tuple[int, ...] = ()) -> None:
    """Check for real numbers of any dtype, by default one; vectorization casts them to float32."""
    what = "one number" if shape == () else f"numbers of shape {shape}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{label} must be {what}, got {describe_type(value)}.")
    if value.shape != shape or value.dtype.kind not in "biuf":
        raise EnvError(f"{label} must be {what}, got {value.dtype} of shape {value.shape}.")


def check_flag(label: str, value: object, shape: tuple[int, ...] = ()) -> None:
    """Check for bools, by default one."""
    what = "a bool scalar" if shape == () else f"bool of shape {shape}"
    if not isinstance(value, jax.ShapeDtypeStruct):
        raise EnvError(f"{label} must be {what}, got {describe_type(value)}.")
    if value.shape != shape or value.dtype != np.bool_:
        raise EnvError(f"{label} must be {what}, got {value.dtype} of shape {value.shape}.")


def _check_no_weak_types(label: str, tree: PyTree) -> None:
    """Check that no leaf has the weak type of a Python number."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if leaf.weak_type:
            raise EnvError(
                f"{label}{jax.tree_util.keystr(path)} is a weakly typed {leaf.dtype}: make it "
                f"jnp.asarray(value, jnp.{leaf.dtype}), or programs compile twice."
            )


def _check_same_state(name: str, first: PyTree, second: PyTree) -> None:
    """Check that both states have the structure, shapes and dtypes that a scan's carry requires."""
    if jax.tree.structure(first) != jax.tree.structure(second):
        raise EnvError(
            f"{name}: the state's structure differs between reset and step: "
            f"{jax.tree.structure(first)} and {jax.tree.structure(second)}."
        )
    pairs = zip(jax.tree_util.tree_leaves_with_path(first), jax.tree.leaves(second), strict=True)
    for (path, a), b in pairs:
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise EnvError(
                f"{name}: state{jax.tree_util.keystr(path)} is {a.dtype}{list(a.shape)} after a "
                f"reset and {b.dtype}{list(b.shape)} after a step; they must be the same."
            )


_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def check_agents(env: object, name: str) -> None:
    """Check what an environment says of its agents: ids, kinds, who acts, teams.

    Raises:
        EnvError: If it contradicts itself, or an id cannot name files and leaves.
    """
    if not isinstance(env, MultiAgentJaxEnv):
        raise EnvError(f"{name}: expected a MultiAgentJaxEnv, got {env!r}.")
    agents = env.possible_agents
    if not isinstance(agents, tuple) or not agents:
        raise EnvError(f"{name}: possible_agents must be a tuple of ids, got {agents!r}.")
    for agent in (*agents, *env.agent_kinds, *env.teams):
        if not isinstance(agent, str) or not _ID.fullmatch(agent) or agent == ALL:
            raise EnvError(
                f"{name}: ids of agents, kinds and teams consist of letters, digits, '_' and '-', "
                f"as in 'agent_0', got {agent!r}."
            )
    if len(set(agents)) < len(agents):
        raise EnvError(f"{name}: possible_agents has an id twice: {agents}.")
    _check_kinds(env, name)
    _check_acting(env, name)
    for team, members in env.teams.items():
        unknown = [agent for agent in members if agent not in agents]
        if unknown:
            raise EnvError(f"{name}: team {team!r} has {unknown[0]!r}, no possible agent.")
    in_teams = [agent for members in env.teams.values() for agent in members]
    twice = next((agent for agent in in_teams if in_teams.count(agent) > 1), None)
    if twice is not None:
        raise EnvError(f"{name}: agent {twice!r} is in two teams.")


def _check_kinds(env: MultiAgentJaxEnv[Any, Any], name: str) -> None:
    for kind, count in env.agent_kinds.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise EnvError(f"{name}: agent_kinds[{kind!r}] must be a positive int, got {count!r}.")
        if kind in env.possible_agents:
            raise EnvError(f"{name}: {kind!r} is both a kind and an agent.")
        members = number_agents(kind, count)
        first = env.possible_agents.index(members[0]) if members[0] in env.possible_agents else 0
        if env.possible_agents[first : first + count] != members:
            raise EnvError(
                f"{name}: possible_agents must hold {members[0]!r} to {members[-1]!r} of the kind "
                f"{kind!r} side by side; number_agents({kind!r}, {count}) makes them."
            )


def _check_acting(env: MultiAgentJaxEnv[Any, Any], name: str) -> None:
    if env.acting not in ("all", "some", None):
        raise EnvError(f"{name}: acting must be 'all' or 'some', got {env.acting!r}.")
    most = env.max_acting
    if most is None:
        return
    if env.acting == "all":
        raise EnvError(f"{name}: max_acting={most!r} needs acting='some'; got acting='all'.")
    is_number = isinstance(most, int) and not isinstance(most, bool)
    if not is_number or not 1 <= most <= len(env.possible_agents):
        raise EnvError(
            f"{name}: max_acting must be an int from 1 to the number of agents "
            f"{len(env.possible_agents)}, got {most!r}."
        )


_found_acting: weakref.WeakKeyDictionary[MadeMultiEnv, Acting] = weakref.WeakKeyDictionary()


def find_acting(made: MadeMultiEnv) -> Acting:
    """Return which agents act at a step: as the environment declares, or else as tracing shows.

    Raises:
        EnvError: If the environment cannot be traced.
    """
    if made not in _found_acting:
        env = made.env.env if isinstance(made.env, MultiTimeLimit) else made.env
        acting = env.acting
        if acting is None:
            acts_always = env.max_acting is None and _acts_always(made.id, env, made.params)
            acting = "all" if acts_always else "some"
        _found_acting[made] = acting
    return _found_acting[made]


def _acts_always(name: str, env: MultiAgentJaxEnv[Any, Any], params: PyTree) -> bool:
    """Return whether `step` says of every agent that it acts, whatever the arguments."""

    def find_acts(key: Key, state: PyTree, actions: PyTree, params: PyTree) -> PyTree:
        return env.step(key, state, actions, params)[1].acts

    key = jax.eval_shape(lambda: jax.random.key(0))
    state, _ = _trace_reset(name, env, params)
    arguments = key, state, _make_abstract_actions(env, params), params
    traced = trace_abstractly(f"{name}: step", find_acts, *arguments, trace=_make_jaxpr)
    acts = _find_constants(traced, [None] * len(traced.jaxpr.invars))
    return all(value is not None and np.all(value()) for value in acts)


def _make_jaxpr(function: Callable[..., PyTree], *arguments: PyTree) -> jex_core.ClosedJaxpr:
    return jax.make_jaxpr(function)(*arguments)


_Constant = Callable[[], PyTree] | None
"""Function that computes a value that no input of a program changes; None for another value."""


def _find_constants(program: jex_core.ClosedJaxpr, inputs: Sequence[_Constant]) -> list[_Constant]:
    """Return the outputs of a program, given its inputs; nothing is computed yet."""
    jaxpr = program.jaxpr
    known = dict(zip(jaxpr.invars, inputs, strict=True))
    for var, value in zip(jaxpr.constvars, program.consts, strict=True):
        known[var] = functools.partial(np.asarray, value)

    def find(atom: jex_core.Var | jex_core.Literal) -> _Constant:
        return (lambda: atom.val) if isinstance(atom, jex_core.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        arguments = [find(atom) for atom in eqn.invars]
        ready = [argument for argument in arguments if argument is not None]
        outputs: list[_Constant] = [None] * len(eqn.outvars)
        if eqn.primitive.name in ("jit", "pjit"):
            outputs = _find_constants(eqn.params["jaxpr"], arguments)
        elif len(ready) == len(arguments) and not _has_subprograms(eqn):
            compute = functools.partial(_compute, eqn, ready)
            outputs = [functools.partial(compute, i) for i in range(len(eqn.outvars))]
        known |= zip(eqn.outvars, outputs, strict=True)
    return [find(atom) for atom in jaxpr.outvars]


def _has_subprograms(eqn: jex_core.JaxprEqn) -> bool:
    kinds = jex_core.Jaxpr | jex_core.ClosedJaxpr
    return any(isinstance(x, kinds) for x in jax.tree.leaves(list(eqn.params.values())))


def _compute(
    eqn: jex_core.JaxprEqn, arguments: Sequence[Callable[[], PyTree]], index: int
) -> PyTree:
    """Return an output of an operation."""
    result = eqn.primitive.bind(*(argument() for argument in arguments), **eqn.params)
    return result[index] if eqn.primitive.multiple_results else result


def _check_spaces(name: str, env: MultiAgentJaxEnv[Any, Any], params: PyTree) -> None:
    """Check each agent's spaces, and that those of a kind are equal."""
    kinds = (
        ("observation_space", env.observation_space, False),
        ("action_space", env.action_space, True),
    )
    for entry, (what, get, for_actions) in itertools.product(get_entries(env), kinds):
        first = entry.agents[0]
        space = get(first, params)
        label = f"{name}: {what}" if first == ONLY_AGENT else f"{name}: {what}({first!r})"
        check_space(label, space, for_actions=for_actions)
        other = next(
            (a for a in entry.agents[1:] if not is_same_space(get(a, params), space)), None
        )
        if other is not None:
            raise EnvError(
                f"{name}: {what} of {other!r} differs from that of {first!r}; agents of the kind "
                f"{entry.key!r} must be equal."
            )


def _trace_reset(
    name: str, env: MultiAgentJaxEnv[Any, Any], params: PyTree
) -> tuple[PyTree, MultiStart]:
    """Return an abstract first state, and what is observed of it."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    output = trace_abstractly(f"{name}: reset", env.reset, key, params)
    start = _get_second(f"{name}: reset must return (state, MultiStart)", output, MultiStart)
    return output[0], start


def _make_abstract_actions(env: MultiAgentJaxEnv[Any, Any], params: PyTree) -> dict[str, PyTree]:
    return {
        entry.key: _add_members(entry, abstract_value(env.action_space(entry.agents[0], params)))
        for entry in get_entries(env)
    }


def _get_second(sentence: str, output: object, cls: type) -> Any:
    if isinstance(output, tuple) and len(output) == 2:
        if isinstance(output[1], cls):
            return output[1]
        raise EnvError(f"{sentence}, got {describe_type(output[1])} in second place.")
    raise EnvError(f"{sentence}, got {describe_type(output)}.")


def _check_keys(label: str, names: Sequence[str], value: object) -> None:
    if not isinstance(value, dict):
        raise EnvError(
            f"{label} must be a dictionary with an entry for each of {list(names)}, got "
            f"{describe_type(value)}."
        )
    missing = [name for name in names if name not in value]
    if missing:
        raise EnvError(
            f"{label} has no entry {missing[0]!r}: every agent has one at every step, absent ones "
            f"any value."
        )
    unknown = [name for name in value if name not in names]
    if unknown:
        raise EnvError(f"{label} has the unknown entry {unknown[0]!r}; known are {list(names)}.")


def _check_flags(label: str, entries: Sequence[Entry], value: Any) -> None:
    _check_keys(label, [entry.key for entry in entries], value)
    for entry in entries:
        at = "" if entry.key == ONLY_AGENT else f"[{entry.key!r}]"
        check_flag(f"{label}{at}", value[entry.key], entry.shape)


def _check_obs(
    label: str,
    env: MultiAgentJaxEnv[Any, Any],
    entries: Sequence[Entry],
    obs: Any,
    params: PyTree,
) -> None:
    _check_keys(f"{label} obs", [entry.key for entry in entries], obs)
    for entry in entries:
        space = env.observation_space(entry.agents[0], params)
        is_only = entry.key == ONLY_AGENT
        own = f"{label} observation" if is_only else f"{label} obs[{entry.key!r}]"
        check_struct(own, space, _drop_members(own, entry, obs[entry.key]))


def _add_members(entry: Entry, tree: PyTree) -> PyTree:
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(entry.shape + x.shape, x.dtype), tree)


def _drop_members(label: str, entry: Entry, tree: PyTree) -> PyTree:
    """Return a member's part of an abstract value, whose first axis is checked."""

    def drop(leaf: Any) -> jax.ShapeDtypeStruct:
        if leaf.shape[:1] != entry.shape:
            raise EnvError(
                f"{label} must have a first axis of {len(entry.agents)}, the agents of the kind, "
                f"got the shape {leaf.shape}."
            )
        return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype, weak_type=leaf.weak_type)

    return jax.tree.map(drop, tree) if entry.is_kind else tree


def _check_global_state(
    name: str, env: MultiAgentJaxEnv[Any, Any], state: PyTree, params: PyTree
) -> None:
    space = env.state_space(params)
    if space is None:
        return
    check_space(f"{name}: state_space", space)
    value = trace_abstractly(f"{name}: global_state", env.global_state, state, params)
    check_struct(f"{name}: global_state", space, value)
