"""Parts of an observation that critics see and policies do not: in learning, and left out in acting."""

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from gymnasium import spaces

from jaxrl import (
    Algorithm,
    BCConfig,
    CQLConfig,
    DTConfig,
    IQLConfig,
    JaxrlError,
    MADDPGConfig,
    MAPPOConfig,
    MARWILConfig,
    PPOConfig,
    QMIXConfig,
    RLModuleSpec,
    TimeStep,
)
from jaxrl.assembly.assemble import make_module as assemble_module
from jaxrl.assembly.pipelines import make_action_pipeline, make_observation_pipeline
from jaxrl.connectors import FlattenObservations, FrameStacking, ObservationConnector
from jaxrl.core.types import Columns, ObsSequence
from jaxrl.errors import ConfigError, ModuleError, SpaceError
from jaxrl.export.numpy_program import NumpyPolicy
from jaxrl.export.onnx_policy import has_runtime, load_onnx
from jaxrl.export.stablehlo import load_stablehlo
from jaxrl.external import LinkError
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.modules.rl_module import make_zeros
from jaxrl.serve.app import ARRAYS
from jaxrl.serve.backend import load_export
from jaxrl.serve.jax_backend import load_backend
from jaxrl.serve.server import PolicyServer
from jaxrl.serve.settings import ServeSettings
from tests.external.served import Served, make_config
from tests.helpers import ALGORITHMS, slow_but, small
from tests.multi_agent.agent_envs import Targets
from tests.nested import AnyGymSpaces, AnySpaces, jax_env
from tests.serve.client import Client, running

SEEN = spaces.Dict(
    {
        "pose": spaces.Box(-1.0, 1.0, (3,)),
        "gear": spaces.Discrete(3),
        "action_mask": spaces.MultiBinary(2),
    }
)
HIDDEN = spaces.Dict({"mass": spaces.Box(2.0, 3.0, (2,)), "kind": spaces.Discrete(4, start=1)})
FULL = spaces.Dict({**SEEN.spaces, "truth": HIDDEN})
BOX, CHOICE = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(2)
SMALL = {"fcnet_hiddens": [8], "fusionnet_hiddens": [8]}
MODEL = {**SMALL, "critic_only_observations": ["truth"]}
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4, "lstm_use_prev_action": True}
GTRXL = {"use_attention": True, "attention_dim": 8, "max_seq_len": 4}


def without_mask(space: spaces.Dict) -> spaces.Dict:
    return spaces.Dict({name: x for name, x in space.spaces.items() if name != "action_mask"})


def spaces_for(actions: Any) -> tuple[spaces.Dict, spaces.Dict]:
    """The spaces with and without the hidden part; a mask is for discrete actions alone."""
    return (FULL, SEEN) if actions is CHOICE else (without_mask(FULL), without_mask(SEEN))


def samples(space: Any, number: int) -> list[Any]:
    """Values of a space, whose mask allows every action."""
    space = copy.deepcopy(space)
    space.seed(3)
    found = [space.sample() for _ in range(number)]
    return [{**x, "action_mask": np.int8([1, 1])} if "action_mask" in x else x for x in found]


# --- in learning ---

FAMILIES: dict[str, Any] = {
    **{
        name: ALGORITHMS[name]
        for name in ("PPO", "A2C", "IMPALA", "APPO", "SAC", "TQC", "TD3", "DDPG")
    },
    "CQL": CQLConfig,
    "IQL": IQLConfig,
    "MARWIL": MARWILConfig,
}
BOXED = ("TQC", "TD3", "DDPG", "CQL", "IQL")


def make_module(algo: str, actions: Any, **model: Any) -> Any:
    config = FAMILIES[algo]().rl_module(model_config={**MODEL, **model})
    return config.get_rl_module_spec(spaces_for(actions)[0], actions).build()


MEMORIES: dict[str, dict[str, Any]] = {"plain": {}, "lstm": LSTM, "attention": GTRXL}
MODULES = [(algo, "plain") for algo in FAMILIES]
MODULES += [(algo, memory) for algo in ("PPO", "SAC") for memory in ("lstm", "attention")]


