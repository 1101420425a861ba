"""Syntax nodes: literals, arguments, chains of calls and statements, edited without losing a comment."""

import ast
import dataclasses
from collections.abc import Collection, Sequence
from typing import TypeVar

import libcst as cst
from libcst.helpers import get_full_name_for_node

from jaxrl.compat.rllib.imports import RLLIB
from jaxrl.migrate.verdicts import UNKNOWN

Whitespace = cst.BaseParenthesizableWhitespace


def to_code(node: cst.CSTNode) -> str:
    """Return the source of a node."""
    return cst.Module(body=[]).code_for_node(node)


def read_literal(node: cst.CSTNode) -> object:
    """Return the value of a literal, UNKNOWN if the node is no literal."""
    try:
        return ast.literal_eval(to_code(node).strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return UNKNOWN


def read_string(node: cst.CSTNode | None) -> str | None:
    """Return the value of a string literal, None for any other node."""
    if not isinstance(node, cst.SimpleString):
        return None
    value = node.evaluated_value
    return value if isinstance(value, str) else None


def replace_string(node: cst.SimpleString, text: str) -> cst.SimpleString:
    """Return a string literal with another text, in the quotes of the old one."""
    quote = node.quote if text.isprintable() and node.quote not in text else '"'
    return node.with_changes(value=f"{quote}{text}{quote}")


def make_expression(value: object) -> cst.BaseExpression:
    """Return the literal of a value."""
    text = repr(value)
    return cst.parse_expression(f'"{value}"' if isinstance(value, str) else text)


def get_index(node: cst.Subscript) -> cst.BaseExpression | None:
    """Return the index of `x[index]`, None for slices and several indices."""
    if len(node.slice) == 1 and isinstance(node.slice[0].slice, cst.Index):
        return node.slice[0].slice.value
    return None


def with_index(node: cst.Subscript, index: cst.BaseExpression) -> cst.Subscript:
    """Return `x[index]` with another index."""
    element = node.slice[0].with_changes(slice=cst.Index(index))
    return node.with_changes(slice=[element])


# --- whitespace and comments ---


def get_comments(space: object) -> list[cst.Comment]:
    """Return the comments in the whitespace between two tokens."""
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return []
    first = [space.first_line.comment] if space.first_line.comment else []
    return [*first, *(line.comment for line in space.empty_lines if line.comment)]


def join_whitespace(before: Whitespace, after: Whitespace) -> Whitespace:
    """Join the whitespace around a removed token, with the comments of both."""
    if not isinstance(after, cst.ParenthesizedWhitespace):
        return before if get_comments(before) else after
    if not isinstance(before, cst.ParenthesizedWhitespace):
        return after
    trailing = after.first_line.comment
    lines = list(after.empty_lines)
    if trailing is not None:
        lines.insert(0, cst.EmptyLine(indent=True, whitespace=after.last_line, comment=trailing))
    if before.first_line.comment is None and before.empty_lines == ():
        kept = dataclasses.replace(before.first_line)
        return after.with_changes(first_line=kept, empty_lines=lines)
    return after.with_changes(
        first_line=before.first_line, empty_lines=[*before.empty_lines, *lines]
    )


# --- arguments ---


Item = TypeVar("Item", cst.Arg, cst.BaseDictElement)


def _get_trailing_space(item: cst.Arg | cst.BaseDictElement) -> Whitespace:
    """Return the whitespace behind an argument or element, with its comma if it has one."""
    if isinstance(item.comma, cst.Comma):
        return item.comma.whitespace_after
    if isinstance(item, cst.Arg):
        return item.whitespace_after_arg
    return cst.SimpleWhitespace("")


def _set_trailing_space(item: Item, space: Whitespace, *, is_last: bool) -> Item:
    if is_last and not isinstance(space, cst.ParenthesizedWhitespace):
        return item.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    comma = item.comma if isinstance(item.comma, cst.Comma) else cst.Comma()
    return item.with_changes(comma=comma.with_changes(whitespace_after=space))


def _keep_items(
    start: Whitespace, old_items: Sequence[Item], kept: Sequence[Item | None]
) -> tuple[Whitespace, list[Item]]:
    """Return the whitespace before the kept items, and the items; all comments stay."""
    items: list[Item] = []
    last = len(kept) - 1
    for position, (old, new) in enumerate(zip(old_items, kept, strict=True)):
        behind = _get_trailing_space(old)
        if new is not None:
            items.append(new)
        elif items:
            space = join_whitespace(_get_trailing_space(items[-1]), behind)
            items[-1] = _set_trailing_space(items[-1], space, is_last=position == last)
        elif get_comments(behind) or (get_comments(start) and position == last):
            start = join_whitespace(start, behind)
    if not items and not get_comments(start):
        start = cst.SimpleWhitespace("")
    return start, items


def keep_args(call: cst.Call, kept: Sequence[cst.Arg | None]) -> cst.Call:
    """Return a call with some arguments, None for those that are removed; comments stay.

    Args:
        call: Call with all arguments.
        kept: As many entries as arguments, in their order.
    """
    if all(arg is not None for arg in kept):
        return call.with_changes(args=list(kept))
    start, args = _keep_items(call.whitespace_before_args, call.args, kept)
    return call.with_changes(args=args, whitespace_before_args=start)


def keep_elements(node: cst.Dict, kept: Sequence[cst.BaseDictElement | None]) -> cst.Dict:
    """Return a dictionary with some elements, None for those that are removed; comments stay."""
    if all(element is not None for element in kept):
        return node.with_changes(elements=list(kept))
    start, elements = _keep_items(node.lbrace.whitespace_after, node.elements, kept)
    brace = node.lbrace.with_changes(whitespace_after=start)
    return node.with_changes(elements=elements, lbrace=brace)


def strip_arg(arg: cst.Arg) -> cst.Arg:
    """Return an argument without its comma, to be put into another call."""
    return arg.with_changes(
        comma=cst.MaybeSentinel.DEFAULT, whitespace_after_arg=cst.SimpleWhitespace("")
    )


def make_keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    """Return the argument `name=value`."""
    return cst.Arg(
        keyword=cst.Name(name),
        value=value,
        equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
    )


def append_args(call: cst.Call, args: Sequence[cst.Arg]) -> cst.Call:
    """Return a call with further arguments, in the layout of those that it has."""
    if not args:
        return call
    if not call.args:
        return call.with_changes(args=list(args))
    *others, last = call.args
    end = last.comma.whitespace_after if isinstance(last.comma, cst.Comma) else None
    is_multiline = isinstance(call.whitespace_before_args, cst.ParenthesizedWhitespace)
    between: Whitespace = cst.SimpleWhitespace(" ")
    if is_multiline:
        space = call.whitespace_before_args
        between = space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
    if end is None:
        end = last.whitespace_after_arg
        last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
    added = [last, *args]
    joined: list[cst.Arg] = []
    for position, arg in enumerate(added[:-1]):
        space = between
        if position == 0 and get_comments(end) and isinstance(end, cst.ParenthesizedWhitespace):
            space = (
                end.with_changes(last_line=between.last_line)
                if isinstance(between, cst.ParenthesizedWhitespace)
                else end
            )
        joined.append(arg.with_changes(comma=cst.Comma(whitespace_after=space)))
    final = added[-1]
    if is_multiline:
        closing = _without_comments(end)
        final = final.with_changes(comma=cst.Comma(whitespace_after=closing))
    return call.with_changes(args=[*others, *joined, final])


def _without_comments(space: Whitespace) -> Whitespace:
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return space
    return space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])


