"""Every algorithm trains on what simulators send, with exact accounts; learning runs are slow."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl import Algorithm, APPOConfig, DQNConfig, IMPALAConfig, PPOConfig, SACConfig, TD3Config
from jaxrl.errors import ConfigError, EnvRunnerError
from jaxrl.external import PolicyClient
from jaxrl.runners.external.group import ExternalEnvRunnerGroup
from tests.external.served import OBS, SMALL, Walk, make_config

BOX = gymnasium.spaces.Box(-2.0, 2.0, (1,), np.float32)


@contextlib.contextmanager
def playing(
    algorithm: Algorithm, make_env: Any, num_clients: int = 1, mode: str = "remote"
) -> Iterator[list[float]]:
    """Simulators in threads, until the run is stopped."""
    returns: list[float] = []

    def play() -> None:
        with PolicyClient(algorithm.env_runner_group.address, mode) as client:
            returns.extend(client.run(make_env()))

    threads = [threading.Thread(target=play) for _ in range(num_clients)]
    for thread in threads:
        thread.start()
    try:
        yield returns
    finally:
        algorithm.stop()
        for thread in threads:
            thread.join()


class Box(Walk):
    action_space = BOX


class Masked(Walk):
    """Task with one legal action of three, which the observation names."""

    observation_space = gymnasium.spaces.Dict(
        {
            "observations": OBS,
            "action_mask": gymnasium.spaces.Box(0, 1, (3,), np.int8),
        }
    )

    def reset(self, **options: Any) -> Any:
        obs, info = super().reset(**options)
        return self.add_mask(obs), info

    def step(self, action: Any) -> Any:
        assert action == self.t % 3
        obs, *others = super().step(action)
        return (self.add_mask(obs), *others)

    def add_mask(self, obs: Any) -> dict[str, Any]:
        return {"observations": obs, "action_mask": np.eye(3, dtype=np.int8)[self.t % 3]}


def make_run(cls: Any, env: Any, /, **changes: Any) -> Any:
    config = make_config(PPOConfig if cls is PPOConfig else cls)
    config.environment(observation_space=env.observation_space, action_space=env.action_space)
    if cls in (DQNConfig, SACConfig, TD3Config):
        config.training(
            train_batch_size=16,
            num_steps_sampled_before_learning_starts=16,
            replay_buffer_config={"capacity": 512},
        ).env_runners(rollout_fragment_length=8)
        config.reporting(min_sample_timesteps_per_iteration=32)
    elif cls is not PPOConfig:
        config.training(train_batch_size=32)
    return config.update_from_dict(changes)


LSTM = {"model_config": {**SMALL, "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 8}}
CASES = {
    "PPO": (PPOConfig, Walk, {}),
    "PPO, local": (PPOConfig, Walk, {}),
    "DQN, local": (DQNConfig, Walk, {}),
    "SAC, local": (SACConfig, Box, {}),
    "PPO, masks, local": (PPOConfig, Masked, {}),
    "PPO, truncated": (PPOConfig, lambda: Walk(9, terminates=False), {}),
    "PPO, masks": (PPOConfig, Masked, {}),
    "PPO, LSTM": (PPOConfig, Walk, LSTM),
    "PPO, Box and filter": (PPOConfig, Box, {"observation_filter": "MeanStdFilter"}),
    "PPO, two fragments": (PPOConfig, Walk, {"rollout_fragment_length": 8}),
    "IMPALA": (IMPALAConfig, Walk, {}),
    "APPO": (APPOConfig, Walk, {}),
    "DQN": (DQNConfig, Walk, {}),
    "DQN, LSTM": (DQNConfig, Walk, LSTM),
    "SAC": (SACConfig, Box, {}),
    "TD3": (TD3Config, Box, {}),
}


@pytest.mark.representatives("PPO, LSTM", "PPO, local")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=() if name in ("PPO, LSTM", "DQN", "PPO, local") else pytest.mark.slow
        )
        for name in CASES
    ],
)
def test_trains_with_exact_accounts(name: str) -> None:
    cls, env, changes = CASES[name]
    algorithm = make_run(cls, env(), **changes).build()
    mode = "local" if "local" in name else "remote"
    with playing(algorithm, env, 2, mode) as returns:
        results = [algorithm.train() for _ in range(2)]
        group, last = algorithm.env_runner_group, results[-1]
        counts = last["fault_tolerance"]
        sampled = last["env_runners"]["num_env_steps_sampled_lifetime"]
        assert counts["num_env_steps_trained_lifetime"] == sampled
        assert counts["num_parts_refused"] == 0, counts["refusals"]
        assert counts["num_env_steps_received_lifetime"] == (
            sampled
            + counts["num_env_steps_queued"]
            + sum(counts["num_env_steps_discarded_lifetime"].values())
        )
        assert last["env_runners"]["num_clients"] == 2
        assert all(np.isfinite(float(x)) for x in last["learners"]["default_policy"].values())
        assert group.address in algorithm.explain()
    length = env().length
    assert last["env_runners"]["episode_return_mean"] == length
    assert set(returns) == {float(length)}


@pytest.mark.slow
def test_terminations_reach_the_critic_and_cuts_do_not() -> None:
    """One step episodes of reward 1: terminated they are worth 1, truncated 1 / (1 - gamma)."""
    values = {}
    for terminates in (True, False):
        config = make_run(PPOConfig, Walk()).training(
            gamma=0.5, lr=0.03, num_epochs=8, use_kl_loss=False, vf_clip_param=1e6, lambda_=0.95
        )
        algorithm = config.build()
        with playing(algorithm, lambda t=terminates: Still(t)):
            for _ in range(25):
                algorithm.train()
            values[terminates] = compute_value(algorithm)
    assert values[True] == pytest.approx(1.0, abs=0.1)
    assert values[False] == pytest.approx(2.0, abs=0.2)


class Still(Walk):
    """Episodes of one step with the same observation everywhere."""

    def __init__(self, terminates: bool) -> None:
        super().__init__(1, terminates=terminates)

    def step(self, action: Any) -> Any:
        _, *others = super().step(action)
        return (np.zeros(2, np.float32), *others)


def compute_value(algorithm: Algorithm) -> float:
    module = algorithm._assembly.module
    params = algorithm.state.learner.sgd.params
    return float(module.compute_values(params, np.zeros((1, 2), np.float32))[0])


def test_evaluation_episodes_are_in_results() -> None:
    algorithm = make_run(PPOConfig, Walk()).build()
    with (
        playing(algorithm, Walk),
        PolicyClient(algorithm.env_runner_group.address, "remote") as client,
    ):
        algorithm.train()  # from then on, there are weights to act with
        client.run(Walk(3), num_episodes=4, training_enabled=False)
        result = algorithm.train()
    assert result["evaluation"]["env_runners"]["episode_return_mean"] == 3.0
    assert result["evaluation"]["env_runners"]["num_episodes"] == 4
    assert result["env_runners"]["episode_return_mean"] == 6.0


@pytest.mark.slow
def test_evaluates_in_an_environment_of_its_own() -> None:
    env = gymnasium.make("CartPole-v1")
    config = make_run(PPOConfig, env).evaluation(
        evaluation_interval=1,
        evaluation_duration=2,
        evaluation_config={"env": "gymnasium:CartPole-v1"},
    )
    algorithm = config.build()
    with playing(algorithm, lambda: gymnasium.make("CartPole-v1")):
        result = algorithm.train()
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2


def test_own_actions_reach_an_algorithm_with_replay() -> None:
    algorithm = make_run(SACConfig, Box(), seed=0).build()
    group = algorithm.env_runner_group
    with PolicyClient(group.address, "remote") as client:
        name = client.start_episode()
        for t in range(4):
            client.log_action(name, np.full(2, t, np.float32), np.full(1, t - 2.0, np.float32))
            client.log_returns(name, 1.0)
        client.end_episode(name, np.zeros(2), truncated=True)
    (part,) = group.inbox.parts
    np.testing.assert_allclose(part.action[:, 0], [-1.0, -0.5, 0.0, 0.5])  # of [-2, 2] to [-1, 1]
    algorithm.stop()


def test_checkpoint_keeps_the_accounts(tmp_path: Any) -> None:
    algorithm = make_run(PPOConfig, Walk()).build()
    with playing(algorithm, Walk):
        algorithm.train()
        path = algorithm.save(tmp_path)
        before = algorithm.env_runner_group.get_counts()["ledger"]
    restored = Algorithm.from_checkpoint(path)
    with playing(restored, Walk):
        counts = restored.train()["fault_tolerance"]
    assert counts["num_env_steps_trained_lifetime"] == before["trained"] + 32
    lost = counts["num_env_steps_discarded_lifetime"].get("not_in_checkpoint", 0)
    assert lost >= 0
    assert counts["num_env_steps_received_lifetime"] >= before["trained"] + 32


@pytest.mark.timeout(60)
def test_a_single_simulator_does_not_wait_for_others() -> None:
    algorithm = make_run(PPOConfig, Walk(), inference_window_s=30.0).build()
    with playing(algorithm, Walk):
        assert algorithm.train()["fault_tolerance"]["num_env_steps_trained_lifetime"] == 32


def test_threads_that_ask_for_the_address_of_a_restored_run_get_the_same(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = make_run(PPOConfig, Walk()).build()
    path = algorithm.save(tmp_path)
    algorithm.stop()
    made, make = [], ExternalEnvRunnerGroup.__init__

    def make_slowly(self: Any, *arguments: Any) -> None:
        made.append(self)
        time.sleep(0.2)
        make(self, *arguments)

    monkeypatch.setattr(ExternalEnvRunnerGroup, "__init__", make_slowly)
    restored = Algorithm.from_checkpoint(path)
    with ThreadPoolExecutor(4) as pool:
        addresses = list(pool.map(lambda _: restored.env_runner_group.address, range(4)))
    restored.stop()
    assert len(made) == len(set(addresses)) == 1


def test_run_whose_simulators_are_gone_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("jaxrl.runners.external.group.REPORT_INTERVAL_S", 0.0)
    algorithm = make_run(PPOConfig, Walk(), sample_timeout_s=0.5).build()
    with PolicyClient(algorithm.env_runner_group.address, "remote") as client:
        assert client.weights_version == 0
    with pytest.raises(EnvRunnerError, match=r"No simulator has been connected .*=0\.5 s"):
        algorithm.train()
    assert f"connect to {algorithm.env_runner_group.address} (connected: 0)" in caplog.text
    algorithm.stop()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": "CartPole-v1"}, "'env' .* no effect with placement='external'"),
        ({"observation_space": None}, "needs observation_space"),
        ({"num_env_runners": 2}, "simulators take the place of actors"),
        ({"batch_mode": "complete_episodes"}, "fixed length"),
        ({"evaluation_interval": 1}, "training_enabled=False"),
        ({"max_episode_steps": 10}, "with truncated=True"),
        ({"external_host": "0.0.0.0"}, "needs a token"),
        ({"external_port": 70000}, "external_port must be between 0 and 65535"),
        ({"external_token_file": "nothing_here"}, "cannot be read"),
        ({"external_private_key_file": "key"}, "needs external_certificate_file"),
        ({"external_certificate_file": "nothing_here"}, "cannot be used for TLS"),
        ({"max_message_bytes": 10}, "cannot hold one step"),
        ({"on_episode_step": print}, "'on_episode_step' .* no effect"),
    ],
)
def test_bad_settings_are_refused_before_compiling(changes: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_run(PPOConfig, Walk(), **changes).build()


def test_settings_without_simulators_are_noted() -> None:
    config = PPOConfig().environment("CartPole-v1").external(external_port=1234)
    assert "external_port=1234 needs simulators that connect" in config.explain() + str(
        config.build().explain()
    )


def test_address_in_use_has_one_sentence() -> None:
    first = make_run(PPOConfig, Walk()).build()
    port = first.env_runner_group.server.port
    with pytest.raises(ConfigError, match="cannot be listened on"):
        make_run(PPOConfig, Walk(), external_port=port).build()
    first.stop()


@pytest.mark.slow
@pytest.mark.parametrize("num_clients", [1, 4])
def test_ppo_learns_cartpole(num_clients: int) -> None:
    env = gymnasium.make("CartPole-v1")
    config = (
        PPOConfig()
        .environment(observation_space=env.observation_space, action_space=env.action_space)
        .env_runners(placement="external", num_envs_per_env_runner=4)
        .training(train_batch_size=1024, minibatch_size=128, num_epochs=10, lr=1e-3)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .external(external_port=0)
        .debugging(seed=0)
    )
    algorithm = config.build()
    with playing(algorithm, lambda: gymnasium.make("CartPole-v1"), num_clients):
        best = 0.0
        for _ in range(60):
            best = max(best, algorithm.train()["env_runners"]["episode_return_mean"])
            if best > 150:
                break
    assert best > 150


@pytest.mark.slow
def test_sac_learns_pendulum() -> None:
    env = gymnasium.make("Pendulum-v1")
    config = (
        SACConfig()
        .environment(observation_space=env.observation_space, action_space=env.action_space)
        .env_runners(placement="external", num_envs_per_env_runner=1)
        .training(initial_alpha=1.0, num_steps_sampled_before_learning_starts=500)
        .rl_module(model_config={"fcnet_hiddens": [64, 64]})
        .external(external_port=0)
        .reporting(min_sample_timesteps_per_iteration=500, metrics_num_episodes_for_smoothing=10)
        .debugging(seed=0)
    )
    algorithm = config.build()
    with playing(algorithm, lambda: gymnasium.make("Pendulum-v1")):
        best = -np.inf
        for _ in range(24):
            result = algorithm.train()["env_runners"]["episode_return_mean"]
            best = max(best, result)
            if best > -300:
                break
    assert best > -300  # of ten episodes; random actions have -1,200


class Recall(Walk):
    """The first observation names the action that the last one asks for."""

    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t, self.wanted = 0, int(np.random.default_rng().integers(2))
        return np.asarray([2 * self.wanted - 1, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        is_over = self.t == 4
        reward = float(is_over and action == self.wanted)
        return np.asarray([0, self.t], np.float32), reward, is_over, False, {}


@pytest.mark.slow
def test_lstm_ppo_remembers_the_first_observation() -> None:
    config = make_run(
        PPOConfig, Recall(), **{**LSTM, "train_batch_size": 512, "minibatch_size": 128}
    ).training(lr=5e-3, num_epochs=8)
    algorithm = config.build()
    with playing(algorithm, Recall, 2):
        best = 0.0
        for _ in range(40):
            best = max(best, algorithm.train()["env_runners"]["episode_return_mean"])
            if best > 0.9:
                break
    assert best > 0.9  # without memory it is 0.5
