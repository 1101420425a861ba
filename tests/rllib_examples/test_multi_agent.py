"""RLlib's examples of several agents, as they are in the installed package, with the import renamed.

Each one runs for an iteration or two, and reaches its own threshold in a slow test.
"""

import importlib
import math
import types
from typing import Any

import pytest

import jaxrl
from jaxrl.connectors.env_to_module import FlattenObservations
from jaxrl.modules.model_config import DefaultModelConfig
from tests.multi_agent.host_envs import Pennies, Takeaway
from tests.rllib_examples.loading import load, load_example

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(does not depend on its seed|every episode terminated)"),
    pytest.mark.filterwarnings("ignore:The old environment creation API:DeprecationWarning"),
]

FOLDER = "examples/multi_agent"
SMALL: dict[str, Any] = {"train_batch_size_per_learner": 128, "minibatch_size": 64, "num_epochs": 1}
TWO_AGENTS = ("--num-agents=2",)


def load_two_step() -> dict[str, Any]:
    """Return the example's environment, which a user copies with it."""
    path = "examples/envs/classes/multi_agent/two_step_game.py"
    name = "TwoStepGameWithGroupedAgents"
    return {name: load(path, ENV_STATE="state")[name]}


def load_callback(file: str, name: str) -> Any:
    """Return one of RLlib's callbacks, with the import renamed."""
    return load(f"{FOLDER}/utils/{file}.py")[name]


def load_self_play(name: str, *given: str, hidden: int = 32, **own: Any) -> tuple[Any, Any]:
    """Return the config and arguments of an example of self-play, in a game without OpenSpiel."""
    league = "league" in name
    callback = "SelfPlayLeagueBasedCallback" if league else "SelfPlayCallback"
    file = "self_play_league_based_callback" if league else "self_play_callback"
    game = types.SimpleNamespace(load_game=lambda game: game)
    replaced = {
        callback: load_callback(file, callback),
        # the league's function counts calls by two, for a game whose players begin together
        "OpenSpielEnv": lambda game: Pennies() if league else Takeaway(),
        "DefaultModelConfig": lambda **widths: DefaultModelConfig(fcnet_hiddens=[hidden]),
        "Environment": None,
        "ask_user_for_action": None,
        "try_import_open_spiel": lambda error: None,
        "try_import_pyspiel": lambda error: game,
    }
    return load_example(f"multi_agent/{name}", *given, **{**replaced, **own})


def load_with_openspiel(name: str, *given: str) -> tuple[Any, Any]:
    """Return the config and arguments of an example of self-play, in its own game."""
    pyspiel = pytest.importorskip("pyspiel")
    return load_self_play(
        name,
        *given,
        OpenSpielEnv=jaxrl.envs.OpenSpielEnv,
        DefaultModelConfig=DefaultModelConfig,
        try_import_pyspiel=lambda error: pyspiel,
    )


def make_quiet(config: Any) -> Any:
    return config.debugging(loggers=[], seed=0)


CASES = [
    "multi_agent_cartpole --num-agents=2",
    "multi_agent_pendulum --num-agents=2",
    "custom_heuristic_policy",
    "different_spaces_for_agents",
    "two_step_game_with_grouped_agents --num-agents=2",
    "rock_paper_scissors_heuristic_vs_learned",
    "rock_paper_scissors_heuristic_vs_learned --use-lstm",
    "rock_paper_scissors_learned_vs_learned",
    "rock_paper_scissors_learned_vs_learned --use-lstm",
]
"""Command lines of RLlib's scripts."""


def load_case(command: str) -> tuple[Any, Any]:
    name, *given = command.split()
    if "scissors" in name:
        pytest.importorskip("pettingzoo.classic")
    if "pettingzoo" in name:
        pytest.importorskip("pettingzoo.sisl.waterworld_v4")  # in PettingZoo's older versions
    replaced = load_two_step() if "two_step" in name else {}
    return load_example(f"multi_agent/{name}", *given, **replaced)


@pytest.mark.representatives("different_spaces_for_agents")
@pytest.mark.parametrize("command", CASES)
def test_an_example_runs(command: str) -> None:
    config, _ = load_case(command)
    config.unset("train_batch_size").training(**SMALL)
    with make_quiet(config).build() as algorithm:
        result = algorithm.train()
        trained = config.policies_to_train or sorted(algorithm.get_weights())
        assert set(result["learners"]) == {*trained, "__all_modules__"}
        num_envs = config.num_envs_per_env_runner or 1  # each makes equally many steps
        assert result["num_env_steps_sampled_lifetime"] == 128 // num_envs * num_envs


