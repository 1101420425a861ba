"""Rules for result keys: subscripts, `get`, and the strings that name a metric."""

import libcst as cst

from jaxrl.compat.rllib.attributes import REMOVED_RESULT_KEYS
from jaxrl.metrics import EVALUATION, RENAMED_KEYS
from jaxrl.migrate.context import Context
from jaxrl.migrate.kinds import Kind
from jaxrl.migrate.nodes import get_index, read_string, replace_string, with_index
from jaxrl.migrate.verdicts import judge_result_key

DISTINCT_KEYS = frozenset(
    key
    for key in RENAMED_KEYS
    if key.rpartition("/")[2].startswith("episode_reward_")
    or key in ("timesteps_total", "episodes_total")
)
"""Result keys that are rewritten wherever they index something unknown."""
METRIC_COLUMNS = ("metric_columns",)
PRINTERS = ("print", "format", "info", "debug", "log", "add_scalar")


class ResultRules:
    """Rules for result keys.

    Args:
        context: Shared state.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts = context.facts

    # --- result["a"]["b"] ---

    def rewrite_subscript(self, old: cst.Subscript, new: cst.Subscript) -> cst.BaseExpression:
        """Rewrite the outermost of the subscripts `result["a"]["b"]`."""
        keys, base = _read_keys(old)
        if not keys:
            return new
        kind = self._facts.get_kind(base)
        if kind is not None and kind.name == "dataframe":
            return self._rewrite_column(old, new, keys)
        is_result = kind is not None and kind.name in ("result", "evaluation")
        if kind is not None and not is_result:
            return new
        prefix = [EVALUATION] if kind is not None and kind.name == "evaluation" else []
        own = keys[1:] if prefix and keys[0] == EVALUATION else keys
        moved = _move(prefix, own, is_known=is_result)
        if moved is None:
            self._report_removed(old, own, is_result)
        if moved is None and own == keys:
            return new
        current = own if moved is None else moved
        written = "".join(f"[{key!r}]" for key in current)
        self._context.change(old, "result key", f"{'/'.join(keys)} is result{written}")
        return _replace_keys(new, len(keys), current)

    def _report_removed(self, node: cst.Subscript, keys: list[str], is_result: bool) -> None:
        removed = REMOVED_RESULT_KEYS.get(keys[0])
        if removed is not None and is_result:
            self._context.by_hand(node, "result key", "/".join(keys), removed)

    def _rewrite_column(
        self, old: cst.Subscript, new: cst.Subscript, keys: list[str]
    ) -> cst.BaseExpression:
        current, index = judge_result_key(keys[0]), get_index(new)
        if current is None or len(keys) != 1 or not isinstance(index, cst.SimpleString):
            return new
        self._context.change(old, "result key", f"{keys[0]} is the column {current}")
        return with_index(new, replace_string(index, current))

    def rewrite_get(self, old: cst.Call, new: cst.Call) -> cst.BaseExpression:
        """Rewrite `result.get("a", default)`."""
        if not isinstance(old.func, cst.Attribute) or old.func.attr.value != "get" or not old.args:
            return new
        key = read_string(old.args[0].value)
        kind = self._facts.get_kind(old.func.value)
        is_result = kind is not None and kind.name == "result"
        if key is None or not (is_result or (kind is None and key in DISTINCT_KEYS)):
            return new
        current = judge_result_key(key)
        if current is None:
            return new
        self._context.change(old, "result key", f"{key} is {current}")
        *parents, last = current.split("/")
        first = new.args[0]
        assert isinstance(first.value, cst.SimpleString)
        assert isinstance(new.func, cst.Attribute)
        owner = new.func.value
        for parent in parents:
            key_arg = cst.Arg(replace_string(first.value, parent))
            owner = cst.Call(
                cst.Attribute(owner, cst.Name("get")), args=[key_arg, cst.Arg(cst.Dict([]))]
            )
        arg = first.with_changes(value=replace_string(first.value, last))
        return new.with_changes(func=new.func.with_changes(value=owner), args=[arg, *new.args[1:]])

    # --- "episode_reward_mean" ---

    def rewrite_string(self, old: cst.SimpleString, new: cst.SimpleString) -> cst.SimpleString:
        """Rewrite a string that names a metric for Ray Tune, and report other old keys."""
        key = read_string(old)
        current = None if key is None else judge_result_key(key)
        if key is None or current is None or not self._names_result_key(old, key):
            return new
        if self._is_metric(old):
            self._context.change(old, "result key", f"{key} is {current}")
            return replace_string(new, current)
        if key in DISTINCT_KEYS and not self._is_label(old):
            self._context.by_hand(old, "result key", key, f"the key is {current}")
        return new

    def _names_result_key(self, node: cst.SimpleString, key: str) -> bool:
        return key in DISTINCT_KEYS or self._is_metric(node)

    def _is_metric(self, node: cst.SimpleString) -> bool:
        mark = self._facts.get_mark(node)
        if mark is not None and mark.name == "metric":
            return True
        parent = self._facts.get_parent(node)
        if isinstance(parent, cst.Index):
            return False
        if isinstance(parent, cst.Param):
            return "metric" in parent.name.value
        for around in self._facts.get_parents(node):
            if isinstance(around, cst.Arg) and around.keyword is not None:
                return around.keyword.value in METRIC_COLUMNS
            if isinstance(around, cst.Call):
                return isinstance(around.func, cst.Attribute) and (
                    around.func.attr.value.startswith("get_best")
                )
        return False

    def _is_label(self, node: cst.SimpleString) -> bool:
        """Return whether a string is a key of another dictionary, an index, or printed."""
        for around in self._facts.get_parents(node):
            if isinstance(around, cst.Index | cst.DictElement):
                return True
            if isinstance(around, cst.Call):
                function = around.func
                name = function.attr if isinstance(function, cst.Attribute) else function
                if not isinstance(name, cst.Name):
                    return False
                return name.value in (*PRINTERS, "get") or self._is_stop(around)
            if isinstance(around, cst.BaseStatement):
                return False
        return False

    def _is_stop(self, node: cst.Call) -> bool:
        mark = self._facts.get_mark(node)
        return mark == Kind("stop")


def _read_keys(node: cst.BaseExpression) -> tuple[list[str], cst.BaseExpression]:
    """Return the constant keys of `x["a"]["b"]` from the left, and `x`."""
    keys: list[str] = []
    while isinstance(node, cst.Subscript):
        key = read_string(get_index(node))
        if key is None:
            break
        keys.append(key)
        node = node.value
    return keys[::-1], node


def _move(prefix: list[str], keys: list[str], *, is_known: bool) -> list[str] | None:
    """Return where nested keys have moved to, None if they have not."""
    for length in range(len(keys), 0, -1):
        path = "/".join([*prefix, *keys[:length]])
        if not is_known and path not in DISTINCT_KEYS:
            continue
        current = judge_result_key(path)
        if current is not None:
            parts = current.split("/")
            inside = parts[len(prefix) :] if parts[: len(prefix)] == prefix else parts
            return [*inside, *keys[length:]]
    return None


def _replace_keys(node: cst.Subscript, number: int, keys: list[str]) -> cst.BaseExpression:
    """Replace the last `number` subscripts of an expression."""
    outer = node
    base: cst.BaseExpression = node
    template: cst.SimpleString | None = None
    for _ in range(number):
        assert isinstance(base, cst.Subscript)
        index = get_index(base)
        template = index if isinstance(index, cst.SimpleString) else template
        base = base.value
    assert template is not None
    for key in keys:
        base = with_index(
            outer.with_changes(value=base, lpar=(), rpar=()), replace_string(template, key)
        )
    return base.with_changes(lpar=outer.lpar, rpar=outer.rpar)