def find_arg(call: cst.Call, *names: str, position: int | None = None) -> cst.Arg | None:
    """Return an argument by one of its names, or by its position among those without a name."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value in names:
            return arg
    plain = [arg for arg in call.args if arg.keyword is None and not arg.star]
    if position is not None and position < len(plain):
        return plain[position]
    return None


# --- chains: x.a(...).b.c(...) ---


@dataclasses.dataclass(frozen=True)
class Link:
    """Link `.name(...)` of a chain, or `.name` without a call.

    Attributes:
        attribute: Node of `.name`; its value is replaced when the chain is built again.
        call: Node of the call, None without one.
    """

    attribute: cst.Attribute
    call: cst.Call | None

    @property
    def name(self) -> str:
        """Name of the method or attribute."""
        return self.attribute.attr.value

    @property
    def outer(self) -> cst.Call | cst.Attribute:
        """Outermost node of the link."""
        return self.attribute if self.call is None else self.call

    def renamed(self, name: str) -> "Link":
        """Return the link with another name."""
        attribute = self.attribute.with_changes(attr=cst.Name(name))
        return dataclasses.replace(self, attribute=attribute)

    def with_call(self, call: cst.Call) -> "Link":
        """Return the link with another call."""
        return dataclasses.replace(self, call=call)

    def with_space(self, space: Whitespace) -> "Link":
        """Return the link with other whitespace in front of its dot."""
        dot = self.attribute.dot.with_changes(whitespace_before=space)
        return dataclasses.replace(self, attribute=self.attribute.with_changes(dot=dot))

    @property
    def space(self) -> Whitespace:
        """Whitespace in front of the dot."""
        return self.attribute.dot.whitespace_before


def move_parentheses(old: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
    """Return an expression with the parentheses of the one that it replaces in front of its own."""
    return new.with_changes(lpar=[*old.lpar, *new.lpar], rpar=[*new.rpar, *old.rpar])


def add_comments_to_end(
    node: cst.BaseExpression, comments: Sequence[cst.Comment]
) -> cst.BaseExpression | None:
    """Return an expression with comments in front of its closing parenthesis, None without one."""
    if not comments:
        return node
    if not node.rpar:
        return None
    paren = node.rpar[-1]
    space = paren.whitespace_before
    if not isinstance(space, cst.ParenthesizedWhitespace):
        return None
    inside = cst.SimpleWhitespace("    ")
    lines = [cst.EmptyLine(indent=True, whitespace=inside, comment=each) for each in comments]
    paren = paren.with_changes(
        whitespace_before=space.with_changes(empty_lines=[*lines, *space.empty_lines])
    )
    return node.with_changes(rpar=[*node.rpar[:-1], paren])


# --- names, and what is assigned or returned ---


def is_dotted_name(node: cst.CSTNode) -> bool:
    """Return whether a node is `a` or `a.b.c`."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name)


