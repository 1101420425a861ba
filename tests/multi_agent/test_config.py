"""Configs for several agents: who plays, what is trained, and what is refused by one sentence."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from jaxrl import (
    AlgorithmConfig,
    APPOConfig,
    DQNConfig,
    MultiRLModuleSpec,
    PolicySpec,
    PPOConfig,
    ReplayBuffer,
    RLModuleSpec,
    grid,
)
from jaxrl.config.batch_plan import MultiAgentPlan
from jaxrl.config.serialize import deserialize_config, serialize_config
from jaxrl.core.types import PyTree
from jaxrl.envs.multi.opponents import BeatLast
from jaxrl.errors import CheckpointError, ConfigError, JaxrlError
from tests.multi_agent.agent_envs import Targets, Torture

MAPPING = {"a": "p0", "b": "p1"}


def ppo(env: Any = Targets, **settings: Any) -> PPOConfig:
    """512 steps of 16 environments."""
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=16)
    config.training(train_batch_size=512, minibatch_size=128).rl_module(
        model_config={"fcnet_hiddens": [8]}
    )
    return config.debugging(loggers=[]).multi_agent(**settings)


class OwnBuffer(ReplayBuffer):
    """A buffer as a user would write one."""


def dqn(buffer: dict[str, Any], env: Any = Targets) -> DQNConfig:
    """4 environments with a buffer of 400 rows."""
    config = DQNConfig().environment(env).env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=32, replay_buffer_config={"capacity": 400, **buffer})
    config.rl_module(model_config={"fcnet_hiddens": [8]})
    return config.debugging(loggers=[])


def prepare(config: AlgorithmConfig) -> AlgorithmConfig:
    config.prepare()
    return config


@pytest.mark.parametrize(
    ("settings", "mapping"),
    [
        ({}, {"a": "default_policy", "b": "default_policy"}),
        ({"policies": {"shared"}}, {"a": "shared", "b": "shared"}),
        ({"mapping": MAPPING}, MAPPING),
        ({"policies": {"p0", "p1"}, "mapping": MAPPING}, MAPPING),
        (
            {"policies": {"p0", "p1"}, "policy_mapping_fn": lambda aid, *a, **k: MAPPING[aid]},
            MAPPING,
        ),
        ({"policies": ["p0", "p1"], "policy_mapping_fn": lambda aid, ep: MAPPING[aid]}, MAPPING),
        (
            {
                "policies": {"p0": PolicySpec(config={"lr": 1e-4}), "p1": None},
                "policy_mapping_fn": lambda agent_id, episode, **kw: MAPPING[agent_id],
            },
            MAPPING,
        ),
        (
            {
                "policies": {"p0": (None, None, None, {"gamma": 0.8}), "p1": RLModuleSpec()},
                "policy_mapping_fn": lambda agent_id, episode, worker=None, **kw: MAPPING[agent_id],
                "policies_to_train": ["p0"],
            },
            MAPPING,
        ),
        (
            {
                "policies": {"p0", "p1"},
                "policy_mapping_fn": lambda aid, ep: MAPPING[aid],
                "policies_to_train": lambda pid, batch: pid == "p1",
                "algorithm_config_overrides_per_module": {"p1": PPOConfig.overrides(lr=1e-4)},
            },
            MAPPING,
        ),
    ],
)
def test_rllibs_ways_to_say_who_plays(settings: dict[str, Any], mapping: dict[str, str]) -> None:
    config = prepare(ppo(**settings))
    assert config.is_multi_agent
    assert config.mapping == mapping
    again = PPOConfig.from_dict(config.to_dict())
    assert again.mapping == mapping
    assert again.policies_to_train == config.policies_to_train


def test_the_default_module_is_trained_alone() -> None:
    config = prepare(
        ppo(
            policies={"default_policy", "p1"},
            mapping={"a": "default_policy", "b": "p1"},
            policies_to_train=["default_policy"],
        )
    )
    assert config.policies_to_train == ["default_policy"]
    assert not config.get_module_config("p1").is_trained
    # RLlib's configs of a single agent may name the module that there is
    single = PPOConfig().environment("CartPole-v1")
    single.multi_agent(policies=["default_policy"], policies_to_train=["default_policy"]).validate()


def test_a_class_of_policies_may_be_its_path() -> None:
    path = "jaxrl.envs.multi.opponents:BeatLast"
    config = ppo(
        "RockPaperScissors-v0",
        policies={"p0": None, "p1": path},
        mapping={"player_0": "p0", "player_1": "p1"},
        policies_to_train=["p0"],
    )
    assert config.policies == {"p0": None, "p1": BeatLast}
    data = json.loads(json.dumps(serialize_config(config)))
    assert deserialize_config(data).policies == config.policies
    data["settings"]["policies"]["p1"] = "unknown_package:Module"
    with pytest.raises(CheckpointError, match="unknown_package"):
        deserialize_config(data)


def test_settings_of_modules() -> None:
    config = ppo(
        policies={"p0": PolicySpec(config={"lr": 1e-4, "gamma": 0.5}), "p1": None},
        mapping=MAPPING,
        algorithm_config_overrides_per_module={"p0": PPOConfig.overrides(gamma=0.6)},
        policies_to_train=["p0"],
    ).training(lr=2e-4)
    p0, p1 = (config.get_module_config(module) for module in ("p0", "p1"))
    assert (p0.lr, p0.gamma, p0.is_trained) == (1e-4, 0.6, True)
    assert (p1.lr, p1.gamma, p1.is_trained) == (2e-4, 0.99, False)
    spec = MultiRLModuleSpec(
        rl_module_specs={"p1": RLModuleSpec(model_config={"fcnet_hiddens": [3]})}
    )
    specs = ppo(mapping=MAPPING).rl_module(rl_module_spec=spec).get_multi_rl_module_spec()
    found = [specs.rl_module_specs[name].model_config for name in ("p0", "p1")]
    assert found == [{"fcnet_hiddens": [8]}, {"fcnet_hiddens": [3]}]


def test_steps_are_counted_by_environments_or_agents() -> None:
    plan = ppo(mapping=MAPPING).plan()
    assert isinstance(plan, MultiAgentPlan)
    assert plan.train_batch_size == 512
    assert plan.describe().endswith(
        "p0: 1 agent, 512 rows, 120 updates of 128; p1: 1 agent, 512 rows, 120 updates of 128"
    )
    by_agents = ppo(mapping=MAPPING, count_steps_by="agent_steps").plan()
    assert by_agents.train_batch_size == 256
    shared = ppo().plan()
    assert isinstance(shared, MultiAgentPlan)
    assert "default_policy: 2 agents, 1024 rows" in shared.describe()


class Different(Targets):
    """Agents with other observations."""

    def observation_space(self, agent: str, params: PyTree) -> gymnasium.Space[Any]:
        low = -2.0 if agent == "a" else -1.0
        return gymnasium.spaces.Box(low, 1.0, (2,), np.float32)


class WithSlash(Targets):
    possible_agents = ("a/1", "b")


class WithNumbers(Targets):
    possible_agents = (0, 1)  # pyright: ignore[reportAssignmentType]


COUNTER = itertools.count()
SPACE = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)

BAD: list[tuple[Callable[[], AlgorithmConfig], str]] = [
    (
        lambda: ppo(mapping={"a": "__all_modules__", "b": "p1"}),
        "policies has the id '__all_modules__' ... give the module another one",
    ),
    (
        lambda: ppo(WithNumbers, policy_mapping_fn=lambda aid, ep: f"p{aid}"),
        "WithNumbers: ids of agents ... got 0",
    ),
    (
        lambda: ppo(policies={"p0": PolicySpec(config={"lr": grid([0.1, 0.2])})}),
        "The module 'p0' has lr=grid([0.1, 0.2]) in an object ... {'p0': {'lr': grid(",
    ),
    (
        lambda: ppo().callbacks(on_episode_step=lambda **kwargs: None),
        "on_episode_step would never be called ... leave it out, or write the environment",
    ),
    (
        lambda: ppo().env_runners(batch_mode="complete_episodes"),
        "'batch_mode' (got 'complete_episodes') ... leave it out, or write the environment",
    ),
    (
        lambda: ppo(policies={"p0", "p1"}, mapping={"a": "p0", "b": "p2"}),
        "mapping gives the agent 'b' the module 'p2' ... p0, p1",
    ),
    (
        lambda: ppo(policies={"p0"}, policy_mapping_fn=lambda aid, ep: f"p{aid}"),
        "policy_mapping_fn gives the agent 'a' the module 'pa' ... policies has p0",
    ),
    (
        lambda: ppo(policies={"p0"}, policy_mapping_fn=lambda aid, ep: {}[aid]),
        "policy_mapping_fn raised KeyError for the agent 'a'",
    ),
    (
        lambda: ppo(policy_mapping_fn=lambda aid, ep: f"p{next(COUNTER) % 2}"),
        "policy_mapping_fn gives the agent 'a' different modules (p0, p1) ... mapping=Seats('p0', 'p1')",
    ),
    (
        lambda: ppo(policy_mapping_fn=lambda aid, ep: 3),
        "policy_mapping_fn must return the id of a module, got 3",
    ),
    (
        lambda: ppo(mapping=MAPPING, policy_mapping_fn=lambda aid, ep: "p0"),
        "mapping and policy_mapping_fn ... set one",
    ),
    (
        lambda: ppo(policies={"p0", "p1"}),
        "policies has p0, p1, and nothing says which agents they play ... 'a': 'p0'",
    ),
    (lambda: ppo(mapping={"a": "p0"}), "mapping has no module for the agent 'b'"),
    (
        lambda: ppo(mapping={**MAPPING, "bb": "p1"}),
        "mapping names the agent 'bb' ... has a, b ... Did you mean 'b'",
    ),
    (
        lambda: ppo(policies={"p0", "p1", "p2"}, mapping=MAPPING),
        "policies has 'p2', which plays none of the agents a, b",
    ),
    (lambda: ppo(policies={"p/0"}), "policies has the id 'p/0' ... use letters, digits"),
    (lambda: ppo(mapping={"a": "p.0", "b": "p.0"}), "the id 'p.0' ... use letters, digits"),
    (
        lambda: ppo(policies={"p0": None, "p1": "jaxrl:PPOConfig"}, mapping=MAPPING),
        "policies['p1'] must be a subclass of RLModule, got 'jaxrl:PPOConfig'",
    ),
    (
        lambda: ppo(policies={"p0": None, "p1": PolicySpec("jaxrl:RLModule")}, mapping=MAPPING),
        "class of the module 'p1' must be a class, got 'jaxrl:RLModule' ... entry of policies",
    ),
    (
        lambda: ppo(Different),
        "module 'default_policy' plays 'a' and 'b', whose observation spaces differ ... -2.0",
    ),
    (
        lambda: ppo(
            policies={"p0": PolicySpec(observation_space=SPACE), "p1": None}, mapping=MAPPING
        ),
        "policies['p0'] declares observation_space=Box(-1.0, 1.0, (5,) ... leave it out",
    ),
    (
        lambda: ppo(mapping=MAPPING, policies_to_train=lambda pid: False),
        "policies_to_train leaves none of p0, p1 to train",
    ),
    (
        lambda: ppo(mapping=MAPPING, policies_to_train=["p3"]),
        "policies_to_train names 'p3' ... p0, p1",
    ),
    (
        lambda: ppo(
            mapping=MAPPING,
            algorithm_config_overrides_per_module={"p0": {"train_batch_size": 256}},
        ),
        "overrides_per_module['p0'] has train_batch_size=256 ... set it for the run",
    ),
    (
        lambda: ppo(mapping=MAPPING, algorithm_config_overrides_per_module={"p0": {"seed": 3}}),
        "overrides_per_module['p0'] has seed=3 ... a setting of the whole run",
    ),
    (
        lambda: ppo(mapping=MAPPING, algorithm_config_overrides_per_module={"p5": {"lr": 1e-3}}),
        "algorithm_config_overrides_per_module has 'p5' ... p0, p1",
    ),
    (
        lambda: ppo(mapping=MAPPING).rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={"q": RLModuleSpec()})
        ),
        "rl_module_specs has 'q' ... p0, p1",
    ),
    (
        lambda: ppo(Torture, count_steps_by="agent_steps"),
        "count_steps_by='agent_steps' needs the number ... does not declare max_acting",
    ),
    (
        lambda: ppo(count_steps_by="agent_steps").training(train_batch_size=511),
        "train_batch_size=511 agent steps are not a multiple of the 2 agents ... set 512",
    ),
    (
        lambda: ppo(Torture, share_rewards="team"),
        "share_rewards='team' ... Torture has none of several agents ... set 'all'",
    ),
    (
        lambda: ppo(share_rewards="some"),
        "share_rewards must be 'team' or 'all' or None, got 'some'",
    ),
    (
        lambda: dqn({"type": OwnBuffer}),
        "replay_buffer_config['type']=OwnBuffer stores rows of a single agent ... 'uniform'",
    ),
    (
        lambda: dqn({"storage": "host"}),
        "replay_buffer_config['storage']='host' is not supported with several agents ... 'device'",
    ),
    (
        lambda: dqn({}, env=Torture).rl_module(model_config={"use_lstm": True, "max_seq_len": 4}),
        "DQN with memory draws sequences of consecutive steps ... do not act at every step",
    ),
    (
        lambda: dqn({}).multi_agent(count_steps_by="agent_steps"),
        "count_steps_by='agent_steps' has no effect with a replay buffer ... leave it out",
    ),
    (
        lambda: dqn({}).learners(num_shards=8),
        "num_shards=8 must divide 4 environments; set it to 4",
    ),
    (
        lambda: (
            dqn({"capacity": 4000}).training(max_buffer_bytes=200_000).multi_agent(mapping=MAPPING)
        ),
        "max_buffer_bytes=200000 allows 0.10 MiB for each of 2 modules ... set the capacity to",
    ),
    (
        lambda: (
            dqn({})
            .training(training_intensity=3.0, train_batch_size=64)
            .env_runners(rollout_fragment_length=4)
        ),
        "module 'default_policy' with 2 agents ... training_intensity",
    ),
    (
        lambda: ppo().env_runners(num_env_runners=2),
        "num_env_runners=2 is not supported with several agents ... set 0",
    ),
    (
        lambda: ppo().env_runners(placement="host"),
        "placement='host' is not supported with several agents ... leave it out",
    ),
    (lambda: ppo().learners(num_learners=2), "num_learners=2 is not supported with several agents"),
    (
        lambda: ppo().evaluation(evaluation_interval=1, evaluation_num_env_runners=1),
        "evaluation_num_env_runners=1 is not supported with several agents",
    ),
    (
        lambda: ppo().env_runners(num_envs_per_env_runner="auto"),
        "num_envs_per_env_runner='auto' is not supported with several agents",
    ),
    (
        lambda: APPOConfig().environment(Targets).training(broadcast_interval=2),
        "broadcast_interval=2 is not supported with several agents",
    ),
    (
        lambda: ppo().evaluation(evaluation_interval=1, record_video=True),
        "record_video=True is not supported with several agents",
    ),
    (
        lambda: dqn({}).offline_data(input_={"sampler": 0.5, "recorded": 0.5}),
        "is not supported with several agents: recorded rows are those of one module; learn",
    ),
    (
        lambda: ppo().environment(curriculum=[{"task": {"x": 1}}]),
        "curriculum=[{'task': {'x': 1}}] is not supported with several agents",
    ),
    (
        lambda: ppo("CartPole-v1", policies={"p0", "p1"}, mapping=MAPPING),
        "CartPole-v1 ... single agent",
    ),
    (
        lambda: ppo("CartPole-v1", policies={"default_policy": PolicySpec(config={"lr": 1})}),
        "policies= ... has no effect: the environment has a single agent",
    ),
    (
        lambda: ppo("CartPole-v1", share_rewards="all"),
        "share_rewards='all' has no effect: the environment has a single agent",
    ),
    (
        lambda: ppo("CartPole-v1").rl_module(
            rl_module_spec=MultiRLModuleSpec(rl_module_specs={"p": RLModuleSpec()})
        ),
        "rl_module_spec is a MultiRLModuleSpec, but the environment has a single agent",
    ),
]


@pytest.mark.parametrize(("make", "sentence"), BAD)
def test_bad_input_is_one_sentence(make: Any, sentence: str) -> None:
    with pytest.raises(JaxrlError) as caught:
        make().build()
    message = str(caught.value)
    assert "\n" not in message
    for part in sentence.split(" ... "):
        assert part in message, message


def test_modules_and_agents_that_are_asked_for_by_a_wrong_name() -> None:
    config = ppo(mapping=MAPPING)
    with pytest.raises(ConfigError, match="There is no module 'p7'; there are p0, p1"):
        config.get_module_config("p7")
    with pytest.raises(ConfigError, match="There is a single module"):
        ppo("CartPole-v1").get_module_config("p0")


def test_a_mapping_may_have_agents_as_numbers() -> None:
    mapping: Any = {0: "p0", np.int64(1): "p1"}
    other: Any = {0: "p1", 1: "p0"}
    config = PPOConfig().multi_agent(mapping=mapping)
    assert config.multi_agent_settings.mapping == {"0": "p0", "1": "p1"}
    config.multi_agent(mapping=[mapping, other])
    assert config["mapping"][1] == {"0": "p1", "1": "p0"}
    twice: Any = {0: "p0", "0": "p1"}
    flags: Any = {True: "p0"}
    for wrong, message in (
        (flags, "mapping must be a dictionary"),
        (twice, "a key twice, as a number"),
    ):
        with pytest.raises(ConfigError, match=message):
            config.multi_agent(mapping=wrong)
