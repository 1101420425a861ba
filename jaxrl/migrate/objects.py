"""Rules for algorithms and what they return, for their constructors, and for Ray Tune."""

import libcst as cst
from libcst import matchers

import jaxrl
from jaxrl.algorithm import Algorithm
from jaxrl.compat.rllib.attributes import (
    LEARNER_HOOKS,
    METHOD_ADVICE,
    RENAMED_METHODS,
    REWRITTEN_EPISODE_ATTRIBUTES,
)
from jaxrl.compat.rllib.imports import ALGORITHM_ADVICE, RLLIB
from jaxrl.errors import did_you_mean
from jaxrl.migrate.context import Context, NeededImport
from jaxrl.migrate.kinds import Kind
from jaxrl.migrate.nodes import Link, find_arg, read_string, to_code

TUNE_RUNNERS = ("ray.tune.run", "ray.tune.Tuner", "ray.tune.tuner.Tuner", "ray.tune.Experiment")
TRAINABLE_LOOKUPS = ("ray.tune.registry.get_trainable_cls", "ray.tune.with_resources")
TRAINABLE_METHODS = ("get_default_config", "default_resource_request", "resource_help")
"""Methods that the class of an algorithm has, as a Trainable of Ray Tune."""


def is_trainable(node: cst.ClassDef) -> bool:
    """Return whether a class overrides methods of a Trainable alone, as the class here can."""
    statements = node.body.body
    return any(isinstance(each, cst.FunctionDef) for each in statements) and all(
        each.name.value in TRAINABLE_METHODS
        for each in statements
        if isinstance(each, cst.FunctionDef)
    )


_FORWARD = ("forward_inference", "forward_exploration", "forward_train")
_TENSOR_METHODS = ("cpu", "detach", "numpy")
_OWNERS = {"runner_group": "env_runner_group"}


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
        args = [] if env is None else [cst.Arg(env.value, keyword=cst.Name("env"), equal=_EQUAL)]
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
        current = {"Impala": "IMPALA"}.get(name, name)
        if current in jaxrl.TRAINABLES:
            if path == TRAINABLE_LOOKUPS[0]:
                self._context.needed.add(NeededImport("jaxrl.tune", is_for_effect=True))
                return new
            what = f'"{name}" is the class jaxrl.{current}'
            self._context.change(old_arg.value, "algorithm", what)
            value = self._context.need_name(f"jaxrl.{current}")
            changed = new_arg.with_changes(value=value)
            return new.with_changes(args=[changed if a is new_arg else a for a in new.args])
        if name in ALGORITHM_ADVICE:
            self._context.by_hand(old_arg.value, "algorithm", f'"{name}"', ALGORITHM_ADVICE[name])
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


_EQUAL = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
