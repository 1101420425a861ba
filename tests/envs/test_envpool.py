"""Environments of EnvPool: one pool per runner, whose reset rows are no transitions."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxrl import PPOConfig, register_env
from jaxrl.envs import make
from jaxrl.envs.adapters.table import list_ids
from jaxrl.envs.host import HostStep, HostVector
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.registry import find_imports
from jaxrl.errors import EnvError, UnknownNameError
from jaxrl.testing import check_env
from tests.envs.copies import host, step_rows
from tests.learning.test_thresholds import evaluated

CARTPOLE = "envpool:CartPole-v1"


envpool = pytest.importorskip("envpool", reason="needs jaxrl[envpool]")


def pool(spec: str = CARTPOLE, num_envs: int = 4, **arguments: Any) -> HostVector:
    return make_vector(host(spec), num_envs=num_envs, check=False, **arguments)


def play(vector: HostVector, count: int) -> list[HostStep]:
    """Reset, and take steps: every other copy pushes the cart to one side, and soon ends."""
    vector.reset()
    row = np.arange(vector.num_envs)
    return [vector.step((row % 2 * t % 2).astype(np.int32)) for t in range(count)]


def stack(steps: list[HostStep], name: str) -> np.ndarray:
    return np.stack([getattr(step, name) for step in steps])


def test_ids_are_listed_and_import_nothing_that_a_config_chooses() -> None:
    ids = list_ids("envpool")
    assert "CartPole-v1" in ids
    assert len(ids) == len(envpool.list_all_envs())
    assert find_imports("envpool:os.path:join") == (None, None)
    with pytest.raises(EnvError, match="The prefix of 'envpool:mine' is reserved"):
        register_env("envpool:mine", lambda ctx: None)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("CartPole-v1", {}),
        ("FrozenLake-v1", {}),
        ("LunarLander-v3", {}),  # its lower bound of 1e-38 stands for none
        ("MiniGrid-DoorKey-5x5-v0", {}),
        ("BabyAI-GoToRedBall-v0", {}),  # the limit is the mission's
        ("Minesweeper-v0", {}),
        ("Cleaner-v0", {}),
        pytest.param("HalfCheetah-v5", {}, marks=pytest.mark.slow),
        pytest.param("CheetahRun-v1", {}, marks=pytest.mark.slow),
        pytest.param("Pong-v5", {"gray_scale": False}, marks=pytest.mark.slow),
        pytest.param("Basic-v1", {"use_combined_action": True}, marks=pytest.mark.slow),
    ],
)
def test_every_family_keeps_the_contract(
    name: str, config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # VizDoom writes its settings there
    check_env(f"envpool:{name}", config)


def test_reset_rows_are_the_rows_after_ends() -> None:
    steps = play(make_vector(host(CARTPOLE, max_episode_steps=12), num_envs=8, check=False), 100)
    mask, starts, obs = (stack(steps, name) for name in ("mask", "starts", "obs"))
    truncated, terminated = stack(steps, "truncated"), stack(steps, "terminated")
    ends = terminated | truncated
    assert terminated.sum() >= 8
    assert truncated.sum() >= 8
    assert not (terminated & truncated).any()
    np.testing.assert_array_equal(mask[1:], ~ends[:-1])
    np.testing.assert_array_equal(starts[1:], ends[:-1])
    assert (~mask).sum() == ends[:-1].sum()
    assert (np.abs(obs[starts]) <= 0.05).all()
    final = stack(steps, "final_obs")
    np.testing.assert_array_equal(final[ends], obs[ends])
    assert (np.abs(final[terminated][:, 2]) > 0.2).all()  # the pole has fallen
    rewards = stack(steps, "reward")
    assert rewards[~mask].sum() == 0
    length = np.zeros(8, int)
    for row in range(len(steps)):
        length = np.where(mask[row], length + 1, 0)
        np.testing.assert_array_equal(length[truncated[row]], 12)


def test_seeds_are_of_each_copy() -> None:
    whole, again = (stack(play(pool(seed=3), 60), "obs") for _ in range(2))
    np.testing.assert_array_equal(whole, again)
    second = stack(play(pool(num_envs=2, first_index=2, seed=3), 60), "obs")
    np.testing.assert_array_equal(whole[:, 2:], second)
    assert (whole[:, 0] != whole[:, 1]).any()
    assert (whole != stack(play(pool(seed=4), 60), "obs")).any()
    alone = stack(play(pool(seed=3, mode="sync"), 8), "obs")  # within the first episodes
    np.testing.assert_array_equal(alone, whole[:8])


def test_new_seeds_begin_the_same_episodes() -> None:
    vector = pool()
    first = vector.reset([5, 6, 7, 8])
    assert (vector.reset([1, 2, 3, 4]) != first).any()
    np.testing.assert_array_equal(vector.reset([5, 6, 7, 8]), first)


def test_the_pool_is_stepped_unless_another_way_is_asked_for() -> None:
    made = host(CARTPOLE)
    assert [made.resolve_mode(mode) for mode in ("auto", "sync", "async")] == [
        "vector_entry_point",
        "sync",
        "async",
    ]
    assert not pool().can_pause
    assert pool(mode="sync").can_pause
    assert host("gymnasium:CartPole-v1").resolve_mode("auto") == "sync"


@pytest.mark.parametrize(
    ("variable", "config", "want"), [("3", {}, 3), ("8", {}, 4), ("8", {"num_threads": 2}, 2)]
)
def test_threads(
    monkeypatch: pytest.MonkeyPatch, variable: str, config: dict[str, Any], want: int
) -> None:
    seen: dict[str, Any] = {}
    original = envpool.make_gymnasium

    def record(name: str, **arguments: Any) -> Any:
        seen.update(arguments)
        return original(name, **arguments)

    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(envpool, "make_gymnasium", record)
    make_vector(host(CARTPOLE, config), num_envs=4, check=False).reset()
    assert (seen["num_envs"], seen["num_threads"]) == (4, want)


def test_images_have_their_channels_last() -> None:
    made = host("envpool:Pong-v5", {"stack_num": 2, "noop_max": 1})
    assert made.is_atari
    assert not host("envpool:Pong-v5", is_atari=False).is_atari
    assert made.observation_space.shape == (84, 84, 2)
    got = make_vector(made, num_envs=1, check=False).reset([7])
    original = envpool.make_gymnasium("Pong-v5", num_envs=1, seed=[7], stack_num=2, noop_max=1)
    np.testing.assert_array_equal(got, np.moveaxis(original.reset()[0], 1, -1))


def test_a_mask_of_combinations_is_one_of_a_discrete() -> None:
    vector = pool("envpool:Tetris-v0", 2)
    mask = vector.reset()["action_mask"]
    assert mask.shape == (2, 4 * 10)
    for _ in range(5):
        last = 39 - mask[:, ::-1].argmax(axis=1)
        step = vector.step(last.astype(np.int32))
        assert not step.terminated.any()
        mask = step.obs["action_mask"]
    step = vector.step(mask.argmin(axis=1).astype(np.int32))
    assert step.terminated.all()  # by actions that were not valid
    assert (step.reward < 0).all()


def test_infos_are_those_of_a_copy() -> None:
    steps = play(pool(), 3)
    assert [steps[2].infos(row)["elapsed_step"] for row in range(4)] == [3] * 4


def test_state_is_not_kept() -> None:
    vector = pool()
    vector.reset()
    assert vector.get_state() is None
    assert any("begins new episodes" in note for note in host(CARTPOLE).notes)
    with pytest.raises(EnvError, match="can only step all copies together"):
        vector.pause(np.ones(4, np.bool_))
    with pytest.raises(EnvError, match="restart_failed_sub_environments cannot restart one copy"):
        pool(restart_failed=True)
    vector.close()
    vector.close()


BAD: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("CartPol-v1", {}, UnknownNameError, "Did you mean 'CartPole-v1'"),
    ("CartPole-v1", {"batch_size": 2}, EnvError, "all copies step together here"),
    ("CartPole-v1", {"num_envs": 2}, EnvError, r"env_runners\(num_envs_per_env_runner=...\)"),
    ("CartPole-v1", {"seed": 2}, EnvError, r"debugging\(seed=...\) seeds every copy"),
    ("CartPole-v1", {"max_episode_steps": 2}, EnvError, r"environment\(max_episode_steps=...\)"),
    ("CartPole-v1", {"num_threads": -1}, EnvError, "num_threads .* must be at least 0, got -1"),
    ("CartPole-v1", {"from_pixels": True}, EnvError, "only supported for MuJoCo tasks"),
    ("Pong-v5", {"frame_skipp": 2}, UnknownNameError, "Did you mean 'frame_skip'"),
    ("Pong-v5", {"frame_skip": "2"}, EnvError, "must be of type int, got '2'"),
    ("Pong-v5", {"gray_scale": 1}, EnvError, "must be of type bool, got 1"),
    ("Pong-v5", {"stack_num": 0}, EnvError, "stack_num .* must be at least 1, got 0"),
    ("Pong-v5", {"task": "breakout"}, EnvError, "the id names the task"),
    ("Go9x9-v1", {}, EnvError, "has 2 players"),
    ("Basic-v1", {}, EnvError, "'use_combined_action': True"),
    ("VizdoomCustom-v1", {}, EnvError, "cannot be made: RuntimeError"),
]


@pytest.mark.parametrize(("name", "config", "error", "message"), BAD)
def test_bad_input_is_one_sentence(
    name: str, config: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make(f"envpool:{name}", config)


def test_images_that_cannot_be_drawn_end_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(EnvError, match="MuJoCo cannot draw images on this machine"):
        make("envpool:InvertedPendulum-v5", {"render_mode": "rgb_array"})


def test_a_pool_that_was_made_is_told_by_name() -> None:
    made = envpool.make_gymnasium("Acrobot-v1", num_envs=3, max_episode_steps=9)
    sentence = (
        r"give environment\('envpool:Acrobot-v1', max_episode_steps=9\) and "
        r"env_runners\(num_envs_per_env_runner=3\)"
    )
    for spec in (made, lambda ctx: made):
        with pytest.raises(EnvError, match=sentence):
            make(spec)
    config = PPOConfig().environment(made)
    with pytest.raises(EnvError, match=sentence):
        config.build()
    pong = envpool.make_dm("Pong-v5", num_envs=2, stack_num=2)
    with pytest.raises(EnvError, match=r"'envpool:Pong-v5', env_config={'stack_num': 2}\)"):
        make(pong)
    with pytest.raises(EnvError, match="give the id that it was made from"):
        make(type(made))
    vector = make_vector(host("envpool:Acrobot-v1", max_episode_steps=9), num_envs=3)
    vector.reset()
    assert step_rows(vector, 9)[-1].truncated.all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_policy_learns_from_a_pool(seed: int) -> None:
    score = evaluated("envpool/cartpole-ppo", 150_000, seed)
    print(f"\nenvpool/cartpole-ppo, seed {seed}: {score:.1f}")
    assert score >= 350
