"""Trials: several episodes of one task as one, and what a memory learns from them."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl import Algorithm
from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import TimeStep
from jaxrl.envs import JaxEnv, MadeEnv, Trials
from jaxrl.envs import make as make_any_kind
from jaxrl.envs.base import ResetMode
from jaxrl.envs.params import scalar
from jaxrl.envs.trials import IS_FIRST, OBSERVATION, TrialsState
from jaxrl.envs.vector import VectorEnv
from jaxrl.errors import ConfigError, EnvError, UnknownNameError
from jaxrl.evaluation.trials import evaluate_trials
from jaxrl.testing import check_env
from tests.helpers import small


def make(spec: Any, *args: Any, **kwargs: Any) -> MadeEnv:
    """An environment in JAX."""
    made = make_any_kind(spec, *args, **kwargs)
    assert isinstance(made, MadeEnv)
    return made


@pytree
class PayParams:
    """Rewards of a step, and the step that terminates an episode."""

    pay: Any = scalar(1.0)
    bonus: Any = scalar(0.0)
    length: Any = scalar(3, np.int32)
    is_open: Any = scalar(True, np.bool_)
    weights: Any = dataclasses.field(default_factory=lambda: np.zeros(2, np.float32))


@pytree
class PayState:
    """Steps of the episode, and a number drawn at its reset."""

    time: Any
    drawn: Any


class Pay(JaxEnv[PayState, PayParams]):
    """Pays `pay * t + bonus` at step t; observes the time and the number drawn."""

    name = "Pay"

    @property
    def default_params(self) -> PayParams:
        return PayParams()

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0.0, 100.0, (2,), np.float32)

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: Any) -> Any:
        state = PayState(time=jnp.zeros((), jnp.int32), drawn=jax.random.uniform(key))
        return state, self.observe(state)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        after = replace(state, time=state.time + 1)
        return after, TimeStep(
            obs=self.observe(after),
            reward=params.pay * after.time.astype(jnp.float32) + params.bonus,
            terminated=after.time >= params.length,
        )

    def observe(self, state: Any) -> Any:
        return jnp.stack([state.time.astype(jnp.float32), state.drawn])


class RarePay(Pay):
    """The same, reset where an episode ended only."""

    reset_mode: ResetMode = "on_demand"


class DictPay(Pay):
    """Observes a Dict with a mask of actions."""

    def observation_space(self, params: Any) -> Any:
        return spaces.Dict(
            {"x": super().observation_space(params), "action_mask": spaces.MultiBinary(2)}
        )

    def observe(self, state: Any) -> Any:
        return {"x": super().observe(state), "action_mask": jnp.ones(2, jnp.int8)}


class ImagePay(Pay):
    """Observes an image."""

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0, 255, (4, 4, 1), np.uint8)

    def observe(self, state: Any) -> Any:
        return jnp.broadcast_to((state.drawn * 255).astype(jnp.uint8), (4, 4, 1))


class FlaggedPay(DictPay):
    """Has a part of the flag's name already."""

    def observation_space(self, params: Any) -> Any:
        return spaces.Dict({IS_FIRST: super().observation_space(params)})


def unroll(
    env: JaxEnv[Any, Any], num_steps: int, num_envs: int = 8, seed: int = 0, params: Any = None
) -> Any:
    """Steps of vectorized copies, `[T, B, ...]`: states before, observations, what steps returned."""
    params = env.default_params if params is None else params
    vector = VectorEnv(env, env.reset_mode)
    start = vector.reset(jax.random.key(seed), jnp.arange(num_envs), params)

    def body(state: Any, row: Any) -> Any:
        after, step = vector.step(state, jnp.zeros(num_envs, jnp.int32), row, params)
        return after, (replace(state, key=None), step)

    @jax.jit
    def play(start: Any, params: Any) -> Any:
        inputs = vector.make_step_inputs(start, num_steps, params)
        return jax.lax.scan(body, start, inputs)[1]

    return jax.device_get(play(start, params))


