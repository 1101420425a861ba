"""Migration of a Python file."""

import io
import itertools
import keyword
import re
import tokenize
from collections.abc import Iterator

import libcst as cst
from libcst.metadata import MetadataWrapper

import jaxrl
from jaxrl.compat.rllib.imports import DECORATORS, RLLIB, find_counterpart
from jaxrl.errors import ConfigError
from jaxrl.migrate.imports import ImportRewriter, Plan
from jaxrl.migrate.kinds import COPIES, Facts, Kind, Marker
from jaxrl.migrate.nodes import (
    EmptiedStatements,
    Link,
    Whitespace,
    add_comments_to_end,
    collect_names,
    get_comments,
    get_index,
    join_whitespace,
    move_parentheses,
    read_string,
    to_code,
)
from jaxrl.migrate.report import Ledger, Migration
from jaxrl.migrate.rules import (
    Context,
    HookRules,
    MovedArgs,
    ObjectRules,
    ResultRules,
    SettingsRules,
    is_trainable,
    merge_moved,
)

MENTION = re.compile(r"\b(?:rllib|jaxrl)\b")
RLLIB_MENTION = re.compile(r"\bray\.rllib\b|\bfrom\s+ray\s+import\b[^\n]*\brllib\b")
_PYTHON_2 = re.compile(
    r"^\s*(?:print\s+[^\s(=]|exec\s+['\"]|except\s+[\w.]+\s*,\s*\w+\s*:|raise\s+\w+\s*,)|<>|\bur'"
)


MAX_BRACKETS = 100
MAX_OPERATORS = 1000
"""Maximum number of operators, prefixes and clauses that an expression nests, or of `elif`."""
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_UNSEPARATED = frozenset(("lambda", "for"))
"""Keywords that nest in spite of commas: `lambda a, b: lambda c, d: 1`."""
_FORMATTED = re.compile(r"[rR]?[fF]")
_IN_STRING = re.compile(r"[(\[{.+\-*/~^|&%<>=]|\b(?:not|lambda|or|and|if|for|await)\b")


def is_nested_too_deeply(text: str) -> bool:
    """Return whether a source may be nested too deeply for LibCST."""
    depth = _Depth()
    try:
        return any(depth.add(token) for token in _tokenize(text))
    except (SyntaxError, tokenize.TokenError):  # LibCST refuses it with the line, before it parses
        return False


def _tokenize(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text, newline="").readline)


class _Depth:
    """Depth of the expression and of the `elif` that a token is part of."""

    def __init__(self) -> None:
        self._separated, self._unseparated = [0], [0]
        self._total = 0
        self._elifs = [0]

    def add(self, token: tokenize.TokenInfo) -> bool:
        """Add a token and return whether it exceeds a limit."""
        word = token.string
        if token.type == tokenize.NEWLINE:
            self._separated, self._unseparated, self._total = [0], [0], 0
        elif token.type == tokenize.INDENT:
            self._elifs.append(0)
        elif token.type == tokenize.DEDENT:
            self._elifs.pop()
        elif token.type == tokenize.STRING:
            is_formatted = _FORMATTED.match(word) is not None
            self._count(1 + (len(_IN_STRING.findall(word)) if is_formatted else 0))
        elif token.type in (tokenize.OP, tokenize.ERRORTOKEN):
            self._add_operator(word)
        elif keyword.iskeyword(word):
            self._add_keyword(word)
        return (
            len(self._separated) > MAX_BRACKETS
            or self._total > MAX_OPERATORS
            or self._elifs[-1] > MAX_OPERATORS
        )

    def _add_operator(self, word: str) -> None:
        if word in _CLOSING:
            if len(self._separated) > 1:
                self._total -= self._separated.pop() + self._unseparated.pop()
        elif word == ",":
            self._total -= self._separated[-1]
            self._separated[-1] = 0
        else:
            self._count(1)
            if word in _OPENING:
                self._separated.append(0)
                self._unseparated.append(0)

    def _add_keyword(self, word: str) -> None:
        if word == "elif":
            self._elifs[-1] += 1
        elif word == "if" and self._total == 0 and len(self._separated) == 1:
            self._elifs[-1] = 0
        if word in _UNSEPARATED:
            self._unseparated[-1] += 1
            self._total += 1
        else:
            self._count(1)

    def _count(self, number: int) -> None:
        self._separated[-1] += number
        self._total += number


