"""Lines for terminals, which break them anywhere; it imports nothing, so that the CLI starts fast."""

import re

_LABEL = re.compile(r"\S+(?: \S+)* {2,}|\s+")


def wrap_line(line: str, width: int) -> list[str]:
    """Break a line between words where a terminal of this width would break it within one.

    It is broken at two spaces rather than at one. What follows is indented like the text after the
    line's label; a longer word, such as a path, is moved to a line of its own. A command after a
    label that ends in "with" remains a command that can be pasted.

    Args:
        line: Line such as `"run folder        /results/run"`.
        width: Number of characters that fit into a row.
    """
    if len(line) <= width:
        return [line]
    label = _LABEL.match(line)
    indent = label.end() if label is not None else 2
    longest = max(map(len, line.split()), default=0)
    if indent + longest > width or 2 * indent > width:
        indent = 2
    end = " \\" if label is not None and label[0].rstrip().endswith("with") else ""
    rows, row = [], ""
    for part in re.split(r"(?<=\S)( {2,})(?=\S)", line):
        if row.strip() and len(row) + len(part) > width >= indent + len(part):
            rows.append(row)
            row = " " * indent
        if not part.strip():
            row += part if row.strip() else ""
            continue
        for word in re.findall(r"\s*\S+", part):
            if row.strip() and len(row) + len(word) + len(end) > width:
                rows.append(row)
                row, word = " " * indent, word.lstrip()
            row += word if row.strip() else word.lstrip() if rows else word
    return [*(each.rstrip() + (end if _has_text(each, label) else "") for each in rows), row]


def _has_text(row: str, label: re.Match[str] | None) -> bool:
    """Return whether a row has more than the label."""
    return label is None or row.rstrip() != label[0].rstrip()