def test_a_trial_is_so_many_episodes_of_one_task() -> None:
    env = Trials(Pay, tasks={"pay": [1.0, 2.0]}, num_episodes=4)
    before, step = unroll(env, 48)
    task, time, drawn = before.env.task["pay"], before.obs[..., 0], before.obs[..., 1]
    t = np.arange(48)[:, None]
    assert ((task >= 1.0) & (task <= 2.0)).all()
    for first in range(0, 48, 12):  # constant within a trial, another one in the next
        assert (task[first : first + 12] == task[first]).all()
    assert all(len(np.unique(column)) == 4 for column in task.T)
    assert len(np.unique(task)) == 4 * 8
    np.testing.assert_array_equal(time, np.broadcast_to(t % 3, time.shape))
    np.testing.assert_array_equal(before.obs[..., 2], np.broadcast_to(t % 3 == 0, time.shape))
    assert all(len(np.unique(column)) == 16 for column in drawn.T)  # one for each episode
    np.testing.assert_allclose(step.reward, task * (time + 1), rtol=1e-6)
    np.testing.assert_array_equal(step.terminated, np.broadcast_to(t % 12 == 11, time.shape))
    assert not step.truncated.any()
    np.testing.assert_allclose(step.episode_return[11], 4 * 6 * task[0], rtol=1e-6)
    assert (step.episode_length[11] == 12).all()
    # Within a trial, the successor of an episode's end is the next one's first observation.
    np.testing.assert_array_equal(step.final_obs[:11], before.obs[1:12])
    np.testing.assert_array_equal(step.final_obs[11, :, 0], 3.0)
    np.testing.assert_array_equal(step.final_obs[11, :, 1], drawn[11])
    assert not step.final_obs[11, :, 2].any()


@pytest.mark.parametrize(
    ("length", "limit", "ends"),
    [(3, None, (True, False)), (9, 3, (False, True)), (3, 3, (True, True))],
    ids=["terminated", "truncated", "both"],
)
def test_a_trial_ends_as_its_last_episode_does(length: int, limit: Any, ends: Any) -> None:
    env = Trials(Pay, [{"length": length}], 2, max_episode_steps=limit)
    before, step = unroll(env, 12)
    np.testing.assert_array_equal(step.terminated[5::6], ends[0])
    np.testing.assert_array_equal(step.truncated[5::6], ends[1])
    rest = np.delete(np.arange(12), [5, 11])
    assert not (step.terminated | step.truncated)[rest].any()
    np.testing.assert_array_equal(before.obs[:, 0, 0], np.tile([0, 1, 2], 4))


def test_a_trial_of_one_episode_is_the_environment() -> None:
    env = Trials(Pay, {"pay": [2.0, 2.0]}, num_episodes=1)
    before, step = unroll(env, 9)
    assert (before.obs[..., 2] == before.is_first).all()
    assert (step.episode_return[2::3] == 12.0).all()


@pytest.mark.allow_key_reuse  # the checker refuses the loop over resets on demand
def test_resets_are_the_same_in_both_modes() -> None:
    tasks = {"length": [1, 4], "pay": [0.0, 1.0]}
    found = [unroll(Trials(env, tasks, num_episodes=3), 40) for env in (Pay, RarePay)]
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_array_equal(one, other)
    before, step = found[0]
    assert Trials(RarePay, tasks).reset_mode == "on_demand"
    assert step.ended.any(axis=0).all()
    assert len(set(map(tuple, step.ended.T))) > 1  # which copies do at different steps
    assert (before.obs[..., 0] < before.env.task["length"]).all()


def draw(tasks: Any, number: int = 2000, env: Any = Pay) -> dict[str, np.ndarray]:
    trials = Trials(env, tasks)
    keys = jax.random.split(jax.random.key(1), number)
    state, _ = jax.vmap(trials.reset, (0, None))(keys, trials.default_params)
    return jax.device_get(state.task)


