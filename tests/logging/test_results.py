import enum
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.runs import results


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), None),
        (float("-inf"), None),
        (np.float32("inf"), None),
        (np.float32(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array([1.0, np.nan]), [1.0, None]),
        (jnp.float32(2.5), 2.5),
        (jnp.arange(3), [0, 1, 2]),
        ((1, "a", None), [1, "a", None]),
        ({3: {"x": np.nan}}, {"3": {"x": None}}),
        (Path("/a/b"), "/a/b"),
        (Colour.RED, "red"),
        (Colour, f"{__name__}:Colour"),
        (len, "builtins:len"),
    ],
)
def test_to_json_makes_strict_json_of_anything(value: object, expected: object) -> None:
    plain = results.to_json(value)
    assert plain == expected
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


def test_to_json_of_a_bool_is_no_int() -> None:
    assert results.to_json(np.bool_(False)) is False
    assert type(results.to_json(np.float64(1))) is float


def test_flat_scalars_keep_order_and_leave_out_what_fits_no_cell() -> None:
    result = {"b": {"y": np.float32(1), "x": {"z": 2}}, "a": [1, 2], "c": None, "d": "text"}
    assert list(results.flatten_scalars(result).items()) == [
        ("b/y", 1.0),
        ("b/x/z", 2),
        ("d", "text"),
    ]


@pytest.mark.parametrize("missing", [None, float("nan"), "text", np.inf])
def test_number_is_none_for_what_cannot_be_drawn(missing: object) -> None:
    assert results.get_number({"a": missing}, "a") is None
