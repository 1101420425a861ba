"""Rules for RLlib's API: settings, algorithms and what they return, result keys, and callbacks."""

import dataclasses
import functools
import inspect
from collections.abc import Collection, Sequence

import libcst as cst
from libcst import matchers

import jaxrl
from jaxrl.algorithm import Algorithm
from jaxrl.callbacks import HOOKS, Callbacks
from jaxrl.compat.rllib.attributes import (
    LEARNER_HOOKS,
    METHOD_ADVICE,
    REMOVED_RESULT_KEYS,
    RENAMED_CONFIG_METHODS,
    RENAMED_HOOK_ARGUMENTS,
    RENAMED_HOOKS,
    RENAMED_METHODS,
    REWRITTEN_EPISODE_ATTRIBUTES,
)
from jaxrl.compat.rllib.imports import RLLIB, find_algorithm, get_algorithm_advice
from jaxrl.compat.rllib.settings import REFUSED_HOOKS
from jaxrl.config.base import AlgorithmConfig, get_algorithm_config_class
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import list_algorithms
from jaxrl.errors import did_you_mean
from jaxrl.metrics import EVALUATION, RENAMED_KEYS
from jaxrl.migrate.kinds import TUNE_RUNNERS, Facts, Kind
from jaxrl.migrate.nodes import (
    Link,
    append_args,
    collect_names,
    find_arg,
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
    to_code,
    with_index,
)
from jaxrl.migrate.report import Ledger, Topic
from jaxrl.migrate.verdicts import (
    UNKNOWN,
    SettingsJudge,
    Verdict,
    judge_model_setting,
    judge_result_key,
)

GROUPS = frozenset((*GROUP_METHODS.values(), "multi_agent", "offline_data"))
SWITCHES = ("framework", "experimental", "api_stack")
"""Methods whose settings select a framework or an API stack."""
SCHEDULED = ("lr", "entropy_coeff")
"""Settings that RLlib's `<name>_schedule` replaces."""
TRAINABLE_LOOKUPS = ("ray.tune.registry.get_trainable_cls", "ray.tune.with_resources")
TRAINABLE_METHODS = ("get_default_config", "default_resource_request", "resource_help")
"""Methods that the class of an algorithm has, as a Trainable of Ray Tune."""
_FORWARD = ("forward_inference", "forward_exploration", "forward_train")
_TENSOR_METHODS = ("cpu", "detach", "numpy")
_OWNERS = {"runner_group": "env_runner_group"}
METRIC_COLUMNS = ("metric_columns",)
PRINTERS = ("print", "format", "info", "debug", "log", "add_scalar")


@dataclasses.dataclass(frozen=True, order=True)
class NeededImport:
    """Import that the migrated file needs: `import module`, or `from module import name`."""

    module: str
    name: str | None = None
    is_for_effect: bool = dataclasses.field(default=False, compare=False)
    """True if the import itself is needed, and no name of it."""


class Context:
    """Shared state: facts about the original, the account, and the imports that are needed.

    Args:
        facts: Facts about the unchanged module.
        ledger: Account of the file.
    """

    def __init__(self, facts: Facts, ledger: Ledger) -> None:
        self.facts = facts
        self.ledger = ledger
        self.needed: set[NeededImport] = set()

    def change(self, node: cst.CSTNode, kind: Topic, what: str) -> None:
        """Record a change at a node of the original."""
        self.ledger.change(self.facts.get_name_line(node), kind, what)

    def by_hand(self, node: cst.CSTNode, kind: Topic, what: str, advice: str) -> None:
        """Record that a node of the original has to be rewritten by hand."""
        self.ledger.by_hand(self.facts.get_name_line(node), kind, what, advice)

    @staticmethod
    @functools.cache
    def get_judge(algo: str | None) -> SettingsJudge:
        """Return the judge of an algorithm's settings."""
        return SettingsJudge(algo)

    def need(self, path: str) -> cst.BaseExpression:
        """Return an expression for a path such as `jaxrl.PPOConfig`, and note its import."""
        module, _, name = path.rpartition(".")
        if module == "ray.tune":
            self.needed.add(NeededImport("ray", "tune"))
            return cst.parse_expression(f"tune.{name}")
        self.needed.add(NeededImport(module))
        return cst.parse_expression(path)

    def need_name(self, path: str) -> cst.Name:
        """Return the last part of a path as a name, and note its import."""
        module, _, name = path.rpartition(".")
        self.needed.add(NeededImport(module, name))
        return cst.Name(name)


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


