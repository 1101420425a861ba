"""Generator of the settings page of the documentation, from the groups of settings."""

import dataclasses
from collections.abc import Iterable
from typing import Any

from jaxrl.compat import lookup
from jaxrl.config.base import AlgorithmConfig, get_algorithm_config_class
from jaxrl.config.fields import MAX_COUNT, Setting
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import list_algorithms

_HEAD = """# Settings

All settings, grouped by the method of `AlgorithmConfig` that sets them. This page is generated from
the definitions of the settings: `python -m jaxrl.config.page > docs/settings.md`.

*Traced* settings are numbers that only enter arithmetic, so changing them does not recompile.
Defaults adapt to values that are set explicitly (a train batch of 4000 changes the default
minibatch of 128 to 125); explicit values are never changed. `config.explain()` prints the result.
"""


def render_settings_page() -> str:
    """Return the page as Markdown, with a trailing newline."""
    blocks = [_HEAD]
    base = AlgorithmConfig.get_name_table()
    for attribute, method in GROUP_METHODS.items():
        group: type[Any] = type(getattr(AlgorithmConfig, attribute))
        blocks.append(
            _render_section(f"`{method}()`", group.__doc__, base.groups[attribute].values())
        )
    blocks += [*map(_render_algorithm, list_algorithms()), _render_renamed()]
    return "\n".join(blocks)


def _render_algorithm(algo: str) -> str:
    cls = get_algorithm_config_class(algo)
    base = AlgorithmConfig.get_name_table()
    defaults = cls()
    changed = [
        dataclasses.replace(setting, default=defaults[setting.name])
        for settings in cls.get_name_table().groups.values()
        for setting in settings.values()
        if setting.name not in base.group_by_setting
        or defaults[setting.name] != base.get_setting(setting.name).default
    ]
    return _render_section(
        f"{algo}: `training()`",
        f"Settings that `{cls.__name__}` adds, or whose defaults it changes.",
        changed,
    )


def _render_section(title: str, description: str | None, settings: Iterable[Setting]) -> str:
    rows = [_render_row(setting) for setting in settings]
    summary = (description or "").strip().split("\n")[0]
    table = ["| setting | default | type | description |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {title}", "", summary, "", *table, ""])


def _render_row(setting: Setting) -> str:
    value = setting.type_description
    condition = "" if setting.check is None else setting.check.requirement
    condition = condition.removesuffix(f" and at most {MAX_COUNT}")  # true of every count
    if condition and len(condition) < 20:
        value += f", {condition}"
    traced = " *Traced.*" if setting.sweepable else ""
    cells = [f"`{setting.name}`", f"`{setting.default!r}`", value, setting.doc + traced]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _render_renamed() -> str:
    settings = lookup.load("rllib.settings").SETTINGS
    renamed = {name: setting.new_name for name, setting in settings.items() if setting.new_name}
    rows = [f"| `{old}` | `{new}` |" for old, new in sorted(renamed.items())]
    lines = ["## RLlib's other names", "", "Accepted, with a note on the name that jaxrl uses.", ""]
    return "\n".join([*lines, "| RLlib | jaxrl |", "| --- | --- |", *rows, ""])


if __name__ == "__main__":
    import sys

    sys.stdout.write(render_settings_page())
