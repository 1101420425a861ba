"""Gymnasium environments out of ids, classes, creators and instances."""

import re
import sys
import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from jaxrl.envs import EnvContext, MadeHostEnv, make
from jaxrl.envs.adapters.host_state import get_time_limit
from jaxrl.errors import EnvError, UnknownNameError


class Corridor(gymnasium.Env[Any, Any]):
    """An environment of a user's."""

    observation_space = spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, length: int = 4, *, label: str = "a") -> None:
        self.length, self.label = length, label

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, False, False, {}


class Configured(Corridor):
    """Takes what RLlib gives: the context as `config`."""

    def __init__(self, config: EnvContext) -> None:
        super().__init__()
        self.config = config


class Needs(Corridor):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size


def host(*arguments: Any, **keywords: Any) -> MadeHostEnv:
    made = make(*arguments, **keywords)
    assert isinstance(made, MadeHostEnv)
    return made


def test_an_id_and_its_arguments() -> None:
    made = host("gymnasium:Pendulum-v1", {"g": 1.5})
    env: Any = made.create(EnvContext(made.env_config))
    assert env.unwrapped.g == 1.5
    assert (made.max_episode_steps, made.env_config) == (200, {"g": 1.5})
    assert made.action_space == env.action_space
    assert not made.is_atari