def random_task(key: Any) -> Any:
    one, two = jax.random.split(key)
    return {"pay": jax.random.randint(one, (), 0, 3), "weights": jax.random.normal(two, (2,))}


def test_distributions_of_tasks() -> None:
    ranges = draw({"pay": (2.0, 4.0), "length": np.array([1, 3]), "weights": [[0, 1], [0, 2]]})
    assert ranges["pay"].mean() == pytest.approx(3.0, abs=0.05)
    assert (ranges["pay"].min(), ranges["pay"].max()) == pytest.approx((2, 4), abs=0.01)
    counts = np.unique(ranges["length"], return_counts=True)
    np.testing.assert_array_equal(counts[0], [1, 2, 3])
    assert counts[1].min() > 550
    assert (ranges["weights"][:, 0] == 0).all()
    assert ranges["weights"][:, 1].mean() == pytest.approx(1.5, abs=0.05)
    assert abs(np.corrcoef(ranges["pay"], ranges["length"])[0, 1]) < 0.1

    listed = draw([{"pay": 5, "length": 2}, {"pay": 7.0, "is_open": False}, {"length": 9}])
    columns = [listed[name] for name in ("pay", "length", "is_open")]
    rows = [tuple(map(float, row)) for row in zip(*columns, strict=True)]
    names, counts = np.unique(rows, axis=0, return_counts=True)
    np.testing.assert_array_equal(names, [[1, 9, 1], [5, 2, 1], [7, 3, 0]])
    assert counts.min() > 550

    drawn = draw(random_task)
    assert drawn["pay"].dtype == np.float32
    assert set(drawn["pay"]) == {0, 1, 2}
    assert drawn["weights"].std() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("env", [Pay, DictPay, ImagePay, "Pendulum-v1", RarePay])
def test_the_contract(env: Any) -> None:
    tasks = {"mass": [0.5, 2.0]} if env == "Pendulum-v1" else {"pay": [1.0, 2.0]}
    check_env(Trials(env, tasks, num_episodes=2, max_episode_steps=3), num_steps=16)


def test_the_observation_says_where_an_episode_begins() -> None:
    flag = spaces.Box(0.0, 1.0, (1,), np.float32)
    vector, dict_, image = (Trials(env, [{"pay": 1}]) for env in (Pay, DictPay, ImagePay))
    params: Any = vector.default_params
    of_dict: Any = dict_.observation_space(params)
    of_image: Any = image.observation_space(params)
    high = np.array([100, 100, 1], np.float32)
    assert vector.observation_space(params) == spaces.Box(np.zeros(3, np.float32), high)
    assert of_dict[IS_FIRST] == flag
    assert set(of_dict) == {"x", "action_mask", IS_FIRST}
    assert of_image[OBSERVATION].dtype == np.uint8
    assert set(of_image) == {OBSERVATION, IS_FIRST}
    before, _ = unroll(dict_, 9)
    np.testing.assert_array_equal(before.obs[IS_FIRST][:, 0, 0], [1, 0, 0] * 3)


def test_environments_are_given_as_elsewhere() -> None:
    arguments = {"env": "CartPole-v1", "tasks": {"half_length": [0.3, 0.9]}, "num_episodes": 3}
    by_path = make("jaxrl.envs:Trials", {**arguments, "gravity": 9.0})
    assert by_path.max_episode_steps == 1500
    assert by_path.params.gravity == np.float32(9.0)
    np.testing.assert_allclose(by_path.params.half_length, [0.3, 0.9], rtol=1e-6)
    same = make(Trials, {**arguments, "tasks": {"half_length": [0.1, 0.2]}, "gravity": 9.0})
    assert same.env == by_path.env
    assert hash(same.env) == hash(by_path.env)
    other = make(Trials, {**arguments, "num_episodes": 2})
    assert other.env != by_path.env
    assert Trials(Pay, [{"pay": 1}, {"pay": 2}]) != Trials(Pay, [{"pay": 1}])
    with pytest.raises(EnvError, match=r"from 2 to max_size=4, got 5"):
        Trials("frozen-lake-v0", {"size": [2, 5]}, env_config={"max_size": 4})
    assert Trials(lambda ctx: Pay(), {"pay": [0, 1]}).max_episode_steps is None
    limited = make(Trials, arguments, max_episode_steps=7)
    assert limited.max_episode_steps == 7
    picture = by_path.env.render(
        by_path.env.reset(jax.random.key(0), by_path.params)[0], by_path.params
    )
    assert picture.shape == (400, 600, 3)


