"""Environments of JAX packages through their adapters, against the packages' own functions.

Only what is installed is tested. Where nothing else is said, it is one environment of each package.
"""

import importlib
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import PPOConfig
from jaxrl.core.space_arrays import get_leaf_dtype
from jaxrl.core.types import PyTree
from jaxrl.envs import make, make_any
from jaxrl.envs.adapters.table import ADAPTERS, find_refused, list_ids
from jaxrl.errors import EnvError, JaxrlError
from jaxrl.testing import check_env

pytestmark = [
    pytest.mark.allow_key_reuse,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Brax System", "ignore:.* did not end within"),
    pytest.mark.filterwarnings("ignore:scatter inputs:FutureWarning"),  # BinPack
]


def make_action(space: Any) -> Any:
    """Return an action of zeros."""
    return jnp.zeros(space.shape or (), get_leaf_dtype(space))


QUICK = "xminigrid:MiniGrid-Empty-5x5"
"""The environment whose program is the quickest to compile."""


def need(env_id: str) -> Any:
    return pytest.importorskip(ADAPTERS[env_id.partition(":")[0]].package)


def of_slow(*rows: Any) -> list[Any]:
    """Mark all rows as slow but those of the quickest environment."""
    return [
        row
        if (row[0] if isinstance(row, tuple) else row) == QUICK
        else pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=pytest.mark.slow)
        for row in rows
    ]


@pytest.mark.parametrize(
    "env_id",
    of_slow(
        QUICK,
        "brax:inverted_pendulum",
        "craftax:Craftax-Classic-Symbolic-v1",
        "jumanji:Snake-v1",
        "jumanji:Game2048-v1",
        "jumanji:BinPack-v2",
        "playground:CartpoleBalance",
    ),
)
def test_contract(env_id: str) -> None:
    need(env_id)
    check_env(env_id, num_steps=16, num_envs=2)


def own_physics(env: Any, _: Any) -> Any:
    def read(state: Any) -> Any:
        return state, (state.obs, state.reward, state.done)

    return lambda key: read(env.reset(key)), lambda key, state, a: read(env.step(state, a))


def own_brax(name: str) -> Any:
    return own_physics(importlib.import_module("brax.envs").get_environment(name), None)


def own_playground(name: str) -> Any:
    registry = importlib.import_module("mujoco_playground").registry
    return own_physics(registry.load(name, config_overrides={"impl": "jax"}), None)


def own_craftax(name: str) -> Any:
    make_own = importlib.import_module("craftax.craftax_env").make_craftax_env_from_name
    env = make_own(name, auto_reset=False)

    def step(key: Any, state: Any, action: Any) -> Any:
        obs, after, reward, done, _ = env.step(key, state, action, env.default_params)
        return after, (obs, reward, done)

    def reset(key: Any) -> Any:
        obs, state = env.reset(key, env.default_params)
        return state, (obs, 0.0, False)

    return reset, step


def own_jumanji(name: str) -> Any:
    env = importlib.import_module("jumanji").make(name)

    def read(found: Any) -> Any:
        state, step = found
        return state, (step.observation, step.reward, step.last())

    return lambda key: read(env.reset(key)), lambda key, state, a: read(env.step(state, a))


def own_xminigrid(name: str) -> Any:
    env, params = importlib.import_module("xminigrid").make(name)

    def read(step: Any) -> Any:
        return step, (step.observation, step.reward, step.last())

    return lambda key: read(env.reset(params, key)), lambda key, s, a: read(env.step(params, s, a))


@pytest.mark.parametrize(
    ("env_id", "own"),
    of_slow(
        (QUICK, own_xminigrid),
        ("brax:inverted_pendulum", own_brax),
        ("craftax:Craftax-Classic-Symbolic-v1", own_craftax),
        ("jumanji:Snake-v1", own_jumanji),
        ("jumanji:Knapsack-v1", own_jumanji),
        ("playground:CartpoleBalance", own_playground),
    ),
)
def test_steps_are_the_packages_own(env_id: str, own: Callable[[str], Any]) -> None:
    """Fifty steps with the same keys and actions, over ends of episodes."""
    need(env_id)
    made = make(env_id)
    own_reset, own_step = own(env_id.partition(":")[2])
    with jax.numpy_rank_promotion("allow"):
        own_reset, own_step = jax.jit(own_reset), jax.jit(own_step)
        reset = jax.jit(lambda key: made.env.reset(key, made.params))
        step = jax.jit(lambda *args: made.env.step(*args, made.params))
        space, draw = made.spaces[1], np.random.default_rng(0)
        over = True
        for number in range(50):
            key = jax.random.fold_in(jax.random.key(1), number)
            words = jax.random.key_data(key)
            if over:
                state, obs = reset(key)
                own_state, (own_obs, *_) = own_reset(words)
                assert_same_obs(obs, own_obs)
            if isinstance(space, spaces.Discrete):
                action = jnp.asarray(draw.integers(int(space.n)), jnp.int32)
            else:
                action = jnp.asarray(draw.uniform(-1.0, 1.0, space.shape), jnp.float32)
            state, result = step(key, state, action)
            own_state, (own_obs, own_reward, own_end) = own_step(words, own_state, action)
            assert_same_obs(result.obs, own_obs)
            np.testing.assert_allclose(result.reward, np.reshape(own_reward, ()), rtol=1e-6)
            over = bool(result.terminated | result.truncated)
            assert over == bool(own_end)


