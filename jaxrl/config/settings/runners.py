"""Groups of settings for env runners, external simulators, learners and their resources."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from jaxrl.config.fields import Check, count, count_or_zero, field, non_negative, positive
from jaxrl.config.imports import ImportKind
from jaxrl.config.settings.training import Auto


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvRunnersSettings:
    """Env runners, which sample from environments."""

    num_env_runners: int = field(
        default=0,
        check=count_or_zero,
        doc="Number of Ray actors that step environments on CPUs; 0 steps them in this process, "
        "and JAX environments inside the compiled program.",
    )
    placement: Literal["auto", "in_graph", "host", "external"] = field(
        default="auto",
        doc="Where environments are stepped: 'in_graph' is inside the compiled program (JAX "
        "environments only), 'host' is from Python, 'external' is in simulators that connect to this "
        "run, see external(); 'auto' is in-graph for a JAX environment with num_env_runners=0.",
    )
    num_envs_per_env_runner: int | Auto | None = field(
        default=None,
        check=count,
        doc="Number of environments that each runner steps in parallel. None is the number "
        "nearest to 16, as the total of all runners, that divides the train batch; 'auto', in the "
        "compiled program only, is the fastest number in a short measurement on this machine, "
        "with the same updates.",
    )
    gym_env_vectorize_mode: Literal["auto", "sync", "async", "vector_entry_point"] = field(
        default="auto",
        doc="Vectorization of gymnasium environments: one after another ('sync'), each in a separate "
        "process ('async'), or by the environment's own vector class ('vector_entry_point'); 'auto' "
        "is the last for EnvPool and for ids that have nothing else, and 'sync' elsewhere. "
        "gymnasium.VectorizeMode is accepted.",
    )
    env_runner_cls: type[Any] | None = field(
        default=None,
        import_path=ImportKind(bases=("jaxrl.runners.env_runner:EnvRunner",)),
        doc="Subclass of jaxrl.runners.env_runner.EnvRunner to use for runners on the host.",
    )
    num_cpus_per_env_runner: float = field(
        default=1.0, check=non_negative, doc="Number of CPUs that Ray reserves for each runner."
    )
    custom_resources_per_env_runner: dict[str, float] = field(
        default={}, doc="Custom resources of the cluster that Ray reserves for each runner."
    )
    validate_env_runners_after_construction: bool = field(
        default=True,
        doc="Whether to wait until each runner has created its environments, so that a failed "
        "start is reported before training.",
    )
    sample_timeout_s: float = field(
        default=60.0,
        check=positive,
        doc="Timeout in seconds of a requested fragment, after which its runner counts as hung; "
        "it also applies to a step of a process of gym_env_vectorize_mode='async'. In this "
        "process, a timeout is only logged.",
    )
    max_requests_in_flight_per_env_runner: int = field(
        default=1,
        check=count,
        doc="Maximum number of outstanding fragment requests per runner.",
    )
    rollout_fragment_length: int | Auto = field(
        default="auto",
        check=count,
        doc="Number of steps of each environment per fragment; 'auto' is train_batch_size divided "
        "by the number of environments. On-policy, a train batch that is a multiple of one fragment "
        "of every environment consists of several, each a column of its own.",
    )
    batch_mode: Literal["truncate_episodes", "complete_episodes"] = field(
        default="truncate_episodes",
        doc="'truncate_episodes' makes fragments of a fixed number of steps; 'complete_episodes' "
        "makes fragments of whole episodes, in the compiled program those that fit into "
        "rollout_fragment_length, on-policy and of a single agent.",
    )
    episode_lookback_horizon: int = field(
        default=1,
        check=count_or_zero,
        doc="Number of steps before the current fragment that an episode in a callback contains.",
    )
    explore: bool = field(
        default=True, doc="Whether to sample actions; False takes the mode of the distribution."
    )
    observation_filter: Literal["NoFilter", "MeanStdFilter"] = field(
        default="NoFilter",
        doc="'MeanStdFilter' normalizes observations by their running mean and standard deviation.",
    )
    flatten_observations: bool = field(
        default=False,
        doc="Whether the module receives a Dict or Tuple observation as one vector, with integers "
        "one-hot, instead of as separate parts.",
    )
    normalize_rewards: bool = field(
        default=False,
        doc="Whether to divide rewards by the running standard deviation of the discounted return; "
        "reported returns are not divided. A replay buffer stores rewards as divided at sampling "
        "time, the first ones by an estimate from few returns, so clip_rewards or scaling in the "
        "environment is safer with replay. Recorded rewards are divided by that of all recorded rows, "
        "held-out ones by that of the held-out rows.",
    )
    env_to_module_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function that returns a connector, or a list of them, applied to observations before "
        "the default connectors; or a function of the default pipeline, which it modifies.",
    )
    module_to_env_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function that returns a connector, or a list of them, applied to actions before the "
        "default connectors; or a function of the default pipeline, which it modifies.",
    )
    add_default_connectors_to_env_to_module_pipeline: bool = field(
        default=True,
        doc="Whether to add the default connectors, which separate masks and flatten and filter "
        "observations; False leaves that to env_to_module_connector.",
    )
    add_default_connectors_to_module_to_env_pipeline: bool = field(
        default=True,
        doc="Whether to add the default connectors, which unsquash, clip and offset actions; "
        "False leaves that to module_to_env_connector, and the module acts in the environment's "
        "own space.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LearnersSettings:
    """Learners, which compute gradients and update the module."""

    num_learners: int = field(
        default=0,
        check=count_or_zero,
        doc="Number of learner processes under Ray that share each update; 0 trains in this "
        "process.",
    )
    num_cpus_per_learner: float | Auto = field(
        default="auto",
        check=non_negative,
        doc="Number of CPUs that Ray reserves for each learner; 'auto' is 1, or 0 with a GPU.",
    )
    num_gpus_per_learner: float = field(
        default=0.0, check=non_negative, doc="Number of GPUs that Ray reserves for each learner."
    )
    custom_resources_per_learner: dict[str, float] = field(
        default={}, doc="Custom resources of the cluster that Ray reserves for each learner."
    )
    num_devices: int | Auto = field(
        default="auto",
        check=count,
        doc="Number of local devices that share the environments and minibatches. 'auto' is the "
        "fastest number in a short measurement on this machine, or the previous number for a "
        "resumed run; explain() prints the number and the reason. Minibatches are the same for "
        "any number of devices.",
    )
    local_device_idx: int | None = field(
        default=None,
        check=count_or_zero,
        doc="Index of the single local device to use; None leaves the choice to num_devices.",
    )
    num_shards: int | Auto = field(
        default="auto",
        check=count,
        doc="Number of logical shards of the environments, a multiple of every number of devices "
        "and learners that the run may use; 'auto' is the largest of 8, 4, 2, 1 that divides the "
        "environments and the minibatch.",
    )
    learner_class: type[Any] | None = field(
        default=None,
        import_path=ImportKind(methods=("init", "update")),
        doc="Learner subclass, e.g. with a custom loss, that replaces the algorithm's.",
    )
    learner_connector: Callable[..., Any] | None = field(
        default=None,
        import_path=True,
        doc="Function that returns a LearnerConnector, or a list of them, applied to every "
        "rollout after rewards are clipped and normalized and before targets are computed; or a "
        "function of the default pipeline, which it modifies.",
    )
    add_default_connectors_to_learner_pipeline: bool = field(
        default=True,
        doc="Whether to add the default connectors, which clip and normalize rewards; False "
        "leaves that to learner_connector.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResourcesSettings:
    """Resources and placement of the run's processes under Ray."""

    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = field(
        default="PACK",
        doc="Whether Ray places the processes on few nodes (PACK) or many (SPREAD); the STRICT "
        "strategies fail if that is impossible.",
    )
    num_cpus_for_main_process: float = field(
        default=1.0,
        check=non_negative,
        doc="Number of CPUs that Ray Tune reserves for the main process of a trial.",
    )
    custom_resources_for_main_process: dict[str, float] = field(
        default={},
        doc="Custom resources of the cluster that Ray Tune reserves for the main process of a "
        "trial.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PythonEnvironmentSettings:
    """Environment variables of the run's processes."""

    extra_python_environs_for_driver: dict[str, str] = field(
        default={}, doc="Environment variables to set in this process when the Algorithm is built."
    )
    extra_python_environs_for_worker: dict[str, str] = field(
        default={}, doc="Environment variables to set in each runner's process before it starts."
    )


_port = Check("between 0 and 65535", lambda value: 0 <= value <= 65535)
_name = Check("a host name or address", lambda value: bool(value.strip()))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExternalSettings:
    """Server for simulators that step environments elsewhere, with placement='external'.

    `JAXRL_EXTERNAL_TOKEN` is the token that clients must have.
    """

    external_host: str = field(
        default="127.0.0.1",
        check=_name,
        doc="Address to listen on. One that other machines reach needs a token and TLS.",
    )
    external_port: int = field(
        default=9900, check=_port, doc="Port to listen on; 0 chooses a free one."
    )
    external_token_file: str | None = field(
        default=None,
        doc="File with the token that clients must have, readable by its owner alone; None takes "
        "the environment variable JAXRL_EXTERNAL_TOKEN. The token itself is written nowhere.",
    )
    external_certificate_file: str | None = field(
        default=None, doc="File of the server's TLS certificate, in PEM; None is without TLS."
    )
    external_private_key_file: str | None = field(
        default=None, doc="File of the certificate's private key, if it is not in the same file."
    )
    external_client_ca_file: str | None = field(
        default=None,
        doc="File of the authorities that signed the clients' TLS certificates; None asks clients "
        "for none.",
    )
    external_insecure: bool = field(
        default=False,
        doc="Whether to listen without TLS on an address that other machines reach, for networks "
        "that are trusted.",
    )
    max_clients: int = field(
        default=64, check=count, doc="Maximum number of clients that are connected at a time."
    )
    max_message_bytes: int | Auto = field(
        default="auto",
        check=count,
        doc="Maximum size in bytes of a message; 'auto' is what 10,000 steps need, at most 64 MiB.",
    )
    max_weights_lag: int | Auto | None = field(
        default="auto",
        check=count_or_zero,
        doc="Maximum number of versions that the weights of a step may be behind those that act "
        "now, beyond which it is discarded; None is any number. 'auto' is 1 for algorithms that "
        "learn from their own newest steps (PPO), and None for those that correct for older ones "
        "(IMPALA, APPO, replay).",
    )
    inference_window_s: float = field(
        default=0.001,
        check=non_negative,
        doc="Maximum number of seconds that a request for an action waits for others, with which it "
        "is computed. As many are expected as came together last time.",
    )
    resume_window_s: float = field(
        default=60.0,
        check=non_negative,
        doc="Seconds in which a client that lost its connection may return; then its open episodes "
        "are cut.",
    )
    idle_timeout_s: float = field(
        default=60.0,
        check=positive,
        doc="Seconds of silence after which a connection counts as lost; clients give a sign of "
        "life every 5 seconds.",
    )