def migrate_python(text: str, path: object = "the code") -> Migration:
    """Migrate the source of a Python file.

    Args:
        text: Source, which is parsed and never run.
        path: Path of the file, for error messages.

    Raises:
        ConfigError: If the text is not Python; the message gives the line.
    """
    uses_rllib = RLLIB_MENTION.search(text) is not None
    if MENTION.search(text) is None:
        return Migration(text, text, [], [], uses_rllib)
    if is_nested_too_deeply(text):
        raise _make_depth_error(path)
    try:
        return _migrate(text, path, uses_rllib=uses_rllib)
    except RecursionError as error:
        raise _make_depth_error(path) from error


def _migrate(text: str, path: object, *, uses_rllib: bool) -> Migration:
    wrapper = MetadataWrapper(_parse(text, path))
    facts = Facts(wrapper)
    wrapper.module.visit(Marker(facts))
    ledger = Ledger()
    context = Context(facts, ledger)
    rewriter = _Rewriter(context)
    module = wrapper.module.visit(rewriter)
    used_before = collect_names(wrapper.module)
    plan = Plan(
        rewriter.import_lines, used_before, rewriter.renamed, rewriter.aliased, context.needed
    )
    module = module.visit(ImportRewriter(plan, collect_names(module), ledger))
    return Migration(text, module.code, ledger.changes, ledger.remaining, uses_rllib)


def _parse(text: str, path: object) -> cst.Module:
    try:
        return cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        line = next(itertools.islice(io.StringIO(text), error.raw_line - 1, None), "")
        is_old = _PYTHON_2.search(line) is not None
        what = "it is Python 2; port it to Python 3 first" if is_old else "not valid Python"
        raise ConfigError(f"{path}, line {error.raw_line}: {what}: {line.strip()!r}.") from error


def _make_depth_error(path: object) -> ConfigError:
    return ConfigError(f"{path}: the code is nested too deeply to be read.")