def assert_same_obs(found: PyTree, expected: Any) -> None:
    found, expected = jax.tree.leaves(found), jax.tree.leaves(to_sorted(expected))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            np.ravel(one).astype(np.float32),
            np.ravel(other).astype(np.float32),
            rtol=1e-6,
            atol=1e-6,
        )


def to_sorted(obs: Any) -> Any:
    """Return NamedTuples as dictionaries, whose leaves are in the order of their names."""
    return {k: to_sorted(v) for k, v in obs._asdict().items()} if hasattr(obs, "_asdict") else obs


@pytest.mark.parametrize(
    ("env_id", "env_config", "max_episode_steps", "limit"),
    of_slow(
        (QUICK, {}, 5, 5),
        (QUICK, {"max_steps": 4}, None, 4),
        ("brax:inverted_pendulum", {}, 5, 5),
        ("craftax:Craftax-Classic-Symbolic-v1", {"max_timesteps": 5}, None, 5),
        ("craftax:Craftax-Classic-Symbolic-v1", {}, 4, 4),
        ("jumanji:Game2048-v1", {}, 3, 3),
        ("jumanji:PacMan-v1", {"time_limit": 4}, None, 4),
        ("playground:CartpoleBalance", {"episode_length": 3}, None, 3),
    ),
)
def test_limits_truncate(
    env_id: str, env_config: dict[str, Any], max_episode_steps: int | None, limit: int
) -> None:
    need(env_id)
    made = make(env_id, env_config, max_episode_steps=max_episode_steps)
    assert made.max_episode_steps == limit
    step = jax.jit(lambda *args: made.env.step(*args, made.params))
    state, _ = made.env.reset(jax.random.key(0), made.params)
    ends = []
    for _ in range(limit):
        state, result = step(jax.random.key(1), state, make_action(made.spaces[1]))
        ends.append((bool(result.terminated), bool(result.truncated)))
    assert ends == [(False, False)] * (limit - 1) + [(False, True)]


def test_equal_arguments_give_the_same_environment() -> None:
    need(QUICK)
    assert make(QUICK).env == make(QUICK).env
    assert make(QUICK, {"view_size": 5}).env != make(QUICK).env
    env, params = importlib.import_module("xminigrid").make(QUICK.partition(":")[2])
    given: Any = (env, params)
    assert make(given).env == make(given).env
    assert make(given).spaces == make(QUICK).spaces
    with pytest.raises(EnvError, match="lacks its parameters: give the pair"):
        make(env)


def make_instance(package: str) -> Any:
    """Return an instance as a user of the package has it, with its wrappers for training."""
    if package == "brax":
        return importlib.import_module("brax.envs").create("inverted_pendulum", episode_length=50)
    if package == "craftax":
        module = importlib.import_module("craftax.craftax_env")
        return module.make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=True)
    if package == "jumanji":
        wrappers = importlib.import_module("jumanji.wrappers")
        return wrappers.AutoResetWrapper(importlib.import_module("jumanji").make("Maze-v0"))
    if package == "playground":
        return importlib.import_module("mujoco_playground").registry.load(
            "CartpoleBalance", config_overrides={"impl": "jax"}
        )
    wrappers = importlib.import_module("xminigrid.wrappers")
    env, params = importlib.import_module("xminigrid").make("MiniGrid-Empty-5x5")
    return wrappers.GymAutoResetWrapper(env), params


@pytest.mark.parametrize(
    ("package", "limit"),
    [
        ("brax", 50),
        ("craftax", 10_000),
        ("jumanji", 100),
        ("playground", 1_000),
        ("xminigrid", 100),
    ],
)
def test_instances_and_creators_are_adapted(package: str, limit: int) -> None:
    need(package + ":")
    env = make_instance(package)
    assert make(env).max_episode_steps == limit
    assert make(lambda context: env).env == make(env).env


@pytest.mark.slow
@pytest.mark.parametrize("package", ["brax", "craftax", "jumanji", "xminigrid"])
def test_instances_train(package: str) -> None:
    need(package + ":")
    config = PPOConfig().environment(make_instance(package)).debugging(seed=0)
    config = config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=8)
    config = config.training(train_batch_size=32, minibatch_size=16, num_epochs=1)
    config = config.rl_module(model_config={"fcnet_hiddens": [16]})
    algo = config.build()
    result = algo.train()
    algo.stop()
    assert result["num_env_steps_sampled_lifetime"] == 32
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])


