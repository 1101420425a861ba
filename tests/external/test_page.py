"""The protocol's page is the one that its messages generate."""

from pathlib import Path

from jaxrl.external.page import render_protocol_page

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "jaxrl_link.md"


def test_page_is_up_to_date() -> None:
    assert PAGE.read_text() == render_protocol_page(), (
        "python -m jaxrl.external.page > docs/guides/jaxrl_link.md"
    )