@pytest.mark.parametrize(
    "kind", slow_but(("PPO", "lstm"), ("PPO", "plain"), ("TD3", "plain"), of=MODULES)
)
def test_policies_do_not_depend_on_it_and_critics_do(kind: tuple[str, str]) -> None:
    algo, model = kind[0], MEMORIES[kind[1]]
    actions = BOX if algo in BOXED else CHOICE
    model = {name: x for name, x in model.items() if name != "lstm_use_prev_action"}
    module = make_module(algo, actions, **model)
    params = module.init(jax.random.key(0))
    rows, steps = 2, 3
    obs = jax.tree.map(
        lambda *x: jnp.stack(x).reshape(rows, steps, *np.shape(x[0])),
        *samples(spaces_for(actions)[0], 6),
    )
    action = make_zeros(actions, (rows, steps))
    is_first = jnp.zeros((rows, steps), jnp.bool_)
    mass = obs["truth"]["mass"]

    def wrap(mass: Any) -> Any:
        seen = {**obs, "truth": {**obs["truth"], "mass": mass}}
        return ObsSequence(obs=seen, carry=None, is_first=is_first) if model else seen

    def act(params: Any, mass: Any) -> Any:
        return module.forward_train(params, {"obs": wrap(mass)})[Columns.ACTION_DIST_INPUTS]

    def value(mass: Any) -> Any:
        found = []
        if "critic" in params:
            found.append(module.compute_q_values(params["critic"], wrap(mass), action))
        if "value" in params or "critic" not in params:
            found.append(module.compute_values(params, wrap(mass)))
        return found

    @jax.jit
    def compute(params: Any, mass: Any) -> Any:
        loss = jax.grad(lambda params: jnp.sum(act(params, mass) ** 2))
        slope = jax.grad(lambda mass: sum(jnp.sum(v) for v in value(mass)))
        return (act(params, mass), loss(params)), value(mass), slope(mass)

    (of_policy, before, slope), (same, after, _) = (
        compute(params, mass),
        compute(params, mass + 1.0),
    )
    jax.tree.map(np.testing.assert_array_equal, of_policy, same)
    assert all(np.abs(x - y).max() > 1e-4 for x, y in zip(before, after, strict=True))
    assert np.all(np.abs(slope).max(-1) > 0.0)


class Coin(AnySpaces):
    """A hidden coin pays by itself, and half as much for guessing it."""

    observations = spaces.Dict({"coin": spaces.Discrete(2), "pose": spaces.Box(-1.0, 1.0, (1,))})
    actions = spaces.Discrete(2)

    def reset(self, key: Any, params: Any) -> Any:
        coin = jax.random.bernoulli(key).astype(jnp.int32)
        return coin, self._observe(coin)

    def _observe(self, coin: Any) -> Any:
        return {"coin": coin, "pose": jnp.zeros(1, jnp.float32)}

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        reward = (10.0 * state + (action == state)).astype(jnp.float32)
        ended = jnp.ones((), bool)
        return state, TimeStep(
            obs=self._observe(state), reward=reward, terminated=ended, truncated=~ended, info={}
        )


@pytest.mark.parametrize("hidden", slow_but(True, of=[True, False]))
def test_values_learn_from_it(hidden: bool) -> None:
    """The critic knows what the coin pays; a policy that sees it would earn half a point more."""
    names = ["coin"] if hidden else []
    config = small("PPO", Coin()).training(
        train_batch_size=512, minibatch_size=128, lr=1e-2, vf_clip_param=1e3
    )
    config.rl_module(model_config={**SMALL, "critic_only_observations": names})
    config.debugging(loggers=[], seed=0).env_runners(num_envs_per_env_runner=64)
    with config.build() as algorithm:
        for _ in range(25):
            result = algorithm.train()
        learned = result["learners"]["default_policy"]
        assert learned["vf_explained_var"] > 0.9
        earned = result["env_runners"]["episode_return_mean"]
        batch = [{"coin": coin, "pose": np.zeros(1, np.float32)} for coin in (0, 1)]
        guesses = {int(a) for a in algorithm.compute_actions(batch, explore=False)}
    assert (guesses == {0, 1}) is (not hidden)
    assert earned < 7.5


# --- in acting ---


def stack_frames(env: Any = None) -> FrameStacking:
    return FrameStacking(num_frames=2)


class Choosing(AnySpaces):
    """Every part, and a masked choice."""

    observations, actions = spaces_for(CHOICE)[0], CHOICE


class Moving(AnySpaces):
    """Every part without a mask, and a Box."""

    observations, actions = spaces_for(BOX)[0], BOX


def make_run(algo: str, env: Any = Choosing, **model: Any) -> Any:
    config = small(algo, env).rl_module(model_config={**MODEL, **model})
    return config.environment(clip_actions=True).debugging(loggers=[])


CASES: dict[str, Callable[[], Any]] = {
    "mask": lambda: make_run("PPO").env_runners(observation_filter="MeanStdFilter"),
    "memory": lambda: make_run("PPO", **LSTM).env_runners(observation_filter="MeanStdFilter"),
    "frames, one part is left": lambda: (
        make_run("TD3", Moving, critic_only_observations=["gear", "truth"])
        .env_runners(env_to_module_connector=stack_frames)
        .training(exploration_noise="ou")
    ),
}


