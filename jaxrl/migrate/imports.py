"""Rules for imports, which come last: they depend on the names that the migrated code uses."""

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import libcst as cst
from libcst import matchers
from libcst.helpers import get_full_name_for_node

from jaxrl.compat.rllib.imports import (
    DECORATORS,
    MOVED_RAY_NAMES,
    RLLIB,
    advise_on_name,
    find_counterpart,
)
from jaxrl.migrate.nodes import EmptiedStatements, get_comments
from jaxrl.migrate.report import Ledger
from jaxrl.migrate.rules import NeededImport

ImportNode = cst.Import | cst.ImportFrom


@dataclasses.dataclass(frozen=True)
class Plan:
    """Plan for the imports of a file.

    Attributes:
        lines: Lines of the import statements, in their order.
        used_before: Names that the original used.
        renamed: Names in the migrated code, by the paths that the original imports.
        aliased: Names that the code keeps although they are called differently here.
        needed: Imports that the migrated code needs.
    """

    lines: Sequence[int]
    used_before: Collection[str]
    renamed: Mapping[str, str]
    aliased: Collection[str]
    needed: Collection[NeededImport]


class ImportRewriter(cst.CSTTransformer):
    """Transformer of the import statements.

    Args:
        plan: Plan for the imports.
        used: Names that the migrated code uses.
        ledger: Account of the file.
    """

    def __init__(self, plan: Plan, used: Collection[str], ledger: Ledger) -> None:
        super().__init__()
        self._plan = plan
        self._used = used
        self._ledger = ledger
        self._emptied = EmptiedStatements()
        self._line = 0
        self._seen = 0
        self._replacements: list[ImportNode] | None = None
        self._provided: set[NeededImport] = set()
        self._depth = 0
        self._last_import: cst.CSTNode | None = None

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self._count()
        return False

    def visit_Import(self, node: cst.Import) -> bool:
        self._count()
        return False

    def _count(self) -> None:
        self._line = self._plan.lines[self._seen]
        self._seen += 1

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._depth += 1

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        self._depth -= 1
        return self._emptied.clean_block(updated_node)

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom:
        module = get_full_name_for_node(updated_node.module) if updated_node.module else None
        if module is None or updated_node.relative:
            return updated_node
        if isinstance(updated_node.names, cst.ImportStar):
            if module.startswith(RLLIB):
                advice = advise_on_name(f"{module}.*")
                self._ledger.by_hand(self._line, "import", f"from {module} import *", advice)
            return updated_node
        self._replacements = self._rewrite_from(updated_node, module, updated_node.names)
        return updated_node

    def _rewrite_from(
        self, node: cst.ImportFrom, module: str, names: Sequence[cst.ImportAlias]
    ) -> list[ImportNode] | None:
        kept: list[cst.ImportAlias] = []
        moved: dict[str, list[cst.ImportAlias]] = defaultdict(list)
        is_changed = False
        for alias in names:
            path = f"{module}.{alias.evaluated_name}"
            local = alias.evaluated_alias or alias.evaluated_name
            counterpart = find_counterpart(path)
            if self._is_left_over(path, local):
                is_changed = True
                self._ledger.change(self._line, "import", f"{path} is not needed")
            elif counterpart is not None:
                is_changed = True
                target, _, name = counterpart.rpartition(".")
                moved[target].append(self._rename_alias(alias, name, local))
                self._ledger.change(self._line, "import", f"{path} is {counterpart}")
            else:
                kept.append(alias)
                if path.startswith(f"{RLLIB}.") or path == RLLIB:
                    self._ledger.by_hand(self._line, "import", path, advise_on_name(path))
                else:
                    self._provided.add(NeededImport(module, alias.evaluated_name))
        return self._make_statements(node, kept, moved) if is_changed else None

    def _is_left_over(self, path: str, local: str) -> bool:
        """Return whether the code used an import of RLlib, and does no longer."""
        is_ours = (
            path.startswith(RLLIB) or path in MOVED_RAY_NAMES or path in ("ray.air", "ray.train")
        )
        is_decorator = path.startswith(RLLIB) and path.rpartition(".")[2] in DECORATORS
        was_used = local in self._plan.used_before or is_decorator
        current = self._plan.renamed.get(path, local)
        return is_ours and was_used and current not in self._used

    def _rename_alias(self, alias: cst.ImportAlias, name: str, local: str) -> cst.ImportAlias:
        keeps_name = alias.asname is not None or local in self._plan.aliased
        asname = cst.AsName(cst.Name(local)) if keeps_name and local != name else None
        return alias.with_changes(name=cst.Name(name), asname=asname)

    def _make_statements(
        self,
        node: cst.ImportFrom,
        kept: list[cst.ImportAlias],
        moved: dict[str, list[cst.ImportAlias]],
    ) -> list[ImportNode]:
        """Return the statements that replace an import; one keeps its layout."""
        groups: list[tuple[cst.BaseExpression | None, list[cst.ImportAlias]]] = [
            (cst.ensure_type(cst.parse_expression(module), cst.BaseExpression), aliases)
            for module, aliases in moved.items()
        ]
        for module, aliases in moved.items():
            for alias in aliases:
                if alias.asname is None:
                    self._provided.add(NeededImport(module, alias.evaluated_name))
        if kept:
            groups.append((node.module, kept))
        if len(groups) == 1 and len(groups[0][1]) == len(list(_aliases(node))):
            return [node.with_changes(module=groups[0][0], names=groups[0][1])]
        statements: list[ImportNode] = []
        for module, aliases in groups:
            names = _unique(aliases)
            statements.append(cst.ImportFrom(module=module, names=names))  # pyright: ignore
        return statements

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import:
        kept: list[cst.ImportAlias] = []
        for alias in updated_node.names:
            path = alias.evaluated_name
            if not path.startswith(RLLIB):
                kept.append(alias)
                self._provided.add(NeededImport(path))
                continue
            local = alias.evaluated_alias
            is_used = RLLIB in self._used if local is None else local in self._used
            if is_used:
                kept.append(alias)
                self._ledger.by_hand(self._line, "import", path, advise_on_name(path))
                continue
            self._ledger.change(self._line, "import", f"{path} is not needed")
            if local is None and "ray" in self._used and NeededImport("ray") not in self._provided:
                kept.append(cst.ImportAlias(cst.Name("ray")))
                self._provided.add(NeededImport("ray"))
        if [a.evaluated_name for a in kept] != [a.evaluated_name for a in updated_node.names]:
            names = _unique(kept)
            self._replacements = [updated_node.with_changes(names=names)] if names else []
        return updated_node

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        replacements, self._replacements = self._replacements, None
        if replacements is None or len(updated_node.body) != 1:
            return updated_node
        inner = _comments_inside(updated_node.body[0]) if len(replacements) != 1 else []
        lines = [*updated_node.leading_lines, *inner]
        if not replacements:
            return self._emptied.empty(updated_node.with_changes(leading_lines=lines))
        first, *others = (cst.SimpleStatementLine(body=[statement]) for statement in replacements)
        first = first.with_changes(leading_lines=lines)
        statements = [first, *others]
        statements[-1] = statements[-1].with_changes(
            trailing_whitespace=updated_node.trailing_whitespace
        )
        return cst.FlattenSentinel(statements)

    def _is_needed(self, need: NeededImport) -> bool:
        """Return whether the migrated code still uses what a rule needed."""
        return need.is_for_effect or (need.name or need.module.partition(".")[0]) in self._used

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        missing = sorted(
            (
                need
                for need in self._plan.needed
                if need not in self._provided and self._is_needed(need)
            ),
            key=lambda need: (need.module, need.name or ""),
        )
        cleaned = self._emptied.clean_module(updated_node)
        return _insert_imports(cleaned, missing)


