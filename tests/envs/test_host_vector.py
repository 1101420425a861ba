"""Copies of gymnasium environments, stepped together."""

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit

from jaxrl import PPOConfig
from jaxrl.envs import EnvContext, StepFailedRecreateEnvError, make
from jaxrl.envs.adapters.gym_vector import GymVector
from jaxrl.envs.host import HostVector
from jaxrl.envs.host_vector import make_vector
from jaxrl.errors import ConfigError, EnvError, UnknownNameError
from tests.envs.copies import CRASHING, MODES, Counter, copies, host, step_rows


def transitions(vector: GymVector, count: int) -> list[np.ndarray]:
    """The first transitions of each copy, `[count, ...]`, whatever rows lie in between."""
    obs, rows = vector.reset(), [[] for _ in range(vector.num_envs)]
    while min(map(len, rows)) < count:
        action = np.array([len(row) % 3 == 0 for row in rows], np.int32)
        step = vector.step(action)
        for b in np.flatnonzero(step.mask):
            flags = step.reward[b], step.terminated[b], step.truncated[b]
            rows[b].append(np.concatenate([obs[b], [action[b], *flags], step.final_obs[b]]))
        obs = step.obs
    vector.close()
    return [np.stack(row[:count]) for row in rows]


def test_every_way_to_reset_gives_the_same_transitions() -> None:
    made = host("gymnasium:CartPole-v1", max_episode_steps=15)
    reference = transitions(copies(made, 3, "sync", AutoresetMode.SAME_STEP), 50)
    flags = np.concatenate(reference)[:, 6:8].sum(axis=0)
    assert flags[0] >= 1  # terminated
    assert flags[1] >= 6  # truncated
    for autoreset in (AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED):
        np.testing.assert_array_equal(
            reference, transitions(copies(made, 3, "sync", autoreset), 50)
        )


