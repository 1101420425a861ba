"""Old names of modules, under which scripts and checkpoints may still import them."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "benchmark": "bench",
    "checkpoint": "runs.checkpoint",
    "cli.environments": "cli.listing",
    "compute_actions": "policy.compute_actions",
    "config.actor_critic_groups": "config.settings.actor_critic",
    "config.arithmetic": "config.batch_plan.arithmetic",
    "config.async_groups": "config.settings.asynchronous",
    "config.checks": "config.fields",
    "config.divisors": "config.batch_plan.arithmetic",
    "config.groups": "config.settings.training",
    "config.legacy": "config.rllib_names",
    "config.nesting": "config.load",
    "config.plan": "config.batch_plan.on_policy",
    "config.replay_groups": "config.settings.replay",
    "config.replay_plan": "config.batch_plan.replay",
    "config.request": "config.batch_plan.request",
    "config.run_groups": "config.settings.run",
    "config.runner_groups": "config.settings.runners",
    "config.sequence_plan": "config.batch_plan.on_policy",
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
    "core.space_tree": "core.spaces",
    "core.summary": "modules.networks",
    "core.target": "learners.target_network",
    "core.unroll": "modules.unroll",
    "host_state": "runs.host_state",
    "lane_run": "sweeps.lane_run",
    "lane_trials": "sweeps.lane_trials",
    "loggers.messages": "loggers.python_log",
    "loggers.system": "loggers.python_log",
    "logging": "loggers",
    "logging.files": "runs.files",
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
"""Old and new names of modules and packages below `jaxrl`."""


PACKAGES = ("benchmark", "checkpoint", "logging")
"""The packages among them, whose other modules moved with them."""


def new_name(name: str) -> str | None:
    """Return the present name of a module by its old one; None for one that did not move."""
    old = name.removeprefix("jaxrl.")
    if old == name or old in MOVED.values():
        return None
    if old in MOVED:
        return f"jaxrl.{MOVED[old]}"
    package, _, module = old.partition(".")
    return f"jaxrl.{MOVED[package]}.{module}" if module and package in PACKAGES else None


class _OldNames(MetaPathFinder, Loader):
    """Import the module itself, once, whatever name it is imported by."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        is_room = fullname.removeprefix("jaxrl.") in _ROOMS
        return None if is_room or new_name(fullname) is None else ModuleSpec(fullname, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = new_name(spec.name)
        assert new is not None
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = importlib.import_module(new)
        self._specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own spec back, for which the import system has set another."""
        assert module.__spec__ is not None
        module.__spec__ = self._specs.pop(module.__spec__.name)


_ROOMS = {new.rpartition(".")[0] for new in MOVED.values()}
"""Packages of today, some of which are named as a module was."""


def find_by_old_names() -> None:
    """Let modules be imported by their old names from now on."""
    if not any(isinstance(finder, _OldNames) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OldNames())