def is_trainable(node: cst.ClassDef) -> bool:
    """Return whether a class overrides methods of a Trainable alone, as the class here can."""
    statements = node.body.body
    return any(isinstance(each, cst.FunctionDef) for each in statements) and all(
        each.name.value in TRAINABLE_METHODS
        for each in statements
        if isinstance(each, cst.FunctionDef)
    )


class ObjectRules:
    """Rules for objects other than configs and results.

    Args:
        context: Shared state.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._facts = context.facts

    def report_policy(self, node: cst.ClassDef) -> None:
        """List a subclass of RLlib's Policy, which acts and learns in one."""
        for base in node.bases:
            if self._facts.get_import_path(base.value) == f"{RLLIB}.policy.policy.Policy":
                advice = (
                    "a policy by hand is a jaxrl.HeuristicRLModule, whose act is a pure function, and "
                    "another loss a Learner"
                )
                self._context.by_hand(node, "model", f"class {node.name.value}(Policy)", advice)

    def report_torch(self, node: cst.Call) -> None:
        """List a call that gives a module tensors of torch, or takes its outputs for them."""
        function = node.func
        if not isinstance(function, cst.Attribute):
            return
        name = function.attr.value
        if name in _FORWARD and any(self._uses_torch(arg) for arg in node.args):
            advice = "it takes arrays: numpy.asarray(obs)[None] is a batch of one"
            self._context.by_hand(node, "model", f"{name}() of tensors", advice)
        elif (path := self._facts.get_import_path(function)) and path.split(".")[0] == "torch":
            if any(self._is_output(arg) for arg in node.args):
                advice = "outputs of a module are arrays: use the function of numpy"
                self._context.by_hand(node, "model", f"{path}() of a module's output", advice)
        elif name in _TENSOR_METHODS and self._is_output(function.value):
            advice = "outputs of a module are arrays already: leave it out"
            self._context.by_hand(node, "model", f".{name}() of a module's output", advice)

    def _uses_torch(self, node: cst.CSTNode) -> bool:
        names = matchers.findall(node, matchers.Name() | matchers.Attribute())
        paths = (self._facts.get_import_path(name) for name in names)
        return any(path is not None and path.split(".")[0] == "torch" for path in paths)

    def _is_output(self, node: cst.CSTNode) -> bool:
        """Return whether an expression has the outputs of a module in it."""
        values = [
            value
            for name in matchers.findall(node, matchers.Name())
            if isinstance(name, cst.Name)
            for value in self._facts.find_values(name)
        ]
        method = matchers.OneOf(*(matchers.Name(name) for name in _FORWARD))
        calls = matchers.Call(func=matchers.Attribute(attr=method))
        return any(matchers.findall(value, calls) for value in [node, *values])

    def rewrite_link(self, old: Link, new: Link, kind: Kind) -> list[Link]:
        """Rewrite a link on an object of a kind; the empty list removes it."""
        if kind.name == "saved" and old.name == "checkpoint":
            self._context.change(old.attribute, "method", "save() returns the path itself")
            return []
        if kind.name == "saved checkpoint":
            if old.name == "path" and old.call is None:
                self._context.change(old.attribute, "method", "save() returns the path itself")
                return []
            self._advise(old, "checkpoint", "save() returns the path of a folder")
            return [new]
        current = RENAMED_METHODS.get(kind.name, {}).get(old.name)
        if current is not None:
            what = f"{old.name} is {current}"
            self._context.change(old.attribute, "method", what)
            return [new.renamed(current)]
        advice = METHOD_ADVICE.get(kind.name, {}).get(old.name)
        if advice is None and kind.name == "algorithm":
            advice = self._find_missing(old.name)
        if advice is not None:
            self._advise(old, _OWNERS.get(kind.name, kind.name), advice)
        return [new]

    def _advise(self, old: Link, owner: str, advice: str) -> None:
        call = "()" if old.call is not None else ""
        self._context.by_hand(old.attribute, "method", f"{owner}.{old.name}{call}", advice)

    def advise_on_learner_method(self, node: cst.FunctionDef) -> None:
        """Note what a method of a learner is here."""
        name = node.name.value
        advice = {**METHOD_ADVICE["learner"], **LEARNER_HOOKS}.get(name)
        if advice is not None:
            self._context.by_hand(node, "method", f"{name}()", advice)

    def _find_missing(self, name: str) -> str | None:
        """Return why an algorithm has no attribute of a name, None if it has one."""
        known = {*dir(Algorithm), "config", "on_phase", "callbacks", "metrics", "env_runner"}
        if name in known or name.startswith("_"):
            return None
        public = sorted(each for each in known if not each.startswith("_"))
        return f"the algorithm has no such attribute.{did_you_mean(name, public)}"

    def rewrite_episode_attribute(self, old: Link, node: cst.Attribute) -> cst.BaseExpression:
        """Rewrite an attribute of an older episode as an expression of the episode."""
        template = REWRITTEN_EPISODE_ATTRIBUTES.get(old.name)
        if template is None or old.call is not None:
            return node
        code = template.format(to_code(node.value))
        self._context.change(old.attribute, "callback", f"episode.{old.name} is {code}")
        return cst.parse_expression(code)

    # --- PPO(config=...) ---

    def rewrite_constructor(self, old: cst.Call, new: cst.Call) -> cst.BaseExpression:
        """Rewrite `PPO(config=..., env=...)`, the class of an algorithm, to `config.build(...)`."""
        path = self._facts.get_import_path(old.func) or ""
        algo = self._facts.get_algorithm(old.func)
        if not path.startswith(RLLIB) or algo is None or path.endswith("Config"):
            return new
        old_config = find_arg(old, "config", position=0)
        new_config = find_arg(new, "config", position=0)
        env = find_arg(new, "env", position=1)
        known = [arg for arg in (new_config, env) if arg is not None]
        name = path.rpartition(".")[2]
        if len(known) != len(new.args):
            advice = f"build the config: {algo}Config.from_dict(...).build(env=...)"
            self._context.by_hand(old, "algorithm", f"{name}(...)", advice)
            return new
        built = self._make_config(old_config, new_config, algo, path)
        if built is None:
            advice = (
                "build the config: config.build(), or for a dictionary "
                f"{algo}Config.from_dict(config).build()"
            )
            self._context.by_hand(old, "algorithm", f"{name}(config=...)", advice)
            return new
        self._context.change(old, "algorithm", f"{name}(config=...) is the config's build()")
        func = cst.Attribute(value=built, attr=cst.Name("build"))
        args = [] if env is None else [make_keyword("env", env.value)]
        return cst.Call(func=func, args=args, lpar=new.lpar, rpar=new.rpar)

    def _make_config(
        self, old: cst.Arg | None, new: cst.Arg | None, algo: str, path: str
    ) -> cst.BaseExpression | None:
        """Return the expression of the config that a constructor takes, None if it is unclear."""
        config_class = f"jaxrl.{algo}Config"
        if old is None or new is None:
            return cst.Call(self._context.need_name(config_class))
        kind = self._facts.get_kind(old.value)
        if kind is not None and kind.name == "config":
            is_simple = isinstance(new.value, cst.Name | cst.Attribute | cst.Call)
            if is_simple or new.value.lpar:
                return new.value
            return new.value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        is_dict = kind is not None and kind.name in ("config dict", "own dict")
        if not is_dict and not path.endswith("Trainer"):
            return None
        func = cst.Attribute(self._context.need_name(config_class), cst.Name("from_dict"))
        return cst.Call(func, args=[cst.Arg(new.value)])

    def rewrite_class_attribute(self, old: cst.Attribute, new: cst.Attribute) -> cst.Attribute:
        """Rewrite `PPO.from_checkpoint`, an attribute of the class of an algorithm."""
        path = self._facts.get_import_path(old.value) or ""
        algo = self._facts.get_algorithm(old.value)
        name = old.attr.value
        is_config = path.endswith("Config")
        if algo is None or is_config or name in TRAINABLE_METHODS or name.startswith("__"):
            return new
        if name == "from_checkpoint":
            self._context.change(old, "algorithm", "from_checkpoint() is a method of Algorithm")
            return new.with_changes(value=self._context.need_name("jaxrl.Algorithm"))
        advice = f"subclass the config or the algorithm: {algo}Config(algo_class=...)"
        self._context.by_hand(old, "algorithm", f"{path.rpartition('.')[2]}.{name}", advice)
        return new

    # --- Ray Tune ---

    def rewrite_tune_call(self, old: cst.Call, new: cst.Call) -> cst.Call:
        """Rewrite the name of an algorithm, `tune.Tuner("PPO")`, to its class."""
        path = self._facts.get_import_path(old.func)
        if path not in (*TUNE_RUNNERS, *TRAINABLE_LOOKUPS) or not old.args:
            return new
        names = ("run_or_experiment", "run", "trainable")
        old_arg = find_arg(old, *names, position=0)
        new_arg = find_arg(new, *names, position=0)
        if old_arg is None or new_arg is None:
            return new
        name = read_string(old_arg.value)
        if name is None:
            self._register_if_dynamic(old_arg.value)
            return new
        if (advice := get_algorithm_advice(name)) is not None:
            self._context.by_hand(old_arg.value, "algorithm", f'"{name}"', advice)
            return new
        current = find_algorithm(name)
        if current in jaxrl.TRAINABLES:
            if path == TRAINABLE_LOOKUPS[0]:
                self._context.needed.add(NeededImport("jaxrl.tune", is_for_effect=True))
                return new
            what = f'"{name}" is the class jaxrl.{current}'
            self._context.change(old_arg.value, "algorithm", what)
            value = self._context.need_name(f"jaxrl.{current}")
            changed = new_arg.with_changes(value=value)
            return new.with_changes(args=[changed if a is new_arg else a for a in new.args])
        return new

    def _register_if_dynamic(self, node: cst.BaseExpression) -> None:
        """Note that the algorithms have to be registered if their name is known at run time."""
        is_class = self._facts.get_import_path(node) is not None
        definitions = self._facts.find_definitions(node)
        is_own = any(isinstance(d, cst.FunctionDef | cst.ClassDef) for d in definitions)
        is_call = isinstance(node, cst.Call)
        if not is_class and not is_own and not is_call:
            self._context.needed.add(NeededImport("jaxrl.tune", is_for_effect=True))

    # --- DEFAULT_CONFIG ---

    def rewrite_default_config(
        self, old: cst.BaseExpression, new: cst.BaseExpression, path: str
    ) -> cst.BaseExpression:
        """Rewrite `DEFAULT_CONFIG`, or a copy of it: the settings to change, or all of them."""
        kind = self._facts.get_default_config_kind(path)
        if kind.algo is None:
            advice = "start from the algorithm's config, as a dictionary: PPOConfig().to_dict()"
            self._context.by_hand(old, "setting", "DEFAULT_CONFIG", advice)
            return new
        if self._is_only_written(old):
            what = "DEFAULT_CONFIG is left out: settings that are not given keep their defaults"
            self._context.change(old, "setting", what)
            return cst.Dict([])
        what = f"DEFAULT_CONFIG is {kind.algo}Config().to_dict()"
        self._context.change(old, "setting", what)
        self._context.needed.add(NeededImport("jaxrl", f"{kind.algo}Config"))
        return cst.parse_expression(f"{kind.algo}Config().to_dict()")

    def _is_only_written(self, node: cst.BaseExpression) -> bool:
        """Return whether a value is assigned to a name, of which no entry is read."""
        statement = self._facts.get_parent(node)
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return False
        name = statement.targets[0].target
        scope = self._facts.get_scope(name)
        if not isinstance(name, cst.Name) or scope is None:
            return False
        uses = [access.node for assigned in scope[name.value] for access in assigned.references]
        return all(self._is_write(use) for use in uses)

    def _is_write(self, use: cst.CSTNode) -> bool:
        parent = self._facts.get_parent(use)
        if isinstance(parent, cst.Subscript):
            return isinstance(self._facts.get_parent(parent), cst.AssignTarget)
        if isinstance(use, cst.Attribute):
            return use.attr.value == "update"
        if isinstance(parent, cst.Attribute):
            return parent.attr.value == "update"
        return isinstance(parent, cst.Arg)