class NoParams(Pay):
    """Has no parameters."""

    @property
    def default_params(self) -> Any:
        return None


def too_wide(key: Any) -> Any:
    return {"pay": jax.random.normal(key, (3,))}


def of_python(key: Any) -> Any:
    return {"pay": float(jax.random.normal(key))}


BAD = {
    "a number": ({"tasks": 3}, EnvError, "tasks=3 must be ranges by name, {'mass': "),
    "no ranges": ({"tasks": {}}, EnvError, "must be ranges by name"),
    "no tasks": ({"tasks": []}, EnvError, "must be ranges by name"),
    "an empty task": ({"tasks": [{}]}, EnvError, "must be ranges by name"),
    "numbers": ({"tasks": [0.5, 2.0]}, EnvError, "must be ranges by name"),
    "a text": ({"tasks": "mass"}, EnvError, "must be ranges by name"),
    "one value": ({"tasks": {"pay": 1.0}}, EnvError, r"must be a range \[low, high\]; one value"),
    "three values": ({"tasks": {"pay": [1, 2, 3]}}, EnvError, r"\[\{'pay': value\}, ...\]"),
    "upside down": ({"tasks": {"pay": [2, 1]}}, EnvError, "must be finite, the lower bound first"),
    "infinite": ({"tasks": {"pay": [0, np.inf]}}, EnvError, "must be finite"),
    "a range of flags": ({"tasks": {"is_open": [False, True]}}, EnvError, "list them"),
    "unknown": ({"tasks": {"pai": [0, 1]}}, UnknownNameError, "no parameter 'pai'.*tasks.*'pay'"),
    "unknown in a list": ({"tasks": [{"pai": 1}]}, UnknownNameError, "no parameter 'pai'"),
    "a fraction": ({"tasks": {"length": [1, 2.5]}}, EnvError, "'length' must be int32 of shape"),
    "a word": ({"tasks": [{"pay": "much"}]}, EnvError, "'pay' must be float32 of shape"),
    "no parameters": ({"env": NoParams, "tasks": {"pay": [0, 1]}}, UnknownNameError, "Known: none"),
    "too wide": ({"tasks": too_wide}, EnvError, "'pay' must be float32 of shape .*tasks=too_wide"),
    "in Python": ({"tasks": of_python}, EnvError, "tasks=of_python must be a function of a key"),
    "no values": ({"tasks": lambda key: {}}, EnvError, "must return values of parameters by name"),
    "function's name": ({"tasks": lambda key: {"x": 1}}, UnknownNameError, "no parameter 'x'"),
    "episodes": ({"tasks": {"pay": [0, 1]}, "num_episodes": 0}, EnvError, "num_episodes=0 must be"),
    "limit": ({"tasks": {"pay": [0, 1]}, "max_episode_steps": 0}, EnvError, "positive integer"),
    "on the host": (
        {"env": "gymnasium:CartPole-v1", "tasks": {"g": [0, 1]}},
        EnvError,
        "on the host",
    ),
    "several agents": ({"env": "TicTacToe-v0", "tasks": {"g": [0, 1]}}, EnvError, "several agents"),
    "no such env": ({"env": "Pendulun-v1", "tasks": {}}, UnknownNameError, "'Pendulum-v1'"),
    "a space": (
        {"env": "Pendulum-v1", "tasks": {"mass": [1, 2], "max_speed": [8, 9]}},
        EnvError,
        "tasks change the observation_space of Pendulum-v1 .mass, max_speed.",
    ),
    "a flag": ({"env": FlaggedPay, "tasks": {"pay": [0, 1]}}, EnvError, "adds 'is_first'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name: str) -> None:
    arguments, error, sentence = BAD[name]
    with pytest.raises(error, match=sentence):
        make(Trials, {"env": Pay, **arguments})


def test_missing_arguments_are_told() -> None:
    with pytest.raises(EnvError, match="needs env, tasks: set it in env_config"):
        make("jaxrl.envs:Trials")
    with pytest.raises(EnvError, match=r"'pay' must be float32 of shape \(2,\)"):
        make(Trials, {"env": Pay, "tasks": {"pay": [0, 1]}, "pay": 3.0})


# --- runs ---

ARGUMENTS = {"env": "Pendulum-v1", "tasks": {"mass": [0.5, 2.0]}, "max_episode_steps": 4}


def test_ranges_change_while_a_run_trains_and_are_saved(tmp_path: Path) -> None:
    config = small(env="jaxrl.envs:Trials").environment(env_config=ARGUMENTS)
    config.evaluation(
        evaluation_interval=1, evaluation_duration=4, custom_evaluation_function=evaluate_trials
    )
    config.environment(
        curriculum=[{"task": {"mass": [1.0, 1.0]}, "until": 128}, {"task": {"mass": [0.1, 3.0]}}]
    )
    with config.debugging(max_retraces=0, results_dir=str(tmp_path)).build() as algorithm:
        masses, result = [], {}
        for _ in range(4):
            result = algorithm.train()
            masses.append(np.asarray(algorithm.state.env.env.inner.task["mass"]))
        assert (masses[0] == 1.0).all()
        assert len(np.unique(masses[3])) == 16
        assert set(result["evaluation"]["custom_metrics"]) == {
            *("episode_1_return_mean", "episode_2_return_mean"),
            *("gain_mean", "gain_low", "gain_high"),
        }
        assert result["evaluation"]["env_runners"]["episode_len_mean"] == 8.0
        with pytest.raises(EnvError, match="must be finite, the lower bound first"):
            algorithm.set_env_params(mass=[2.0, 1.0])
        checkpoint = algorithm.save(tmp_path / "saved")
    with Algorithm.from_checkpoint(checkpoint) as restored:
        np.testing.assert_allclose(restored.env_params.mass, [0.1, 3.0], rtol=1e-6)
        assert isinstance(restored.state.env.env.inner, TrialsState)


def test_evaluation_returns_each_episode() -> None:
    tasks = [{"pay": 1.0, "length": 2}, {"pay": 10.0, "length": 3}]
    config = small(env=Trials).environment(
        env_config={"env": Pay, "tasks": tasks, "num_episodes": 3}
    )
    with config.debugging(loggers=[]).build() as algorithm:
        result = evaluate_trials(algorithm, num_trials=200)
        stats, found = result["env_runners"], result["custom_metrics"]
        share = (stats["episode_len_mean"] - 6) / 3  # of the second task
        assert 0.3 < share < 0.7
        for i in (1, 2, 3):
            mean = found[f"episode_{i}_return_mean"]
            assert mean == pytest.approx(3 * (1 - share) + 60 * share, rel=1e-5)
        assert (found["gain_mean"], found["gain_low"], found["gain_high"]) == (0.0, 0.0, 0.0)
        assert stats["num_episodes"] == 200
        assert stats["num_env_steps_sampled"] == 200 * stats["episode_len_mean"]
        assert (stats["episode_return_min"], stats["episode_return_max"]) == (9.0, 180.0)
        assert evaluate_trials(algorithm, num_trials=200) == result  # with equal weights


BAD_EVALUATIONS: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str]] = {
    "another environment": ("CartPole-v1", {}, {}, "is no jaxrl.envs.Trials"),
    "no trials": (Trials, {}, {"num_trials": 0}, "num_trials=0 must be an integer of at least 1"),
    "steps": (Trials, {"evaluation_duration_unit": "timesteps"}, {}, "no number of trials"),
    "cut": (Trials, {"evaluation_config": {"max_episode_steps": 3}}, {}, "No trial of .* reached"),
}