class _Rewriter(cst.CSTTransformer):
    """Transformer of everything but imports.

    Args:
        context: Shared state of the rules.
    """

    def __init__(self, context: Context) -> None:
        super().__init__()
        self.import_lines: list[int] = []
        self.renamed: dict[str, str] = {}
        self.aliased: set[str] = set()
        self._context = context
        self._facts = context.facts
        self._settings = SettingsRules(context)
        self._objects = ObjectRules(context)
        self._results = ResultRules(context)
        self._hooks = HookRules(context)
        self._emptied = EmptiedStatements()
        self._removed: set[cst.CSTNode] = set()
        self._taken = collect_names(self._facts.module)

    # --- imports are only counted ---

    def visit_Import(self, node: cst.Import) -> bool:
        self.import_lines.append(self._facts.get_line(node))
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        self.import_lines.append(self._facts.get_line(node))
        return False

    # --- names ---

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        path = self._facts.get_import_path(original_node)
        if path is None or not path.startswith(("ray.", "jaxrl.")):
            return updated_node
        if path.endswith(".DEFAULT_CONFIG") and path.startswith(RLLIB):
            return self._rewrite_default_config(original_node, updated_node, path)
        return self._rename(original_node, updated_node, path)

    def _find_counterpart(self, node: cst.Name | cst.Attribute, path: str) -> str | None:
        """Return the path here of a name, in annotations that of an algorithm's instances."""
        counterpart = find_counterpart(path)
        name = (counterpart or "").removeprefix("jaxrl.")
        is_instance = name in jaxrl.TRAINABLES and self._facts.is_annotation(node)
        return "jaxrl.Algorithm" if is_instance else counterpart

    def _rename(self, old: cst.Name, new: cst.Name, path: str) -> cst.BaseExpression:
        counterpart = self._find_counterpart(old, path)
        if counterpart == "jaxrl.Algorithm" and self._facts.get_algorithm(old) is not None:
            return self._context.need_name(counterpart)
        if counterpart is None or old.value != path.rpartition(".")[2]:
            return new
        name = counterpart.rpartition(".")[2]
        if name == old.value:
            return new
        if name in self._taken:
            self.aliased.add(old.value)
            return new
        self.renamed[path] = name
        return new.with_changes(value=name)

    def _rewrite_default_config(
        self, old: cst.Name | cst.Attribute, new: cst.BaseExpression, path: str
    ) -> cst.BaseExpression:
        parent = self._facts.get_parent(old)
        if isinstance(parent, cst.Attribute) or (
            isinstance(parent, cst.Arg) and self._is_copy(self._facts.get_parent(parent))
        ):
            return new  # the copy is rewritten as a whole
        return self._objects.rewrite_default_config(old, new, path)

    def _is_copy(self, node: cst.CSTNode | None) -> bool:
        if not isinstance(node, cst.Call):
            return False
        return self._facts.get_import_path(node.func) in COPIES

    def _get_copied_default(self, node: cst.Call) -> str | None:
        """Return the path of DEFAULT_CONFIG if a call copies it."""
        source: cst.BaseExpression | None = None
        if isinstance(node.func, cst.Attribute) and node.func.attr.value == "copy":
            source = node.func.value
        elif self._is_copy(node) and node.args:
            source = node.args[0].value
        path = None if source is None else self._facts.get_import_path(source)
        is_default = path is not None and path.endswith(".DEFAULT_CONFIG")
        return path if is_default and str(path).startswith(RLLIB) else None

    # --- expressions ---

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.BaseExpression:
        path = self._facts.get_import_path(original_node)
        if path is not None and path.startswith("ray."):
            if path.endswith(".DEFAULT_CONFIG") and path.startswith(RLLIB):
                return self._rewrite_default_config(original_node, updated_node, path)
            counterpart = self._find_counterpart(original_node, path)
            if counterpart is not None:
                return move_parentheses(updated_node, self._context.need(counterpart))
            return self._objects.rewrite_class_attribute(original_node, updated_node)
        return self._rewrite_chain(original_node, updated_node)

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        self._objects.report_torch(original_node)
        default = self._get_copied_default(original_node)
        if default is not None:
            return self._objects.rewrite_default_config(original_node, updated_node, default)
        mark = self._facts.get_mark(original_node)
        if mark is not None:
            return self._settings.rewrite_dict_call(original_node, updated_node, mark)
        call = self._objects.rewrite_tune_call(original_node, updated_node)
        node = self._objects.rewrite_constructor(original_node, call)
        if isinstance(node, cst.Call):
            node = self._results.rewrite_get(original_node, node)
        return self._rewrite_chain(original_node, node)

    def leave_Dict(self, original_node: cst.Dict, updated_node: cst.Dict) -> cst.Dict:
        mark = self._facts.get_mark(original_node)
        if mark is None:
            return updated_node
        return self._settings.rewrite_dict(original_node, updated_node, mark)

    def leave_SimpleString(
        self, original_node: cst.SimpleString, updated_node: cst.SimpleString
    ) -> cst.SimpleString:
        return self._results.rewrite_string(original_node, updated_node)

    def leave_Subscript(
        self, original_node: cst.Subscript, updated_node: cst.Subscript
    ) -> cst.BaseExpression:
        kind = self._facts.get_kind(original_node.value)
        if kind is not None and kind.name in ("config", "config dict"):
            node = self._settings.rewrite_subscript(original_node, updated_node, kind)
            if node is None:
                self._removed.add(original_node)
            return updated_node if node is None else node
        parent = self._facts.get_parent(original_node)
        is_inner = (
            isinstance(parent, cst.Subscript)
            and parent.value is original_node
            and read_string(get_index(parent)) is not None
        )
        if is_inner:
            return updated_node
        return self._results.rewrite_subscript(original_node, updated_node)

    # --- chains ---

    def _rewrite_chain(
        self, old: cst.Call | cst.Attribute, new: cst.BaseExpression
    ) -> cst.BaseExpression:
        """Rewrite a chain of methods at its outermost node."""
        if self._is_inside_chain(old):
            return new
        base, pairs = self._peel(old, new)
        kinds = [self._facts.get_kind(link.attribute.value) for link, _ in pairs]
        if not any(kinds):
            return new
        current, pending = base, cst.SimpleWhitespace("")
        replaced: list[list[Link]] = []
        moved: MovedArgs = {}
        for (old_link, new_link), kind in zip(pairs, kinds, strict=True):
            links, args = self._rewrite_link(old_link, new_link, kind)
            replaced.append(links)
            for group, added in args.items():
                moved.setdefault(group, []).extend(added)
        if moved:
            _place_moved(replaced, [link for _, link in pairs], kinds, moved)
        for (_, link), links in zip(pairs, replaced, strict=True):
            current, pending = _attach(current, link, links, pending)
        return self._finish_chain(old, new, current, pending)

    def _is_inside_chain(self, node: cst.Call | cst.Attribute) -> bool:
        parent = self._facts.get_parent(node)
        if isinstance(parent, cst.Attribute):
            return parent.value is node
        return isinstance(node, cst.Attribute) and (
            isinstance(parent, cst.Call) and parent.func is node
        )

    def _peel(
        self, old: cst.BaseExpression, new: cst.BaseExpression
    ) -> tuple[cst.BaseExpression, list[tuple[Link, Link]]]:
        """Split a chain of the original and of the rewritten code side by side."""
        pairs: list[tuple[Link, Link]] = []
        while True:
            old_link, new_link = _read_link(old), _read_link(new)
            if old_link is None or new_link is None:
                break
            if self._facts.get_import_path(old_link.attribute) is not None:
                break
            pairs.append((old_link, new_link))
            old, new = old_link.attribute.value, new_link.attribute.value
        return new, pairs[::-1]

    def _rewrite_link(
        self, old: Link, new: Link, kind: Kind | None
    ) -> tuple[list[Link], MovedArgs]:
        if kind is None:
            return [new], {}
        if kind.name == "config":
            return self._settings.rewrite_link(old, new, kind)
        return self._objects.rewrite_link(old, new, kind), {}

    def _finish_chain(
        self,
        old: cst.Call | cst.Attribute,
        new: cst.BaseExpression,
        current: cst.BaseExpression,
        pending: Whitespace,
    ) -> cst.BaseExpression:
        finished = add_comments_to_end(current, get_comments(pending))
        if finished is None:
            advice = "remove it by hand, with its comment"
            self._context.by_hand(old, "setting", to_code(old).strip()[-40:], advice)
            return new
        if isinstance(old, cst.Attribute) and isinstance(finished, cst.Attribute):
            kind = self._facts.get_kind(old.value)
            if kind is not None and kind.name == "episode":
                return self._objects.rewrite_episode_attribute(Link(old, None), finished)
        return finished

    # --- classes, functions and statements ---

    def leave_ClassDef(
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef:
        self._objects.report_policy(original_node)
        for base in original_node.bases:
            path = self._facts.get_import_path(base.value) or ""
            algo = self._facts.get_algorithm(base.value)
            is_algorithm = algo is not None and path.startswith(RLLIB)
            if is_algorithm and not path.endswith("Config") and not is_trainable(original_node):
                advice = f"subclass jaxrl.Algorithm and pass it: {algo}Config(algo_class=...)"
                name = path.rpartition(".")[2]
                self._context.by_hand(base, "algorithm", f"a subclass of {name}", advice)
        return updated_node

    def leave_FunctionDef(
        self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef
    ) -> cst.FunctionDef:
        if self._facts.is_hook(original_node):
            return self._hooks.rewrite_hook(original_node, updated_node)
        if self._facts.is_learner_method(original_node):
            self._objects.advise_on_learner_method(original_node)
        return updated_node

    def leave_Decorator(
        self, original_node: cst.Decorator, updated_node: cst.Decorator
    ) -> cst.Decorator | cst.RemovalSentinel:
        node = original_node.decorator
        path = self._facts.get_import_path(node.func if isinstance(node, cst.Call) else node) or ""
        is_ours = path.startswith(RLLIB) and path.rpartition(".")[2] in DECORATORS
        comment = original_node.trailing_whitespace.comment
        has_comment = comment or any(line.comment for line in original_node.leading_lines)
        if not is_ours or has_comment:
            return updated_node
        what = f"@{path.rpartition('.')[2]} changes nothing"
        self._context.change(original_node, "import", what)
        return cst.RemoveFromParent()

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.Assign:
        value = self._settings.assigned.get(original_node)
        return updated_node if value is None else updated_node.with_changes(value=value)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        if len(updated_node.body) != 1:
            return updated_node
        old, new = original_node.body[0], updated_node.body[0]
        if isinstance(old, cst.Expr) and isinstance(new, cst.Expr):
            is_empty = isinstance(old.value, cst.Call) and isinstance(new.value, _PLAIN)
            return self._emptied.empty(updated_node) if is_empty else updated_node
        if isinstance(old, cst.Assign) and isinstance(new, cst.Assign):
            target = old.targets[0].target
            is_same = to_code(new.targets[0].target) == to_code(new.value)
            is_new = to_code(old.targets[0].target) != to_code(old.value)
            if target in self._removed or (is_same and is_new and len(new.targets) == 1):
                return self._emptied.empty(updated_node)
        return updated_node

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return self._emptied.clean_block(updated_node)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        return self._emptied.clean_module(updated_node)


_PLAIN = (cst.Name, cst.Attribute)


def _read_link(node: cst.BaseExpression) -> Link | None:
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return Link(node.func, node)
    return Link(node, None) if isinstance(node, cst.Attribute) else None


def _place_moved(
    replaced: list[list[Link]],
    originals: list[Link],
    kinds: list[Kind | None],
    moved: MovedArgs,
) -> None:
    """Add arguments to the calls of their methods, or to new ones behind the last config method."""
    is_config = [kind is not None and kind.name == "config" for kind in kinds]
    builders = ("build", "build_algo", "to_dict", "copy")
    positions = [
        position
        for position, (link, is_one) in enumerate(zip(originals, is_config, strict=True))
        if is_one and link.call is not None and link.name not in builders
    ]
    for group, args in moved.items():
        home = next((p for p in positions if any(x.name == group for x in replaced[p])), None)
        position = positions[-1] if home is None else home
        replaced[position] = merge_moved(replaced[position], {group: args}, originals[position])


def _attach(
    current: cst.BaseExpression, old: Link, links: list[Link], pending: Whitespace
) -> tuple[cst.BaseExpression, Whitespace]:
    """Attach the links that replace one to a chain.

    Returns:
        The chain, and whitespace of removed links whose comments are still to be placed.
    """
    if not links:
        if get_comments(pending) or isinstance(pending, cst.ParenthesizedWhitespace):
            pending = join_whitespace(pending, old.space)
        else:
            pending = old.space
        return move_parentheses(old.outer, current), pending
    for position, link in enumerate(links):
        if position == 0 and isinstance(pending, cst.ParenthesizedWhitespace):
            link = link.with_space(join_whitespace(pending, link.space))
            pending = cst.SimpleWhitespace("")
        attribute = link.attribute.with_changes(value=current, lpar=(), rpar=())
        current = (
            attribute
            if link.call is None
            else link.call.with_changes(func=attribute, lpar=(), rpar=())
        )
    return move_parentheses(old.outer, current), pending
