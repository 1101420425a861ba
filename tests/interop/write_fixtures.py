"""Writes the fixtures of the tests beside it, with the code of the other libraries themselves.

Run it in the environments of the peers (see `benchmarks/peers`; SB3's also needs sb3-contrib and
safetensors): `python tests/interop/write_fixtures.py sb3` and `... rllib`. Each case is a state dict
as its users would save it, and the outputs of the policy for 64 observations.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

FIXTURES = Path(__file__).parent / "fixtures"
IMAGE = spaces.Box(0, 255, (12, 10, 2), np.uint8)
ROWS = 64


class Images(gymnasium.Env):
    """Observes images of two channels, higher than wide."""

    observation_space = IMAGE
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        return np.zeros(IMAGE.shape, np.uint8), {}

    def step(self, action):
        return np.zeros(IMAGE.shape, np.uint8), 0.0, True, False, {}


def save(name: str, module: torch.nn.Module, extra: dict[str, Any] | None = None, **outputs: Any):
    state = {key: value.numpy() for key, value in module.state_dict().items()}
    np.savez_compressed(FIXTURES / f"{name}.npz", **state, **(extra or {}))
    arrays = {key: np.asarray(value, np.float32) for key, value in outputs.items()}
    if outputs["obs"].dtype == np.uint8:
        arrays["obs"] = outputs["obs"]
    np.savez_compressed(FIXTURES / f"{name}-expected.npz", **arrays)


def make_obs(space: spaces.Box) -> np.ndarray:
    rng = np.random.default_rng(1)
    if space.dtype == np.uint8:
        return rng.integers(0, 256, (ROWS, *space.shape), np.uint8)
    return rng.normal(size=(ROWS, *space.shape)).astype(np.float32)


def make_sb3_on_policy(name: str, env: Any, policy: str, **kwargs: Any) -> None:
    from stable_baselines3 import PPO
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    envs = env if isinstance(env, VecNormalize) else DummyVecEnv([lambda: env])
    model = PPO(policy, envs, seed=0, device="cpu", policy_kwargs=kwargs)
    if hasattr(model.policy, "log_std"):
        model.policy.log_std.data[:] = -0.7
    space = env.observation_space
    obs = raw = make_obs(space)
    extra: dict[str, Any] = {}
    if isinstance(env, VecNormalize):
        env.obs_rms.update(3.0 * raw + 1.0)
        obs = env.normalize_obs(raw).astype(np.float32)
        extra = {
            f"obs_rms.{key}": np.asarray(getattr(env.obs_rms, key))
            for key in ("mean", "var", "count")
        }
    tensor, _ = model.policy.obs_to_tensor(obs)
    dist = model.policy.get_distribution(tensor).distribution
    inputs = (
        dist.logits
        if hasattr(dist, "logits")
        else torch.cat([dist.mean, dist.stddev.log()], dim=-1)
    )
    values = model.policy.predict_values(tensor)[:, 0]
    if hasattr(dist, "logits"):
        latent = model.policy.mlp_extractor.forward_actor(
            model.policy.extract_features(tensor, model.policy.pi_features_extractor)
        )
        inputs = model.policy.action_net(latent)
    save(name, model.policy, extra, obs=raw, inputs=inputs, values=values)


def write_sb3_ppo() -> None:
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    class SmallCNN(BaseFeaturesExtractor):
        """The layers of SB3's NatureCNN under its names, smaller."""

        def __init__(self, observation_space: spaces.Box, features_dim: int = 6) -> None:
            super().__init__(observation_space, features_dim)
            self.cnn = torch.nn.Sequential(
                torch.nn.Conv2d(observation_space.shape[0], 4, 3, stride=2),
                torch.nn.ReLU(),
                torch.nn.Conv2d(4, 5, 2, stride=1),
                torch.nn.ReLU(),
                torch.nn.Flatten(),
            )
            with torch.no_grad():
                size = self.cnn(torch.zeros(1, *observation_space.shape)).shape[1]
            self.linear = torch.nn.Sequential(torch.nn.Linear(size, features_dim), torch.nn.ReLU())

        def forward(self, observations):
            return self.linear(self.cnn(observations))

    arch = {"pi": [8, 7], "vf": [8, 7]}
    make_sb3_on_policy("sb3-ppo", gymnasium.make("CartPole-v1"), "MlpPolicy", net_arch=arch)
    pendulum = VecNormalize(DummyVecEnv([lambda: gymnasium.make("Pendulum-v1")]))
    make_sb3_on_policy("sb3-ppo-normalized", pendulum, "MlpPolicy", net_arch=arch)
    make_sb3_on_policy(
        "sb3-ppo-cnn", Images(), "CnnPolicy", net_arch=[], features_extractor_class=SmallCNN
    )
    make_sb3_on_policy("sb3-ppo-flat-image", Images(), "MlpPolicy", net_arch=[6])


def write_sb3_recurrent() -> None:
    from sb3_contrib import RecurrentPPO
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    kwargs = {"lstm_hidden_size": 6, "net_arch": {"pi": [5], "vf": [5]}}
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", seed=0, device="cpu", policy_kwargs=kwargs)
    obs = make_obs(model.observation_space)
    blank = torch.zeros(1, 1, 6)
    states, inputs, values = RNNStates((blank, blank), (blank, blank)), [], []
    for i, row in enumerate(obs):
        tensor, start = torch.as_tensor(row[None]), torch.tensor([float(i == 0)])
        values.append(model.policy.predict_values(tensor, states.vf, start)[0, 0])
        _, vf = model.policy._process_sequence(tensor, states.vf, start, model.policy.lstm_critic)
        latent, pi = model.policy._process_sequence(
            tensor, states.pi, start, model.policy.lstm_actor
        )
        inputs.append(
            model.policy.action_net(model.policy.mlp_extractor.forward_actor(latent))[0].numpy()
        )
        states = RNNStates(pi, vf)
    save("sb3-recurrent-ppo", model.policy, obs=obs, inputs=inputs, values=values)