@pytest.mark.representatives("pettingzoo_parameter_sharing")
@pytest.mark.parametrize(
    "name", ["pettingzoo_independent_learning", "pettingzoo_parameter_sharing"]
)
def test_an_example_with_pettingzoo_runs(name: str) -> None:
    spread = pytest.importorskip("mpe2.simple_spread_v3")
    water = types.SimpleNamespace(env=lambda: spread.env(N=2, max_cycles=5))
    config, _ = load_example(f"multi_agent/{name}", *TWO_AGENTS, waterworld_v4=water)
    if config.policies != {"p0"}:  # called as the agents, which are pursuers there
        config.multi_agent(policies={"agent_0", "agent_1"})
        config.unset("rl_module_spec")
    config.training(**SMALL)
    with make_quiet(config).build() as algorithm:
        result = algorithm.train()
        agents = result["env_runners"]["agent_episode_returns_mean"]
        assert sorted(agents) == ["agent_0", "agent_1"]


@pytest.mark.slow
def test_rllibs_self_play_callback_adds_snapshots() -> None:
    config, _ = load_self_play("self_play_with_open_spiel", "--win-rate-threshold=0.0")
    config.env_runners(num_env_runners=0).training(**SMALL)
    with make_quiet(config).build() as algorithm:
        first = algorithm.train()
        assert 0.0 < first["env_runners"]["win_rate"] < 1.0
        assert first["league_size"] == 3
        frozen = algorithm.get_weights(["main_v1"])["main_v1"]
        second = algorithm.train()
        played = second["env_runners"]["num_module_steps_sampled"]
        assert played["main_v1"] > 0
        assert played["main"] > 0
        assert_equal(algorithm.get_weights(["main_v1"])["main_v1"], frozen)
        assert set(second["learners"]) == {"main", "__all_modules__"}
        assert second["league_size"] == 4
        assert sorted(algorithm.get_weights()) == ["main", "main_v1", "main_v2", "random"]


@pytest.mark.slow
def test_rllibs_league_trains_exploiters() -> None:
    config, _ = load_self_play("self_play_league_based_with_open_spiel", "--win-rate-threshold=0.0")
    config.training(**{**SMALL, "train_batch_size_per_learner": 512})
    with make_quiet(config).build() as algorithm:
        first = algorithm.train()
        assert first["league_size"] == 6
        trainable = {"main", "league_exploiter_1", "main_exploiter_1"}
        before = algorithm.get_weights()
        assert_equal(before["main_exploiter_1"], before["main"])
        second = algorithm.train()
        assert set(second["learners"]) == {*trainable, "__all_modules__"}
        assert second["league_size"] > 6
        assert_equal(algorithm.get_weights(["main_0"])["main_0"], before["main_0"])
        assert len(algorithm.get_weights()) == second["league_size"]
        algorithm.train()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.usefixtures("ray_cluster")
def test_rllibs_self_play_callback_works_with_actors() -> None:
    config, _ = load_self_play("self_play_with_open_spiel", "--win-rate-threshold=0.0")
    config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5).training(**SMALL)
    with make_quiet(config).build() as algorithm:
        algorithm.train()
        frozen = algorithm.get_weights(["main_v1"])["main_v1"]
        result = algorithm.train()
        assert result["env_runners"]["num_module_steps_sampled"]["main_v1"] > 0
        assert_equal(algorithm.get_weights(["main_v1"])["main_v1"], frozen)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "self_play_with_open_spiel",
        "self_play_league_based_with_open_spiel",
        "self_play_league_based_with_open_spiel --env=connect_four",
    ],
)
def test_self_play_adds_snapshots_in_games_of_openspiel(command: str) -> None:
    config, _ = load_with_openspiel(*command.split(), "--win-rate-threshold=0.0")
    config.env_runners(num_env_runners=0).training(**SMALL)
    config.training(train_batch_size_per_learner=1024)
    with make_quiet(config).build() as algorithm:
        sizes = [algorithm.train()["league_size"] for _ in range(2)]
    assert 2 < sizes[0] < sizes[1]


def assert_equal(one: Any, other: Any) -> None:
    jax, np = importlib.import_module("jax"), importlib.import_module("numpy")
    assert jax.tree.all(jax.tree.map(np.array_equal, one, other))


def make_hierarchy(**sizes: Any) -> Any:
    """Return a config for RLlib's rooms: one agent chooses goals, and who walks there."""
    env = load("examples/envs/classes/six_room_env.py")["HierarchicalSixRoomEnv"]
    config = jaxrl.PPOConfig().environment(env, env_config={"map": "small", **sizes})
    return config.multi_agent(
        policies={"high", *(f"low_{i}" for i in range(sizes["num_low_level_agents"]))},
        policy_mapping_fn=lambda aid, *args, **kw: "high" if "high" in aid else f"low_{aid[-1]}",
    )


@pytest.mark.slow
def test_rllibs_hierarchical_environment_trains_both_levels() -> None:
    config = make_hierarchy(max_steps_low_level=2, time_limit=6, num_low_level_agents=2)
    config.training(**SMALL)
    with make_quiet(config).build() as algorithm:
        result = algorithm.train()
        assert all(result["env_runners"]["num_module_steps_sampled"].values())
        assert {"high", "low_0", "low_1"} < set(result["learners"])


