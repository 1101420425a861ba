"""Faults of gymnasium environments: one sentence, before the first step or at it."""

import logging
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from jaxrl.envs import EnvContext, MadeHostEnv, StepFailedRecreateEnvError, make
from jaxrl.envs.adapters import host_spaces
from jaxrl.envs.host_vector import make_vector
from jaxrl.errors import EnvError, UnknownNameError


@pytest.fixture(autouse=True)
def _notices_are_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_spaces, "_noticed", set())


class Good(gymnasium.Env[Any, Any]):
    """Nothing is wrong with it; each of those below breaks one thing."""

    observation_space: Any = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space: Any = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self.obs(), {}

    def obs(self) -> Any:
        return np.full(2, 0.1 * self.np_random.random(), np.float32)

    def step(self, action: Any) -> Any:
        self.count += 1
        return self.obs(), 1.0, self.count >= 5, False, {}


class AnyNames(Good):
    def reset(self, **anything: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().reset(seed=anything.get("seed"))


class ForeignWithin(Good):
    """A suite's wrapper: what it is around is of another interface, also as `unwrapped`."""

    class Foreign:
        def reset(self, key: int) -> int:
            return key

    unwrapped: Any = Foreign()


class WithText(Good):
    observation_space = spaces.Dict(
        image=spaces.Box(-1.0, 1.0, (2,), np.float32),
        mission=type("Mission", (spaces.Text,), {})(5),
    )


def broken(**attributes: Any) -> type:
    """Return a class that is Good but for these attributes."""
    return type("Broken", (Good,), attributes)


def observing(value: Any, **attributes: Any) -> type:
    """Return a class whose observations are always this one."""
    return broken(obs=lambda self: value, **attributes)


def nesting(value: Any) -> type:
    """Return a class with nested observations, of which this is one."""
    return observing(value, observation_space=spaces.Dict(a=spaces.Tuple(NESTED_PARTS)))


NESTED_PARTS = (spaces.Discrete(3), Good.observation_space)


def stepping(**changes: Any) -> type:
    """Return a class whose steps return these values."""
    fields = {"reward": 1.0, "terminated": False, "truncated": False, "info": {}, **changes}
    return broken(step=lambda self, action: (self.obs(), *fields.values()))


def fail(error: Exception) -> Any:
    raise error


ZEROS = np.zeros(2, np.float32)

AT_ANY_TIME: list[tuple[type, str]] = [
    (
        broken(reset=lambda self, *, seed=None, options=None: Good.reset(self, seed=seed)[0]),
        "reset must return (observation, info), got a ndarray; an environment of the old",
    ),
    (
        broken(step=lambda self, action: Good.step(self, action)[:4]),
        "step must return (observation, reward, terminated, truncated, info), got 4 values",
    ),
    (observing(np.zeros(3, np.float32)), "reset's observation must be float32 of shape (2,)"),
    (
        observing(np.zeros(2), observation_space=spaces.Box(0, 255, (2,), np.uint8)),
        "reset's observation must be uint8 of shape (2,)",
    ),
    (observing({"a": 1}), "reset's observation must be float32 of shape (2,)"),
    (
        nesting({"a": (3, ZEROS)}),
        "reset's observation['a'][0] must lie in [0, 2] for Discrete(3), got 3",
    ),
    (
        nesting({"a": (1.0, ZEROS)}),
        "reset's observation['a'][0] must be an integer for Discrete(3), got a float",
    ),
    (
        nesting({"b": 1}),
        "reset's observation must be a dictionary with the keys ['a'], got ['b']",
    ),
    (nesting({"a": (1,)}), "reset's observation['a'] must be a tuple of 2, got 1 of them"),
    (stepping(reward="1"), "the reward must be one number, got '1'"),
    (stepping(reward=np.ones(1)), "the reward must be one number, got array([1.])"),
    (stepping(terminated=0), "terminated must be a bool, got 0"),
    (stepping(truncated=None), "truncated must be a bool, got None"),
    (stepping(info=None), "step's info must be a dict, got None"),
    (broken(obs=lambda self: fail(KeyError("level"))), "reset raised KeyError: 'level'"),
    (broken(step=lambda self, action: 1 // 0), "step raised ZeroDivisionError"),
]

BEFORE: list[tuple[type, str]] = [
    *AT_ANY_TIME,
    (
        broken(reset=lambda self: Good.reset(self)),
        "reset must take the keyword arguments seed and options, but seed and options are missing",
    ),
    (
        observing(np.array([0.0, 1.5], np.float32)),
        "reset's observation must lie in [-1.0, 1.0] at index (1,)",
    ),
    (observing(np.array([0.0, np.nan], np.float32)), "reset's observation is NaN at index (1,)"),
    (stepping(reward=float("nan")), "the reward must be finite, got nan"),
    (
        broken(
            step=lambda self, action: fail(
                ModuleNotFoundError("No module named 'far_away'", name="far_away.inner")
            )
        ),
        "No module named 'far_away'. Install it with: pip install far-away.",
    ),
]


def host(*arguments: Any, **keywords: Any) -> MadeHostEnv:
    made = make(*arguments, **keywords)
    assert isinstance(made, MadeHostEnv)
    return made


def test_nothing_is_wrong_with_a_good_one(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "jaxrl.envs"):
        make_vector(host(Good), num_envs=2)
    assert caplog.messages == []


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("cls", [AnyNames, ForeignWithin])
def test_the_reset_that_is_called_is_the_one_that_is_checked(cls: Any, is_wrapped: bool) -> None:
    made = host(lambda context: TimeLimit(cls(), 3)) if is_wrapped else host(cls)
    vector = make_vector(made, num_envs=1)
    assert vector.reset().shape == (1, 2)
    assert vector.step(np.zeros(1, np.int32)).mask.all()


@pytest.mark.parametrize(("cls", "message"), BEFORE)
def test_it_is_found_before_the_first_step(cls: type, message: str) -> None:
    with pytest.raises(EnvError, match=re.escape(message)) as caught:
        make_vector(host(cls), num_envs=2)
    assert f"{cls.__name__}: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize(("cls", "message"), AT_ANY_TIME[:-2])
def test_without_the_check_it_is_found_at_the_first_step(
    cls: type, message: str, restart: bool
) -> None:
    vector = make_vector(host(cls), num_envs=2, check=False, restart_failed=restart)

    def run() -> None:
        vector.reset()
        vector.step(np.zeros(2, np.int32))

    with pytest.raises(EnvError, match=re.escape(message)) as caught:
        run()
    assert f"{cls.__name__} (worker_index=0, vector_index=0): " in str(caught.value)


@pytest.mark.parametrize(("cls", "message"), AT_ANY_TIME[-2:])
def test_exceptions_keep_their_cause(cls: type, message: str) -> None:
    with pytest.raises(EnvError) as caught:
        make_vector(host(cls), num_envs=1)
    assert type(caught.value) is EnvError  # a public error
    assert isinstance(caught.value.__cause__, KeyError | ZeroDivisionError)


def test_a_wrong_shape_later_on_is_still_found() -> None:
    class Later(Good):
        def obs(self) -> Any:
            return np.zeros(2 if self.count < 4 else (1, 2), np.float32)

    vector = make_vector(host(Later), num_envs=1, check=False)
    vector.reset()
    for _ in range(3):
        vector.step(np.zeros(1, np.int32))
    with pytest.raises(EnvError, match=re.escape("got float32 of shape (1, 2)")):
        vector.step(np.zeros(1, np.int32))


@pytest.mark.parametrize("check", [False, True])
def test_float64_is_cast_with_one_notice(caplog: pytest.LogCaptureFixture, check: bool) -> None:
    """As a NumPy division gives it; before an observation is checked, too."""
    cls = broken(obs=lambda self: np.asarray(Good.obs(self), np.float64))
    with caplog.at_level(logging.WARNING, "jaxrl.envs"):
        vector = make_vector(host(cls), num_envs=2, check=check)
        obs = vector.reset()
        for _ in range(3):
            vector.step(np.zeros(2, np.int32))
        vector.reset()
    assert obs.dtype == np.float32
    (notice,) = caplog.messages
    assert notice.endswith("Broken: observation is float64 and is cast to float32.")


def test_not_reproducible_is_advice(caplog: pytest.LogCaptureFixture) -> None:
    class Unseeded(Good):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset()

    class Drawing(Good):
        def step(self, action: Any) -> Any:
            return np.random.default_rng().random(2, np.float32), *super().step(action)[1:]

    with caplog.at_level(logging.WARNING, "jaxrl.envs"):
        make_vector(host(Unseeded), num_envs=1)
        make_vector(host(Drawing), num_envs=1)
    first, second = [m for m in caplog.messages if "is not reproducible from a seed" in m]
    assert "super().reset(seed=seed)" in first
    assert "draw from self.np_random, not from np.random" in second


def test_gymnasiums_warnings_are_advice(caplog: pytest.LogCaptureFixture) -> None:
    class Deprecated(Good):
        def seed(self, seed: int) -> None:
            pass

    with caplog.at_level(logging.WARNING, "jaxrl.envs"):
        make_vector(host(Deprecated), num_envs=1)
    assert any("support for the `seed` function is dropped" in m for m in caplog.messages)


def test_an_episode_of_one_step_is_no_mistake() -> None:
    make_vector(host(Good, max_episode_steps=1), num_envs=1)


def test_validate_env_sees_an_environment_and_its_context() -> None:
    seen: list[Any] = []

    def validate(env: Any, context: EnvContext) -> None:
        seen.append((type(env.unwrapped), context.worker_index, dict(context)))

    make_vector(
        host("gymnasium:Pendulum-v1", {"g": 2.0}),
        num_envs=2,
        worker_index=3,
        check=False,
        validate_env=validate,
    )
    assert [(cls.__name__, index, config) for cls, index, config in seen] == [
        ("PendulumEnv", 3, {"g": 2.0})
    ]
    make_vector(make("Pendulum-v1"), num_envs=2, validate_env=lambda env, _: seen.append(env))
    assert type(seen[-1]).__name__ == "TimeLimit"


@pytest.mark.parametrize("spec", ["Pendulum-v1", "gymnasium:Pendulum-v1"])
def test_validate_env_may_refuse(spec: str) -> None:
    def refuse(env: Any, context: EnvContext) -> None:
        raise ValueError("too slow")

    with pytest.raises(EnvError, match=f"validate_env rejected {spec}: ValueError: too slow"):
        make_vector(make(spec), num_envs=1, validate_env=refuse)


def test_what_may_fail_is_tried_again() -> None:
    attempts: list[int] = []

    class Flaky(CartPoleEnv):
        def __init__(self) -> None:
            super().__init__()
            attempts.append(1)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if len(attempts) == 2:  # the first one is made for its spaces
                raise StepFailedRecreateEnvError("again")
            return super().reset(seed=seed, options=options)

    make_vector(host(Flaky), num_envs=1, restart_failed=True)
    assert len(attempts) == 3
    attempts.clear()
    with pytest.raises(EnvError, match="reset raised StepFailedRecreateEnvError: again"):
        make_vector(host(Flaky), num_envs=1)


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"p_crsh": 1.0}, UnknownNameError, "Did you mean 'p_crash'"),
        ({"p_stall": 2}, EnvError, r"p_stall \(env_config\) must lie in \[0, 1\], got 2"),
    ],
)
def test_bad_crashes(config: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make("jaxrl:crashing-cartpole-v0", config)


def test_the_crashing_cartpole_stalls_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("jaxrl.envs.faults.time.sleep", pauses.append)
    config = {
        "stall_after_n_steps": 2,
        "stall_time_sec": (3.0, 4.0),
        "stall_on_worker_indices": [1],
        "init_time_s": 7,
    }
    made = host("jaxrl:crashing-cartpole-v0", config)
    assert pauses == [7.0]
    for worker_index in (0, 1):
        pauses.clear()
        vector = make_vector(made, num_envs=1, worker_index=worker_index, check=False)
        vector.reset()
        for _ in range(3):
            vector.step(np.zeros(1, np.int32))
        assert pauses[0] == 7.0
        assert len(pauses) == 1 + worker_index
        assert all(3.0 <= pause <= 4.0 for pause in pauses[1:])


def test_a_part_that_no_module_reads_can_be_left_out() -> None:
    message = r"observation_space\['mission'\] is Mission, .*FilterObservation\(env, \['image'\]\)"
    with pytest.raises(EnvError, match=message):
        make(WithText)
    made = host(lambda ctx: gymnasium.wrappers.FilterObservation(WithText(), ["image"]))
    assert list(made.observation_space) == ["image"]
