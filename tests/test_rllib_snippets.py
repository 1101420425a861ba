"""Programs as in RLlib's documents, in other words and with the package renamed.

Versions 2.3 to the new API stack; sizes are small. Snippets for several agents, recorded data, export,
and GPUs are not here.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl.errors import ConfigError, ModuleError, SpaceError
from tests.helpers import assert_equal

QUIET: dict[str, Any] = {
    "loggers": [],
    "train_batch_size": 128,
    "minibatch_size": 64,
    "num_epochs": 1,
    "num_devices": 1,
    "num_envs_per_env_runner": 4,
}


OLD_NAMES = pytest.mark.filterwarnings("ignore:.* is .* here:DeprecationWarning")


@OLD_NAMES
def test_a_loop_of_the_old_stack(tmp_path: Path) -> None:
    from jaxrl import PPOConfig

    config = (
        PPOConfig()
        .framework("torch")
        .rollouts(num_rollout_workers=0)
        .resources(num_gpus=0)
        .environment(env="CartPole-v1")
        .update_from_dict(QUIET)
    )
    algo = config.build()
    for iteration in range(2):
        result = algo.train()
        assert result["episode_reward_mean"] == result["env_runners"]["episode_return_mean"]
        if iteration == 1:
            saved = algo.save(str(tmp_path))
    path = saved.checkpoint.path  # pyright: ignore[reportAttributeAccessIssue]
    algo.stop()

    from jaxrl.algorithms.algorithm import Algorithm

    again = Algorithm.from_checkpoint(path)
    assert again.training_iteration == 2
    again.stop()


def test_the_class_of_an_algorithm(tmp_path: Path) -> None:
    from jaxrl import PPOConfig
    from jaxrl.algorithms.ppo import PPO

    first = PPO(config=PPOConfig().update_from_dict(QUIET), env="CartPole-v1")
    first.train()
    path = first.save(str(tmp_path))
    second = PPO(config=PPOConfig().update_from_dict(QUIET), env="CartPole-v1")
    second.restore(path)
    assert second.iteration == 1
    first.stop()
    second.stop()


def test_an_episode_of_single_actions() -> None:
    import gymnasium as gym

    from jaxrl import PPOConfig

    env = gym.make("CartPole-v1")
    algo = PPOConfig().environment("CartPole-v1").update_from_dict(QUIET).build()
    total, (obs, _), is_over = 0.0, env.reset(seed=0), False
    while not is_over:
        action = algo.compute_single_action(obs)
        obs, reward, terminated, truncated, _ = env.step(action)
        total += float(reward)
        is_over = terminated or truncated
    assert total >= 8
    algo.stop()


def test_callbacks_of_the_old_stack() -> None:
    from jaxrl import PPOConfig
    from jaxrl.algorithms.callbacks import DefaultCallbacks

    class Note(DefaultCallbacks):
        def on_train_result(self, *, algorithm: Any, result: dict[str, Any], **kwargs: Any) -> None:
            result["noted"] = algorithm.iteration

    config = PPOConfig().environment("CartPole-v1").callbacks(Note).resources(num_gpus=0)
    with config.update_from_dict(QUIET).build() as algo:
        assert algo.train()["noted"] == 1


@pytest.mark.slow
def test_defaults_as_a_dictionary() -> None:
    from jaxrl import PPOConfig

    defaults = PPOConfig().to_dict()
    config = PPOConfig.from_dict({**defaults, **QUIET, "lr": 0.01})
    with config.build(env="Pendulum-v1") as algo:
        algo.train()
        assert algo.config.lr == 0.01


def test_defaults_of_an_algorithms_module() -> None:
    from jaxrl import PPOConfig
    from jaxrl.algorithms.dqn.dqn import DEFAULT_CONFIG as DQN_DEFAULTS
    from jaxrl.algorithms.ppo import DEFAULT_CONFIG

    DEFAULT_CONFIG["lr"] = 0.5  # every import has a dictionary of its own
    assert PPOConfig().lr != 0.5
    assert PPOConfig.from_dict(DEFAULT_CONFIG).lr == 0.5
    assert "double_q" in DQN_DEFAULTS
    with pytest.raises(ImportError, match="no counterpart"):
        exec("from jaxrl.algorithms.algorithm import DEFAULT_CONFIG")


@pytest.mark.slow
def test_taxi_on_the_host() -> None:
    from jaxrl import PPOConfig

    config = (
        PPOConfig()
        .environment("Taxi-v4")
        .rollouts(num_rollout_workers=0)
        .framework("torch")
        .training(model={"fcnet_hiddens": [8, 8]})
        .evaluation(evaluation_num_workers=0, evaluation_interval=1, evaluation_duration=1)
    )
    with config.update_from_dict(QUIET).environment(max_episode_steps=20).build() as algo:
        result = algo.train()
        assert "evaluation" in result
        algo.evaluate()


def test_key_concepts_of_the_new_stack() -> None:
    from jaxrl import PPOConfig, RLModule
    from jaxrl.core.columns import Columns

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=4)
        .learners(num_learners=1, num_gpus_per_learner=1)
        .training(train_batch_size_per_learner=4000)
    )
    assert "num_env_runners = 4" in config.explain(platform="gpu", local_device_count=1)
    assert Columns.OBS == "obs"
    with PPOConfig().environment("CartPole-v1").update_from_dict(QUIET).build() as algo:
        assert isinstance(algo.get_module(), RLModule)


def test_a_gpu_that_is_not_there_is_told(caplog: pytest.LogCaptureFixture) -> None:
    from jaxrl import PPOConfig
    from jaxrl.runtime import devices

    config = PPOConfig().environment("CartPole-v1").resources(num_gpus=0.25)
    devices._warn_once.cache_clear()
    with config.update_from_dict(QUIET).build():
        assert caplog.text.count("num_gpus_per_learner=0.25, but JAX has no GPU here") == 1


def test_games_that_the_emulator_no_longer_has() -> None:
    from jaxrl import PPOConfig
    from jaxrl.errors import UnknownNameError

    pytest.importorskip("ale_py")
    with pytest.raises(UnknownNameError, match="Did you mean 'ALE/Pong-v5'"):
        PPOConfig().environment("PongDeterministic-v4").build()


# --- snippets as they are printed, with the package renamed and lost lines filled in ---

WEIGHTS = """
from jaxrl.algorithms.dqn import DQNConfig