@pytest.mark.parametrize("case", slow_but("mask", of=CASES))
def test_acting_does_without_it(case: str, tmp_path: Path) -> None:
    config = CASES[case]()
    hidden = config.rl_module_settings.model_config["critic_only_observations"]
    with config.build() as algorithm:
        algorithm.train()
        policy, full = (
            algorithm.get_policy(explore=False),
            config.environment_settings.env,
        )
        rows = samples(full.observations, 4)
        bare = [{k: v for k, v in row.items() if k not in hidden} for row in rows]
        other = [{**row, **less} for row, less in zip(reversed(rows), bare, strict=True)]
        assert set(policy.observation_space.spaces) == set(bare[0])
        expected = play(policy, rows)
        assert play(policy, bare) == play(policy, other) == expected
        explorer = algorithm.get_policy(explore=True)
        explorer.act(bare[0])
        state = policy.initial_state()
        moved = jax.tree.map(lambda x, y: bool(np.any(x != y)), explorer.state, state)
        assert (
            case == "mask" or sum(jax.tree.leaves(moved)) >= 2
        )  # frames and noise, or both memories
        for obs in (rows[0], bare[0]):
            action = algorithm.compute_single_action(obs, state, explore=False)
            assert flat(action[0] if isinstance(action, tuple) else action) == expected[0]
        fetch: Any = {"full_fetch": True, "explore": False}
        batches = [algorithm.compute_actions(each, **fetch)[0] for each in (rows, bare)]
        assert flat(batches[0]) == flat(batches[1])
        check_module_batches(algorithm.get_module())
        folder = algorithm.export(tmp_path / "e", formats=("numpy", "stablehlo", "onnx"))
        saved = algorithm.save(str(tmp_path / "saved"))
    with Algorithm.from_checkpoint(saved, trust=["tests"]) as restored:
        assert play(restored.get_policy(explore=False), bare) == expected
        restored.train()
    loaders = [NumpyPolicy, load_stablehlo, *([load_onnx] if has_runtime() else [])]
    for load in loaders:
        exported = load(folder)
        assert {name for name, _ in exported.manifest["observation_space"]["spaces"]} == set(
            bare[0]
        )
        for each in (bare, rows, other):
            exported.reset()
            np.testing.assert_allclose(play(exported, each), expected, atol=1e-5)
        used = {
            name
            for described in exported.manifest["programs"].values()
            for name in described["inputs"]
        }
        assert not any(part in name for name in used for part in ("truth", "vf_encoder", "critic/"))
        with pytest.raises(
            JaxrlError if load is None else Exception, match="must be a dict with the keys"
        ):
            exported.act({**bare[0], "other": 1})
    serve(load_export(folder), bare, rows, expected[0])
    serve(load_backend(saved, max_batch=1, trust=["tests"]), bare, rows, expected[0])


def check_module_batches(module: Any) -> None:
    """RLlib's way to act, with the module's own observations."""

    def drop(obs: Any) -> Any:
        if not isinstance(obs, dict):
            return obs
        hidden = module.critic_only_observations
        return {name: drop(part) for name, part in obs.items() if name not in hidden}

    obs = jax.tree.map(np.asarray, make_zeros(module.observation_space, (2,)))
    full, bare = (module.forward_inference({"obs": each}) for each in (obs, drop(obs)))
    jax.tree.map(np.testing.assert_array_equal, full["actions"], bare["actions"])
    with pytest.raises(SpaceError, match="structure of"):
        module.forward_train({"obs": drop(obs)})


def flat(action: Any) -> list[float]:
    return np.asarray(action, np.float64).ravel().tolist()


def play(policy: Any, observations: list[Any]) -> list[list[float]]:
    policy.reset()
    return [flat(policy.act(obs)) for obs in observations]