@pytest.mark.parametrize("name", BAD_EVALUATIONS)
def test_evaluations_that_cannot_be(name: str) -> None:
    env, settings, arguments, sentence = BAD_EVALUATIONS[name]
    config = small(env=env).evaluation(**settings).debugging(loggers=[])
    if env is Trials:
        config.environment(env_config=ARGUMENTS)
    with config.build() as algorithm, pytest.raises(ConfigError, match=sentence):
        evaluate_trials(algorithm, **arguments)


# --- learning by memory ---


@pytree
class ArmsParams:
    """The action that pays."""

    good: Any = scalar(0, np.int32)


class Arms(JaxEnv[Any, ArmsParams]):
    """Two actions, twice; the good one pays 1."""

    name = "Arms"

    @property
    def default_params(self) -> ArmsParams:
        return ArmsParams()

    def observation_space(self, params: Any) -> Any:
        return spaces.Box(0.0, 1.0, (1,), np.float32)

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(2)

    def reset(self, key: Any, params: Any) -> Any:
        return jnp.zeros((), jnp.int32), jnp.zeros(1)

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        return state + 1, TimeStep(
            obs=jnp.zeros(1),
            reward=(action == params.good).astype(jnp.float32),
            terminated=state == 1,
        )


class RedrawnTrials(Trials):
    """Draws another task where an episode begins."""

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        own_key, other_key = jax.random.split(key)
        after, step = super().step(own_key, state, action, params)
        other, _ = self.reset(other_key, params)
        begins = after.num_ended > state.num_ended
        task = jax.tree.map(lambda x, y: jnp.where(begins, x, y), other.task, after.task)
        return replace(after, task=task), step