algo = DQNConfig().environment(env="CartPole-v1").env_runners(placement=PLACEMENT).build()

weights = [
    # Get weights of the default local policy
    algo.get_policy().get_weights(),
    # Same as above
    algo.workers.local_worker().policy_map["default_policy"].get_weights(),
    # Get list of weights of each worker, including remote replicas
    *algo.workers.foreach_worker(lambda worker: worker.get_policy().get_weights()),
    # Same as above, but with index.
    *algo.workers.foreach_worker_with_id(lambda _id, worker: worker.get_policy().get_weights()),
    *algo.workers.foreach_worker_with_index(lambda _id, worker: worker.get_policy().get_weights()),
]
assert len(weights) == 5
assert list(algo.workers.local_worker().policy_map) == ["default_policy"]
assert algo.workers.local_worker().get_policy("unknown") is None
for own in weights:
    assert_equal(own, algo.get_weights()["default_policy"])
algo.stop()
"""

MODEL = """
# Get a reference to the policy
import numpy as np
from jaxrl.algorithms.ALGORITHM import ALGORITHMConfig

algo = (
    ALGORITHMConfig()
    .environment("CartPole-v1")
    .framework("tf2")
    .rollouts(num_rollout_workers=0)
    .build()
)
policy = algo.get_policy()

# Run a forward pass to get model output logits.
logits, _ = policy.model({"obs": np.array([[0.1, 0.2, 0.3, 0.4]])})

