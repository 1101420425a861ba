"""Rules for settings: methods of configs, dictionaries of settings, and single assignments."""

from collections.abc import Sequence

import libcst as cst

from jaxrl.compat.rllib.attributes import METHOD_ADVICE, RENAMED_CONFIG_METHODS
from jaxrl.config.base import AlgorithmConfig
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
from jaxrl.errors import did_you_mean
from jaxrl.migrate.context import Context
from jaxrl.migrate.kinds import Kind
from jaxrl.migrate.nodes import (
    Link,
    append_args,
    get_comments,
    get_index,
    keep_args,
    keep_elements,
    make_expression,
    make_keyword,
    read_literal,
    read_string,
    replace_string,
    strip_arg,
    with_index,
)
from jaxrl.migrate.verdicts import (
    UNKNOWN,
    Verdict,
    judge_model_setting,
    judge_result_key,
)

GROUPS = frozenset((*GROUP_METHODS.values(), "multi_agent", "offline_data"))
SWITCHES = ("framework", "experimental", "api_stack")
"""Methods whose settings select a framework or an API stack."""
SCHEDULED = ("lr", "entropy_coeff")
"""Settings that RLlib's `<name>_schedule` replaces."""

MovedArgs = dict[str, list[cst.Arg]]


class SettingsRules:
    """Rules for settings.

    Args:
        context: Shared state.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts = context.facts
        self.assigned: dict[cst.CSTNode, cst.BaseExpression] = {}
        """New values of assignments, by their nodes in the original."""

    # --- methods of configs ---

    def rewrite_link(self, old: Link, new: Link, kind: Kind) -> tuple[list[Link], MovedArgs]:
        """Rewrite a link of a config's chain.

        Args:
            old: Link in the original.
            new: Link with its arguments rewritten.
            kind: Kind of the config.

        Returns:
            The links that replace it, none if it is removed, and arguments for other methods.
        """
        name = RENAMED_CONFIG_METHODS.get(old.name, old.name)
        if old.call is None:
            return [self._rewrite_attribute(old, new, kind)], {}
        if name not in GROUPS and name not in SWITCHES:
            self._check_method(old, kind)
            return [new], {}
        return self._rewrite_group_call(old, new, name, kind)

    def _by_hand(self, link: Link, what: str, advice: str) -> None:
        self._context.by_hand(link.attribute, "setting", what, advice)

    def _check_method(self, old: Link, kind: Kind) -> None:
        config_class = get_config_class(kind)
        if hasattr(config_class, old.name):
            return
        methods = [name for name in dir(config_class) if not name.startswith("_")]
        hint = did_you_mean(old.name, methods)
        advice = METHOD_ADVICE["config"].get(old.name, f"the config has no such method.{hint}")
        self._context.by_hand(old.attribute, "method", f"config.{old.name}()", advice)

    def _rewrite_attribute(self, old: Link, new: Link, kind: Kind) -> Link:
        """Rewrite `config.name` where it is read or assigned."""
        if old.name.startswith("_") or hasattr(get_config_class(kind), old.name):
            return new
        verdict = self._context.get_judge(kind.algo).judge(old.name)
        if verdict.action == "change":
            self._record(old.attribute, old.name, verdict)
            return new.renamed(verdict.name)
        if verdict.action in ("by hand", "drop"):
            self._by_hand(old, f"config.{old.name}", verdict.advice)
        return new

    def _rewrite_group_call(
        self, old: Link, new: Link, name: str, kind: Kind
    ) -> tuple[list[Link], MovedArgs]:
        assert old.call is not None
        assert new.call is not None
        kept: list[cst.Arg | None] = []
        moved: MovedArgs = {}
        replaced = _find_scheduled(old.call.args)
        for old_arg, new_arg in zip(old.call.args, new.call.args, strict=True):
            verdict = self._judge_arg(old_arg, name, kind, replaced)
            written = old_arg.keyword.value if old_arg.keyword else verdict.name
            self._record(old_arg, written, verdict)
            if verdict.action == "drop":
                kept.append(None)
            elif verdict.action != "change":
                kept.append(new_arg)
            else:
                arg = _apply(verdict, new_arg)
                stays = verdict.group in (None, name)
                kept.append(arg if stays else None)
                if not stays:
                    moved.setdefault(str(verdict.group), []).append(strip_arg(arg))
        call = keep_args(new.call, kept)
        if name != old.name:
            self._context.change(old.attribute, "method", f"{old.name}() is {name}()")
        if old.call.args and not call.args and not get_comments(call.whitespace_before_args):
            return [], moved
        return [new.with_call(call).renamed(name)], moved

    def _judge_arg(self, arg: cst.Arg, method: str, kind: Kind, replaced: Sequence[str]) -> Verdict:
        if arg.star:
            return Verdict("keep", "")
        if arg.keyword is None:
            if method == "framework":
                return Verdict("drop", "framework", advice="the framework is JAX")
            return Verdict("keep", "")
        name = arg.keyword.value
        if name in replaced:
            return Verdict("drop", name, advice=f"{name}_schedule replaces it")
        value = self._facts.read_value(arg.value)
        return self._context.get_judge(kind.algo).judge(name, value, called=method)

    def _record(self, node: cst.CSTNode, name: str, verdict: Verdict) -> None:
        """Record a verdict on a setting."""
        context = self._context
        if verdict.action == "drop":
            context.change(node, "setting", f"{name} is removed: {verdict.advice}")
        elif verdict.action == "by hand":
            context.by_hand(node, "setting", name, verdict.advice)
        elif verdict.action == "change":
            where = f"{verdict.group}({verdict.name}=...)" if verdict.group else verdict.name
            context.change(node, "setting", f"{name} is {where}")

    # --- dictionaries ---

    def rewrite_dict(self, old: cst.Dict, new: cst.Dict, mark: Kind) -> cst.Dict:
        """Rewrite the keys of a dictionary of settings, model settings or stop criteria."""
        kept: list[cst.BaseDictElement | None] = []
        scheduled = [
            name.removesuffix("_schedule")
            for element in old.elements
            if isinstance(element, cst.DictElement)
            and (name := read_string(element.key) or "").endswith("_schedule")
            and read_literal(element.value) is not None
        ]
        for old_element, new_element in zip(old.elements, new.elements, strict=True):
            name = (
                read_string(old_element.key) if isinstance(old_element, cst.DictElement) else None
            )
            if name is None:
                kept.append(new_element)
                continue
            is_replaced = name in SCHEDULED and name in scheduled and mark.name == "config dict"
            verdict = (
                Verdict("drop", name, advice=f"{name}_schedule replaces it")
                if is_replaced
                else self._judge_entry(name, self._facts.read_value(old_element.value), mark)
            )
            self._record_entry(old_element, name, verdict, mark)
            kept.append(_apply_to_element(verdict, new_element))
        return keep_elements(new, kept)

    def _record_entry(self, node: cst.CSTNode, name: str, verdict: Verdict, mark: Kind) -> None:
        if mark.name == "stop":
            if verdict.action == "change":
                self._context.change(node, "result key", f"{name} is {verdict.name}")
            return
        if mark.name == "model" and verdict.action == "by hand":
            self._context.by_hand(node, "model", name, verdict.advice)
            return
        self._record(node, name, verdict)

    def _judge_entry(self, name: str, value: object, mark: Kind) -> Verdict:
        if mark.name == "stop":
            new = judge_result_key(name)
            return Verdict("keep", name) if new is None else Verdict("change", new)
        if mark.name == "model":
            return judge_model_setting(name, value)
        return self._context.get_judge(mark.algo).judge(name, value)

    def rewrite_dict_call(self, old: cst.Call, new: cst.Call, mark: Kind) -> cst.Call:
        """Rewrite the keywords of `dict(...)` that makes settings."""
        kept: list[cst.Arg | None] = []
        for old_arg, new_arg in zip(old.args, new.args, strict=True):
            if old_arg.keyword is None:
                kept.append(new_arg)
                continue
            name = old_arg.keyword.value
            verdict = self._judge_entry(name, read_literal(old_arg.value), mark)
            if verdict.action == "change" and not verdict.name.isidentifier():
                verdict = Verdict("by hand", name, advice=f"write the key {verdict.name!r}")
            self._record_entry(old_arg, name, verdict, mark)
            if verdict.action == "drop":
                kept.append(None)
            else:
                kept.append(_apply(verdict, new_arg) if verdict.action == "change" else new_arg)
        return keep_args(new, kept)

    # --- config["name"] ---

    def rewrite_subscript(
        self, old: cst.Subscript, new: cst.Subscript, kind: Kind
    ) -> cst.BaseExpression | None:
        """Rewrite `config["name"]`; None if its assignment is to be removed."""
        index, new_index = get_index(old), get_index(new)
        name = read_string(index)
        if name is None or not isinstance(new_index, cst.SimpleString):
            return new
        value, is_target = self._get_assigned_literal(old)
        verdict = self._context.get_judge(kind.algo).judge(name, value)
        if verdict.value is not UNKNOWN:
            target = self._facts.get_parent(old)
            statement = None if target is None else self._facts.get_parent(target)
            assert statement is not None
            self.assigned[statement] = make_expression(verdict.value)
        if verdict.action == "drop" and not is_target:
            verdict = Verdict("by hand", name, advice=verdict.advice)
        self._record(old, name, verdict)
        if verdict.action == "drop":
            return None
        if verdict.action == "change":
            new = with_index(new, replace_string(new_index, verdict.name))
        if kind.name == "config" and is_target and verdict.action in ("keep", "change"):
            return cst.Attribute(value=new.value, attr=cst.Name(verdict.name))
        return new

    def _get_assigned_literal(self, node: cst.Subscript) -> tuple[object, bool]:
        """Return the literal assigned to `x["name"]`, and whether it is the only target."""
        target = self._facts.get_parent(node)
        statement = self._facts.get_parent(target) if target is not None else None
        if not isinstance(target, cst.AssignTarget) or not isinstance(statement, cst.Assign):
            return UNKNOWN, False
        return read_literal(statement.value), len(statement.targets) == 1


def get_config_class(kind: Kind) -> type[AlgorithmConfig]:
    """Return the class of a config of a kind."""
    known = {name.lower() for name in list_algorithms()}
    if kind.algo is None or kind.algo.lower() not in known:
        return AlgorithmConfig
    return get_algorithm_config_class(kind.algo)


def merge_moved(links: list[Link], moved: MovedArgs, pattern: Link) -> list[Link]:
    """Return links with arguments of other methods added.

    Args:
        links: Links of a chain of config methods.
        moved: Arguments by the method that takes them.
        pattern: Link whose layout new ones follow.
    """
    for group, args in moved.items():
        position = next(
            (i for i, link in enumerate(links) if link.name == group and link.call is not None),
            None,
        )
        if position is None:
            call = cst.Call(func=cst.Name(group), args=[])
            space = pattern.space
            if isinstance(space, cst.ParenthesizedWhitespace):
                space = space.with_changes(first_line=cst.TrailingWhitespace(), empty_lines=[])
            attribute = cst.Attribute(value=cst.Name("config"), attr=cst.Name(group))
            links = [*links, Link(attribute, append_args(call, _separate(args))).with_space(space)]
        else:
            call = links[position].call
            assert call is not None
            links = list(links)
            links[position] = links[position].with_call(append_args(call, _separate(args)))
    return links


def _separate(args: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Return arguments with commas between them."""
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*(arg.with_changes(comma=comma) for arg in args[:-1]), args[-1]]


def _find_scheduled(args: Sequence[cst.Arg]) -> list[str]:
    """Return settings that a schedule in the same call replaces."""
    given = {arg.keyword.value: arg for arg in args if arg.keyword is not None}
    return [
        name
        for name in SCHEDULED
        if name in given
        and f"{name}_schedule" in given
        and read_literal(given[f"{name}_schedule"].value) is not None
    ]


def _apply(verdict: Verdict, arg: cst.Arg) -> cst.Arg:
    value = arg.value if verdict.value is UNKNOWN else make_expression(verdict.value)
    keyword = make_keyword(verdict.name, value)
    return arg.with_changes(keyword=keyword.keyword, value=value)


def _apply_to_element(verdict: Verdict, element: cst.BaseDictElement) -> cst.BaseDictElement | None:
    if verdict.action == "drop":
        return None
    if verdict.action != "change" or not isinstance(element, cst.DictElement):
        return element
    assert isinstance(element.key, cst.SimpleString)
    value = element.value if verdict.value is UNKNOWN else make_expression(verdict.value)
    return element.with_changes(key=replace_string(element.key, verdict.name), value=value)