@pytest.mark.parametrize("autoreset", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_processes_give_the_same_transitions(autoreset: AutoresetMode) -> None:
    made = host("gymnasium:CartPole-v1", max_episode_steps=15)
    reference = transitions(copies(made, 2, "sync", AutoresetMode.SAME_STEP), 40)
    np.testing.assert_array_equal(reference, transitions(copies(made, 2, "async", autoreset), 40))


def test_a_single_copy_does_what_gymnasium_alone_does() -> None:
    made = host("gymnasium:CartPole-v1", max_episode_steps=15)
    vector = copies(made, 1, "sync", AutoresetMode.SAME_STEP)
    (rows,) = transitions(vector, 50)
    env = gymnasium.make("CartPole-v1", max_episode_steps=15)
    obs, _ = env.reset(seed=vector._seeds[0])
    for number, row in enumerate(rows):
        action = int(number % 3 == 0)
        final_obs, reward, terminated, truncated, _ = env.step(action)
        expected = np.concatenate([obs, [action, reward, terminated, truncated], final_obs])
        np.testing.assert_array_equal(row, expected)
        obs = env.reset()[0] if terminated or truncated else final_obs


def test_the_final_observation_is_not_that_of_the_reset() -> None:
    vector = make_vector(host(Counter, max_episode_steps=3), num_envs=2, check=False)
    np.testing.assert_array_equal(vector.reset(), [[1, 0], [1, 0]])
    first, second, third, fourth = step_rows(vector, 4)
    assert first.final_obs is first.obs
    assert not second.starts.any()
    np.testing.assert_array_equal(third.final_obs, [[1, 3], [1, 3]])
    np.testing.assert_array_equal(third.obs, [[2, 0], [2, 0]])
    assert third.truncated.all()
    assert not third.terminated.any()
    assert third.starts.all()
    assert third.mask.all()
    assert third.infos(1) == {"count": 3}
    np.testing.assert_array_equal(fourth.final_obs, [[2, 1], [2, 1]])
    assert fourth.infos(0) == {"count": 1}


class InPlace(gymnasium.Env[Any, Any]):
    """Number of steps, written into the same array at each."""

    observation_space = spaces.Box(0, 99, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.seen = np.zeros(1, np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.seen[:] = 0
        return self.seen, {}

    def step(self, action: Any) -> Any:
        self.seen += 1
        return self.seen, 0.0, False, False, {}


def test_an_environment_that_writes_in_place_keeps_its_last_observation() -> None:
    vector = make_vector(host(InPlace, max_episode_steps=3), num_envs=2, check=False)
    vector.reset()
    steps = step_rows(vector, 4)
    assert [step.final_obs[0, 0] for step in steps] == [1, 2, 3, 1]
    assert [step.obs[0, 0] for step in steps] == [1, 2, 0, 1]


def test_the_row_of_a_reset_at_the_next_step_is_no_transition() -> None:
    made = host(Counter)
    vector = copies(made, 2, "sync", AutoresetMode.NEXT_STEP)
    vector.reset()
    steps = step_rows(vector, 7)
    assert [step.mask.all() for step in steps] == [True] * 5 + [False, True]
    assert [step.starts.all() for step in steps] == [False] * 5 + [True, False]
    ended, between, after = steps[4:]
    assert ended.terminated.all()
    np.testing.assert_array_equal(ended.final_obs[0], [1, 5])
    assert not between.terminated.any()
    assert not between.truncated.any()
    assert between.reward.tolist() == [0.0, 0.0]
    np.testing.assert_array_equal(between.obs[0], [2, 0])
    np.testing.assert_array_equal(after.final_obs[0], [2, 1])


@pytest.mark.parametrize("env", ["gymnasium:CartPole-v1", "CartPole-v1"])
def test_data_do_not_depend_on_how_copies_are_spread(env: str) -> None:
    made = make(env)

    def run(first: int, count: int) -> np.ndarray:
        vector = make_vector(made, num_envs=count, first_index=first, seed=4, check=False)
        obs = [vector.reset(), *(step.obs for step in step_rows(vector, 40))]
        return np.stack(obs, axis=1)

    together = run(0, 4)
    np.testing.assert_array_equal(together, np.concatenate([run(0, 1), run(1, 3)]))
    assert len({obs.tobytes() for obs in together[:, 0]}) == 4


def test_contexts_say_which_copy_of_which_worker() -> None:
    made = host(Counter, {"key": "value"})
    vector = make_vector(made, num_envs=3, worker_index=2, num_workers=5, check=False)
    vector.reset()
    contexts = [env.context for env in vector.get_sub_environments()]
    assert [context.vector_index for context in contexts] == [0, 1, 2]
    assert {(c.worker_index, c.num_workers, c["key"]) for c in contexts} == {(2, 5, "value")}


def test_given_seeds_replace_their_own() -> None:
    vector = make_vector(host("gymnasium:CartPole-v1"), num_envs=2, check=False)
    own = vector.reset()
    given = vector.reset([7, 7])
    np.testing.assert_array_equal(given[0], given[1])
    np.testing.assert_array_equal(given[0], gymnasium.make("CartPole-v1").reset(seed=7)[0])
    np.testing.assert_array_equal(vector.reset(), own)


class Nested(Counter):
    """Everything that a space may be, in both directions."""

    observation_space = spaces.Dict(
        {
            "pair": spaces.Tuple(
                (spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3, start=1))
            ),
            "image": spaces.Box(0, 255, (2, 2, 1), np.uint8),
            "bits": spaces.MultiBinary(3),
            "many": spaces.MultiDiscrete([3, 4]),
        }
    )
    action_space = spaces.Dict(
        {
            "box": spaces.Box(-1, 1, (2,), np.float64),
            "pair": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        }
    )

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        action["box"] *= 2  # an environment may write to what it gets
        return super().step(action)

    def _obs(self) -> Any:
        return {
            "pair": (np.full(2, 0.1 * self.count), 1 + self.count % 3),
            "image": np.full((2, 2, 1), self.count, np.uint8),
            "bits": np.array([1, 0, 1], np.int8),
            "many": np.array([2, self.count % 4]),
        }


@pytest.fixture
def _processes_need_not_import_the_tests() -> Iterator[None]:
    modules = [sys.modules[__name__], sys.modules[Counter.__module__]]
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("_processes_need_not_import_the_tests")
@pytest.mark.parametrize("mode", MODES)
def test_nested_spaces(mode: Any, opened: Any) -> None:
    vector = opened(make_vector(host(Nested), num_envs=2, mode=mode))
    obs = vector.reset()
    action = {
        "box": np.full((2, 2), 0.5, np.float32),
        "pair": (np.array([0, 2], np.int32), np.ones((2, 2), np.int8)),
    }
    action["box"].setflags(write=False)
    for _ in range(5):
        step = vector.step(action)
    shapes = jax.tree.map(lambda x: (x.shape, str(x.dtype)), obs)
    assert shapes == {
        "pair": (((2, 2), "float32"), ((2,), "int32")),
        "image": ((2, 2, 2, 1), "uint8"),
        "bits": ((2, 3), "int8"),
        "many": ((2, 2), "int32"),
    }
    assert jax.tree.map(lambda x: (x.shape, str(x.dtype)), step.final_obs) == shapes
    np.testing.assert_allclose(step.final_obs["pair"][0], 0.5)
    np.testing.assert_array_equal(step.final_obs["pair"][1], [3, 3])
    np.testing.assert_array_equal(step.obs["image"], np.zeros((2, 2, 2, 1)))
    np.testing.assert_array_equal(step.final_obs["image"], np.full((2, 2, 2, 1), 5))


@pytest.mark.parametrize(
    ("env", "mode"), [(CRASHING, "sync"), (CRASHING, "async"), ("CartPole-v1", "sync")]
)
def test_held_copies_stay_as_they_are(env: str, mode: Any, opened: Any) -> None:
    vector = opened(make_vector(make(env), num_envs=2, mode=mode, check=False))
    start = vector.reset()
    vector.pause(np.array([True, False]))
    for step in step_rows(vector, 12):
        assert step.mask.tolist() == [False, True]
        assert step.reward[0] == 0.0
        assert not step.terminated[0]
        assert not step.truncated[0]
        assert step.faults == ()
        np.testing.assert_array_equal(step.obs[0], start[0])
        np.testing.assert_array_equal(step.final_obs[0], start[0])
    vector.pause(np.zeros(2, np.bool_))
    step = step_rows(vector, 1)[0]
    assert step.mask.all()
    env = CartPoleEnv()
    env.reset()
    env.state = tuple(np.float64(x) for x in start[0])
    np.testing.assert_allclose(step.final_obs[0], env.step(0)[0], rtol=1e-5, atol=1e-6)


class Restorable(CartPoleEnv):
    """CartPole whose state can be had."""

    def get_state(self) -> Any:
        return {"state": np.asarray(self.state, np.float64)}

    def set_state(self, state: Any) -> None:
        self.state = np.array(state["state"])


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("env", [lambda context: TimeLimit(Restorable(), 8), "CartPole-v1"])
def test_a_state_can_be_returned_to_exactly(env: Any, restart: bool) -> None:
    made = make(env, max_episode_steps=8)

    def vector(seed: int) -> HostVector:
        return make_vector(made, num_envs=3, seed=seed, check=False, restart_failed=restart)

    first, second = vector(1), vector(2)
    first.reset()
    step_rows(first, 20)
    state = jax.tree.map(np.copy, first.get_state())
    assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(state))
    assert {len(leaf) for leaf in jax.tree.leaves(state)} == {3}
    expected = step_rows(first, 60)
    second.reset()
    second.set_state(state)
    for a, b in zip(expected, step_rows(second, 60), strict=True):
        np.testing.assert_array_equal(a.final_obs, b.final_obs)
        np.testing.assert_array_equal(a.obs, b.obs)
        np.testing.assert_array_equal(a.truncated, b.truncated)
    assert sum(step.truncated.sum() for step in expected) > 3


@pytest.mark.parametrize("autoreset", [None, *AutoresetMode])
@pytest.mark.parametrize("mode", MODES)
def test_what_looks_at_a_step_sees_its_end_and_the_next_start_has_an_info(
    mode: str, autoreset: AutoresetMode | None
) -> None:
    if mode == "async" and autoreset is AutoresetMode.DISABLED:
        pytest.skip("is as that of this process")
    vector = copies(host(Counter, max_episode_steps=3), 2, mode, autoreset)
    vector.reset()
    assert [vector.get_reset_info(row) for row in (0, 1)] == [{"reset": 1}] * 2
    seen: list[Any] = []

    def look(step: Any) -> None:
        counts = [env.unwrapped.count for env in vector.get_sub_environments()]
        seen.append((counts, step.final_obs[:, 1].tolist(), step.truncated.tolist()))

    infos: list[Any] = []
    for _ in range(8):
        step = vector.step(np.zeros(2, np.int32), look)
        infos += [vector.get_reset_info(0)] * bool(step.starts[0])
        assert step.starts[0] == step.starts[1]
    assert infos == [{"reset": 2}, {"reset": 3}][: len(infos)]
    assert len(infos) == 2
    ends = [(counts, final) for counts, final, truncated in seen if truncated[0]]
    if mode == "sync" and autoreset is not AutoresetMode.SAME_STEP:
        assert ends == [([3, 3], [3.0, 3.0])] * 2
    assert [final for _, final in ends] == [[3.0, 3.0]] * 2
    vector.close()


def test_copies_exist_when_they_are_asked_for() -> None:
    vector = make_vector(host(Counter), num_envs=2, check=False)
    for env in vector.get_sub_environments():
        env.unwrapped.episode = 7
    np.testing.assert_array_equal(vector.reset(), [[8, 0]] * 2)
    vector.close()
    assert vector.get_sub_environments() == []


def test_an_id_with_a_vector_environment_alone() -> None:
    entry = gymnasium.spec("CartPole-v1").vector_entry_point
    gymnasium.register("VectorAlone-v0", vector_entry_point=entry, max_episode_steps=9)
    try:
        made = host("VectorAlone-v0")
        assert made.max_episode_steps == 9
        vector = make_vector(made, num_envs=2)
        assert vector.reset().shape == (2, 4)
        assert any(step.starts.any() for step in step_rows(vector, 12))
        with pytest.raises(EnvError, match="gym_env_vectorize_mode='vector_entry_point'"):
            make_vector(made, num_envs=2, mode="sync")
        with pytest.raises(UnknownNameError, match="takes no argument 'nope'"):
            host("VectorAlone-v0", {"nope": 1})
    finally:
        del gymnasium.registry["VectorAlone-v0"]


def test_most_environments_cannot_be_restored() -> None:
    vector = make_vector(host("gymnasium:CartPole-v1"), num_envs=2, check=False)
    vector.reset()
    assert vector.get_state() is None


def test_the_environments_own_vector() -> None:
    made = host("gymnasium:CartPole-v1", max_episode_steps=9)
    vector = make_vector(made, num_envs=4, mode="vector_entry_point", seed=3)
    first = vector.reset()
    np.testing.assert_array_equal(first, vector.reset())
    steps = step_rows(vector, 40)
    masks = np.stack([step.mask for step in steps])
    ends = np.stack([step.terminated | step.truncated for step in steps])
    assert ends.sum() >= 4
    np.testing.assert_array_equal(masks[1:], ~ends[:-1])
    assert np.stack([step.truncated for step in steps]).any()
    assert all((np.abs(step.obs[step.starts]) <= 0.05).all() for step in steps)
    assert vector.get_state() is None
    with pytest.raises(EnvError, match="can only step all copies together"):
        vector.pause(np.ones(4, np.bool_))


def test_whole_episodes_need_copies_that_wait() -> None:
    config = PPOConfig().environment("gymnasium:CartPole-v1")
    config.env_runners(batch_mode="complete_episodes", gym_env_vectorize_mode="vector_entry_point")
    with pytest.raises(ConfigError, match="those of gymnasium:CartPole-v1 step all together"):
        config.build()


@pytest.mark.parametrize(
    ("spec", "restart", "message"),
    [
        ("gymnasium:Acrobot-v1", False, "has no vector environment of its own"),
        ("gymnasium:CartPole-v1", True, "cannot restart one copy"),
    ],
)
def test_a_vector_of_its_own_is_not_everything(spec: str, restart: bool, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        make_vector(host(spec), num_envs=2, mode="vector_entry_point", restart_failed=restart)


def test_processes_end_with_their_vector() -> None:
    vector: Any = make_vector(host(CRASHING), num_envs=2, mode="async", check=False)
    processes = vector.vector.processes
    vector.reset()
    assert all(process.is_alive() for process in processes)
    assert all(process in multiprocessing.active_children() for process in processes)
    vector.close()
    vector.close()
    assert not any(process.is_alive() for process in processes)
    assert vector.get_sub_environments() == []


def test_a_process_that_died_is_one_sentence_and_the_rest_is_cleaned_up() -> None:
    vector: Any = make_vector(host(CRASHING), num_envs=2, mode="async", check=False)
    vector.reset()
    os.kill(vector.vector.processes[1].pid, signal.SIGKILL)
    vector.vector.processes[1].join()
    with pytest.raises(EnvError, match="the process of a copy died"):
        step_rows(vector, 2)
    vector.close()
    assert not any(process.is_alive() for process in vector.vector.processes)


def test_a_creator_that_cannot_be_sent_to_a_process() -> None:
    lock = threading.Lock()
    made = host(lambda context: lock and Counter(context))
    with pytest.raises(EnvError, match="sends the environment's creator to other processes"):
        make_vector(made, num_envs=1, mode="async", check=False)


class Counting(VectorEnv):
    """Two copies, reset in the third step by themselves, with the infos of `key`."""

    num_envs = 2
    single_observation_space = observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([2, 2])
    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

    def __init__(self, key: str) -> None:
        self.key, self.time = key, 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> Any:
        self.time = (self.time + 1) % 3
        ended, infos = np.full(2, self.time == 0), {}
        if ended.any():
            infos = {self.key: np.full((2, 1), 3, np.float32)}
            infos[f"_{self.key}"] = np.ones(2, np.bool_)
        obs = np.full((2, 1), self.time, np.float32)
        return obs, np.zeros(2), np.zeros(2, np.bool_), ended, infos


def test_a_vector_environment_that_resets_has_to_say_the_last_observation() -> None:
    for key in ("final_obs", "other"):
        space = Counting.single_observation_space
        vector = GymVector(Counting(key), name="Counting", seeds=[0, 1], observation_space=space)
        vector.reset()
        for _ in range(2):
            vector.step(np.zeros(2, np.int64))
        if key == "final_obs":
            step = vector.step(np.zeros(2, np.int64))
            np.testing.assert_array_equal(step.final_obs, [[3.0], [3.0]])
            np.testing.assert_array_equal(step.obs, [[0.0], [0.0]])
        else:
            with pytest.raises(EnvError, match="copy 0 has no 'final_obs'"):
                vector.step(np.zeros(2, np.int64))


# --- copies of gymnasium environments that raise, or give numbers that are not finite ---


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_that_raises_is_restarted_alone(mode: Any, opened: Any) -> None:
    config = {"crash_after_n_steps": 4, "crash_on_vector_indices": [1]}
    crashing, whole = host(CRASHING, config), host(CRASHING)
    keywords: dict[str, Any] = {"num_envs": 3, "seed": 2, "mode": mode, "check": False}
    vector = opened(make_vector(crashing, restart_failed=True, **keywords))
    reference = opened(make_vector(whole, **{**keywords, "mode": "sync"}))
    np.testing.assert_array_equal(vector.reset(), reference.reset())
    others = [0, 2]
    for number in range(1, 13):
        before = vector._obs
        step, expected = (v.step(np.zeros(3, np.int32)) for v in (vector, reference))
        np.testing.assert_array_equal(step.obs[others], expected.obs[others])
        np.testing.assert_array_equal(step.mask[others], [True, True])
        np.testing.assert_array_equal(step.starts[others], expected.starts[others])
        if number % 4:
            assert step.faults == ()
            assert step.mask.all()
            continue
        (fault,) = step.faults
        assert (fault.row, fault.what, fault.silent) == (1, "raised", False)
        assert (
            "vector_index=1): step raised SimulatedCrash: simulated crash in step" in fault.detail
        )
        assert "in _maybe_crash" in fault.detail
        assert (step.mask[1], step.starts[1], step.truncated[1]) == (False, True, True)
        assert step.reward[1] == 0.0
        np.testing.assert_array_equal(step.final_obs[1], before[1])
        assert np.abs(step.obs[1]).max() <= 0.05


@pytest.mark.parametrize("mode", MODES)
def test_without_the_setting_it_is_an_error_with_the_original_traceback(
    mode: Any, opened: Any
) -> None:
    made = host(CRASHING, {"crash_after_n_steps": 2, "crash_on_vector_indices": [1]})
    vector = opened(make_vector(made, num_envs=2, worker_index=3, mode=mode, check=False))
    vector.reset()
    step_rows(vector, 1)
    message = (
        r"^jaxrl:crashing-cartpole-v0 \(worker_index=3, vector_index=1\): step raised "
        r"SimulatedCrash: simulated crash in step \(worker 3, copy 1\)\.$"
    )
    with pytest.raises(EnvError, match=message) as caught:
        step_rows(vector, 1)
    cause = caught.value.__cause__
    if mode == "sync":
        assert type(cause).__name__ == "SimulatedCrash"
    else:
        assert "in _maybe_crash" in str(cause)


def test_a_restart_can_be_asked_for_silently() -> None:
    made = host(CRASHING, {"crash_after_n_steps": 2, "crash_silently": True})
    vector = make_vector(made, num_envs=1, restart_failed=True, check=False)
    vector.reset()
    step = step_rows(vector, 2)[1]
    assert [fault.silent for fault in step.faults] == [True]
    assert StepFailedRecreateEnvError.__name__ in step.faults[0].detail


def test_restarted_copies_have_seeds_of_their_own() -> None:
    made = host(CRASHING, {"crash_after_n_steps": 2})
    vector = make_vector(made, num_envs=2, restart_failed=True, check=False)
    firsts = [vector.reset(), *(step.obs for step in step_rows(vector, 12) if step.starts.all())]
    rows = np.concatenate(firsts)
    assert len(firsts) == 7
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_a_reset_that_raises_leaves_the_step_before_it_whole() -> None:
    calls: list[int] = []

    class FailsOnce(Counter):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("not now")
            return super().reset(seed=seed, options=options)

    vector = make_vector(host(FailsOnce), num_envs=1, restart_failed=True, check=False)
    vector.reset()
    step = step_rows(vector, 5)[4]
    assert (step.terminated[0], step.mask[0], step.starts[0]) == (True, True, True)
    np.testing.assert_array_equal(step.final_obs[0], [1, 5])
    assert "reset raised RuntimeError: not now" in step.faults[0].detail


def test_faults_of_the_first_reset_come_with_the_first_step() -> None:
    made = host(CRASHING, {"p_crash_reset": 0.5})
    vector = make_vector(made, num_envs=8, seed=1, restart_failed=True, check=False)
    vector.reset()
    first, second = step_rows(vector, 2)
    assert 0 < len(first.faults) < 8
    assert first.mask.all()
    assert second.faults == ()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"p_crash_reset": 1.0}, "could not be restarted in 5 attempts, the last of which raised"),
        ({"p_crash": 1.0}, "It was restarted 10 times without a single step"),
    ],
)
def test_restarts_are_bounded(
    config: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("jaxrl.envs.adapters.barrier.time.sleep", pauses.append)
    vector = make_vector(host(CRASHING, config), num_envs=1, restart_failed=True, check=False)

    def run() -> None:
        vector.reset()
        step_rows(vector, 20)

    with pytest.raises(EnvError, match=message):
        run()
    assert pauses == sorted(pauses)


class Poisoned(Counter):
    """Not finite in its third step, in what `kind` says."""

    def __init__(self, config: EnvContext) -> None:
        super().__init__(config)
        self.kind = config["kind"] if config.vector_index == 1 else "nothing"

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs, info = super().reset(seed=seed, options=options)
        return (np.full(2, np.nan, np.float32) if self.kind == "reset" else obs), info

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.count == 3 and self.kind == "observation":
            obs = np.array([np.inf, 1.0], np.float32)
        if self.count == 3 and self.kind == "reward":
            reward = np.nan
        if self.count == 5 and self.kind == "end":
            obs = np.array([np.nan, 1.0], np.float32)
        return obs, reward, terminated, truncated, info


class Huge(Counter):
    """Observations and rewards that are finite, and whose squares are not."""

    def step(self, action: Any) -> Any:
        obs, _, terminated, truncated, info = super().step(action)
        return obs + np.float32(3e38), 3e38, terminated, truncated, info


def test_large_numbers_are_finite() -> None:
    vector = copies(host(Huge, {}), 2, "sync", AutoresetMode.SAME_STEP)
    vector.reset()
    for step in step_rows(vector, 6):
        assert step.mask.all()
        assert not step.faults
        assert np.isfinite(step.final_obs).all()
        np.testing.assert_array_equal(step.reward, np.float32([3e38, 3e38]))


@pytest.mark.parametrize("mode", [*AutoresetMode])
@pytest.mark.parametrize("kind", ["reward", "observation"])
def test_what_is_not_finite_is_no_transition(kind: str, mode: AutoresetMode) -> None:
    vector = copies(host(Poisoned, {"kind": kind}), 2, "sync", mode)
    vector.reset()
    steps = step_rows(vector, 4)
    third = steps[2]
    assert [(fault.row, fault.what) for fault in third.faults] == [(1, kind)]
    assert third.mask.tolist() == [True, False]
    assert third.starts.tolist() == [False, True]
    assert third.truncated.tolist() == [False, True]
    assert third.reward.tolist() == [3.0, 0.0]
    np.testing.assert_array_equal(third.obs, [[1, 3], [2, 0]])
    np.testing.assert_array_equal(third.final_obs, [[1, 3], [1, 2]])
    np.testing.assert_array_equal(steps[3].final_obs, [[1, 4], [2, 1]])
    assert steps[3].mask.all()


@pytest.mark.parametrize("mode", [*AutoresetMode])
def test_an_end_that_is_not_finite_is_dropped(mode: AutoresetMode) -> None:
    vector = copies(host(Poisoned, {"kind": "end"}), 2, "sync", mode)
    vector.reset()
    fifth = step_rows(vector, 5)[4]
    assert fifth.mask.tolist() == [True, False]
    assert fifth.terminated.tolist() == [True, False]
    assert np.isfinite(fifth.obs).all()
    assert np.isfinite(fifth.final_obs).all()
    following = next(step for step in step_rows(vector, 2) if step.mask.all())
    np.testing.assert_array_equal(following.final_obs, [[2, 1], [2, 1]])


def test_a_first_observation_that_is_not_finite_costs_a_row() -> None:
    vector = make_vector(host(Poisoned, {"kind": "reset"}), num_envs=2, check=False)
    np.testing.assert_array_equal(vector.reset(), [[1, 0], [0, 0]])
    for number, step in enumerate(step_rows(vector, 3), 1):
        assert step.mask.tolist() == [True, False]
        assert step.starts.tolist() == [False, True]
        assert [fault.what for fault in step.faults] == ["observation"]
        np.testing.assert_array_equal(step.obs, [[1, number], [0, 0]])


def test_a_reward_beyond_float32_is_not_finite() -> None:
    class Huge(Counter):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:1], 1e200, False, False, {}

    vector = make_vector(host(Huge), num_envs=1, check=False)
    vector.reset()
    assert [fault.what for fault in step_rows(vector, 1)[0].faults] == ["reward"]