def is_self(node: cst.CSTNode) -> bool:
    """Return whether a node is the name self."""
    return isinstance(node, cst.Name) and node.value == "self"


def collect_names(node: cst.CSTNode) -> set[str]:
    """Return the names that code uses outside of its imports."""
    finder = _UsedNames()
    node.visit(finder)
    return finder.names


class _UsedNames(cst.CSTVisitor):
    """Visitor that collects names, and the words of `__all__`."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        path = get_full_name_for_node(node)
        if path is not None and path.startswith(f"{RLLIB}."):
            self.names.add(RLLIB)
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if isinstance(target, cst.Name) and target.value == "__all__":
            words = [
                part.strip("'\" ")
                for part in cst.Module([]).code_for_node(node.value)[1:-1].split(",")
            ]
            self.names.update(words)


class SelfAssignments(cst.CSTVisitor):
    """Visitor that collects the values that a class assigns to attributes of self, by their names."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[cst.BaseExpression]] = {}

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._add(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        if node.value is not None:
            self._add(node.target, node.value)

    def _add(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Attribute) and is_self(target.value):
            self.values.setdefault(target.attr.value, []).append(value)


class Returns(cst.CSTVisitor):
    """Visitor that collects the values that a function returns, without the functions inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[cst.BaseExpression] = []

    def visit_Return(self, node: cst.Return) -> None:
        if node.value is not None:
            self.values.append(node.value)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False


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