@pytest.mark.parametrize("prefix", ["gymnasium:", ""])
def test_an_id_whose_module_has_to_be_imported_first(
    prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = "import gymnasium\ngymnasium.register('Late-v0', {entry!r}, max_episode_steps=9)\n"
    entry = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    (tmp_path / "tests_of_registration.py").write_text(module.format(entry=entry))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tests_of_registration", raising=False)
    monkeypatch.delitem(gymnasium.registry, "Late-v0", raising=False)
    assert host(f"{prefix}tests_of_registration:Late-v0").max_episode_steps == 9
    del gymnasium.registry["Late-v0"]


def test_an_unversioned_id_is_the_newest() -> None:
    spec = host("gymnasium:CartPole").create(EnvContext()).spec
    assert spec is not None
    assert spec.id == "CartPole-v1"


@pytest.mark.parametrize(
    "spec", [Corridor, "corridors:Corridor", lambda context: Corridor(context.get("length", 4))]
)
def test_classes_paths_and_creators(spec: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "corridors", sys.modules[__name__])
    made = host(spec, {"length": 7})
    env: Any = made.create(EnvContext(made.env_config))
    assert (env.length, made.max_episode_steps) == (7, None)


def test_a_constructor_may_take_the_whole_context() -> None:
    made = host(Configured, {"anything": 1})
    env: Any = made.create(EnvContext(made.env_config, worker_index=2, vector_index=3))
    assert (env.config["anything"], env.config.worker_index, env.config.vector_index) == (1, 2, 3)


def test_an_instance_is_copied_and_left_alone() -> None:
    instance = TimeLimit(Corridor(length=6), 5)
    made = host(instance)
    first, second = (made.create(EnvContext()) for _ in range(2))
    assert made.max_episode_steps == 5
    assert first is not second
    assert first.unwrapped.length == 6  # pyright: ignore[reportAttributeAccessIssue]
    assert first is not instance


def test_an_instance_that_cannot_be_copied_is_made_anew_of_its_id() -> None:
    instance: Any = gymnasium.make("CartPole-v1")
    instance.unwrapped.lock = threading.Lock()
    env = host(instance).create(EnvContext())
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"


@pytest.mark.parametrize(
    "spec",
    ["gymnasium:CartPole-v1", Corridor, lambda context: TimeLimit(CartPoleEnv(), 500), Corridor()],
)
def test_another_time_limit(spec: Any) -> None:
    made = host(spec, max_episode_steps=7)
    env = made.create(EnvContext())
    assert (made.max_episode_steps, get_time_limit(env)) == (7, 7)
    env.reset(seed=0)
    truncated = [env.step(step % 2)[3] for step in range(7)]
    assert truncated == [False] * 6 + [True]


def test_the_environment_made_for_its_spaces_is_closed() -> None:
    closed: list[bool] = []

    class Closing(Corridor):
        def close(self) -> None:
            closed.append(True)

    host(lambda context: Closing())
    assert closed == [True]


def test_boxes_of_other_types_are_seen_as_float32() -> None:
    class Wide(Corridor):
        observation_space = spaces.Dict(
            {
                "a": spaces.Box(-1.0, 1.0, (2,), np.float64),
                "b": spaces.Box(0, 255, (3,), np.uint8),
                "c": spaces.Discrete(3),
            }
        )
        action_space = spaces.Box(-2.0, 2.0, (1,), np.float64)

    made = host(Wide)
    assert isinstance(made.observation_space, spaces.Dict)
    assert [str(space.dtype) for space in made.observation_space.values()] == [
        "float32",
        "uint8",
        "int64",
    ]
    assert made.action_space.dtype == np.float32
    assert len(made.notes) == 2
    assert "Wide: the observation['a'] is float64" in made.notes[0]


def test_is_atari_can_be_said() -> None:
    assert host("gymnasium:CartPole-v1", is_atari=True).is_atari


class NoSpace(Corridor):
    observation_space = None  # pyright: ignore


class TextSpace(Corridor):
    observation_space = spaces.Text(5)  # pyright: ignore


class Exploding(Corridor):
    def __init__(self) -> None:
        raise RuntimeError("no licence.\nmore")


class _OldEnv:
    """Stands for a class of the old gym package, which is not installed."""

    observation_space = Corridor.observation_space

    def reset(self) -> Any:
        return np.zeros(2)

    def step(self, action: Any) -> Any:
        return np.zeros(2), 0.0, False, {}


_OldEnv.__module__ = "gym.core"


class OldCorridor(_OldEnv):
    pass


class Locked(Corridor):
    """Cannot be copied, and gymnasium has no id for it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("gymnasium:CartPole-v7", {}, UnknownNameError, "Did you mean 'CartPole-v1'"),
    ("gymnasium:no_such_module:Env-v0", {}, EnvError, "Cannot import 'no_such_module'"),
    ("gymnasium:a b", {}, UnknownNameError, "is not a gymnasium id"),
    ("gymnasium:Pendulum-v1", {"gg": 1}, UnknownNameError, "takes no argument 'gg' (env_config)"),
    ("gymnasium:Pendulum-v1", {"max_episode_steps": 1}, UnknownNameError, "beside env_config"),
    (Corridor, {"lenght": 1}, UnknownNameError, "Did you mean 'length'"),
    (Needs, {}, EnvError, "Needs needs size: set it in env_config"),
    (NoSpace, {}, EnvError, "observation_space must be a gymnasium space, got None"),
    (TextSpace, {}, EnvError, "observation_space is Text; supported are Box"),
    (Exploding, {}, EnvError, "Exploding cannot be made: its creation raised RuntimeError: no lic"),
    (OldCorridor, {}, EnvError, "of the old gym package, not of gymnasium: wrap it"),
    (lambda context: OldCorridor(), {}, EnvError, "GymV21CompatibilityV0"),
    (OldCorridor(), {}, EnvError, "GymV21CompatibilityV0"),
    (Locked(), {}, EnvError, "the instance cannot be copied"),
    (Corridor(), {"length": 2}, EnvError, "is an instance already; env_config={'length': 2}"),
]


@pytest.mark.parametrize(("spec", "env_config", "error", "message"), BAD)
def test_bad_input_is_one_sentence(
    spec: Any, env_config: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        make(spec, env_config)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("gymnasium.envs.box2d", "Box2D")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(EnvError, match=r"pip install 'jaxrl\[box2d\]'") as caught:
        make("gymnasium:LunarLander-v3")
    assert "swig" not in str(
        caught.value
    )  # gymnasium's own recipe, beside which ours is not needed


def test_lunar_lander() -> None:
    pytest.importorskip("Box2D", reason="needs the box2d extra")
    made = host("LunarLander-v3")
    assert (made.max_episode_steps, made.observation_space.shape) == (1000, (8,))