def trace_step(env_id: str, env_config: dict[str, Any]) -> None:
    """Make an environment, and trace a step of it."""
    made = make(env_id, env_config)

    def step(key: Any) -> Any:
        state, _ = made.env.reset(key, made.params)
        return made.env.step(key, state, make_action(made.spaces[1]), made.params)

    jax.eval_shape(step, jax.random.key(0))


@pytest.mark.parametrize(
    ("env_id", "env_config", "message"),
    [
        ("xminigrid:MiniGrid-Emty-5x5", {}, "Did you mean 'MiniGrid-Empty-5x5'"),
        ("xminigrid:MiniGrid-Empty-5x5", {"viewsize": 3}, "unexpected keyword argument 'viewsize'"),
        ("brax:antt", {}, r"Brax has no environment 'antt'. Did you mean 'ant'\? Known: ant, fast"),
        ("brax:ant", {"back_end": "spring"}, "unexpected keyword argument 'back_end'"),
        ("craftax:Craftax-Symbolic-v1", {"god_mod": True}, "Did you mean 'god_mode'"),
        ("craftax:Craftax-Symbolic-v1", {"static_env_params": {"x": 1}}, "argument 'x'"),
        ("jumanji:Sokoban-v0", {}, "downloads its levels when it is made; a creator"),
        ("jumanji:Snake-v1", {"num_rws": 3}, "unexpected keyword argument 'num_rws'"),
        ("playground:Go1Getup", {}, "robots of MuJoCo Menagerie, which are not at .*: clone"),
        (
            "playground:CartpoleBalance",
            {"ctrl_d": 1},
            "has no field 'ctrl_d' in its config. Did you",
        ),
        ("jumanji:Connector-v3", {}, "rewards of shape .*, one for each of its agents"),
    ],
)
def test_refusals_are_sentences(env_id: str, env_config: dict[str, Any], message: str) -> None:
    if not env_id.endswith("Sokoban-v0"):
        need(env_id)
    with pytest.raises(JaxrlError, match=message):
        trace_step(env_id, env_config)


@pytest.mark.parametrize("env_id", ["brax:swimmer", "playground:ReacherEasy"])
def test_tasks_are_refused_only_while_their_package_cannot_run_them(env_id: str) -> None:
    need(env_id)
    prefix, _, name = env_id.partition(":")
    reason = find_refused(prefix).get(name)
    if reason is None:
        trace_step(env_id, {})
        return
    with pytest.raises(EnvError, match=re.escape(f"{env_id} is refused: {reason}.")):
        make(env_id)


def test_wrappers_whose_work_is_done_here_are_refused_within_others() -> None:
    need("brax:")
    envs = importlib.import_module("brax.envs")

    class Halved(envs.Wrapper):
        def step(self, state: Any, action: Any) -> Any:
            after = self.env.step(state, action)
            return after.replace(reward=after.reward / 2)

    bare = envs.get_environment("inverted_pendulum")
    assert make(Halved(bare)).max_episode_steps == 1_000
    with pytest.raises(EnvError, match="Halved wraps AutoResetWrapper, whose work is jaxrl's"):
        make(Halved(envs.create("inverted_pendulum")))
    with pytest.raises(EnvError, match="repeats each action 2 times"):
        make(envs.create("inverted_pendulum", action_repeat=2))


@pytest.mark.parametrize("prefix", [p for p, row in ADAPTERS.items() if row.distributions])
def test_ids_are_listed_without_those_that_are_refused(prefix: str) -> None:
    need(prefix + ":")
    names = list_ids(prefix)
    assert ADAPTERS[prefix].example in names
    assert not set(find_refused(prefix)) & set(names)


def test_a_limit_within_a_wrapper_truncates() -> None:
    need("jumanji:")
    jumanji, wrappers = (importlib.import_module(n) for n in ("jumanji", "jumanji.wrappers"))
    inner = jumanji.make("Maze-v0", time_limit=3)
    made = make(type("Own", (wrappers.Wrapper,), {})(inner))
    assert made.max_episode_steps == 3
    state, _ = made.env.reset(jax.random.key(0), made.params)
    for _ in range(3):
        state, result = made.env.step(jax.random.key(1), state, jnp.int32(0), made.params)
    assert (bool(result.terminated), bool(result.truncated)) == (False, True)
    assert inner.time_limit == 3, "the user's own is unchanged"


EXTRAS = [p for p, row in ADAPTERS.items() if row.distributions and p != "gymnax"]
"""Compiled packages that are no requirement."""


@pytest.mark.parametrize("prefix", EXTRAS)
def test_a_missing_package_is_named(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ADAPTERS[prefix].package
    for module in [m for m in sys.modules if m.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    spec = f"{prefix}:{ADAPTERS[prefix].example}"
    config = {"static_env_params": {}} if prefix == "craftax" else {}  # which is not cached
    with pytest.raises(EnvError, match=f"{spec} needs the package '{package}") as caught:
        make_any(spec, config)
    assert str(caught.value).endswith(f"{ADAPTERS[prefix].install}.")
