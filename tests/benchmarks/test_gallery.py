"""The gallery of learning curves: made from committed summaries, and current."""

import shlex

from benchmarks import gallery
from benchmarks.machine import RESULTS
from benchmarks.scores import load_summaries
from jaxrl.config.registry import find_shipped_configs


def test_the_page_is_current_and_its_pictures_are_there() -> None:
    found = load_summaries(RESULTS)
    assert gallery.render_page(found) == gallery.PAGE.read_text(), "python -m benchmarks.gallery"
    names = {
        f"{gallery.make_picture_name(cell)}.svg"
        for _, cells in gallery.iter_sections(found)
        for cell in cells
    }
    assert {path.name for path in gallery.PICTURES.iterdir()} == names
    assert names


def test_every_command_names_a_shipped_file() -> None:
    commands = [
        shlex.split(line)
        for line in gallery.PAGE.read_text().splitlines()
        if line.startswith("jaxrl train")
    ]
    assert commands
    for command in commands:
        assert command[3] in find_shipped_configs(), command
