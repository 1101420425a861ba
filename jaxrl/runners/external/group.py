"""Runner group whose environments are in simulators that connect to the run."""

import dataclasses
import logging
import os
import ssl
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jaxrl.assembly.assemble import Assembly
from jaxrl.config.placement import NOT_EXTERNAL_SETTINGS
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.config.settings.runners import ExternalSettings
from jaxrl.core.types import PyTree
from jaxrl.episodes.packing import EpisodePart
from jaxrl.errors import ConfigError, EnvRunnerError
from jaxrl.external.client import TOKEN_VARIABLE
from jaxrl.metrics import EMPTY_EPISODE_METRICS
from jaxrl.runners.external.acting import ActingThread, PolicyExporter
from jaxrl.runners.external.schema import Schema
from jaxrl.runners.external.server import ExternalServer, ServerOptions
from jaxrl.runners.external.sessions import EndedStats, Inbox, Sessions
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.protocols import FormerGroupNames
from jaxrl.runners.recording import Recorder
from jaxrl.runtime.program import Program

if TYPE_CHECKING:
    from jaxrl.config.config import Config

logger = logging.getLogger("jaxrl")
_POLL_S = 0.2
REPORT_INTERVAL_S = 10.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class PartRecorder(Recorder):
    """Recorder of the parts of episodes that simulators send for training, each once.

    They are recorded when they are received, whether they are trained on or too old for it. A
    simulator that has gone on cannot send them again, so they stay recorded when a run goes back to
    a checkpoint. See `Recorder`.
    """

    def add_parts(self, parts: Sequence[EpisodePart]) -> None:
        """Add parts of episodes, those of one episode in order of time.

        Raises:
            DataError: If the folder cannot be written.
        """
        self._put({"": (parts,)})

    def add_fragments(self, fragments: Sequence[Fragment]) -> None:
        """Do nothing: fragments are packed from parts, which are recorded."""

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Do nothing: recorded parts stay."""

    def leave_episodes(self) -> None:
        """Do nothing: the episodes are the simulators'."""

    def _has_density(self, assembly: Assembly) -> bool:
        """Return False where simulators may choose actions themselves, by whatever probability."""
        may_log = isinstance(self._config.training_settings, OffPolicyTraining)
        return super()._has_density(assembly) and not may_log

    def _make_blank_part(self, assembly: Assembly) -> None:
        """Return None: simulators say which columns their parts have."""

    def _make_converter(self, run: str, module: str) -> "_Renaming":
        del module
        return _Renaming(run)


class _Renaming:
    """Parts as they are, with the name of the run in the ids of episodes, and without a memory.

    Args:
        run: Name of the run, which no earlier one in the folder has.
    """

    def __init__(self, run: str) -> None:
        self._run = run

    def add(self, parts: Sequence[EpisodePart]) -> list[EpisodePart]:
        return [
            dataclasses.replace(part, episode_id=f"{self._run}-{part.episode_id}", carry=None)
            for part in parts
        ]

    def leave_episodes(self) -> list[EpisodePart]:
        return []

    def flush(self) -> list[EpisodePart]:
        return []

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        del state


