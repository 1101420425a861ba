"""Views of a run for callbacks and runners: its modules, policies, and runner of this process."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl.core.types import PyTree
from jaxrl.runners.compiled_runner import CompiledRunnerGroup
from jaxrl.runners.learner_group import LearnerGroup, LocalLearnerGroup
from jaxrl.runners.protocols import EnvRunnerGroup
from jaxrl.runs.weights import list_modules
from jaxrl.training.train_state import TrainState

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.modules.rl_module import RLModule
    from jaxrl.policy.policy import Policy


class ViewedRun(Protocol):
    """Run whose modules are read and written."""

    @property
    def state(self) -> TrainState: ...
    @property
    def env_runner_group(self) -> object: ...
    def get_module(self, module_id: str, /) -> "RLModule": ...
    def get_policy(self, policy_id: str, /) -> "Policy | None": ...
    def get_weights(self, module_ids: Sequence[str], /) -> dict[str, PyTree]: ...
    def set_weights(self, weights: Mapping[str, PyTree], /) -> list[str]: ...


def make_writer(run: ViewedRun) -> Callable[[Mapping[str, PyTree]], object]:
    """Return a function that sets weights of a run, which it does not keep alive."""
    method = weakref.WeakMethod(run.set_weights)

    def write(weights: Mapping[str, PyTree]) -> object:
        function = method()
        assert function is not None, "the Algorithm is gone"
        return function(weights)

    return write


def attach_writer(run: ViewedRun, learners: LearnerGroup) -> None:
    """Let learners of this process, as RLlib's learner group, set the weights of their run."""
    if isinstance(learners, LocalLearnerGroup):
        learners.write_weights = make_writer(run)


def attach_policies(run: ViewedRun, runners: EnvRunnerGroup | CompiledRunnerGroup) -> None:
    """Let what stands in for runners, and does not act, have the policies of their run."""
    runners.set_policies(RunPolicies(run))


class RunPolicies(Mapping[str, "Policy"]):
    """Policies of a run by id, made when they are read; the run is not kept alive."""

    def __init__(self, run: ViewedRun) -> None:
        self._get_run = weakref.ref(run)

    @property
    def _run(self) -> ViewedRun:
        run = self._get_run()
        assert run is not None, "the Algorithm is gone"
        return run

    def __getitem__(self, policy_id: str) -> "Policy":
        policy = self._run.get_policy(policy_id)
        if policy is None:
            raise KeyError(policy_id)
        return policy

    def __iter__(self) -> Iterator[str]:
        return iter(list_modules(self._run.state))

    def __len__(self) -> int:
        return len(list_modules(self._run.state))


class ModulesView(Mapping[str, "RLModule"]):
    """Modules of a run by id, with the current weights: RLlib's MultiRLModule of a runner.

    Args:
        algorithm: The run.
    """

    def __init__(self, algorithm: "ViewedRun") -> None:
        self._algorithm = algorithm

    def __getitem__(self, module_id: str) -> "RLModule":
        return self._algorithm.get_module(module_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._algorithm.state.modules)

    def __len__(self) -> int:
        return len(self._algorithm.state.modules)

    def get_state(self) -> dict[str, PyTree]:
        """Return the parameters of all modules, as NumPy arrays."""
        return self._algorithm.get_weights(list(self))

    def set_state(self, state: Mapping[str, PyTree]) -> None:
        """Replace the parameters of modules."""
        self._algorithm.set_weights(state)


class LocalRunnerView:
    """Runner of this process as RLlib's callbacks use it: its modules have the run's weights.

    Args:
        algorithm: The run.
    """

    def __init__(self, algorithm: "ViewedRun") -> None:
        self._algorithm, self.module = algorithm, ModulesView(algorithm)

    @property
    def config(self) -> "Config":
        """Config of the runner; `policy_mapping_fn` and `policies_to_train` may be set."""
        return self._group.local_config

    @property
    def _group(self) -> Any:
        return self._algorithm.env_runner_group

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._group.local_env_runner, name)