def _aliases(node: cst.ImportFrom) -> Sequence[cst.ImportAlias]:
    return [] if isinstance(node.names, cst.ImportStar) else node.names


def _unique(aliases: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
    """Return aliases with plain commas, each name once."""
    by_name = {cst.Module([]).code_for_node(a.with_changes(comma=_NO_COMMA)): a for a in aliases}
    *others, last = [*by_name.values()] or [None]
    if last is None:
        return []
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [
        *(alias.with_changes(comma=comma) for alias in others if alias is not None),
        last.with_changes(comma=_NO_COMMA),
    ]


_NO_COMMA = cst.MaybeSentinel.DEFAULT


def _comments_inside(node: cst.CSTNode) -> list[cst.EmptyLine]:
    spaces = matchers.findall(node, matchers.ParenthesizedWhitespace())
    return [cst.EmptyLine(comment=each) for space in spaces for each in get_comments(space)]


def _insert_imports(module: cst.Module, needed: Sequence[NeededImport]) -> cst.Module:
    """Return a module with further imports behind its first ones."""
    if not needed:
        return module
    names: dict[str, list[str]] = defaultdict(list)
    lines = [f"import {need.module}" for need in needed if need.name is None]
    for need in needed:
        if need.name is not None:
            names[need.module].append(need.name)
    body = list(module.body)
    for position, statement in enumerate(body):
        source = _get_source(statement)
        if source in names:
            extended = _extend(statement, names[source])
            if extended is not None:
                body[position] = extended
                del names[source]
    lines += [f"from {source} import {', '.join(words)}" for source, words in names.items()]
    position = _find_end_of_imports(body)
    body[position:position] = [cst.parse_statement(line) for line in lines]
    return module.with_changes(body=body)


def _get_source(statement: cst.BaseStatement) -> str | None:
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    node = statement.body[0]
    if not isinstance(node, cst.ImportFrom) or node.module is None or node.relative:
        return None
    return get_full_name_for_node(node.module)


def _extend(statement: cst.BaseStatement, names: Sequence[str]) -> cst.SimpleStatementLine | None:
    """Return a one-line `from` import with more names, None for other layouts."""
    assert isinstance(statement, cst.SimpleStatementLine)
    node = statement.body[0]
    if not isinstance(node, cst.ImportFrom) or node.lpar is not None:
        return None
    if isinstance(node.names, cst.ImportStar):
        return None
    aliases = [*node.names, *(cst.ImportAlias(cst.Name(name)) for name in names)]
    aliases.sort(key=lambda alias: alias.evaluated_name)
    return statement.with_changes(body=[node.with_changes(names=_unique(aliases))])


def _find_end_of_imports(body: Sequence[cst.BaseStatement]) -> int:
    """Return the position behind the first block of imports."""
    end = 0
    for position, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        node = statement.body[0]
        is_docstring = position == 0 and isinstance(node, cst.Expr)
        if isinstance(node, cst.Import | cst.ImportFrom) or is_docstring:
            end = position + 1
        elif end:
            break
    return end
