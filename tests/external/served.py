"""Runner groups that simulators connect to, without a learner, for tests of the server."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import jax
import numpy as np

from jaxrl import AlgorithmConfig, PPOConfig
from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.external import PolicyClient
from jaxrl.runners.external.group import ExternalEnvRunnerGroup, PartRecorder
from jaxrl.runners.fragment import Fragment, Weights
from jaxrl.runners.hooks import NoHooks

OBS = gymnasium.spaces.Box(-10.0, 10.0, (2,), np.float32)
ACTIONS = gymnasium.spaces.Discrete(3)
SMALL = {"fcnet_hiddens": [8], "head_fcnet_hiddens": []}


def make_config(cls: type[AlgorithmConfig] = PPOConfig, **training: Any) -> Any:
    training = {"train_batch_size": 32, "minibatch_size": 16, "num_epochs": 1, **training}
    if cls is not PPOConfig:
        training = {k: v for k, v in training.items() if k in cls()}
    return (
        cls()
        .environment(observation_space=OBS, action_space=ACTIONS)
        .env_runners(placement="external", num_envs_per_env_runner=2)
        .training(**training)
        .rl_module(model_config=SMALL)
        .external(external_port=0, resume_window_s=0.3)
        .debugging(seed=0)
    )


class Served:
    """Group with constant weights, whose batches a thread takes as a learner would."""

    def __init__(self, config: Any, assembly: Assembly | None = None) -> None:
        self.assembly = assembly or assemble(config)
        has_output = config.offline_data_settings.output is not None
        self.recorder = PartRecorder(config, self.assembly) if has_output else None
        self.group = ExternalEnvRunnerGroup(config, self.assembly, NoHooks(), self.recorder)
        step, plan = self.assembly.train_step, self.assembly.plan
        state = step.init_without_envs(jax.random.key(0), plan.total_envs)
        self.actor = jax.tree.map(np.asarray, step.make_actor_state(state))
        self.version = -1
        self.publish()
        self.fragments: list[Fragment] = []
        self.changed = threading.Condition()

    def publish(self) -> None:
        self.version += 1
        self.group.sync_weights(Weights(version=self.version, actor=self.actor))

    @property
    def ledger(self) -> Any:
        return self.group.inbox.ledger

    @property
    def sessions(self) -> Any:
        return self.group.server.ask(lambda sessions: sessions)

    def connect(self, address: str | None = None, **options: Any) -> PolicyClient:
        return PolicyClient(
            address or self.group.address,
            **{"timeout_s": 20.0, "inference_mode": "remote", **options},
        )

    def take(self) -> Fragment:
        """Take one train batch, of one fragment."""
        (fragment,) = self.group.next_batch()
        self.publish()
        return fragment

    def take_from(self, client: PolicyClient, num_episodes: int = 6) -> Fragment:
        """Take one train batch while a client plays `Walk`."""
        thread = threading.Thread(target=lambda: client.run(Walk(), num_episodes=num_episodes))
        thread.start()
        fragment = self.take()
        thread.join()
        return fragment

    @contextlib.contextmanager
    def learning(self) -> Iterator[None]:
        """Take batches in a thread."""
        stopped = threading.Event()

        def learn() -> None:
            while not stopped.is_set():
                if (fragment := self.group.inbox.take(0.05)) is not None:
                    self.fragments.append(fragment)
                    self.group.server.grant()
                    self.publish()

        thread = threading.Thread(target=learn)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()


def wait_for(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.01)


def serve(first: Served, **settings: Any) -> Served:
    """A server of its own, with settings of `external`; what is compiled is shared."""
    new = Served(make_config().external(**settings), first.assembly)
    new.group.acting.policies = first.group.acting.policies
    return new


class Network:
    """Way from simulators to a server, whose connections break and which may lead to another one."""

    def __init__(self, address: str) -> None:
        self._target: str | None = address
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def break_connections(self) -> None:
        """Break all connections; bytes on their way are lost."""
        for sock in list(self._sockets):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break all connections, and refuse others."""
        self._target = None
        self.break_connections()

    def restore(self, address: str) -> None:
        """Lead to a server again."""
        self._target = address

    def close(self) -> None:
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                try:
                    assert self._target is not None
                    host, port = self._target.split(":")
                    far = socket.create_connection((host, int(port)))
                except (AssertionError, OSError):
                    near.close()
                    continue
                self._sockets |= {near, far}
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._sockets.discard(source)
        source.close()


class Walk(gymnasium.Env[Any, Any]):
    """Episodes of a fixed length whose observations say their time step."""

    observation_space, action_space = OBS, ACTIONS

    def __init__(self, length: int = 6, *, terminates: bool = True) -> None:
        self.length, self.terminates, self.t = length, terminates, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.t += 1
        is_over = self.t == self.length
        obs = np.full(2, self.t, np.float32)
        return obs, 1.0, is_over and self.terminates, is_over and not self.terminates, {}
