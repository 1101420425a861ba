"""Pipelines held against the spaces that their connectors declare, by tracing alone."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.connectors.base import Before, TemporalConnector
from jaxrl.connectors.pipelines import ActionPipeline, LearnerPipeline, ObservationPipeline
from jaxrl.core.types import PyTree, Rollout
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import zeros_of

BATCHES = ((3,), (2, 3))
"""Leading axes that a transform is traced with: a step's, and a rollout's."""

_UNTRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)


def check_observation_pipeline(pipeline: ObservationPipeline, action_space: Any) -> None:
    """Trace every connector with observations of the space before it.

    Args:
        pipeline: Fitted to its spaces.
        action_space: The module's.

    Raises:
        ConfigError: A connector cannot be traced, or does not give what it declares.
    """
    chain = pipeline.spaces
    for connector, space, out in zip(pipeline.connectors, chain[:-1], chain[1:], strict=True):
        name = connector.unwrapped.name
        state = _traced(f"{name}.init", connector.init, space)
        _check_strong(f"{name}.init", state)
        if isinstance(connector, TemporalConnector):
            _check_temporal(connector, state, space, out, action_space)
        else:
            for leading in BATCHES:
                obs = _struct_of(space, leading)
                got = _traced(
                    f"{name} (with observations of {_line(space)})", connector, state, obs
                )
                _check_output(name, "output_space", out, got, leading)
        mask = jax.ShapeDtypeStruct(BATCHES[1], jnp.bool_)
        updated = _traced(
            f"{name}.update",
            lambda s, o, m, c=connector: c.update(s, o, m, None),
            state,
            _struct_of(space, BATCHES[1]),
            mask,
        )
        _check_same(f"{name}.update", "the statistics of init", state, updated)


def _check_temporal(
    connector: TemporalConnector,
    state: PyTree,
    space: gymnasium.Space[Any],
    out: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
) -> None:
    name, (rows,) = connector.unwrapped.name, BATCHES[0]
    carry = _traced(f"{name}.init_carry", lambda: connector.init_carry(space, rows))
    _check_strong(f"{name}.init_carry", carry)
    for leaf in jax.tree.leaves(carry):
        if leaf.shape[:1] != (rows,):
            raise ConfigError(
                f"{name}.init_carry must have a leading axis of num_envs={rows}, got an array of "
                f"shape {leaf.shape}."
            )
    before = Before(
        is_first=_shape((rows,), jnp.bool_),
        action=_struct_of(action_space, (rows,)),
        reward=_shape((rows,), jnp.float32),
    )
    obs = _struct_of(space, (rows,))
    what = f"{name}.step (with observations of {_line(space)})"
    got = _traced(what, connector.step, state, carry, obs, before)
    if not isinstance(got, tuple) or len(got) != 2:
        raise ConfigError(f"{name}.step must return (carry, obs), got {_line(got)}.")
    _check_same(f"{name}.step", "the carry of init_carry", carry, got[0])
    _check_output(name, "output_space", out, got[1], (rows,))


def check_action_pipeline(pipeline: ActionPipeline) -> None:
    """Trace every connector with actions of the space before it.

    Raises:
        ConfigError: A connector cannot be traced, or does not give what it declares.
    """
    chain = pipeline.spaces
    for connector, space, out in zip(pipeline.connectors, chain[:-1], chain[1:], strict=True):
        for leading in BATCHES:
            action = _struct_of(space, leading)
            what = f"{connector.name} (with actions of {_line(space)})"
            got = _traced(what, connector, action)
            _check_output(connector.name, "module_space", out, got, leading)


def check_learner_pipeline(
    pipeline: LearnerPipeline, rollout: Rollout, values: Mapping[str, Any]
) -> None:
    """Trace every connector with a rollout such as this one (shapes are enough).

    Args:
        pipeline: Checked.
        rollout: `[T, B, ...]`.
        values: The traced numbers of the run's training settings, by name.

    Raises:
        ConfigError: A connector cannot be traced, or changes the shape of anything.
    """
    num_steps, num_envs = rollout.reward.shape
    for connector in pipeline.connectors:
        name = connector.name
        state = _traced(f"{name}.init", connector.init)
        per_env = _traced(f"{name}.init_per_env", lambda c=connector: c.init_per_env(num_envs))
        _check_strong(f"{name}.init", (state, per_env))
        got = _traced(
            f"{name} (with a rollout of {num_steps} steps)",
            lambda s, e, r, v, c=connector: c.at(v)(s, e, r, None),
            state,
            per_env,
            rollout,
            values,
        )
        if not isinstance(got, tuple) or len(got) != 3 or not isinstance(got[2], Rollout):
            raise ConfigError(f"{name} must return (state, per_env, rollout), got {_line(got)}.")
        for what, want, part in zip(
            ("the state of init", "the state of init_per_env", "the rollout that it got"),
            (state, per_env, rollout),
            got,
            strict=True,
        ):
            _check_same(name, what, want, part)


def abstract_rollout(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    extras: dict[str, PyTree],
    shape: tuple[int, int],
    carry_in: PyTree,
) -> Rollout:
    """The shapes of a rollout as the module saw it, `[T, B]`.

    Args:
        observation_space: The module's.
        action_space: The module's.
        extras: What is kept of the module's outputs, as shapes.
        shape: Steps and environments.
        carry_in: The carry at the first step, as shapes.
    """
    flag = _shape(shape, jnp.bool_)
    obs = _struct_of(observation_space, shape)
    return Rollout(
        obs=obs,
        action=_struct_of(action_space, shape),
        reward=_shape(shape, jnp.float32),
        terminated=flag,
        truncated=flag,
        final_obs=obs,
        is_first=flag,
        mask=flag,
        extras=extras,
        carry_in=carry_in,
    )


def _shape(shape: tuple[int, ...], dtype: Any) -> Any:
    """Stands for an array while tracing."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _struct_of(space: gymnasium.Space[Any], leading: tuple[int, ...]) -> PyTree:
    return jax.eval_shape(lambda: zeros_of(space, leading))


