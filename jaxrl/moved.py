"""Import hooks: former module names, and the module paths of RLlib and other libraries."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

MOVED = {
    "benchmark": "bench",
    "checkpoint": "runs.checkpoint",
    "cli.environments": "cli.listing",
    "compute_actions": "policy.compute_actions",
    "config.actor_critic_groups": "config.settings.actor_critic",
    "config.arithmetic": "config.batch_plan",
    "config.async_groups": "config.settings.asynchronous",
    "config.checks": "config.fields",
    "config.divisors": "config.batch_plan",
    "config.groups": "config.settings.training",
    "config.legacy": "config.rllib_names",
    "config.nesting": "config.load",
    "config.plan": "config.batch_plan",
    "config.replay_groups": "config.settings.replay",
    "config.replay_plan": "config.batch_plan",
    "config.request": "config.batch_plan",
    "config.run_groups": "config.settings.run",
    "config.runner_groups": "config.settings.runners",
    "config.sequence_plan": "config.batch_plan",
    "config.shipped": "config.registry",
    "config.value_groups": "config.settings.value",
    "core.action_space": "distributions.from_space",
    "core.attention": "modules.attention",
    "core.autoregressive": "modules.autoregressive",
    "core.bootstrap": "learners.bootstrap",
    "core.convolution": "modules.convolution",
    "core.critic_loss": "learners.multi_optimizer",
    "core.default_module": "modules.actor_critic",
    "core.distributions": "distributions.base",
    "core.encoder_module": "modules.encoder_module",
    "core.exploration": "modules.exploration",
    "core.joint": "distributions.joint",
    "core.learner": "learners.learner",
    "core.linear_recurrence": "modules.recurrent",
    "core.memory": "modules.recurrent",
    "core.microbatches": "learners.microbatches",
    "core.model_checks": "modules.model_checks",
    "core.model_config": "modules.model_config",
    "core.multi_input": "modules.encoders",
    "core.nested_spaces": "core.spaces",
    "core.network_module": "modules.network_module",
    "core.networks": "modules.networks",
    "core.noisy": "modules.exploration",
    "core.off_policy": "learners.vtrace_targets",
    "core.parts": "learners.multi_optimizer",
    "core.policy_gradient": "learners.policy_gradient",
    "core.policy_q_module": "modules.policy_and_critics",
    "core.q_module": "modules.q_network",
    "core.recurrent_encoder": "modules.encoders",
    "core.rl_module": "modules.rl_module",
    "core.sequences": "modules.sequences",
    "core.soft_actor_critic": "learners.soft_actor_critic",
    "core.space_tree": "core.space_arrays",
    "core.summary": "modules.networks",
    "core.target": "learners.target_network",
    "core.unroll": "modules.unroll",
    "host_state": "runs.host_state",
    "lane_run": "sweeps.lane_run",
    "lane_trials": "sweeps.lane_trials",
    "loggers.messages": "loggers.python_log",
    "loggers.system": "loggers.python_log",
    "logging": "loggers",
    "logging.files": "runtime.files",
    "logging.results": "runs.results",
    "logging.run_folder": "runs.run_folder",
    "pbt": "sweeps.pbt",
    "points": "sweeps.points",
    "policy": "policy.policy",
    "population": "sweeps.population",
    "recorder": "loggers.recorder",
    "runners.announce": "assembly.assemble",
    "runners.asking": "policy.requests",
    "runners.assemble": "assembly.assemble",
    "runners.blank": "training.rollout",
    "runners.cache": "runtime.compilation_cache",
    "runners.chunks": "sweeps.grouping",
    "runners.conform": "policy.observations",
    "runners.device_trial": "assembly.device_trial",
    "runners.devices": "runtime.devices",
    "runners.dispatch": "runners.in_graph_loop",
    "runners.ended_episode": "training.episode_stats",
    "runners.env_params": "assembly.env_params",
    "runners.environs": "runtime.env_vars",
    "runners.evaluate": "training.evaluate",
    "runners.evaluation": "evaluation.evaluation",
    "runners.exclusive": "runtime.exclusive",
    "runners.filming": "evaluation.recording",
    "runners.flops": "runtime.flops",
    "runners.grouping": "sweeps.grouping",
    "runners.groups": "runners.factories",
    "runners.guard": "training.guard",
    "runners.host": "runners.host_loop",
    "runners.host_acting": "runners.host_policy",
    "runners.host_evaluation": "evaluation.host",
    "runners.host_memory": "runners.host_replay",
    "runners.in_graph": "training.in_graph",
    "runners.inference": "policy.inference",
    "runners.lane_evaluation": "sweeps.lane_evaluation",
    "runners.lane_group": "sweeps.lane_group",
    "runners.lanes": "sweeps.lanes",
    "runners.learner_checks": "assembly.learner_checks",
    "runners.learning": "training.train_step",
    "runners.ledger": "runners.step_ledger",
    "runners.loop": "runners.protocols",
    "runners.measured": "runtime.measurements",
    "runners.nonfinite": "training.nonfinite",
    "runners.packing": "runners.host_policy",
    "runners.pipelines": "assembly.pipelines",
    "runners.played": "runners.quotas",
    "runners.process": "runtime.process",
    "runners.program": "runtime.program",
    "runners.ray.evaluation": "evaluation.on_ray",
    "runners.replay_settings": "assembly.replay",
    "runners.replaying": "training.replay_updates",
    "runners.results": "training.report",
    "runners.ring": "training.episode_stats",
    "runners.rollout": "training.rollout",
    "runners.saved_buffer": "assembly.replay",
    "runners.sequence_settings": "assembly.replay",
    "runners.sharding": "training.sharding",
    "runners.streams": "runners.env_keys",
    "runners.train_state": "training.train_state",
    "runners.video": "evaluation.video",
    "runners.width": "runners.num_envs_tuning",
    "seeds": "core.seeds",
    "statistics": "sweeps.statistics",
    "sweep_picture": "sweeps.plot",
    "sweep_runs": "sweeps.base",
    "sweep_state": "sweeps.state",
    "trials": "sweeps.trials",
    "weights": "runs.weights",
}
"""Old names of modules and packages below `jaxrl`, mapped to their current names."""


MOVED_PACKAGES = ("benchmark", "checkpoint", "logging")
"""Packages in `MOVED` whose remaining modules moved along under the same names."""


def find_new_name(name: str) -> str | None:
    """Return the current name of a module by its old name, or None if it was not renamed."""
    old = name.removeprefix("jaxrl.")
    if old == name or old in MOVED.values():
        return None
    if old in MOVED:
        return f"jaxrl.{MOVED[old]}"
    package, _, module = old.partition(".")
    return f"jaxrl.{MOVED[package]}.{module}" if module and package in MOVED_PACKAGES else None


class _OldNameFinder(MetaPathFinder, Loader):
    """Import hook that resolves an old module name to the module of the current name."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        is_package = fullname.removeprefix("jaxrl.") in _CURRENT_PACKAGES
        return None if is_package or find_new_name(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = find_new_name(spec.name)
        assert new is not None
        if not _is_package_of_rllib(spec.name.removeprefix("jaxrl.")):
            warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Restore the module's own spec, which the import system has replaced."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)


_CURRENT_PACKAGES = {new.rpartition(".")[0] for new in MOVED.values()}
"""Current packages, some of which share their name with a former module."""


RLLIB_PACKAGES = {
    *("agents", "env", "examples", "execution", "models", "tuned_examples", "utils"),
    *("algorithms.algorithm", "algorithms.algorithm_config", "algorithms.apex_dqn"),
    *("algorithms.apex_ddpg", "algorithms.a2c", "algorithms.a3c", "algorithms.callbacks"),
    *("algorithms.alpha_star", "algorithms.alpha_zero", "algorithms.ars", "algorithms.bandit"),
    *("algorithms.dreamer", "algorithms.dreamerv3", "algorithms.es", "algorithms.maml"),
    *("algorithms.leela_chess_zero", "algorithms.mbmpo", "algorithms.slateq"),
    *("algorithms.ddpg", "algorithms.ddppo", "algorithms.pg", "algorithms.r2d2"),
    *("algorithms.simple_q", "callbacks.callbacks", "connectors.connector_v2"),
    *("connectors.env_to_module", "connectors.learner", "connectors.module_to_env"),
    *("core.columns", "core.learner.learner", "core.learner.learner_group", "core.learner.torch"),
    *("core.models", "core.rl_module.default_model_config", "core.rl_module.multi_rl_module"),
    *("core.rl_module.rl_module", "core.rl_module.torch", "core.testing"),
    *("evaluation.episode", "evaluation.rollout_worker", "evaluation.worker_set"),
    *("policy.policy_map", "policy.sample_batch", "policy.tf_policy", "policy.torch_policy"),
    *("policy.view_requirement",),
}
"""Modules of RLlib, and packages with all of their modules, that are not modules here."""

OTHER_PACKAGES = {"common", "wrappers"}
"""Packages of Stable-Baselines3 and gymnax that are not modules here."""

RLLIB_PARENTS = {
    *("callbacks", "learners.learner", "modules.rl_module", "policy.policy"),
    *(f"algorithms.{name}" for name in ("ppo", "appo", "impala", "dqn", "sac", "tqc", "td3")),
}
"""Modules here that are packages in RLlib, as in `algorithms.ppo.ppo`."""


class _RLlibModule(ModuleType):
    """Module that stands in for one of RLlib, so that only the first word of an import changes."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        current = find_new_name(self.__name__)
        if current is not None and hasattr(found := importlib.import_module(current), name):
            return getattr(found, name)
        return _load_rllib_name(self.__name__, name)


def refuse_foreign_name(module: str, name: str) -> None:
    """Raise ImportError for a name that other libraries have; the message says what to write."""
    table = importlib.import_module("jaxrl.config.synonyms")  # by name: it is a higher layer
    if (advice := table.advise_on_import(name)) is not None:
        raise ImportError(f"{module} has no {name}: {advice}.")


def _load_rllib_name(module: str, name: str) -> object:
    """Return the counterpart of a name that RLlib has in a module.

    Raises:
        ImportError: If there is no counterpart; the message says what to write instead.
    """
    if module.split(".")[1] in OTHER_PACKAGES:
        refuse_foreign_name(module, name)
        raise ImportError(f"{module} has no {name}: what 'import jaxrl' has is in the reference.")
    table = importlib.import_module("jaxrl.config.rllib_modules")  # by name: it is a higher layer
    return table.load_counterpart(f"ray.rllib.{module.removeprefix('jaxrl.')}.{name}")


class _RLlibFinder(MetaPathFinder, Loader):
    """Import hook of RLlib's module paths, with `jaxrl` in place of `ray.rllib`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        below = fullname.removeprefix("jaxrl.")
        if below == fullname:
            return None
        if below in RLLIB_PARENTS:
            return _make_package(PathFinder.find_spec(fullname, path, target))
        parent, _, name = below.rpartition(".")
        is_file = parent in RLLIB_PARENTS and name.startswith(parent.rpartition(".")[2])
        if is_file or _is_elsewhere(below):
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _RLlibModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: names are looked up on first use."""


def _is_elsewhere(below: str) -> bool:
    """Return whether a module, or a package that it is in, is one of other libraries alone."""
    if below.partition(".")[0] in OTHER_PACKAGES:
        return True
    while below and below not in RLLIB_PACKAGES:
        below = below.rpartition(".")[0]
    return bool(below)


def _is_package_of_rllib(below: str) -> bool:
    """Return whether RLlib has a package of this name, so that it is no old name to warn of."""
    return any(name.startswith(f"{below}.") for name in RLLIB_PACKAGES)


class _ParentLoader(Loader):
    """Loader of a module here that is a package in RLlib and has more names there."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)

        def load(name: str) -> object:
            try:
                return _RLlibModule.__getattr__(module, name)  # pyright: ignore[reportArgumentType]
            except ImportError as error:
                raise AttributeError(str(error)) from error

        module.__dict__.setdefault("__getattr__", load)


def _make_package(spec: ModuleSpec | None) -> ModuleSpec | None:
    """Let Python look for modules inside of a module."""
    if spec is not None and spec.loader is not None:
        spec.loader = _ParentLoader(spec.loader)
        spec.submodule_search_locations = []
    return spec


def install_import_hook() -> None:
    """Install the import hooks for old module names and for those of RLlib."""
    for finder in (_OldNameFinder, _RLlibFinder):
        if not any(isinstance(installed, finder) for installed in sys.meta_path):
            sys.meta_path.insert(0, finder())
