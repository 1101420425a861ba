"""Tables and numbers as text: what is written is what is read back."""

import pytest

from jaxrl.bench import markdown
from jaxrl.bench.markdown import Table, parse_tables, render_document
from jaxrl.sweeps.statistics import Interval, estimate_iqm


def test_a_document_leaves_out_what_is_missing() -> None:
    table = Table(header=("a", "b"), rows=[("1", ""), ("2|3", "x\ny")], strong=(1,))
    assert render_document("# Title", None, "", table) == (
        "# Title\n\n| a | b |\n| --- | --- |\n| 1 |  |\n| **2\\|3** | **x y** |\n"
    )


def test_tables_are_read_as_they_were_written() -> None:
    first = Table(title="One", text="Words.", header=("", "a|b"), rows=[("", "1"), ("c|", "|")])
    second = Table(header=("d",), rows=[])
    found = parse_tables(render_document("# Page", "Before.", first, second), "Speed")
    assert [table.title for table in found] == ["Speed: One", "Speed: One"]
    assert [table.text for table in found] == ["Words.", ""]
    assert [(table.header, list(table.rows)) for table in found] == [
        (table.header, list(table.rows)) for table in (first, second)
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (float("nan"), "-"), (0.12345, "0.123"), (497.26, "497"), (-12345.6, "-12,346")],
)
def test_numbers_have_three_digits(value: float | None, text: str) -> None:
    assert markdown.format_short(value) == text


def test_intervals_have_the_digits_asked_for() -> None:
    interval = Interval(value=1234.5, low=-1.0, high=2000.0)
    assert markdown.format_range(interval, ",.0f") == "-1 - 2,000"
    assert markdown.format_estimate(interval, ",.1f") == "1,234.5 (-1.0 - 2,000.0)"
    data = {"value": 0.5, "low": 0.25, "high": 1.0, "count": 5}
    assert markdown.format_interval(data) == "0.5 [0.25, 1]"


def test_without_an_interval_there_is_the_number_of_runs() -> None:
    few = estimate_iqm([1234.5])
    assert markdown.format_estimate(few, ",.1f") == "1,234.5 (1 run)"
    assert markdown.format_interval(few.to_data()) == "1,234 (1 run)"
    assert markdown.format_optional(None, ".1f") == "-"
    assert markdown.format_optional(0.0, ".1f") == "0.0"