def _traced(what: str, function: Callable[..., Any], *arguments: Any) -> PyTree:
    """The shapes of what the function returns; arrays among the arguments are traced."""
    traced = [a for a in arguments if not isinstance(a, gymnasium.Space)]
    given = [a for a in arguments if isinstance(a, gymnasium.Space)]
    try:
        return jax.eval_shape(lambda *values: function(*given, *values), *traced)
    except _UNTRACEABLE as error:
        raise ConfigError(
            f"{what} cannot be compiled: it looks at values with NumPy or Python's `if`, `for`, "
            "`int` or `float`; use jax.numpy (jnp.where, jnp.clip, ...), or wrap the environment "
            f"instead ({type(error).__name__})."
        ) from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{what} raised {type(error).__name__}: {reason}") from error


def _check_output(
    name: str, method: str, space: gymnasium.Space[Any], got: PyTree, leading: tuple[int, ...]
) -> None:
    """Structure, shapes and kinds of numbers of a transform's output."""
    want = _struct_of(space, leading)
    same = jax.tree.structure(want) == jax.tree.structure(got)
    if same and all(
        _fits(part, w, g)
        for part, w, g in zip(
            _leaf_spaces(space), jax.tree.leaves(want), jax.tree.leaves(got), strict=True
        )
    ):
        return
    raise ConfigError(
        f"{name} must give {_types(want)} for a batch of shape {leading}, since its {method} says "
        f"{_line(space)}, but gives {_types(got)}; say in {method} what it gives."
    )


def _leaf_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    """The simple spaces, in the order of the leaves of their values."""
    if isinstance(space, spaces.Dict):
        return [leaf for name in sorted(space.spaces) for leaf in _leaf_spaces(space[name])]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in _leaf_spaces(part)]
    return [space]


def _fits(space: gymnasium.Space[Any], want: Any, got: Any) -> bool:
    """A Box says its dtype; of the other spaces any integer will do."""
    if isinstance(space, spaces.Box):
        return got.shape == want.shape and got.dtype == want.dtype
    return got.shape == want.shape and np.dtype(got.dtype).kind in "iub"


def _check_same(name: str, what: str, want: PyTree, got: PyTree) -> None:
    same = jax.tree.structure(want) == jax.tree.structure(got) and all(
        w.shape == g.shape and w.dtype == g.dtype
        for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True)
    )
    if not same:
        raise ConfigError(
            f"{name} must keep the shapes and dtypes of {what}: expected {_types(want)}, got "
            f"{_types(got)}."
        )


def _check_strong(name: str, tree: PyTree) -> None:
    for leaf in jax.tree.leaves(tree):
        if leaf.weak_type:
            raise ConfigError(
                f"{name} gives a weakly typed {leaf.dtype}: make it jnp.asarray(value, "
                f"jnp.{leaf.dtype}), or programs compile twice."
            )


def _types(tree: PyTree) -> str:
    """Dtypes and shapes in words."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{name!r}: {_types(part)}" for name, part in tree.items()) + "}"
    if isinstance(tree, tuple):
        return "(" + ", ".join(_types(part) for part in tree) + ")"
    if isinstance(tree, jax.ShapeDtypeStruct):
        return f"{tree.dtype}{list(tree.shape)}"
    if isinstance(tree, Rollout):
        return _types({name: part for name, part in vars(tree).items() if part is not None})
    leaves = jax.tree.leaves(tree)
    return f"{type(tree).__name__}({', '.join(_types(leaf) for leaf in leaves)})"


def _line(value: Any) -> str:
    return " ".join(str(value).split())
