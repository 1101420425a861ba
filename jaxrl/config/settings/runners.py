"""The groups of settings about who gathers experience and who learns from it, and on what."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import count, count_or_zero, field, non_negative, positive
from jaxrl.config.imports import Kind
from jaxrl.config.settings.training import Auto


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvRunners:
    """How experience is gathered."""

    num_env_runners: int = field(
        default=0,
        check=count_or_zero,
        doc="Ray actors on CPUs that step environments; 0 steps them here, a JAX environment "
        "inside the compiled program.",
    )
    placement: Literal["auto", "in_graph", "host"] = field(
        default="auto",
        doc="'in_graph' steps a JAX environment inside the compiled program, 'host' steps any "
        "environment from Python; 'auto' is in-graph where that can be: a JAX environment and "
        "num_env_runners=0.",
    )
    num_envs_per_env_runner: int | Auto | None = field(
        default=None,
        check=count,
        doc="Environments stepped side by side by each runner; None takes the number nearest to 16 "
        "for all runners together that divides the train batch, and 'auto', in the compiled program, "
        "the number that a short trial on this machine measures as fastest, with the same updates.",
    )
    gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] = field(
        default="sync",
        doc="How a runner steps its gymnasium environments: one after another, each in a process "
        "of its own, or by the environment's own vector class. gymnasium.VectorizeMode is "
        "understood.",
    )
    env_runner_cls: type[Any] | None = field(
        default=None,
        import_path=Kind(bases=("jaxrl.runners.env_runner:EnvRunner",)),
        doc="A subclass of jaxrl.runners.env_runner.EnvRunner that runners on the host are of.",
    )
    num_cpus_per_env_runner: float = field(
        default=1.0, check=non_negative, doc="CPUs that Ray reserves for each runner."
    )
    custom_resources_per_env_runner: dict[str, float] = field(
        default={}, doc="Resources of the cluster's own that Ray reserves for each runner."
    )
    validate_env_runners_after_construction: bool = field(
        default=True,
        doc="Waits until each runner has its environments, so that one that cannot start is told "
        "of before training.",
    )
    sample_timeout_s: float = field(
        default=60.0,
        check=positive,
        doc="Seconds after which a runner that owes a fragment counts as hung, and so does a process of "
        "gym_env_vectorize_mode='async' that owes a step; in this process the log tells of it.",
    )
    max_requests_in_flight_per_env_runner: int = field(
        default=1,
        check=count,
        doc="Fragments that may be asked of a runner before the first of them has arrived.",
    )
    rollout_fragment_length: int | Auto = field(
        default="auto",
        check=count,
        doc="Steps of each environment per train batch; 'auto' is train_batch_size divided by the "
        "number of environments.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = field(
        default="truncate_episodes",
        doc="'truncate_episodes' cuts fragments by steps; 'complete_episodes', on the host only, "
        "never cuts an episode.",
    )
    episode_lookback_horizon: int = field(
        default=1,
        check=count_or_zero,
        doc="Steps before its fragment that the part of an episode in a callback can look back to.",
    )
    explore: bool = field(
        default=True, doc="Actions are sampled; False takes the distribution's mode."
    )
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = field(
        default="NoFilter",
        doc="'MeanStdFilter' normalises observations by their running mean and deviation.",
    )
    flatten_observations: bool = field(
        default=False,
        doc="A Dict or Tuple reaches the module as one vector, with integers one-hot, instead of "
        "part by part.",
    )
    normalize_rewards: bool = field(
        default=False,
        doc="Divides rewards by the running deviation of the discounted return; reported returns "
        "stay as they are. A replay buffer keeps rewards as they were divided when they were sampled, "
        "the first ones by a deviation of few returns: with replay, clip_rewards or a scale of the "
        "environment's own is the safer choice.",
    )
    env_to_module_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function that returns a connector, or a list of them, applied to observations "
        "before the default ones; or a function of the pipeline of default connectors, which it "
        "edits.",
    )
    module_to_env_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function that returns a connector, or a list of them, applied to actions before "
        "the default ones; or a function of the pipeline of default connectors, which it edits.",
    )
    add_default_connectors_to_env_to_module_pipeline: bool = field(
        default=True,
        doc="Whether masks are separated, observations flattened and filtered; False leaves that "
        "to env_to_module_connector.",
    )
    add_default_connectors_to_module_to_env_pipeline: bool = field(
        default=True,
        doc="Whether actions are unsquashed, clipped and offset; False leaves that to "
        "module_to_env_connector, and the module acts in the environment's own space.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Learners:
    """Where gradients are computed."""

    num_learners: int = field(
        default=0,
        check=count_or_zero,
        doc="Learner processes under Ray that share each update; 0 learns in this process.",
    )
    num_cpus_per_learner: float | Auto = field(
        default="auto",
        check=non_negative,
        doc="CPUs that Ray reserves for each learner; 'auto' is 1, or 0 where it has a GPU.",
    )
    num_gpus_per_learner: float = field(
        default=0.0, check=non_negative, doc="GPUs that Ray reserves for each learner."
    )
    custom_resources_per_learner: dict[str, float] = field(
        default={}, doc="Resources of the cluster's own that Ray reserves for each learner."
    )
    num_devices: int | Auto = field(
        default="auto",
        check=count,
        doc="Local devices that share the environments and minibatches. 'auto' is what was faster on "
        "this machine in a short trial, and what the run had before where it goes on; explain() "
        "says what and why. Any number of devices gives the same minibatches.",
    )
    local_device_idx: int | None = field(
        default=None,
        check=count_or_zero,
        doc="The one local device to use, by its index; None leaves the choice to num_devices.",
    )
    num_shards: int | Auto = field(
        default="auto",
        check=count,
        doc="Logical shards of the environments, a multiple of every number of devices and "
        "learners the run shall ever use; 'auto' is the largest of 8, 4, 2, 1 that divides the "
        "environments and the minibatch.",
    )
    learner_class: type[Any] | None = field(
        default=None,
        import_path=Kind(methods=("init", "update")),
        doc="A Learner subclass with a custom loss.",
    )
    learner_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="A function that returns a LearnerConnector, or a list of them, applied to every "
        "rollout after the clipping and normalisation of rewards and before the targets; or a "
        "function of the pipeline of these, which it edits.",
    )
    add_default_connectors_to_learner_pipeline: bool = field(
        default=True,
        doc="Whether rewards are clipped and normalised as set; False leaves that to "
        "learner_connector.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resources:
    """How Ray places the run's processes."""

    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = field(
        default="PACK",
        doc="Whether Ray puts the processes onto few nodes or many; the STRICT ones fail rather "
        "than compromise.",
    )
    num_cpus_for_main_process: float = field(
        default=1.0, check=non_negative, doc="CPUs that a trial of Ray Tune reserves for itself."
    )
    custom_resources_for_main_process: dict[str, float] = field(
        default={}, doc="Resources of the cluster's own that a trial reserves for itself."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PythonEnvironment:
    """Environment variables of the run's processes."""

    extra_python_environs_for_driver: dict[str, str] = field(
        default={}, doc="Set in this process when the Algorithm is built."
    )
    extra_python_environs_for_worker: dict[str, str] = field(
        default={}, doc="Set in each runner's process before it starts."
    )