# Compute action distribution given logits
policy.dist_class
dist = policy.dist_class(logits, policy.model)

# Query the distribution for samples, sample logps
assert dist.sample().shape == (1,)
assert dist.logp([1]).shape == (1,)
assert logits.shape == (1, 2)

# Get the estimated values for the most recent forward pass
assert policy.model.value_function().shape == (1,)
policy.model.base_model.summary()

module, batch = algo.get_module(), {"obs": np.array([[0.1, 0.2, 0.3, 0.4]])}
assert np.allclose(logits, module.forward_train(batch)["action_dist_inputs"], atol=1e-6)
assert np.allclose(policy.model.value_function(), module.compute_values(batch), atol=1e-6)
assert np.allclose(np.exp(dist.logp([0])) + np.exp(dist.logp([1])), 1.0)
"""

ACTION_VALUES = """
# Get a reference to the model through the policy
import numpy as np
from jaxrl.algorithms.dqn import DQNConfig

algo = DQNConfig().environment("CartPole-v1").framework("tf2").build()
model = algo.get_policy().model

# List of all model variables
assert sum(x.size for x in model.variables()) == 67_843

# Run a forward pass to get base model output.
model_out = model({"obs": np.array([[0.1, 0.2, 0.3, 0.4]])})

# Access the base Keras models (all default models have a base)
model.base_model.summary()

# Access the Q value model (specific to DQN)
values = model.get_q_value_distributions(model_out)[0]
assert values.shape == (1, 2)
model.q_value_head.summary()

# Access the state value model (specific to DQN)
assert model.get_state_value(model_out).shape == (1, 1)
model.state_value_head.summary()

weights = algo.get_weights()["default_policy"]
x = np.array([0.1, 0.2, 0.3, 0.4])
for name in ("dense_0", "dense_1"):
    dense = weights["encoder"]["mlp"][name]
    x = np.tanh(x @ dense["kernel"] + dense["bias"])
own = x @ weights["vf_head"]["out"]["kernel"] + weights["vf_head"]["out"]["bias"]
assert np.allclose(model.get_state_value(model_out)[0], own, atol=1e-5)
"""

SETUP = """
import numpy as np
from jaxrl.algorithms.ppo import PPOConfig
config = (
  PPOConfig()
  .environment("CartPole-v1")
  .framework("torch")
  .multi_agent(policies={"pol1", "pol2"}, policies_to_train=["pol1"])
)
policy_dict, is_policy_to_train = \\
    config.get_multi_agent_setup()
assert is_policy_to_train("pol1")
assert not is_policy_to_train("pol2")
print(policy_dict)
"""

EXPORT = """
from jaxrl.algorithms.ppo import PPO
# Use an Algorithm from RLlib or define your own.
algo = PPO(env="CartPole-v1")
algo.export_policy_model("dir")
algo.export_policy_model("dir/onnx", onnx=1)
algo.export_policy_checkpoint("export_dir")
"""

IMPORT = """
from jaxrl.algorithms.ppo import PPO
algo = PPO(env="CartPole-v1")
algo.import_policy_model_from_h5("weights.h5")
policy = algo.get_weights()["default_policy"]
assert policy["pi_encoder"]["mlp"]["dense_1"]["kernel"][0, 1] == 1.0
assert policy["vf_head"]["out"]["bias"][0] == 3.0
"""

PREPROCESSOR = """
import gymnasium as gym
env = gym.make("CartPole-v1")
obs, infos = env.reset()

# RLlib uses preprocessors to implement transforms such as one-hot encoding
# and flattening of tuple and dict observations.
from jaxrl.models.preprocessors import get_preprocessor