def test_what_the_example_with_a_shared_encoder_needs_is_named() -> None:
    with pytest.raises(ImportError, match="copy what you need from RLlib's examples"):
        load_example("multi_agent/shared_encoder_cartpole")
    with pytest.raises(TypeError, match="multi_rl_module_class"):
        jaxrl.MultiRLModuleSpec(rl_module_specs={}, multi_rl_module_class=object)  # pyright: ignore


# --- thresholds ---

RETURN, LEARNED = "episode_return_mean", "module_episode_returns_mean/learned"
THRESHOLDS = {
    "multi_agent_cartpole --num-agents=2 --stop-reward=600": RETURN,
    "multi_agent_pendulum --num-agents=2 --stop-reward=-400": RETURN,
    "custom_heuristic_policy --stop-reward=450": "module_episode_returns_mean/learnable_policy",
    "two_step_game_with_grouped_agents --num-agents=2 --stop-reward=7": RETURN,
    "rock_paper_scissors_heuristic_vs_learned --stop-reward=6.5": LEARNED,
    "rock_paper_scissors_heuristic_vs_learned --use-lstm --stop-reward=6": LEARNED,
    "pettingzoo_parameter_sharing --num-agents=2 --stop-reward=-210": RETURN,
}
"""Command lines with the rewards that RLlib's tests or scripts ask for, and the result that counts.

With a memory, its test asks for 7.2, and the script itself for 6.
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", THRESHOLDS)
def test_an_example_reaches_its_threshold(command: str) -> None:
    config, args = load_case(command)
    steps, reached = 0, -math.inf
    with make_quiet(config).build() as algorithm:
        for _ in range(args.stop_iters):
            result = algorithm.train()
            reached: Any = result["env_runners"]
            for key in THRESHOLDS[command].split("/"):
                reached = reached[key]
            steps = result["num_env_steps_sampled_lifetime"]
            if reached >= args.stop_reward:
                print(f"\n{command}: {reached:.1f} after {steps} steps")
                return
            if steps >= args.stop_timesteps:
                break
    pytest.fail(f"{command} reached {reached} in {steps} steps")


@pytest.mark.slow
def test_self_play_wins_until_the_league_has_grown() -> None:
    config, args = load_self_play("self_play_with_open_spiel", "--win-rate-threshold=0.7")
    config.env_runners(num_env_runners=0)
    config.training(train_batch_size=512, minibatch_size=64, num_epochs=8, lr=3e-3)
    with make_quiet(config).build() as algorithm:
        for _ in range(40):
            result = algorithm.train()
            if result["league_size"] >= args.min_league_size:
                return
    pytest.fail(f"main wins {result['env_runners']['win_rate']} of its games against random")


def make_fast(config: Any, num_envs: int) -> Any:
    """Set what needs fewer steps of Connect Four than the scripts' own settings."""
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[256, 256]))
    config.training(train_batch_size_per_learner=4096, minibatch_size=512, num_epochs=6)
    config.training(lr=1e-3, gamma=1.0, lambda_=0.95, entropy_coeff=0.02, use_kl_loss=False)
    return make_quiet(config.training(vf_clip_param=math.inf))


# The league's mapping counts its calls by two, so that one environment has to end before another begins.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "num_envs"),
    [
        ("self_play_with_open_spiel --win-rate-threshold=0.9", 32),
        ("self_play_league_based_with_open_spiel --env=connect_four", 1),
    ],
)
def test_a_league_grows_at_connect_four_of_openspiel(command: str, num_envs: int) -> None:
    """Self-play against random moves, and a league with exploiters, to the scripts' own sizes."""
    config, args = load_with_openspiel(*command.split())
    steps = 0
    with make_fast(config, num_envs).build() as algorithm:
        for _ in range(args.stop_iters):
            result = algorithm.train()
            steps = result["num_env_steps_sampled_lifetime"]
            if result["league_size"] >= args.min_league_size:
                print(f"\na league of {result['league_size']} after {steps} steps")
                return
            if steps >= args.stop_timesteps:
                break
    pytest.fail(f"{steps} steps end with a league of {result['league_size']}")


@pytest.mark.slow
def test_a_hierarchy_reaches_its_threshold() -> None:
    """RLlib's example asks for 7 within 4,000,000 steps; these settings need fewer."""
    config = make_hierarchy(max_steps_low_level=15, time_limit=100, num_low_level_agents=3)
    config.env_runners(
        num_envs_per_env_runner=32,
        env_to_module_connector=lambda env, spaces, device: FlattenObservations(multi_agent=True),
    )
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[64, 64]))
    config.training(train_batch_size_per_learner=4096, minibatch_size=512, num_epochs=8, lr=1e-3)
    config.training(entropy_coeff=0.01, use_kl_loss=False)
    reached = -math.inf
    with make_quiet(config).build() as algorithm:
        for _ in range(80):
            reached = algorithm.train()["env_runners"]["episode_return_mean"]
            if reached >= 7.0:
                return
    pytest.fail(f"both levels together reached {reached}")