def serve(backend: Any, bare: list[Any], rows: list[Any], expected: list[float]) -> None:
    """The answers to the first observation, as JSON and as arrays, with and without the part."""
    with running(PolicyServer(backend, ServeSettings(port=0, max_batch=1))) as port:
        client = Client(port)
        described = client.get("/v1/spaces")["observation_space"]
        assert {name for name, _ in described["spaces"]} == set(bare[0])
        for obs in (bare[0], rows[0]):
            plain = jax.tree.map(lambda x: np.asarray(x).tolist(), dict(obs))
            answer = client.post({"observation": plain, "episode_id": "a", "is_first": True})
            np.testing.assert_allclose(flat(answer["action"]), expected, atol=1e-5)
            paths = jax.tree_util.tree_flatten_with_path(dict(obs))[0]
            arrays = {
                ".".join(["observations", *(key.key for key in path)]): np.asarray(leaf)[None]
                for path, leaf in paths
            }
            body = safetensors.numpy.save(
                arrays, {"options": '{"is_first": true, "episode_ids": ["b"]}'}
            )
            status, _, found = client.request("POST", "/v1/actions", body, Content_Type=ARRAYS)
            assert status == 200, found
            np.testing.assert_allclose(
                flat(safetensors.numpy.load(found)["actions"]), expected, atol=1e-5
            )
        client.close()


class Reading(ObservationConnector):
    """Shows the policy something of the hidden part."""

    def __call__(self, state: Any, obs: Any) -> Any:
        return {**obs, "pose": obs["pose"] + obs["truth"]["mass"][..., :1]}


def test_what_a_connector_reads_must_be_given() -> None:
    config = make_run("PPO").env_runners(env_to_module_connector=lambda env=None: Reading())
    with config.build() as algorithm:
        policy, (obs,) = algorithm.get_policy(), samples(FULL, 1)
        policy.act(obs)
        with pytest.raises(SpaceError, match=r"must be a dict with the keys .*'truth'"):
            policy.act({k: v for k, v in obs.items() if k != "truth"})


class Robot(AnyGymSpaces):
    """The task without what only a simulator knows."""

    def __init__(self, context: Any = None) -> None:
        super().__init__(SEEN, CHOICE)


@pytest.mark.parametrize(
    "kind",
    slow_but((True, "lstm"), of=itertools.product([False, True], ["plain", "lstm"])),
)
def test_evaluation_environments_may_lack_it(kind: tuple[bool, str]) -> None:
    on_host, memory = kind
    trained: Any = (lambda context: AnyGymSpaces(FULL, CHOICE)) if on_host else Choosing
    config = make_run("PPO", trained, **MEMORIES[memory])
    env = Robot if on_host else jax_env(SEEN, CHOICE)
    config.evaluation(evaluation_duration=4, evaluation_config={"env": env})
    with config.build() as algorithm:
        assert algorithm.evaluate()["env_runners"]["episode_return_mean"] == 5.0
    config.evaluation(evaluation_config={"env": jax_env(spaces.Dict({"pose": BOX}), CHOICE)})
    with pytest.raises(ConfigError, match="same spaces"):
        config.build()


# --- simulators ---


@pytest.mark.parametrize("mode", slow_but("local", of=["remote", "local"]))
def test_simulators_may_lack_it_where_nothing_is_learned(mode: str) -> None:
    config = make_config().rl_module(model_config={**MODEL, **LSTM})
    served = Served(config.environment(observation_space=FULL, action_space=CHOICE))
    try:
        env = AnyGymSpaces(SEEN, CHOICE)
        options: Any = {"observation_space": SEEN, "action_space": CHOICE}
        with served.connect(inference_mode=mode, **options) as client:
            assert client.run(env, num_episodes=2, training_enabled=False) == [5.0, 5.0]
            with pytest.raises(LinkError, match="and the run has"):
                client.run(env, num_episodes=1)
            episode = client.start_episode()
            (obs,) = samples(SEEN, 1)
            with pytest.raises(LinkError, match=r"obs must be a dict of .*'truth'"):
                client.get_action(episode, obs)
            (full,) = samples(FULL, 1)
            assert client.get_action(episode, {**full, **obs}) in (0, 1)
    finally:
        served.group.stop()


# --- several agents ---


class HiddenTargets(Targets):
    """Targets by the time, with what the time will be as the hidden part."""

    name = "hidden-targets"

    def observation_space(self, agent: str, params: Any) -> gymnasium.Space[Any]:
        parts = {"pose": super().observation_space(agent, params), "truth": BOX}
        return spaces.Dict(parts)

    def _observe(self, time: Any) -> Any:
        own = super()._observe(time)
        return {agent: {"pose": x, "truth": jnp.clip(x + 1 / 8, -1, 1)} for agent, x in own.items()}


