"""Rules for classes of callbacks: names of hooks, and the arguments that they receive."""

import inspect
from collections.abc import Collection

import libcst as cst

from jaxrl.callbacks import HOOKS, Callbacks
from jaxrl.compat.rllib.attributes import RENAMED_HOOK_ARGUMENTS, RENAMED_HOOKS
from jaxrl.compat.rllib.settings import REFUSED_HOOKS
from jaxrl.migrate.context import Context

_ALGORITHM_HOOKS = (
    "on_algorithm_init",
    "on_train_result",
    "on_evaluate_start",
    "on_evaluate_end",
    "on_evaluate_offline_start",
    "on_evaluate_offline_end",
)
MORE_ARGUMENTS = {
    "on_episode_end": (
        *inspect.signature(Callbacks.on_episode_step).parameters,
        "prev_episode_chunks",
    ),
    "on_sample_end": ("env_runner", "metrics_logger"),
    **dict.fromkeys(_ALGORITHM_HOOKS, ("metrics_logger",)),
}
"""Arguments that a hook receives in addition to those of the base class's signature."""


class HookRules:
    """Rules for hooks of callbacks.

    Args:
        context: Shared state.
    """

    def __init__(self, context: Context) -> None:
        self._context = context

    def rewrite_hook(self, old: cst.FunctionDef, new: cst.FunctionDef) -> cst.FunctionDef:
        """Rewrite a method of a class of callbacks."""
        name = old.name.value
        current = RENAMED_HOOKS.get(name, name)
        if current in REFUSED_HOOKS:
            self._context.by_hand(old, "callback", f"{name}()", REFUSED_HOOKS[current])
            return new
        if current not in HOOKS:
            return new
        if current != name:
            self._context.change(old, "callback", f"{name}() is {current}()")
            new = new.with_changes(name=cst.Name(current))
        return self._rewrite_parameters(old, new, current)

    def _rewrite_parameters(
        self, old: cst.FunctionDef, new: cst.FunctionDef, hook: str
    ) -> cst.FunctionDef:
        available = {"self", *_list_arguments(hook)}
        used = _find_names(old.body)
        params = new.params
        for group in ("params", "kwonly_params"):
            kept = [
                param
                for each in getattr(params, group)
                if (param := self._rewrite_parameter(old, each, hook, available, used)) is not None
            ]
            params = params.with_changes(**{group: _end_without_comma(kept, params)})
        if not params.kwonly_params and isinstance(params.star_arg, cst.ParamStar):
            params = params.with_changes(star_arg=cst.MaybeSentinel.DEFAULT)
        names = {param.name.value for param in (*old.params.params, *old.params.kwonly_params)}
        renamed = {name: RENAMED_HOOK_ARGUMENTS[name] for name in names & {*RENAMED_HOOK_ARGUMENTS}}
        body = new.body.visit(_Renamer(renamed)) if renamed else new.body
        assert isinstance(body, cst.BaseSuite)
        return new.with_changes(params=params, body=body)

    def _rewrite_parameter(
        self,
        old: cst.FunctionDef,
        param: cst.Param,
        hook: str,
        available: Collection[str],
        used: Collection[str],
    ) -> cst.Param | None:
        """Rename a parameter, or remove it if nothing is passed for it and it is not used."""
        name = param.name.value
        current = RENAMED_HOOK_ARGUMENTS.get(name, name)
        if current in available:
            if current != name:
                self._context.change(old, "callback", f"{name} is {current}")
            return param.with_changes(name=cst.Name(current))
        if name in used or param.default is not None:
            self._report_argument(old, hook, name, param.default is None)
            return param
        self._context.change(old, "callback", f"the argument {name} is not passed")
        return None

    def _report_argument(
        self, node: cst.FunctionDef, hook: str, name: str, is_required: bool
    ) -> None:
        if not is_required:
            return
        advice = f"it is not passed; passed are {', '.join(_list_arguments(hook))}"
        self._context.by_hand(node, "callback", f"{hook}({name})", advice)


def _list_arguments(hook: str) -> list[str]:
    """Return the names of the arguments that a hook may receive."""
    own = inspect.signature(getattr(Callbacks, hook)).parameters
    more = MORE_ARGUMENTS.get(hook, ())
    return [name for name in dict.fromkeys((*own, *more)) if name not in ("self", "kwargs")]


def _end_without_comma(params: list[cst.Param], around: cst.Parameters) -> list[cst.Param]:
    """Return parameters, the last of which has a comma only where another one follows."""
    is_last = around.star_kwarg is None and around.kwonly_params == ()
    if not params or not is_last:
        return params
    comma = params[-1].comma
    is_multiline = isinstance(comma, cst.Comma) and isinstance(
        comma.whitespace_after, cst.ParenthesizedWhitespace
    )
    return (
        params
        if is_multiline
        else [*params[:-1], params[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)]
    )


def _find_names(node: cst.CSTNode) -> set[str]:
    finder = _Names()
    node.visit(finder)
    return finder.names


class _Names(cst.CSTVisitor):
    """Visitor that collects names, without those of attributes and keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        node.value.visit(self)
        return False

    def visit_Name(self, node: cst.Name) -> None:
        self.names.add(node.value)


class _Renamer(cst.CSTTransformer):
    """Transformer that renames variables of a function."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self._names = names

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        return updated_node.with_changes(keyword=original_node.keyword)

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        name = self._names.get(updated_node.value)
        return updated_node if name is None else updated_node.with_changes(value=name)
