"""Removal of statements that became empty, which keeps their comments."""

from collections.abc import Collection, Sequence

import libcst as cst

Body = Sequence[cst.BaseStatement]


class EmptiedStatements:
    """Statements that are left to be removed from the body in which they stand."""

    def __init__(self) -> None:
        self._marked: set[cst.CSTNode] = set()

    def empty(self, statement: cst.SimpleStatementLine) -> cst.SimpleStatementLine:
        """Return `pass` in place of a statement, to be removed."""
        marked = statement.with_changes(body=[cst.Pass()])
        self._marked.add(marked)
        return marked

    def clean_module(self, module: cst.Module) -> cst.Module:
        """Return a module without the emptied statements at its top level."""
        body, rest = self._clean(module.body)
        return module.with_changes(body=body, footer=[*rest, *module.footer])

    def clean_block(self, block: cst.IndentedBlock) -> cst.IndentedBlock:
        """Return a block without emptied statements; one of them stays if it has no others."""
        if all(statement in self._marked for statement in block.body):
            return block
        body, rest = self._clean(block.body)
        return block.with_changes(body=body, footer=[*rest, *block.footer])

    def _clean(self, body: Body) -> tuple[list[cst.BaseStatement], list[cst.EmptyLine]]:
        kept: list[cst.BaseStatement] = []
        carried: list[cst.EmptyLine] = []
        for statement in body:
            if statement in self._marked:
                assert isinstance(statement, cst.SimpleStatementLine)
                carried += statement.leading_lines
                comment = statement.trailing_whitespace.comment
                if comment is not None:
                    carried.append(cst.EmptyLine(comment=comment))
                continue
            kept.append(_with_lines_before(statement, carried))
            carried = []
        return kept, carried if _have_comments(carried) else []


def _have_comments(lines: Collection[cst.EmptyLine]) -> bool:
    return any(line.comment is not None for line in lines)


def _with_lines_before(
    statement: cst.BaseStatement, lines: Sequence[cst.EmptyLine]
) -> cst.BaseStatement:
    if not lines or not hasattr(statement, "leading_lines"):
        return statement
    own: Sequence[cst.EmptyLine] = statement.leading_lines  # pyright: ignore
    if own and not _have_comments(lines):
        return statement
    return statement.with_changes(leading_lines=[*lines, *own])
