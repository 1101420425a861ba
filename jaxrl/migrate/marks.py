"""Marks on dictionaries and strings: which of them are settings, stop criteria or metrics."""

import libcst as cst

from jaxrl.migrate.kinds import Facts, Kind
from jaxrl.migrate.nodes import find_arg, read_string

STOP_NAMES = ("stop", "stop_criteria", "stopping_criteria")
"""Names of variables that hold stop criteria, also where another file uses them."""


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
        if path in (
            "ray.tune.run",
            "ray.tune.Tuner",
            "ray.tune.tuner.Tuner",
            "ray.tune.Experiment",
        ):
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
