"""Checks of modules that were written for RLlib, whose methods take no parameters."""

import inspect

from jaxrl.errors import ModuleError

_GUIDE = "see the guide Custom modules"
_NEVER_CALLED = ("_forward_train", "_forward_inference", "_forward_exploration")
_FIRST_ARGUMENTS = ("_forward", "compute_values")


def check_own_methods(module_class: type, base: type) -> None:
    """Check that a module's methods are those that are called here.

    Args:
        module_class: Class of the module.
        base: Base class of all modules.

    Raises:
        ModuleError: If a method has RLlib's signature, or would never be called.
    """
    name = module_class.__name__
    for method in _NEVER_CALLED:
        if hasattr(module_class, method):
            raise ModuleError(
                f"{name}.{method} is never called here: all outputs are those of _forward(self, "
                f"params, obs), and forward_exploration may be overridden, {_GUIDE}."
            )
    for method in _FIRST_ARGUMENTS:
        own = getattr(module_class, method)
        if own is getattr(base, method):
            continue
        parameters = list(inspect.signature(own).parameters.values())
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        positional = [p.name for p in parameters if p.kind in kinds]
        takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)
        if (len(positional) < 3 and not takes_any) or positional[1:2] == ["batch"]:
            raise ModuleError(
                f"{name}.{method}({', '.join(map(str, parameters))}) has RLlib's signature, without "
                f"parameters; modules are pure here: write {method}(self, params, obs), with the "
                f"network's parameters and the observations, {_GUIDE}."
            )