class ExternalEnvRunnerGroup(FormerGroupNames):
    """Runner group that receives what simulators record, and acts for them.

    Args:
        config: Config of the run.
        assembly: Assembled run, which provides the spaces and the policy.
        hooks: Callbacks, none of which may be for episodes.
        recorder: Recorder of what simulators send; None if nothing is recorded.

    Raises:
        ConfigError: If the address, the token or TLS cannot be used.
    """

    is_compiled: ClassVar[bool] = False

    def __init__(
        self,
        config: "Config",
        assembly: Assembly,
        hooks: RunnerHooks,
        recorder: PartRecorder | None = None,
    ) -> None:
        _check_hooks(hooks)
        self._recorder = recorder
        plan, settings = config.plan(), config.external_settings
        self._fragments_per_batch = plan.fragments_per_batch
        self._sample_timeout_s = config.env_runners_settings.sample_timeout_s
        self.task: PyTree = None
        train_step = assembly.train_step
        self.schema = Schema.from_run(
            assembly.policy_step,
            lambda key: train_step.make_actor_state(
                train_step.init_without_envs(key, plan.total_envs)
            ),
            assembly.made.spaces,
            settings.max_message_bytes,
        )
        options = make_server_options(settings)
        max_lag = resolve_max_lag(config)
        queue_size = config.training_settings.learner_queue_size if config.is_async else None
        batch = plan.rollout_fragment_length * plan.envs_per_runner * plan.fragments_per_batch
        self.inbox = Inbox(
            plan.rollout_fragment_length,
            plan.envs_per_runner,
            batch * _count_queued_batches(max_lag, queue_size),
            max_lag,
            self.schema.make_blank_carry,
            keeps_received=recorder is not None,
        )
        debugging = config.debugging_settings
        evaluated = config.get_evaluation_config_object() or config
        why_no_own = _explain_no_own_actions(
            config.algo_name,
            replays=isinstance(config.training_settings, OffPolicyTraining),
            has_state=self.schema.has_state,
        )
        explores = {
            True: config.env_runners_settings.explore,
            False: evaluated.env_runners_settings.explore,
        }
        sessions = Sessions(
            self.schema,
            self.inbox,
            may_log=why_no_own is None,
            explores=explores,
        )
        self.acting = ActingThread(
            self.schema,
            plan.total_envs,
            seed=debugging.run_seed,
            window_s=settings.inference_window_s,
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
        )
        try:
            self.server = ExternalServer(
                options,
                self.schema,
                sessions,
                self.inbox,
                self.acting,
                PolicyExporter(assembly.policy_step),
                {
                    "explore": {"training": explores[True], "evaluation": explores[False]},
                    "max_weights_lag": max_lag,
                    "why_no_own_actions": why_no_own,
                    "part_length": min(plan.rollout_fragment_length, self.schema.max_part_length),
                },
            )
        except BaseException:
            self.acting.stop()
            raise
        self.address = f"{settings.external_host}:{self.server.port}"
        self.notes = [f"Simulators connect to {self.address}."]
        self._waited_s = 0.0

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of acting."""
        return self.acting.programs

    def sync_weights(self, weights: Weights) -> None:
        self.inbox.set_version(weights.version)
        self.acting.set_weights(weights)
        self.server.publish(weights.version)

    def set_task(self, task: PyTree) -> None:
        """Keep the task; the simulators have the environments."""
        self.task = task

    def next_batch(self) -> list[Fragment]:
        begin = time.perf_counter()
        fragments = [self._take() for _ in range(self._fragments_per_batch)]
        self._waited_s += time.perf_counter() - begin
        self._record()
        return fragments

    def _record(self) -> None:
        if self._recorder is not None and (parts := self.inbox.pop_received()):
            self._recorder.add_parts(parts)

    def _take(self) -> Fragment:
        """Wait for the next fragment.

        Raises:
            EnvRunnerError: If all clients have been gone for `sample_timeout_s`.
        """
        reported = gone_since = time.monotonic()
        while (fragment := self.inbox.take(_POLL_S)) is None:
            self.server.grant()  # discarded steps have made room
            had_clients, connected = self.server.ask(_count_clients)
            now = time.monotonic()
            gone_since = now if connected or not had_clients else gone_since
            if now - gone_since > self._sample_timeout_s:
                raise EnvRunnerError(
                    f"No simulator has been connected to {self.address} for sample_timeout_s="
                    f"{self._sample_timeout_s:g} s: start one, and resume the run, or set a longer "
                    "time."
                )
            if now - reported > REPORT_INTERVAL_S:
                reported = now
                logger.warning(
                    "Waiting for steps of simulators, which connect to %s (connected: %d).",
                    self.address,
                    connected,
                )
        self.server.grant()
        return fragment

    def get_metrics(self) -> dict[str, Any]:
        """Return counts of clients and steps, and the evaluation episodes since the last call."""
        waited, self._waited_s = self._waited_s, 0.0
        clients: dict[str, Any] = self.server.ask(_describe_sessions)
        staleness = self.inbox.pop_staleness()
        runners: dict[str, Any] = {"external_wait_s": waited, "num_clients": clients["connected"]}
        if staleness:
            runners["staleness_mean"] = sum(staleness) / len(staleness)
            runners["staleness_max"] = max(staleness)
        metrics: dict[str, Any] = {
            "env_runners": runners,
            "fault_tolerance": {
                **self.inbox.ledger.get_metrics(),
                "num_parts_refused": clients["num_refused"],
                "refusals": clients["refusals"],
            },
        }
        if clients["evaluated"]:
            played = _summarize_episodes(clients["evaluated"])
            metrics["evaluation"] = {"env_runners": played}
        return metrics

    def get_state(self) -> PyTree:
        """Return None: the simulators have the environments."""
        return None

    def set_state(self, state: PyTree) -> None:
        """Do nothing: the simulators have the environments."""

    def get_counts(self) -> dict[str, Any]:
        self._record()
        return self.inbox.get_counts()

    def set_counts(self, counts: dict[str, Any]) -> None:
        self.inbox.set_counts(counts)

    def foreach_env_runner(
        self,
        func: Callable[[Any], Any] | str,
        *,
        kwargs: dict[str, Any] | None = None,
        local_env_runner: bool = True,
    ) -> list[Any]:
        """Return an empty list: there are no runners in reach of this process."""
        return []

    def foreach_env_runner_with_index(
        self, func: Callable[[int, Any], Any]
    ) -> list[tuple[int, Any]]:
        """Return an empty list, as `foreach_env_runner`."""
        return []

    def stop(self) -> None:
        self.server.stop()
        self.acting.stop()
        self._record()


def _count_clients(sessions: Sessions) -> tuple[bool, int]:
    return sessions.had_clients, sessions.num_connected


def _describe_sessions(sessions: Sessions) -> dict[str, Any]:
    evaluated, sessions.evaluated = sessions.evaluated, []
    return {
        "connected": sessions.num_connected,
        "evaluated": evaluated,
        "num_refused": sessions.num_refused,
        "refusals": list(sessions.latest_refusals),
    }


def _summarize_episodes(episodes: list[EndedStats]) -> dict[str, Any]:
    returns = np.asarray([episode.episode_return for episode in episodes])
    lengths = np.asarray([episode.length for episode in episodes])
    return {
        **EMPTY_EPISODE_METRICS,
        "num_episodes": len(episodes),
        "num_env_steps_sampled": int(lengths.sum()),
        "episode_return_mean": float(returns.mean()),
        "episode_return_min": float(returns.min()),
        "episode_return_max": float(returns.max()),
        "episode_len_mean": float(lengths.mean()),
        "episode_len_min": int(lengths.min()),
        "episode_len_max": int(lengths.max()),
    }


def _check_hooks(hooks: RunnerHooks) -> None:
    for name, reason in NOT_EXTERNAL_SETTINGS.items():
        if name.startswith("on_") and hooks.has_listeners(name):
            raise ConfigError(
                f"The callback {name} is never called with placement='external': {reason}."
            )


def resolve_max_lag(config: "Config") -> int | None:
    """Return the number of versions that steps may be behind; None for any."""
    setting = config.external_settings.max_weights_lag
    if setting != "auto":
        return setting
    replays = isinstance(config.training_settings, OffPolicyTraining)
    return None if config.is_async or replays else 1


def _count_queued_batches(max_lag: int | None, queue_size: int | None) -> int:
    """Return the number of train batches that may wait, including the one being filled.

    More than `max_lag` of them would be too old before they are trained on. `queue_size` is None
    if there is no queue in front of the learner.
    """
    if queue_size is not None:
        return 1 + queue_size
    return 2 if max_lag is None else max(1, max_lag)


def _explain_no_own_actions(algo_name: str, *, replays: bool, has_state: bool) -> str | None:
    if not replays:
        return (
            f"{algo_name} needs the probability that the policy gave to the action; an "
            "algorithm with replay, such as DQN or SAC, does not"
        )
    if has_state:
        return "its policy has a memory, whose state each action changes"
    return None


def make_server_options(settings: ExternalSettings) -> ServerOptions:
    """Return the options of the server, with its token and its TLS context.

    Raises:
        ConfigError: If others could connect, or read what is sent, without being meant to.
    """
    token, context = _read_token(settings), _make_ssl_context(settings)
    is_local = settings.external_host in _LOOPBACK
    if not is_local and not token:
        raise ConfigError(
            f"external_host={settings.external_host!r} is reached by other machines and needs a "
            f"token: set {TOKEN_VARIABLE} or external_token_file, or listen on 127.0.0.1."
        )
    if not is_local and context is None and not settings.external_insecure:
        raise ConfigError(
            f"external_host={settings.external_host!r} is reached by other machines and needs TLS: "
            "set external_certificate_file, or external_insecure=True in a network that you trust."
        )
    return ServerOptions(
        host=settings.external_host,
        port=settings.external_port,
        token=token,
        ssl_context=context,
        max_clients=settings.max_clients,
        resume_window_s=settings.resume_window_s,
        idle_timeout_s=settings.idle_timeout_s,
    )


def _read_token(settings: ExternalSettings) -> str:
    path = settings.external_token_file
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        token = Path(path).read_text().strip()
    except OSError as error:
        raise ConfigError(f"external_token_file={path!r} cannot be read: {error}.") from error
    if mode & 0o077:
        raise ConfigError(
            f"external_token_file={path!r} may be read by others (mode {mode:o}): chmod 600 it."
        )
    if not token:
        raise ConfigError(f"external_token_file={path!r} is empty: write the token into it.")
    return token


def _make_ssl_context(settings: ExternalSettings) -> ssl.SSLContext | None:
    certificate, key = settings.external_certificate_file, settings.external_private_key_file
    authorities = settings.external_client_ca_file
    if certificate is None:
        for name in ("external_private_key_file", "external_client_ca_file"):
            if (value := getattr(settings, name)) is not None:
                raise ConfigError(f"{name}={value!r} needs external_certificate_file as well.")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
        if authorities is not None:
            context.load_verify_locations(authorities)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"external_certificate_file={certificate!r} cannot be used for TLS: {error}."
        ) from error
    return context