DISTINCT_KEYS = frozenset(
    key
    for key in RENAMED_KEYS
    if key.rpartition("/")[2].startswith("episode_reward_")
    or key in ("timesteps_total", "episodes_total")
)
"""Result keys that are rewritten wherever they index something unknown."""


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
        if moved is None and is_result and own[0] in REMOVED_RESULT_KEYS:
            removed = REMOVED_RESULT_KEYS[own[0]]
            self._context.by_hand(old, "result key", "/".join(own), removed)
        if moved is None and own == keys:
            return new
        current = own if moved is None else moved
        written = "".join(f"[{key!r}]" for key in current)
        self._context.change(old, "result key", f"{'/'.join(keys)} is result{written}")
        return _replace_keys(new, len(keys), current)

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
        if key is None or current is None or not (key in DISTINCT_KEYS or self._is_metric(old)):
            return new
        if self._is_metric(old):
            self._context.change(old, "result key", f"{key} is {current}")
            return replace_string(new, current)
        if key in DISTINCT_KEYS and not self._is_label(old):
            self._context.by_hand(old, "result key", key, f"the key is {current}")
        return new

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
                is_stop = self._facts.get_mark(around) == Kind("stop")
                return name.value in (*PRINTERS, "get") or is_stop
            if isinstance(around, cst.BaseStatement):
                return False
        return False


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
        used = collect_names(old.body)
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
            if param.default is None:
                advice = f"it is not passed; passed are {', '.join(_list_arguments(hook))}"
                self._context.by_hand(old, "callback", f"{hook}({name})", advice)
            return param
        self._context.change(old, "callback", f"the argument {name} is not passed")
        return None


def _list_arguments(hook: str) -> list[str]:
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


class _Renamer(cst.CSTTransformer):
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