def learn_arms(env: Any = Trials) -> dict[str, float]:
    """Returns by episode after a short training: at best 1.5, then 2 each; 1 by chance."""
    config = small(env=env, lr=0.01, minibatch_size=256, num_epochs=4)
    config.training(train_batch_size=1024, gamma=0.9, entropy_coeff=0.01)
    tasks = [{"good": 0}, {"good": 1}]
    config.environment(env_config={"env": Arms, "tasks": tasks, "num_episodes": 4})
    config.env_runners(num_envs_per_env_runner=64)
    memory = {"use_lstm": True, "recurrent_layer_type": "gru", "lstm_cell_size": 16}
    past = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "max_seq_len": 16}
    config.rl_module(model_config={"fcnet_hiddens": [16], **memory, **past})
    with config.debugging(loggers=[], seed=0).build() as algorithm:
        for _ in range(40):
            algorithm.train()
        return evaluate_trials(algorithm, num_trials=500)["custom_metrics"]


def test_a_memory_learns_the_task_in_the_first_episode() -> None:
    found = learn_arms()
    assert found["episode_1_return_mean"] == pytest.approx(1.5, abs=0.1)
    assert min(found[f"episode_{i}_return_mean"] for i in (2, 3, 4)) > 1.9
    assert found["gain_low"] > 0.4


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["another task", "reset memory"])
def test_nothing_is_gained_without_the_task_or_the_memory(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learning test means something: with the memory reset at inner ends, or other tasks, it fails."""
    if fault == "another task":
        assert learn_arms(RedrawnTrials)["gain_high"] < 0.3
        return
    step = VectorEnv.step

    def reset_memory(self: Any, *args: Any) -> Any:
        state, out = step(self, *args)
        return replace(state, is_first=state.is_first | (state.obs[:, -1] > 0.5)), out

    monkeypatch.setattr(VectorEnv, "step", reset_memory)
    found = learn_arms()
    assert found["gain_high"] < 0.3
