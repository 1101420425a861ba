"""Methods of `Algorithm` for the modules and their parameters."""

import importlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from jaxrl.core.types import PyTree
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.compiled_runner import CompiledRunnerGroup
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup
from jaxrl.runners.protocols import EnvRunnerGroup
from jaxrl.runs.weights import get_weights, list_modules, set_weights
from jaxrl.runtime.lock import ExclusiveLock, single_threaded
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.modules.rl_module import RLModule
    from jaxrl.policy.actions import ComputeActions, ComputeAgentActions
    from jaxrl.policy.policy import Policy


class WeightMethods:
    """Methods that return modules, and get and set their parameters."""

    if TYPE_CHECKING:
        _actions: "ComputeActions | ComputeAgentActions"
        _use: ExclusiveLock

        @property
        def state(self) -> TrainState: ...
        @state.setter
        def state(self, state: TrainState) -> None: ...

    def get_module(self, module_id: str = DEFAULT_MODULE) -> "RLModule":
        """Return the RLModule; calls with a batch, as in RLlib, use the current weights."""
        module = self._actions.get_module(module_id)
        write = make_writer(self)
        vars(module)["_set_params"] = lambda params: write({module_id: params})
        return module

    @single_threaded
    def get_weights(self, module_ids: Sequence[str] | None = None) -> dict[str, PyTree]:
        """Return `{module_id: parameters}` as NumPy copies, for all or the given modules."""
        state = self.state
        names = [module_ids] if isinstance(module_ids, str) else module_ids
        selected = list_modules(state) if names is None else names
        return get_weights(state, [self._actions.check_id(name) for name in selected])

    @single_threaded
    def set_weights(self, weights: Mapping[str, PyTree], *, strict: bool = True) -> list[str]:
        """Replace the module's parameters, e.g. for a warm start from another run.

        A target network becomes a copy of them; optimizers keep their state.

        Args:
            weights: Weights in the form returned by `get_weights` of this or another Algorithm.
            strict: Whether to raise on mismatches. False loads the matching parameters and keeps
                the others.

        Returns:
            One phrase per mismatch; empty if all parameters matched.

        Raises:
            ModuleError: If `strict` and any parameter does not match.
        """
        self.state, problems = set_weights(self.state, weights, strict=strict)
        return problems

    def import_policy_model_from_h5(
        self, import_file: str | os.PathLike[str], policy_id: str = DEFAULT_MODULE
    ) -> None:
        """Set a module's parameters to those of RLlib's default network, which Keras saved.

        Args:
            import_file: File of HDF5, by `model.base_model.save_weights(file)` in RLlib.
            policy_id: Id of the module, in a run of several agents.

        Raises:
            ModuleError: If the file cannot be read, or does not fit the module.
            UnknownNameError: If there is no such module.
        """
        higher = importlib.import_module("jaxrl.interop.importing")  # by name: a higher layer
        higher.import_keras_weights(self, import_file, policy_id)


def make_writer(run: WeightMethods) -> Callable[[Mapping[str, PyTree]], object]:
    """Return a function that sets weights of a run, which it does not keep alive."""
    method = weakref.WeakMethod(run.set_weights)

    def write(weights: Mapping[str, PyTree]) -> object:
        function = method()
        assert function is not None, "the Algorithm is gone"
        return function(weights)

    return write


def attach_writer(run: WeightMethods, learners: LearnerGroup) -> None:
    """Let learners of this process, as RLlib's learner group, set the weights of their run."""
    if isinstance(learners, LocalLearnerGroup):
        learners.write_weights = make_writer(run)


def attach_policies(run: WeightMethods, runners: EnvRunnerGroup | CompiledRunnerGroup) -> None:
    """Let what stands in for runners, and does not act, have the policies of their run."""
    runners.set_policies(RunPolicies(run))


class RunPolicies(Mapping[str, "Policy"]):
    """Policies of a run by id, made when they are read; the run is not kept alive."""

    def __init__(self, run: WeightMethods) -> None:
        self._get_run = weakref.ref(run)

    @property
    def _run(self) -> WeightMethods:
        run = self._get_run()
        assert run is not None, "the Algorithm is gone"
        return run

    def __getitem__(self, policy_id: str) -> "Policy":
        policy = cast("Any", self._run).get_policy(policy_id)
        if policy is None:
            raise KeyError(policy_id)
        return policy

    def __iter__(self) -> Iterator[str]:
        return iter(list_modules(self._run.state))

    def __len__(self) -> int:
        return len(list_modules(self._run.state))
