"""Inference of the kinds of expressions: a config, an algorithm, a result, and so on.

A name is what its nearest assignment makes it; nothing is run, and what is not clear stays unknown.
"""

import dataclasses
from collections.abc import Iterator, Mapping

import libcst as cst
from libcst.metadata import (
    Assignment,
    MetadataWrapper,
    ParentNodeProvider,
    PositionProvider,
    QualifiedNameSource,
    Scope,
    ScopeProvider,
)

import jaxrl
from jaxrl.compat.rllib.imports import RLLIB, find_counterpart
from jaxrl.compat.rllib.settings import SETTINGS
from jaxrl.migrate.nodes import (
    Returns,
    SelfAssignments,
    find_arg,
    is_dotted_name,
    is_self,
    read_literal,
    read_string,
)
from jaxrl.migrate.verdicts import UNKNOWN

STOP_NAMES = ("stop", "stop_criteria", "stopping_criteria")
"""Names of variables that hold stop criteria, also where another file uses them."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """Kind of an expression.

    Attributes:
        name: Kind: "config", "config dict", "stop", "algorithm", "result", "saved", "policy",
            "runner_group", "env_runner", "learner", "tuner", "analysis", "dataframe", "episode",
            "own dict" or others.
        algo: Name of the algorithm, None if it is unknown.
    """

    name: str
    algo: str | None = None


_METHOD_KINDS: Mapping[tuple[str, str], str] = {
    ("config", "build"): "algorithm",
    ("config", "build_algo"): "algorithm",
    ("config", "to_dict"): "config dict",
    ("config", "overrides"): "config dict",
    ("config", "get"): "",
    ("config", "items"): "",
    ("config", "keys"): "",
    ("config", "values"): "",
    ("config dict", "copy"): "config dict",
    ("config dict", "to_dict"): "config dict",
    ("stop", "copy"): "stop",
    ("algorithm", "train"): "result",
    ("algorithm", "fit"): "result",
    ("algorithm", "evaluate"): "evaluation",
    ("algorithm", "get_policy"): "policy",
    ("algorithm", "get_config"): "config",
    ("algorithm", "save"): "saved",
    ("algorithm", "save_checkpoint"): "saved",
    ("algorithm", "save_to_path"): "saved",
    ("tuner", "fit"): "analysis",
    ("analysis", "get_best_result"): "trial result",
    ("analysis", "dataframe"): "dataframe",
    ("analysis", "get_dataframe"): "dataframe",
    ("trainable class", "get_default_config"): "config",
}
_ATTRIBUTE_KINDS: Mapping[tuple[str, str], str] = {
    ("algorithm", "workers"): "runner_group",
    ("algorithm", "env_runner_group"): "runner_group",
    ("algorithm", "evaluation_workers"): "runner_group",
    ("algorithm", "eval_env_runner_group"): "runner_group",
    ("algorithm", "config"): "config",
    ("saved", "checkpoint"): "saved checkpoint",
    ("saved checkpoint", "path"): "path",
    ("trial result", "metrics"): "result",
    ("analysis", "best_result"): "result",
    ("trial", "last_result"): "result",
}
_FUNCTION_KINDS: Mapping[str, str] = {
    "ray.tune.Tuner": "tuner",
    "ray.tune.tuner.Tuner": "tuner",
    "ray.tune.run": "analysis",
    "pandas.read_csv": "dataframe",
    "pandas.DataFrame": "dataframe",
    "ray.tune.registry.get_trainable_cls": "trainable class",
}
_HOOK_ARGUMENT_KINDS: Mapping[str, str] = {
    "algorithm": "algorithm",
    "trainer": "algorithm",
    "result": "result",
    "episode": "episode",
    "worker": "env_runner",
    "env_runner": "env_runner",
}
_INDEX_FIRST = ("foreach_worker_with_id", "foreach_env_runner_with_index")
"""Methods whose function receives the number of the runner before the runner."""
COPIES = ("copy.copy", "copy.deepcopy")
TUNE_RUNNERS = ("ray.tune.run", "ray.tune.Tuner", "ray.tune.tuner.Tuner", "ray.tune.Experiment")


class Facts:
    """Facts about the nodes of an unchanged module.

    Args:
        wrapper: The module with its metadata.
    """

    def __init__(self, wrapper: MetadataWrapper) -> None:
        self.module = wrapper.module
        self._scopes = wrapper.resolve(ScopeProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._positions = wrapper.resolve(PositionProvider)
        self._marks: dict[cst.CSTNode, Kind] = {}
        self._traced: dict[cst.CSTNode, Kind] = {}
        self._kinds: dict[cst.CSTNode, Kind | None] = {}
        self._active: set[cst.CSTNode] = set()
        self._tentative: set[cst.CSTNode] = set()
        self._num_cycles = 0
        self._assigned_to_self: dict[cst.ClassDef, dict[str, list[cst.BaseExpression]]] = {}

    # --- places ---

    def is_annotation(self, node: cst.CSTNode) -> bool:
        """Return whether a node belongs to an annotation."""
        return any(isinstance(around, cst.Annotation) for around in self.get_parents(node))

    def get_line(self, node: cst.CSTNode) -> int:
        """Return the line on which a node starts."""
        return self._positions[node].start.line

    def get_name_line(self, node: cst.CSTNode) -> int:
        """Return the line of a call's own method in a chain, or of any other node."""
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
            return self.get_line(node.func.attr)
        return self.get_line(node.attr if isinstance(node, cst.Attribute) else node)

    def get_parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node around a node, None for the module."""
        return self._parents.get(node)

    def get_parents(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield the nodes around a node, the innermost first."""
        current = self._parents.get(node)
        while current is not None:
            yield current
            current = self._parents.get(current)

    def get_scope(self, node: cst.CSTNode) -> Scope | None:
        """Return the scope of a node."""
        return self._scopes.get(node)

    # --- imported names ---

    def get_import_path(self, node: cst.CSTNode) -> str | None:
        """Return the path of an imported name, such as `ray.tune.run`, None for other nodes.

        Of several imports of one name, as in try and except, it is the first one of RLlib.
        """
        if not is_dotted_name(node) or not self._is_reference(node):
            return None
        scope = self._scopes.get(node)
        if scope is None or not isinstance(node, cst.Name | cst.Attribute):
            return None
        found = scope.get_qualified_names_for(node)
        paths = sorted(each.name for each in found if each.source is QualifiedNameSource.IMPORT)
        if len(paths) != len(found) or not paths:
            return None
        ours = [path for path in paths if path.startswith((RLLIB, "jaxrl"))]
        return next(iter(ours or paths))

    def _is_reference(self, node: cst.CSTNode) -> bool:
        parent = self._parents.get(node)
        if isinstance(parent, cst.Arg):
            return parent.keyword is not node
        if isinstance(parent, cst.Attribute):
            return parent.value is node
        kinds = (cst.Param, cst.ImportAlias, cst.AsName, cst.AssignTarget, cst.ImportFrom)
        if isinstance(parent, cst.FunctionDef | cst.ClassDef):
            return parent.name is not node
        return not isinstance(parent, kinds)

    def get_counterpart(self, node: cst.CSTNode) -> str | None:
        """Return the path in jaxrl of a name of RLlib or of jaxrl itself, None for others."""
        path = self.get_import_path(node)
        if path is None:
            return None
        if not path.startswith("jaxrl."):
            return find_counterpart(path)
        name = path.rpartition(".")[2]
        is_public = name in jaxrl.__all__ or name in jaxrl.TRAINABLES
        return f"jaxrl.{name}" if is_public else path

    def get_algorithm(self, node: cst.CSTNode) -> str | None:
        """Return the name of the algorithm whose class or config class a node names."""
        new = self.get_counterpart(node) or ""
        name = new.removeprefix("jaxrl.").removesuffix("Config")
        return name if name in jaxrl.TRAINABLES else None

    # --- marks ---

    def mark(self, node: cst.CSTNode | None, kind: Kind) -> None:
        """Note the kind of a dictionary or string, also through the names that refer to it."""
        if node is None or self._traced.get(node) == kind:
            return
        self._traced[node] = kind
        if isinstance(node, cst.Dict):
            self._mark_dict(node, kind)
        elif isinstance(node, cst.SimpleString):
            self._marks[node] = kind
        elif isinstance(node, cst.Name):
            nearest, *others = self.find_values(node) or [None]
            self.mark(nearest, kind)
            for value in others:  # other branches, or another use of the name
                if kind.name != "config dict" or _has_rllib_setting(value):
                    self.mark(value, kind)
        elif isinstance(node, cst.Attribute):
            for value in self._find_self_values(node):
                self.mark(value, kind)
        elif isinstance(node, cst.IfExp):
            self.mark(node.body, kind)
            self.mark(node.orelse, kind)
        elif isinstance(node, cst.Call):
            self._mark_call(node, kind)

    def _mark_dict(self, node: cst.Dict, kind: Kind) -> None:
        self._marks[node] = kind
        for element in node.elements:
            if isinstance(element, cst.StarredDictElement):
                self.mark(element.value, kind)
            elif kind.name == "config dict" and isinstance(element, cst.DictElement):
                name = read_string(element.key)
                if name in ("model", "model_config"):
                    self.mark(element.value, Kind("model"))
                elif name == "evaluation_config":
                    self.mark(element.value, kind)

    def mark_keywords(self, node: cst.Call, kind: Kind) -> None:
        """Note that the keywords of a call are entries of a dictionary."""
        self._marks[node] = kind

    def _mark_call(self, node: cst.Call, kind: Kind) -> None:
        if isinstance(node.func, cst.Name) and node.func.value == "dict":
            self._marks[node] = kind
        elif isinstance(node.func, cst.Attribute) and node.func.attr.value == "copy":
            self.mark(node.func.value, kind)
        elif self.get_import_path(node.func) in COPIES and node.args:
            self.mark(node.args[0].value, kind)
        else:
            for value in self._find_returned(node.func):
                self.mark(value, kind)

    def get_mark(self, node: cst.CSTNode) -> Kind | None:
        """Return the kind that was noted."""
        return self._marks.get(node)

    # --- values of names ---

    def find_values(self, name: cst.Name) -> list[cst.BaseExpression]:
        """Return the expressions that are assigned to a name, the nearest before it first."""
        line = self.get_line(name)
        found = [
            (self.get_line(node), value)
            for node in self._find_assignments(name)
            if (value := self._get_assigned(node)) is not None
        ]
        found.sort(key=lambda entry: (entry[0] > line, abs(line - entry[0])))
        return [value for _, value in found]

    def read_value(self, node: cst.BaseExpression) -> object:
        """Return the value of a literal, or of a name that has one and is not changed; or UNKNOWN."""
        literal = read_literal(node)
        if literal is not UNKNOWN or not isinstance(node, cst.Name):
            return literal
        values = self.find_values(node)
        scope = self._scopes.get(node)
        if len(values) != 1 or scope is None or len(self._find_assignments(node)) != 1:
            return UNKNOWN
        uses = [access.node for each in scope[node.value] for access in each.references]
        is_only_read = all(
            isinstance(self._parents.get(use), cst.Arg | cst.DictElement | cst.StarredDictElement)
            for use in uses
        )
        return read_literal(values[0]) if is_only_read else UNKNOWN

    def _find_assignments(self, name: cst.Name) -> list[cst.CSTNode]:
        scope = self._scopes.get(name)
        if scope is None:
            return []
        return [each.node for each in scope[name.value] if isinstance(each, Assignment)]

    def _get_assigned(self, node: cst.CSTNode) -> cst.BaseExpression | None:
        parent = self._parents.get(node)
        if isinstance(parent, cst.AssignTarget):
            parent = self._parents.get(parent)
        if isinstance(parent, cst.Assign | cst.AnnAssign | cst.NamedExpr):
            return parent.value
        if isinstance(parent, cst.AsName):
            item = self._parents.get(parent)
            return item.item if isinstance(item, cst.WithItem) else None
        if isinstance(parent, cst.For) and isinstance(parent.iter, cst.List | cst.Tuple):
            return next((element.value for element in parent.iter.elements), None)
        return None

    def _find_self_values(self, node: cst.Attribute) -> Iterator[cst.BaseExpression]:
        """Yield the values that a class assigns to `self.name`."""
        if not is_self(node.value):
            return
        owner = next((p for p in self.get_parents(node) if isinstance(p, cst.ClassDef)), None)
        if owner is None:
            return
        if owner not in self._assigned_to_self:
            finder = SelfAssignments()
            owner.visit(finder)
            self._assigned_to_self[owner] = finder.values
        yield from self._assigned_to_self[owner].get(node.attr.value, ())

    def _find_returned(self, function: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        """Yield the values that a function of the module returns."""
        if not isinstance(function, cst.Name):
            return
        for node in self._find_assignments(function):
            if isinstance(node, cst.FunctionDef):
                finder = Returns()
                node.body.visit(finder)
                yield from finder.values

    # --- kinds ---

    def get_kind(self, node: cst.CSTNode) -> Kind | None:
        """Return the kind of an expression, None if it is unknown."""
        if node in self._kinds:
            return self._kinds[node]
        if node in self._active:
            self._num_cycles += 1
            return None
        if node in self._tentative:
            return None
        num_cycles = self._num_cycles
        self._active.add(node)
        try:
            kind = self._infer(node)
        finally:
            self._active.discard(node)
        if kind is not None or not self._active or num_cycles == self._num_cycles:
            self._kinds[node] = kind
        else:
            self._tentative.add(node)  # unknown because of a cycle, through which it may be known
        if not self._active:
            self._tentative.clear()
        return kind

    def _infer(self, node: cst.CSTNode) -> Kind | None:
        if isinstance(node, cst.Dict):
            return self._marks.get(node) or Kind("own dict")
        path = self.get_import_path(node)
        if path is not None and path.endswith(".DEFAULT_CONFIG"):
            return self.get_default_config_kind(path)
        if isinstance(node, cst.Name):
            return self._infer_name(node)
        if isinstance(node, cst.Attribute):
            return self._infer_attribute(node)
        if isinstance(node, cst.Call):
            return self._marks.get(node) or self._infer_call(node)
        if isinstance(node, cst.IfExp):
            return self.get_kind(node.body) or self.get_kind(node.orelse)
        return self.get_kind(node.value) if isinstance(node, cst.NamedExpr) else None

    def _infer_name(self, node: cst.Name) -> Kind | None:
        for value in self.find_values(node):
            if kind := self.get_kind(value):
                return kind
        for assigned in self._find_assignments(node):
            if isinstance(assigned, cst.Param) and (kind := self._infer_parameter(assigned)):
                return kind
        return None

    def _infer_parameter(self, node: cst.Param) -> Kind | None:
        if node.annotation is not None:
            annotation = node.annotation.annotation
            if self.get_counterpart(annotation) == "jaxrl.Algorithm":
                return Kind("algorithm")
            if kind := self.get_instance_kind(annotation):
                return kind
        function = next(p for p in self.get_parents(node) if not isinstance(p, cst.Parameters))
        if isinstance(function, cst.Lambda):
            return self._infer_runner(node, function)
        if isinstance(function, cst.FunctionDef) and self.is_hook(function):
            name = _HOOK_ARGUMENT_KINDS.get(node.name.value)
            return None if name is None else Kind(name)
        if node.name.value == "self" and self.is_learner_method(function):
            return Kind("learner")
        return None

    def _infer_runner(self, node: cst.Param, function: cst.Lambda) -> Kind | None:
        """Return the kind of a parameter of `workers.foreach_worker(lambda worker: ...)`."""
        call = next((p for p in self.get_parents(function) if not isinstance(p, cst.Arg)), None)
        if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
            return None
        owner = self.get_kind(call.func.value)
        if owner is None or owner.name != "runner_group":
            return None
        has_index_first = call.func.attr.value in _INDEX_FIRST
        is_runner = node in function.params.params[int(has_index_first) :][:1]
        return Kind("env_runner") if is_runner else None

    def is_hook(self, function: cst.FunctionDef) -> bool:
        """Return whether a function is a hook of a class of callbacks."""
        owner = next((p for p in self.get_parents(function) if isinstance(p, cst.ClassDef)), None)
        return owner is not None and self.is_callbacks(owner)

    def is_callbacks(self, node: cst.ClassDef) -> bool:
        """Return whether a class is one of callbacks."""
        return any(
            self.get_counterpart(base.value) == "jaxrl.callbacks.Callbacks" for base in node.bases
        )

    def is_learner(self, node: cst.ClassDef) -> bool:
        """Return whether a class is a learner of RLlib's, by the names of its bases."""
        paths = (self.get_import_path(base.value) or "" for base in node.bases)
        return any(path.startswith(f"{RLLIB}.") and path.endswith("Learner") for path in paths)

    def is_learner_method(self, function: cst.CSTNode) -> bool:
        """Return whether a function is a method of a class of learners."""
        owner = next((p for p in self.get_parents(function) if isinstance(p, cst.ClassDef)), None)
        return (
            isinstance(function, cst.FunctionDef) and owner is not None and self.is_learner(owner)
        )

    def find_definitions(self, node: cst.CSTNode) -> list[cst.CSTNode]:
        """Return the functions, classes and targets that a name refers to."""
        return self._find_assignments(node) if isinstance(node, cst.Name) else []

    def get_instance_kind(self, node: cst.CSTNode) -> Kind | None:
        """Return the kind of the instances of a class."""
        new = self.get_counterpart(node)
        if new is not None:
            if new == "jaxrl.AlgorithmConfig":
                return Kind("config")
            algo = self.get_algorithm(node)
            if algo is None:
                return None
            return Kind("config" if new.endswith("Config") else "algorithm", algo)
        path = self.get_import_path(node) or ""
        if path.startswith((f"{RLLIB}.algorithms.", f"{RLLIB}.agents.")):
            name = path.rpartition(".")[2]
            if name.endswith("Config"):
                return Kind("config")
            return Kind("algorithm") if name.endswith("Trainer") or name.isupper() else None
        return None

    def _infer_attribute(self, node: cst.Attribute) -> Kind | None:
        for value in self._find_self_values(node):
            if kind := self.get_kind(value):
                return kind
        owner = self.get_kind(node.value)
        if owner is None:
            return None
        name = _ATTRIBUTE_KINDS.get((owner.name, node.attr.value))
        return None if name is None else Kind(name, owner.algo)

    def get_default_config_kind(self, path: str) -> Kind:
        """Return the kind of a module's DEFAULT_CONFIG."""
        parts = [part.lower() for part in path.split(".")]
        algo = next((name for name in jaxrl.TRAINABLES if name.lower() in parts), None)
        return Kind("config dict", algo)

    def _infer_call(self, node: cst.Call) -> Kind | None:
        function = node.func
        if kind := self.get_instance_kind(function):
            return kind
        path = self.get_import_path(function)
        if path in COPIES and node.args:
            return self.get_kind(node.args[0].value)
        if path is not None and path in _FUNCTION_KINDS:
            algo = read_string(node.args[0].value) if node.args else None
            return Kind(_FUNCTION_KINDS[path], algo)
        if isinstance(function, cst.Attribute):
            return self._infer_method(node, function)
        for value in self._find_returned(function):
            if kind := self.get_kind(value):
                return kind
        return None

    def _infer_method(self, node: cst.Call, function: cst.Attribute) -> Kind | None:
        name = function.attr.value
        owner = self.get_kind(function.value)
        if owner is None:
            if name == "from_checkpoint" and (
                self.get_counterpart(function.value) == "jaxrl.Algorithm"
                or self.get_algorithm(function.value)
            ):
                return Kind("algorithm")
            owner = self.get_instance_kind(function.value)
            if owner is None or owner.name != "config":
                return None
        made = _METHOD_KINDS.get((owner.name, name))
        if made is not None:
            return Kind(made, owner.algo) if made else None
        if owner.name == "algorithm" and name == "get_weights":
            return None
        is_getter = name.startswith(("get_", "is_", "validate", "freeze"))
        return owner if owner.name == "config" and not is_getter else None


def _has_rllib_setting(node: cst.CSTNode | None) -> bool:
    """Return whether a dictionary has a setting of RLlib's, or may have one."""
    if not isinstance(node, cst.Dict):
        return True
    keys = [read_string(e.key) for e in node.elements if isinstance(e, cst.DictElement)]
    return any(key in SETTINGS or key in ("env", "framework") for key in keys)


class Marker(cst.CSTVisitor):
    """Visitor that notes which dictionaries are settings or stop criteria.

    Args:
        facts: Facts that take the marks.
    """

    def __init__(self, facts: Facts) -> None:
        super().__init__()
        self._facts = facts

    def visit_Assign(self, node: cst.Assign) -> None:
        target = node.targets[0].target
        if isinstance(target, cst.Name) and target.value in STOP_NAMES:
            self._facts.mark(node.value, Kind("stop"))

    def visit_Call(self, node: cst.Call) -> None:
        facts = self._facts
        path = facts.get_import_path(node.func) or ""
        if path in TUNE_RUNNERS:
            self._mark_tune(node)
        if path.endswith((".RunConfig", ".tune.run", ".Experiment")):
            self._mark_arg(node, Kind("stop"), "stop")
        made = facts.get_kind(node)
        is_class = not isinstance(node.func, cst.Attribute) or facts.get_import_path(node.func)
        if made is not None and made.name == "algorithm" and is_class:
            self._mark_arg(node, Kind("config dict", made.algo), "config", position=0)
        if isinstance(node.func, cst.Attribute):
            self._mark_method(node, node.func)
        for name in ("metric", "checkpoint_score_attr", "checkpoint_score_attribute"):
            self._mark_arg(node, Kind("metric"), name)

    def _mark_arg(
        self, node: cst.Call, kind: Kind, *names: str, position: int | None = None
    ) -> None:
        arg = find_arg(node, *names, position=position)
        if arg is not None:
            self._facts.mark(arg.value, kind)

    def _mark_tune(self, node: cst.Call) -> None:
        first = find_arg(node, "run_or_experiment", "trainable", position=0)
        if first is None:
            return
        algo = self._facts.get_algorithm(first.value) or read_string(first.value)
        is_function = algo is None and any(
            isinstance(assigned, cst.FunctionDef | cst.ClassDef)
            for assigned in self._facts.find_definitions(first.value)
        )
        if not is_function:
            self._mark_arg(node, Kind("config dict", algo), "config", "param_space")

    def _mark_method(self, node: cst.Call, function: cst.Attribute) -> None:
        name = function.attr.value
        owner = self._facts.get_kind(function.value) or self._facts.get_instance_kind(
            function.value
        )
        if owner is None:
            return
        if name in ("from_dict", "update_from_dict") or (owner.name, name) == (
            "config dict",
            "update",
        ):
            self._mark_arg(node, Kind("config dict", owner.algo), "config_dict", position=0)
            if owner.name == "config dict":
                self._facts.mark_keywords(node, owner)
        if owner.name == "config":
            self._mark_arg(node, Kind("config dict", owner.algo), "evaluation_config")
            for names in (("model",), ("model_config",)):
                self._mark_arg(node, Kind("model"), *names)
        if (owner.name, name) == ("algorithm", "fit"):
            self._mark_arg(node, Kind("stop"), "stop", position=0)
