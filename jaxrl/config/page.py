"""The settings page of the documentation, made from the groups."""

from collections.abc import Iterable
from typing import Any

from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.batch_plan.arithmetic import MAX_COUNT
from jaxrl.config.fields import Setting
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
from jaxrl.config.rllib_names import GROUPS_REFUSED, RENAMED

_HEAD = """# Settings

Every setting, by the method of `AlgorithmConfig` that changes it. The page is made from the
settings' own definitions: `python -m jaxrl.config.page > docs/settings.md`.

*Traced* settings are numbers that only enter arithmetic: another value needs no recompile.
Defaults adapt to what is set explicitly (a train batch of 4000 makes the default minibatch of 128
one of 125); explicit values never do. `config.explain()` prints what came of it.
"""


def settings_page() -> str:
    """The page as Markdown, with a newline at its end."""
    blocks = [_HEAD]
    base = AlgorithmConfig.name_table()
    for attribute, method in GROUP_METHODS.items():
        group: Any = type(AlgorithmConfig.__dict__[attribute])
        blocks.append(_section(f"`{method}()`", group.__doc__, base.groups[attribute].values()))
    blocks += [*map(_algorithm, list_algorithms()), _old_names(), _refused()]
    return "\n".join(blocks)


def _algorithm(algo: str) -> str:
    cls = get_algorithm_config_class(algo)
    base = AlgorithmConfig.name_table()
    defaults = cls()
    own = [
        _with_default(setting, defaults[setting.name])
        for settings in cls.name_table().groups.values()
        for setting in settings.values()
        if setting.name not in base.group_of
        or defaults[setting.name] != base.setting(setting.name).default
    ]
    return _section(f"{algo}: `training()`", f"What `{cls.__name__}` adds or changes.", own)


def _with_default(setting: Setting, default: Any) -> Setting:
    return Setting(**{**vars(setting), "default": default})


def _section(title: str, sentence: str | None, settings: Iterable[Setting]) -> str:
    rows = [_row(setting) for setting in settings]
    first = (sentence or "").strip().split("\n")[0]
    table = ["| setting | default | value | |", "| --- | --- | --- | --- |", *rows]
    return "\n".join([f"## {title}", "", first, "", *table, ""])


def _row(setting: Setting) -> str:
    wants = setting.wants
    condition = "" if setting.check is None else setting.check.wants
    condition = condition.removesuffix(f" and at most {MAX_COUNT}")  # holds for every count
    if condition and len(condition) < 20:
        wants += f", {condition}"
    traced = " *Traced.*" if setting.sweepable else ""
    cells = [f"`{setting.name}`", f"`{setting.default!r}`", wants, setting.doc + traced]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _old_names() -> str:
    rows = [f"| `{old}` | `{renamed.new}` |" for old, renamed in sorted(RENAMED.items())]
    lines = ["## RLlib's other names", "", "Understood, and answered with the name used here.", ""]
    return "\n".join([*lines, "| name | here |", "| --- | --- |", *rows, ""])


def _refused() -> str:
    rows = [f"| `{name}()` | {reason}. |" for name, reason in sorted(GROUPS_REFUSED.items())]
    lines = [
        "## What this version does not have",
        "",
        "These are refused by name, with the reason, as are RLlib's settings for actors, recorded",
        "data, several agents and other frameworks.",
        "",
    ]
    return "\n".join([*lines, "| method | why |", "| --- | --- |", *rows, ""])


if __name__ == "__main__":
    import sys

    sys.stdout.write(settings_page())