@pytest.mark.parametrize("algo", slow_but(MAPPOConfig, of=[PPOConfig, MAPPOConfig]))
def test_agents_act_without_it(algo: Any, tmp_path: Path) -> None:
    config = algo().environment(HiddenTargets()).multi_agent(observe_agent_id=True)
    if algo is MAPPOConfig:
        config.training(critic_input="joint")
    config.env_runners(num_envs_per_env_runner=4).rl_module(model_config=MODEL)
    config.training(train_batch_size=64, minibatch_size=32, num_epochs=1).debugging(loggers=[])
    with config.build() as algorithm:
        algorithm.train()
        (module,) = algorithm.get_weights()
        full = {
            agent: {"pose": np.float32([0.5, i]), "truth": np.float32([0, i])}
            for i, agent in enumerate("ab")
        }
        bare = {agent: {"pose": obs["pose"]} for agent, obs in full.items()}
        actions = [algorithm.compute_actions(each, explore=False) for each in (full, bare)]
        assert actions[0] == actions[1]
        folder = algorithm.export(tmp_path / "e", policy_id=module)
        exported = NumpyPolicy(folder)
        ids = exported.manifest["observation_space"]["spaces"]
        assert [name for name, _ in ids] == ["agent_id", "pose"] or len(ids) == 2
        obs = {name: np.zeros(x["shape"], np.float32) for name, x in ids}
        assert int(exported.act(obs)) == int(algorithm.get_policy(module, explore=False).act(obs))


# --- what is refused ---


class Leaking(ActorCriticModule):
    """Its policy has the critic's encoder."""

    def setup(self) -> None:
        super().setup()
        self.network = self.network.clone(pi_encoder=self.make_encoder())


def with_model(config: Any, **model: Any) -> Any:
    return config.rl_module(model_config={**MODEL, **model})


PLAIN = lambda: make_run("PPO")  # noqa: E731
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "shared layers": (
        lambda: with_model(PLAIN(), vf_share_layers=True),
        "vf_share_layers=True shows",
    ),
    "unknown": (
        lambda: with_model(PLAIN(), critic_only_observations=["thruth"]),
        "Did you mean 'truth'",
    ),
    "the mask": (
        lambda: with_model(PLAIN(), critic_only_observations=["action_mask"]),
        "no such part",
    ),
    "all": (
        lambda: with_model(PLAIN(), critic_only_observations=["pose", "gear", "truth"]),
        "nothing to observe",
    ),
    "twice": (lambda: with_model(PLAIN(), critic_only_observations=["a", "a"]), "different names"),
    "a text": (lambda: with_model(PLAIN(), critic_only_observations="truth"), "list of different"),
    "no Dict": (lambda: with_model(small("PPO")), r"names parts of a Dict, but .* Box"),
    "flattened": (
        lambda: PLAIN().env_runners(flatten_observations=True),
        "without flatten_observations",
    ),
    "flattened by a connector": (
        lambda: PLAIN().env_runners(env_to_module_connector=lambda env=None: FlattenObservations()),
        "without flatten_observations",
    ),
    "DQN": (lambda: make_run("DQN"), "no policy apart from them"),
    "PQN": (lambda: make_run("PQN"), "no policy apart from them"),
    "no values": (
        lambda: make_run("PPO").training(use_critic=False),
        "PPO learns no values",
    ),
    "PG": (lambda: make_run("PG"), "PG learns no values"),
    "leak": (
        lambda: PLAIN().rl_module(rl_module_spec=RLModuleSpec(module_class=Leaking)),
        "actions of Leaking depend on 'truth'",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str) -> None:
    make, sentence = REFUSED[case]
    with pytest.raises((ConfigError, ModuleError), match=sentence):
        make().build()


@pytest.mark.parametrize(
    ("config_class", "sentence"),
    [(BCConfig, "BC learns no values"), (DTConfig, "one network without values")],
)
def test_cloning_has_no_critic(config_class: Any, sentence: str) -> None:
    config = config_class().rl_module(model_config={"critic_only_observations": ["truth"]})
    actions = make_action_pipeline(config, CHOICE)
    observations = make_observation_pipeline(config, FULL, CHOICE)
    with pytest.raises(ConfigError, match=sentence):
        assemble_module(config, observations, actions)


@pytest.mark.parametrize("config_class", [QMIXConfig, MADDPGConfig])
def test_teams_have_another_way(config_class: Any) -> None:
    members = {"obs": spaces.Dict(truth=spaces.Box(-1.0, 1.0, (2, 3)))}
    group = spaces.Dict({**members, "member_mask": spaces.MultiBinary(2)})
    actions = {
        QMIXConfig: spaces.MultiDiscrete([2, 2]),
        MADDPGConfig: spaces.Box(-1.0, 1.0, (2, 1)),
    }
    spec = config_class().rl_module(model_config=MODEL).get_rl_module_spec
    with pytest.raises(ConfigError, match=r"\['truth'\] has no effect on"):
        spec(group, actions[config_class]).build()