prep = get_preprocessor(env.observation_space)(env.observation_space)
assert prep.transform(obs).shape == obs.shape == prep.shape
"""

SNIPPETS = {
    "weights of workers, compiled": WEIGHTS.replace("PLACEMENT", repr("in_graph")),
    "weights of workers": WEIGHTS.replace("PLACEMENT", repr("host")),
    "a model and its distribution": MODEL.replace("ALGORITHMConfig", "PPOConfig").replace(
        "ALGORITHM", "ppo"
    ),
    "a model of values": MODEL.replace("ALGORITHMConfig", "DQNConfig").replace("ALGORITHM", "dqn"),
    "action values": ACTION_VALUES,
    "the setup of several agents": SETUP,
    "export": EXPORT,
    "import": IMPORT,
    "a preprocessor": PREPROCESSOR,
}


def write_keras_weights(path: Path) -> None:
    """As Keras 2 writes the network that RLlib makes of CartPole's observations."""
    h5py = pytest.importorskip("h5py")
    rng = np.random.default_rng(0)
    sizes = {
        **{f"fc_{value}1": (4, 256) for value in ("", "value_")},
        **{f"fc_{value}2": (256, 256) for value in ("", "value_")},
        "fc_out": (256, 2),
        "value_out": (256, 1),
    }
    with h5py.File(path, "w") as file:
        for name, size in sizes.items():
            kernel, bias = rng.normal(size=size), np.full(size[1], 3.0)
            kernel[0, -1] = 0.5
            if name == "fc_2":
                kernel[0, 1] = 1.0
            file[f"{name}/default_policy/{name}/kernel:0"] = kernel.astype(np.float32)
            file[f"{name}/default_policy/{name}/bias:0"] = bias.astype(np.float32)


@OLD_NAMES
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_snippet_as_it_is_printed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "export":
        pytest.importorskip("onnx")
    if name == "import":
        write_keras_weights(tmp_path / "weights.h5")
    exec(compile(SNIPPETS[name], name, "exec"), {"assert_equal": assert_equal})


@pytest.mark.parametrize(
    ("algorithm", "env", "model"),
    [
        ("DQNConfig", "CartPole-v1", {"num_atoms": 5, "dueling": True}),
        ("DQNConfig", "CartPole-v1", {"dueling": False}),
        ("SACConfig", "Pendulum-v1", {}),
    ],
)
def test_a_model_has_what_its_algorithm_has(
    algorithm: str, env: str, model: dict[str, Any]
) -> None:
    import jaxrl

    config = getattr(jaxrl, algorithm)().environment(env).training(**model)
    config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(loggers=[])
    with config.build() as algo:
        policy: Any = algo.get_policy()
        size = policy.observation_space.shape[0]
        with pytest.raises(ConfigError, match="call the model before"):
            policy.model.value_function()
        with pytest.raises(SpaceError, match="takes a dictionary with 'obs'"):
            policy.model(np.zeros((1, size)))
        out = policy.model({"obs": np.full((3, size), 0.1)})
        if algorithm == "SACConfig":
            with pytest.raises(ModuleError, match="has no values of all actions"):
                policy.model.get_q_value_distributions(out)
            with pytest.raises(ModuleError, match="has no q_value_head"):
                policy.model.q_value_head.summary()
            dist = policy.dist_class(out[0], policy.model)
            assert np.isfinite(dist.logp(dist.sample())).all()
            return
        values, *rest = policy.model.get_q_value_distributions(out)
        assert values.shape == (3, 2)
        assert policy.model.value_function().tolist() == values.max(axis=1).tolist()
        if "num_atoms" in model:
            support, logits, _, probabilities = rest
            expected = np.asarray(probabilities) @ np.asarray(support)
            np.testing.assert_allclose(expected, values, rtol=1e-4, atol=1e-5)
            assert policy.model.get_state_value(out).shape == (3, 5)
            assert logits.shape == (3, 2, 5)
        else:
            with pytest.raises(ModuleError, match=r"no state_value_head.*training\(dueling=True\)"):
                policy.model.get_state_value(out)
        policy.model({"obs": np.zeros((3, size))})
        with pytest.raises(ConfigError, match="of the latest call of the model"):
            policy.model.get_q_value_distributions(out)