def write_sb3_off_policy() -> None:
    from sb3_contrib import TQC
    from stable_baselines3 import DQN, SAC, TD3

    kwargs: dict[str, Any] = {"seed": 0, "device": "cpu", "buffer_size": 10}
    dqn = DQN("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": [8, 7]}, **kwargs)
    obs = make_obs(dqn.observation_space)
    save("sb3-dqn", dqn.policy, obs=obs, inputs=dqn.q_net(torch.as_tensor(obs)))
    for name, algorithm in (("sac", SAC), ("td3", TD3), ("tqc", TQC)):
        policy_kwargs: dict[str, Any] = {"net_arch": [8, 7]}
        if name == "tqc":
            policy_kwargs["n_quantiles"] = 5
        model = algorithm("MlpPolicy", "Pendulum-v1", policy_kwargs=policy_kwargs, **kwargs)
        obs = make_obs(model.observation_space)
        tensor = torch.as_tensor(obs)
        if name == "td3":
            inputs = model.actor(tensor)
        else:
            inputs = torch.cat(model.actor.get_action_dist_params(tensor)[:2], dim=-1)
        actions = torch.as_tensor(np.random.default_rng(2).uniform(-1, 1, (ROWS, 1))).float()
        q = model.critic(tensor, actions)
        q = q if name == "tqc" else torch.stack(q, dim=1)[..., 0]
        save(f"sb3-{name}", model.policy, obs=obs, inputs=inputs, actions=actions, q=q)


def write_safetensors() -> None:
    from safetensors.torch import save_file

    with np.load(FIXTURES / "sb3-ppo.npz") as arrays:
        tensors = {name: torch.as_tensor(arrays[name]) for name in arrays.files}
    save_file(tensors, FIXTURES / "sb3-ppo.safetensors")


def make_rllib(config: Any, obs_space: Any, action_space: Any, model: dict[str, Any]) -> Any:
    """Return an RLModule of RLlib's, as its algorithm would build it."""
    settings = config.rl_module(model_config=model)
    spec = settings.get_default_rl_module_spec()
    spec.observation_space, spec.action_space = obs_space, action_space
    spec.model_config = {**settings.model_config, **model}
    torch.manual_seed(0)
    return spec.build()


def write_rllib_ppo() -> None:
    from ray.rllib.algorithms.ppo import PPOConfig

    vector, two = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
    box = spaces.Box(-2.0, 2.0, (1,), np.float32)
    small = {"fcnet_hiddens": [8, 7]}
    cases: dict[str, tuple[Any, Any, dict[str, Any]]] = {
        "rllib-ppo": (vector, two, small),
        "rllib-ppo-log-std": (
            vector,
            box,
            {**small, "free_log_std": True, "vf_share_layers": True},
        ),
        "rllib-ppo-cnn": (
            IMAGE,
            spaces.Discrete(3),
            {
                "conv_filters": [[4, 3, 2], [5, 2, 1, "valid"]],
                "head_fcnet_hiddens": [6],
                "vf_share_layers": True,
            },
        ),
        "rllib-ppo-lstm": (
            vector,
            two,
            {**small, "use_lstm": True, "lstm_cell_size": 6, "max_seq_len": 20},
        ),
    }
    for name, (obs_space, action_space, model) in cases.items():
        module = make_rllib(PPOConfig(), obs_space, action_space, model)
        if "log-std" in name:
            module.pi.log_std.data[:] = -0.7
        obs = make_obs(obs_space)
        batch: dict[str, Any] = {"obs": torch.as_tensor(obs).float()}
        if "lstm" in name:
            state = module.get_initial_state()
            batch["state_in"] = torch.utils._pytree.tree_map(
                lambda x: torch.as_tensor(x)[None], state
            )
            batch["obs"] = batch["obs"][None]
        out = module.forward_train(batch)
        values = module.compute_values(batch, embeddings=out.get("embeddings"))
        inputs = out["action_dist_inputs"].reshape(ROWS, -1)
        save(name, module, obs=obs, inputs=inputs, values=values.reshape(-1))


def write_rllib_off_policy() -> None:
    from ray.rllib.algorithms.dqn import DQNConfig
    from ray.rllib.algorithms.sac import SACConfig

    vector, two = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)
    box = spaces.Box(-1.0, 1.0, (1,), np.float32)
    small = {"fcnet_hiddens": [8, 7], "fcnet_activation": "relu", "head_fcnet_hiddens": [6]}
    module = make_rllib(DQNConfig().training(dueling=True), vector, two, small)
    module.make_target_networks()
    obs = make_obs(vector)
    q = module.compute_q_values({"obs": torch.as_tensor(obs)})
    save("rllib-dqn", module, obs=obs, inputs=q["qf_preds"])
    small["fusionnet_hiddens"] = [6]
    module = make_rllib(SACConfig().training(twin_q=True), vector, box, small)
    module.make_target_networks()
    out = module.forward_inference({"obs": torch.as_tensor(obs)})
    save("rllib-sac", module, obs=obs, inputs=out["action_dist_inputs"])


WRITERS: dict[str, list[Callable[[], None]]] = {
    "sb3": [write_sb3_ppo, write_sb3_recurrent, write_sb3_off_policy, write_safetensors],
    "rllib": [write_rllib_ppo, write_rllib_off_policy],
}

if __name__ == "__main__":
    FIXTURES.mkdir(exist_ok=True)
    with torch.no_grad():
        for write in WRITERS[sys.argv[1]]:
            write()
