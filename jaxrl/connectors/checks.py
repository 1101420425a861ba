"""Checks of pipelines against the spaces that their connectors declare, by tracing alone."""

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jax.typing import DTypeLike

from jaxrl.connectors.base import ActionConnector, Before, TemporalConnector
from jaxrl.connectors.pipelines import ActionPipeline, LearnerPipeline, ObservationPipeline
from jaxrl.core.types import PyTree, Rollout
from jaxrl.errors import ConfigError
from jaxrl.modules.rl_module import make_zeros

LEADING_AXES = ((3,), (2, 3))
"""Leading axes that a transform is traced with: one step's, and one rollout's."""

_UNTRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
)


def check_observation_pipeline(
    pipeline: ObservationPipeline, action_space: gymnasium.Space[Any]
) -> None:
    """Trace every connector with observations of its input space.

    Args:
        pipeline: Pipeline fitted to its spaces.
        action_space: Action space of the module.

    Raises:
        ConfigError: If a connector cannot be traced, or its output differs from its declared space.
    """
    chain = pipeline.spaces
    for connector, space, out in zip(pipeline.connectors, chain[:-1], chain[1:], strict=True):
        name = connector.unwrapped.name
        state = _trace(f"{name}.init", connector.init, space)
        _check_strong(f"{name}.init", state)
        if isinstance(connector, TemporalConnector):
            _check_temporal(connector, state, space, out, action_space)
        else:
            for leading in LEADING_AXES:
                obs = _to_struct(space, leading)
                got = _trace(
                    f"{name} (with observations of {_in_one_line(space)})", connector, state, obs
                )
                _check_output(name, "output_space", out, got, leading)
        mask = jax.ShapeDtypeStruct(LEADING_AXES[1], jnp.bool_)
        updated = _trace(
            f"{name}.update",
            lambda s, o, m, c=connector: c.update(s, o, m, None),
            state,
            _to_struct(space, LEADING_AXES[1]),
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
    name, (rows,) = connector.unwrapped.name, LEADING_AXES[0]
    carry = _trace(f"{name}.init_carry", lambda: connector.init_carry(space, rows))
    _check_strong(f"{name}.init_carry", carry)
    for leaf in jax.tree.leaves(carry):
        if leaf.shape[:1] != (rows,):
            raise ConfigError(
                f"{name}.init_carry must have a leading axis of num_envs={rows}, got an array of "
                f"shape {leaf.shape}."
            )
    before = Before(
        is_first=_placeholder((rows,), jnp.bool_),
        action=_to_struct(action_space, (rows,)),
        reward=_placeholder((rows,), jnp.float32),
    )
    obs = _to_struct(space, (rows,))
    what = f"{name}.step (with observations of {_in_one_line(space)})"
    got = _trace(what, connector.step, state, carry, obs, before)
    if not isinstance(got, tuple) or len(got) != 2:
        raise ConfigError(f"{name}.step must return (carry, obs), got {_in_one_line(got)}.")
    _check_same(f"{name}.step", "the carry of init_carry", carry, got[0])
    _check_output(name, "output_space", out, got[1], (rows,))


def check_action_pipeline(pipeline: ActionPipeline) -> None:
    """Trace every connector with actions of its input space.

    Raises:
        ConfigError: If a connector cannot be traced, or its output differs from its declared space.
    """
    chain = pipeline.spaces
    for connector, space, out in zip(pipeline.connectors, chain[:-1], chain[1:], strict=True):
        for leading in LEADING_AXES:
            action = _to_struct(space, leading)
            what = f"{connector.name} (with actions of {_in_one_line(space)})"
            got = _trace(what, connector, action)
            _check_output(connector.name, "module_space", out, got, leading)


def check_action_inverse(pipeline: ActionPipeline) -> None:
    """Trace the inverse of every connector with actions of its output space.

    Raises:
        ConfigError: If a connector has none, or it cannot be traced, or returns another space's actions.
    """
    chain, (leading, _) = pipeline.spaces, LEADING_AXES
    for connector, space, out in zip(pipeline.connectors, chain[:-1], chain[1:], strict=True):
        name = connector.name
        if type(connector).inverse is ActionConnector.inverse:
            raise ConfigError(
                f"{name} has no inverse, and the recorded actions are the environment's, of which those "
                f"of the module are computed: define {name}.inverse(action), or learn from what a run "
                "records (output=...), which has the module's actions."
            )
        what = f"{name}.inverse (with actions of {_in_one_line(out)})"
        got = _trace(what, connector.inverse, _to_struct(out, leading))
        _check_output(f"{name}.inverse", "module_space", space, got, leading)


def check_learner_pipeline(
    pipeline: LearnerPipeline, rollout: Rollout, values: Mapping[str, Any]
) -> None:
    """Trace every connector with a rollout; shapes are enough.

    Args:
        pipeline: Pipeline to check.
        rollout: Rollout `[T, B, ...]`, or its shapes.
        values: Traced numbers of the run's training settings, by name.

    Raises:
        ConfigError: If a connector cannot be traced, or changes a shape.
    """
    num_steps, num_envs = rollout.reward.shape
    for connector in pipeline.connectors:
        name = connector.name
        state = _trace(f"{name}.init", lambda c=connector: c.init(jax.random.key(0)))
        per_env = _trace(f"{name}.init_per_env", lambda c=connector: c.init_per_env(num_envs))
        _check_strong(f"{name}.init", (state, per_env))
        got = _trace(
            f"{name} (with a rollout of {num_steps} steps)",
            lambda s, e, r, v, c=connector: c.at(v)(s, e, r, None),
            state,
            per_env,
            rollout,
            values,
        )
        if not isinstance(got, tuple) or len(got) != 3 or not isinstance(got[2], Rollout):
            raise ConfigError(
                f"{name} must return (state, per_env, rollout), got {_in_one_line(got)}."
            )
        for what, want, part in zip(
            ("the state of init", "the state of init_per_env", "the rollout that it got"),
            (state, per_env, rollout),
            got,
            strict=True,
        ):
            _check_same(name, what, want, part)
        metrics = _trace(f"{name}.compute_metrics", connector.compute_metrics, state)
        if not isinstance(metrics, dict) or any(x.shape != () for x in jax.tree.leaves(metrics)):
            raise ConfigError(
                f"{name}.compute_metrics must return numbers by name, got {_in_one_line(metrics)}."
            )


def make_abstract_rollout(
    observation_space: gymnasium.Space[Any],
    action_space: gymnasium.Space[Any],
    extras: dict[str, PyTree],
    shape: tuple[int, int],
    carry_in: PyTree,
) -> Rollout:
    """Return the shapes of a rollout as the module saw it, `[T, B]`.

    Args:
        observation_space: Observation space of the module.
        action_space: Action space of the module.
        extras: Shapes of the recorded module outputs.
        shape: Numbers of steps and environments.
        carry_in: Shapes of the carry at the first step.
    """
    flag = _placeholder(shape, jnp.bool_)
    obs = _to_struct(observation_space, shape)
    return Rollout(
        obs=obs,
        action=_to_struct(action_space, shape),
        reward=_placeholder(shape, jnp.float32),
        terminated=flag,
        truncated=flag,
        final_obs=obs,
        is_first=flag,
        mask=flag,
        extras=extras,
        carry_in=carry_in,
    )


def _placeholder(shape: tuple[int, ...], dtype: DTypeLike) -> PyTree:
    """Return a placeholder for an array while tracing."""
    return jax.ShapeDtypeStruct(shape, dtype)


def _to_struct(space: gymnasium.Space[Any], leading: tuple[int, ...]) -> PyTree:
    return jax.eval_shape(lambda: make_zeros(space, leading))


def _trace(what: str, function: Callable[..., Any], *arguments: object) -> PyTree:
    """Return the shapes of the function's result; all arguments other than spaces are traced."""
    traced = [a for a in arguments if not isinstance(a, gymnasium.Space)]
    given = [a for a in arguments if isinstance(a, gymnasium.Space)]
    try:
        return jax.eval_shape(lambda *values: function(*given, *values), *traced)
    except _UNTRACEABLE as error:
        raise ConfigError(
            f"{what} cannot be compiled: it reads values with NumPy or Python's `if`, `for`, "
            "`int` or `float`; use jax.numpy (jnp.where, jnp.clip, ...), or wrap the environment "
            f"instead ({type(error).__name__})."
        ) from error
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise ConfigError(f"{what} raised {type(error).__name__}: {reason}") from error


def _check_output(
    name: str, method: str, space: gymnasium.Space[Any], got: PyTree, leading: tuple[int, ...]
) -> None:
    """Check structure, shapes and dtypes of a transform's output."""
    want = _to_struct(space, leading)
    same: bool = jax.tree.structure(want) == jax.tree.structure(got)
    if same and all(
        _fits(part, w, g)
        for part, w, g in zip(
            _leaf_spaces(space), jax.tree.leaves(want), jax.tree.leaves(got), strict=True
        )
    ):
        return
    raise ConfigError(
        f"{name} must return {_format_types(want)} for a batch of shape {leading}, since its "
        f"{method} is {_in_one_line(space)}, but returns {_format_types(got)}; declare the actual "
        f"space in {method}."
    )


def _leaf_spaces(space: gymnasium.Space[Any]) -> list[gymnasium.Space[Any]]:
    """Return the simple spaces, in the order of the leaves of their values."""
    if isinstance(space, spaces.Dict):
        return [leaf for name in sorted(space.spaces) for leaf in _leaf_spaces(space[name])]
    if isinstance(space, spaces.Tuple):
        return [leaf for part in space.spaces for leaf in _leaf_spaces(part)]
    return [space]


def _fits(
    space: gymnasium.Space[Any], want: jax.ShapeDtypeStruct, got: jax.ShapeDtypeStruct
) -> bool:
    """Return whether an array fits: a Box fixes its dtype, other spaces allow any integer."""
    if isinstance(space, spaces.Box):
        return got.shape == want.shape and got.dtype == want.dtype
    return got.shape == want.shape and np.dtype(got.dtype).kind in "iub"


def _check_same(name: str, what: str, want: PyTree, got: PyTree) -> None:
    same: bool = jax.tree.structure(want) == jax.tree.structure(got) and all(
        w.shape == g.shape and w.dtype == g.dtype
        for w, g in zip(jax.tree.leaves(want), jax.tree.leaves(got), strict=True)
    )
    if not same:
        raise ConfigError(
            f"{name} must keep the shapes and dtypes of {what}: expected {_format_types(want)}, "
            f"got {_format_types(got)}."
        )


def _check_strong(name: str, tree: PyTree) -> None:
    for leaf in jax.tree.leaves(tree):
        if leaf.weak_type:
            raise ConfigError(
                f"{name} returns a weakly typed {leaf.dtype}: use jnp.asarray(value, "
                f"jnp.{leaf.dtype}), or programs compile twice."
            )


def _format_types(tree: PyTree) -> str:
    """Format dtypes and shapes."""
    if isinstance(tree, dict):
        return (
            "{" + ", ".join(f"{name!r}: {_format_types(part)}" for name, part in tree.items()) + "}"
        )
    if isinstance(tree, tuple):
        return "(" + ", ".join(_format_types(part) for part in tree) + ")"
    if isinstance(tree, jax.ShapeDtypeStruct):
        return f"{tree.dtype}{list(tree.shape)}"
    if isinstance(tree, Rollout):
        return _format_types({name: part for name, part in vars(tree).items() if part is not None})
    leaves = jax.tree.leaves(tree)
    return f"{type(tree).__name__}({', '.join(_format_types(leaf) for leaf in leaves)})"


def _in_one_line(value: object) -> str:
    return " ".join(str(value).split())
