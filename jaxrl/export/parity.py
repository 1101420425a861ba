"""Comparison of an exported policy with recorded outputs of the original; NumPy alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jaxrl.export.numpy_program import (
    GREEDY,
    SAMPLE,
    NumpyPolicy,
    PolicyFileError,
    StepResult,
    Tree,
    join_value,
    split_value,
)

TOLERANCE = 1e-5
"""Largest difference, relative to the larger of 1 and the largest value of the row."""
TIE = 1e-4
"""Difference of the two best actions below which either may be chosen."""


@dataclasses.dataclass
class Check:
    """Comparison of one output in one mode.

    Attributes:
        mode: Program: greedy or sample.
        name: Name of the output.
        num_values: Number of compared values.
        worst: Largest difference; infinite for other shapes.
        limit: Largest difference that is accepted.
    """

    mode: str
    name: str
    num_values: int = 0
    worst: float = 0.0
    limit: float = TOLERANCE

    @property
    def is_equal(self) -> bool:
        """Return whether every value is within the limit."""
        return self.worst <= self.limit


def compare(policy: NumpyPolicy, examples: Mapping[str, np.ndarray]) -> list[Check]:
    """Run a policy on the observations of examples, and compare its outputs.

    Args:
        policy: Exported policy.
        examples: Contents of `examples.npz`.

    Raises:
        PolicyFileError: If the examples lack something.
    """
    checks: dict[tuple[str, str], Check] = {}
    modes = [mode for mode in (GREEDY, SAMPLE) if f"{mode}/log_prob" in examples]
    try:
        for mode in modes:
            for name, got, expected, limit in _run(policy, examples, mode):
                check = checks.setdefault((mode, name), Check(mode, name, limit=limit))
                check.num_values += expected.size
                check.worst = max(check.worst, _measure(got, expected))
    except KeyError as error:
        raise PolicyFileError(f"examples.npz has no {error}: export the policy again.") from error
    return list(checks.values())


def _run(
    policy: NumpyPolicy, examples: Mapping[str, np.ndarray], mode: str
) -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    """Iterate over the outputs of every step: name, found and expected values, and the limit."""
    signature: Mapping[str, list[dict[str, Any]]] = policy.manifest["signature"]
    num_state, state = len(policy.state_names), None
    for step in range(len(examples["is_first"])):
        expected = {
            name[len(mode) + 1 :]: array[step]
            for name, array in examples.items()
            if name.startswith(f"{mode}/")
        }
        result = policy.step(
            _join(
                policy, "observation_space", [e["name"] for e in signature["obs"]], examples, step
            ),
            state,
            explore=mode == SAMPLE,
            draws={name: array for name, array in expected.items() if name.startswith("draws/")},
            **_get_past(policy, examples, step, is_first=state is None),
        )
        next_state = [expected[f"state/{i}"] for i in range(num_state)]
        yield from _pair(policy, result, expected)
        for name, got, wanted in zip(policy.state_names, result.state, next_state):  # noqa: B905
            yield name, got, wanted, TOLERANCE
        # Where two actions are as good, the original's is the one that the next step follows.
        state = next_state if _differs(policy, result, expected) else result.state


def _join(
    policy: NumpyPolicy, space: str, names: list[str], examples: Mapping[str, np.ndarray], step: int
) -> Tree:
    return join_value(policy.manifest[space], iter([examples[name][step] for name in names]))


def _get_past(
    policy: NumpyPolicy, examples: Mapping[str, np.ndarray], step: int, *, is_first: bool
) -> dict[str, Any]:
    if is_first:
        return {}
    first = examples["is_first"][step]
    past: dict[str, Any] = {"is_first": first}
    if "prev_reward" in examples:
        past["prev_reward"] = examples["prev_reward"][step]
    if "has_prev_action" in examples and examples["has_prev_action"][step]:
        names = [entry["name"] for entry in policy.manifest["signature"]["prev_action"]]
        past["prev_action"] = _join(policy, "action_space", names, examples, step)
    return past


def _pair(
    policy: NumpyPolicy, result: StepResult, expected: Mapping[str, np.ndarray]
) -> Iterator[tuple[str, np.ndarray, np.ndarray, float]]:
    yield "dist_inputs", result.dist_inputs, expected["dist_inputs"], TOLERANCE
    is_same = ~_find_ties(result, expected)
    yield "log_prob", result.log_prob[is_same], expected["log_prob"][is_same], TOLERANCE
    for group in ("actions", "module_actions"):
        for name, got in _get_actions(policy, result, group):
            wanted = expected[name]
            limit = TOLERANCE if wanted.dtype.kind == "f" else 0.0
            yield name, got[is_same], wanted[is_same], limit


def _get_actions(
    policy: NumpyPolicy, result: StepResult, group: str
) -> list[tuple[str, np.ndarray]]:
    space, names = policy.manifest["action_space"], policy.manifest["signature"][group]
    leaves = split_value(space, getattr(result, group), group)
    return list(zip(names, leaves))  # noqa: B905


def _differs(policy: NumpyPolicy, result: StepResult, expected: Mapping[str, np.ndarray]) -> bool:
    return any(
        not np.array_equal(got, expected[name])
        for name, got in _get_actions(policy, result, "module_actions")
        if got.dtype.kind != "f"
    )


def _find_ties(result: StepResult, expected: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the rows `[b]` whose two largest inputs, of a single choice, are as good as equal."""
    inputs = expected["dist_inputs"].astype(np.float64)
    noise = [array for name, array in expected.items() if name.startswith("draws/")]
    if inputs.shape[-1] < 2 or expected.get("module_actions", inputs).dtype.kind == "f":
        return np.zeros(len(inputs), np.bool_)
    if len(noise) == 1 and noise[0].shape == inputs.shape:
        inputs = inputs + noise[0]
    best = np.sort(inputs, axis=-1)
    margin = TIE * np.maximum(1.0, np.abs(best[:, -1]))
    return (best[:, -1] - best[:, -2] <= margin).reshape(len(inputs))


def _measure(got: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the larger of 1 and the row's largest value."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return np.inf
    if not expected.size:
        return 0.0
    a, b = got.astype(np.float64), expected.astype(np.float64)
    is_equal = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        difference = np.where(is_equal, 0.0, np.abs(a - b))
    finite = np.where(np.isfinite(b), np.abs(b), 0.0).reshape(len(b), -1)
    scale = np.maximum(1.0, finite.max(axis=1)).reshape((len(b),) + (1,) * (b.ndim - 1))
    worst = difference / scale if expected.dtype.kind == "f" else difference
    return float(np.nan_to_num(worst, nan=np.inf).max())


def format_table(checks: list[Check]) -> list[str]:
    """Return the lines of a table of comparisons."""
    rows = [("program", "output", "values", "worst", "limit", "")]
    rows += [
        (c.mode, c.name, str(c.num_values), f"{c.worst:.1e}", f"{c.limit:.0e}",
         "equal" if c.is_equal else "DIFFERENT")
        for c in checks
    ]  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()  # noqa: B905
            for row in rows]  # fmt: skip
