"""From what a user calls an environment to a made one."""

import dataclasses
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl.envs import (
    EnvContext,
    JaxEnv,
    MadeHostEnv,
    TimeLimit,
    list_envs,
    make,
    register_env,
    registry,
)
from jaxrl.envs.classic.cartpole import CartPole, CartPoleParams
from jaxrl.envs.classic.pendulum import Pendulum
from jaxrl.errors import EnvError, UnknownNameError


@pytest.fixture(autouse=True)
def _forget_registrations() -> Iterator[None]:
    before = dict(registry._registered)
    yield
    registry._registered.clear()
    registry._registered.update(before)


class Sized(CartPole):
    """An environment of a user's, with an argument that must be given."""

    name = "Sized"
    max_episode_steps = 11

    def __init__(self, size: int, *, label: str = "a") -> None:
        super().__init__()
        self.size = size
        self.label = label


class DictParams(CartPole):
    """Its parameters are a dictionary."""

    @property
    def default_params(self) -> Any:
        return {"weights": np.zeros(3, np.float32), "count": np.asarray(2, np.int32)}


def inner(made: registry.MadeEnv) -> Any:
    assert isinstance(made.env, TimeLimit)
    return made.env.env


def make_cartpole(context: EnvContext) -> JaxEnv[Any, Any]:
    """A creator that a class path can name."""
    return CartPole(sutton_barto_reward=bool(context.get("sutton", False)))


def test_a_bare_id_is_ours_and_says_so() -> None:
    made = make("CartPole-v1")
    assert isinstance(inner(made), CartPole)
    assert made.id == "CartPole-v1"
    assert made.max_episode_steps == 500
    assert made.notes == (
        "CartPole-v1: jaxrl's own JAX implementation (not gymnasium's, not gymnax's).",
    )
    assert make("jaxrl:CartPole-v1").notes == ()


def test_a_prefix_asks_for_gymnasium_and_ids_of_its_own_need_none() -> None:
    theirs = make("gymnasium:CartPole-v1")
    assert isinstance(theirs, MadeHostEnv)
    assert (theirs.id, theirs.max_episode_steps, theirs.notes) == ("gymnasium:CartPole-v1", 500, ())
    bare = make("FrozenLake-v1")
    assert isinstance(bare, MadeHostEnv)
    assert bare.notes == ("FrozenLake-v1: gymnasium's implementation, stepped on the host.",)


def test_ids_of_gymnax_need_no_prefix_where_they_are_its_own() -> None:
    assert make("DeepSea-bsuite").env == make("gymnax:DeepSea-bsuite").env
    assert make("DeepSea-bsuite").notes == ("DeepSea-bsuite: gymnax's implementation.",)


@pytest.mark.parametrize("name", ["CartPole-v1", "Breakout-MinAtar"])
def test_of_what_gymnax_has_too_a_bare_id_is_ours(name: str) -> None:
    assert make(f"gymnax:{name}").env != make(name).env
    assert make(f"gymnax:{name}").notes == ()
    assert make(name).notes == (
        f"{name}: jaxrl's own JAX implementation (not gymnasium's, not gymnax's).",
    )


@pytest.mark.parametrize(
    "spec",
    [
        "jaxrl.envs.classic.pendulum:Pendulum",
        "jaxrl.envs.classic.pendulum.Pendulum",
        Pendulum,
        Pendulum(),
        lambda context: Pendulum(),
    ],
)
def test_class_paths_classes_instances_and_creators(spec: Any) -> None:
    made = make(spec)
    assert isinstance(inner(made), Pendulum)
    assert made.max_episode_steps == 200
    assert made.id


def test_equal_arguments_make_equal_environments() -> None:
    assert make("CartPole-v1").env == make("jaxrl:CartPole-v1", {"gravity": 1.0}).env
    assert make(Sized, {"size": 3}).env == make(Sized, {"size": 3}).env
    assert make(Sized, {"size": 1}).env != make(Sized, {"size": True}).env
    assert make(Sized, {"size": [3]}).env != make(Sized, {"size": [3]}).env
    assert make("CartPole-v1").env != make("CartPole-v1", {"sutton_barto_reward": True}).env
    assert make("gymnax:Catch-bsuite").env == make("gymnax:Catch-bsuite").env
    assert make("gymnax:Catch-bsuite", {"rows": 7}).env != make("gymnax:Catch-bsuite").env


def test_registered_names_go_before_built_in_ones() -> None:
    contexts = []

    def creator(context: EnvContext) -> JaxEnv[Any, Any]:
        contexts.append(context)
        return Pendulum()

    register_env("CartPole-v1", creator)
    made = make("CartPole-v1", EnvContext({"a": 1}, worker_index=2, vector_index=3))
    assert isinstance(inner(made), Pendulum)
    assert contexts == [{"a": 1}]
    assert (contexts[0].worker_index, contexts[0].vector_index) == (2, 3)
    assert (contexts[0].num_workers, contexts[0].remote) == (0, False)
    assert list_envs()[0] == "CartPole-v1"
    register_env("mine", Sized)
    assert inner(make("mine", {"size": 4})).size == 4


def test_a_creator_may_be_named_by_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "some_module", sys.modules[__name__])
    assert inner(make("some_module:make_cartpole", {"sutton": True})).sutton_barto_reward


@pytest.mark.parametrize(
    "path", ["sys:exit", "os:system", "os.system", "subprocess:call", "subprocess:Popen", "math:pi"]
)
def test_what_a_path_names_is_held_to_its_type_before_it_is_called(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnvError):
        make(path, {"command": "touch executed"})
    assert not Path("executed").exists()


def test_a_context_can_be_copied_with_changes() -> None:
    context = EnvContext({"a": 1}, worker_index=1, num_workers=4, remote=True)
    copy = context.copy_with_overrides(worker_index=2)
    assert (dict(copy), copy.worker_index, copy.num_workers, copy.remote) == ({"a": 1}, 2, 4, True)
    assert dict(context.copy_with_overrides({"b": 2})) == {"b": 2}


def test_env_config_holds_parameters_and_constructor_arguments() -> None:
    made = make("CartPole-v1", {"gravity": 5, "sutton_barto_reward": True})
    assert inner(made).sutton_barto_reward
    assert made.params.gravity == np.float32(5)
    assert made.params.gravity.dtype == np.float32
    assert made.params.force_mag == np.float32(10)
    assert make(Pendulum(), {"g": 9.81}).params.g == np.float32(9.81)
    changed = make(DictParams, {"weights": [1, 2, 3]}).params
    np.testing.assert_array_equal(changed["weights"], np.array([1, 2, 3], np.float32))
    assert changed["count"] == 2


def test_another_time_limit() -> None:
    made = make("CartPole-v1", max_episode_steps=7)
    assert made.max_episode_steps == 7
    assert make(made.env).max_episode_steps == 7
    again = make(made.env, max_episode_steps=9)
    assert again.env == TimeLimit(inner(made), 9)


def test_ids_are_listed_and_can_be_made() -> None:
    names = list_envs()
    assert len(names) == len(set(names))
    assert {"Pendulum-v1", "jaxrl:probe-value-v0", "gymnax:Pong-misc"} <= set(names)
    for name in names:
        assert make(name).id == name


class Raises(CartPole):
    """Its params have a field of two numbers."""

    @property
    def default_params(self) -> Any:
        return {"pair": (np.zeros((), np.float32), np.zeros((), np.float32))}


def foreign(module: str, base: type = object) -> Any:
    """A class of a suite's package, whose `spec` is no entry of gymnasium's registry."""
    return type("Foreign", (base,), {"__module__": module, "spec": object()})


VECTOR = gymnasium.make_vec("CartPole-v1", num_envs=2)

BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    ("CartPole-v2", {}, UnknownNameError, "Did you mean 'CartPole-v1'"),
    ("CartPole.v1", {}, UnknownNameError, "Did you mean 'CartPole-v1'"),
    ("Breakout-MinAtr", {}, UnknownNameError, "Did you mean 'Breakout-MinAtar'"),
    ("jaxrl:Pendulm-v1", {}, UnknownNameError, "Did you mean"),
    ("Taxi-v3", {}, UnknownNameError, "Unknown environment 'Taxi-v3'. Did you mean 'Taxi-v4'?"),
    ("Nope-v1", {}, UnknownNameError, "Unknown environment 'Nope-v1'. 'jaxrl list envs'"),
    ("nope", {}, UnknownNameError, "a name of register_env must be registered in this process"),
    ("CartPole-v1", {"max_episode_steps": 5}, UnknownNameError, "environment(max_episode_steps=5)"),
    ("Mine-v0", {}, UnknownNameError, "once its module is imported, or as 'module:Mine-v0'"),
    ("Craftax-Symbolic-v1", {}, UnknownNameError, "as in craftax:Craftax-Symbolic-v1"),
    ("mujoco_playground:CheetahRun", {}, UnknownNameError, "as in playground:CartpoleBalance"),
    ("navix:Navix-Empty-8x8-v0", {}, UnknownNameError, "NAVIX has no adapter here: write"),
    (foreign("kinetix.environment")(), {}, EnvError, "Kinetix has no adapter here: write"),
    (foreign("kinetix.environment"), {}, EnvError, "Kinetix has no adapter here: write"),
    (lambda ctx: foreign("navix.env")(), {}, EnvError, "or take xminigrid:MiniGrid-Empty-8x8"),
    (
        foreign("envpool.classic", gymnasium.Env)(),
        {},
        EnvError,
        "is a pool of EnvPool, whose copies",
    ),
    (
        lambda ctx: foreign("envpool.a", gymnasium.Env)(),
        {},
        EnvError,
        "the id that it was made from",
    ),
    (VECTOR, {}, EnvError, "is a vector environment, whose copies were made already: give"),
    (lambda ctx: VECTOR, {}, EnvError, "gym_env_vectorize_mode='vector_entry_point'"),
    (type(VECTOR), {}, EnvError, "of one environment, of which num_envs_per_env_runner copies"),
    (lambda: CartPole(), {"size": 3}, EnvError, "takes no argument, so env_config={'size': 3}"),
    ("gymnax:Breakout", {}, UnknownNameError, "Did you mean 'Breakout-MinAtar'"),
    ("gymnax:MNISTBandit-bsuite", {}, EnvError, "downloads its data"),
    ("gymnasium:CartPole-v9", {}, UnknownNameError, "Did you mean 'CartPole-v1'"),
    ("gymnasium:CartPole-v1", {"gravty": 1}, UnknownNameError, "takes no argument 'gravty'"),
    (gymnasium.Env, {}, EnvError, "observation_space is missing"),
    (
        lambda context: 5,
        {},
        EnvError,
        "must return a JaxEnv, a MultiAgentJaxEnv or a gymnasium.Env, got 5",
    ),
    (lambda context: 1 // 0, {}, EnvError, "its creation raised ZeroDivisionError"),
    ("no_such_module:Env", {}, EnvError, "No module named 'no_such_module'. Run it in the folder"),
    ("jaxlr:CartPole-v1", {}, EnvError, "Cannot import 'jaxlr'"),
    ("jaxlr:CartPole-v1", {}, EnvError, "Did you mean 'CartPole-v1'?"),
    ("jaxrl.envs.classic.pendulum:Pendulem", {}, EnvError, "Did you mean 'Pendulum'"),
    ("collections:OrderedDict", {}, EnvError, "is neither a JaxEnv class, nor"),
    (5, {}, EnvError, "must be an id, a class path"),
    (Sized, {}, EnvError, "needs size"),
    ("CartPole-v1", {"gravty": 1}, UnknownNameError, "Did you mean 'gravity'"),
    ("CartPole-v1", {"sutton_reward": 1}, UnknownNameError, "'sutton_barto_reward'"),
    ("CartPole-v1", {"gravity": "x"}, EnvError, "must be float32 of shape"),
    ("CartPole-v1", {"gravity": [1, 2]}, EnvError, "must be float32 of shape"),
    ("CartPole-v1", {"gravity": True}, EnvError, "must be float32 of shape"),
    ("gymnax:Catch-bsuite", {"max_steps_in_episode": 2.5}, EnvError, "must be int32"),
    ("gymnax:Catch-bsuite", {"colums": 3}, UnknownNameError, "Did you mean 'columns'"),
    (Raises, {"pair": 3.0}, EnvError, "must have the structure"),
]


@pytest.mark.parametrize(("spec", "env_config", "error", "message"), BAD)
def test_bad_input_is_one_sentence(
    spec: Any, env_config: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        make(spec, env_config)


def test_a_creator_may_take_no_argument() -> None:
    assert isinstance(make(lambda: CartPole()).env, TimeLimit)
    made: Any = make(lambda: gymnasium.make("CartPole-v1"))
    env = made.create(EnvContext({}))
    assert env.spec.id == "CartPole-v1"
    env.close()
    register_env("without-argument", lambda: CartPole())
    assert make("without-argument").id == "without-argument"


def test_an_id_that_begins_with_an_installed_package_is_shown_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "minigrid.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("MiniGrid-Empty-5x5-v0", "BabyAI-GoToObj-v0"):
        with pytest.raises(UnknownNameError, match=f"minigrid registers it: 'minigrid:{name}'"):
            make(name)


def test_the_message_on_an_unknown_id_is_short() -> None:
    with pytest.raises(UnknownNameError) as caught:
        make("Taxi-v3")
    assert "probe" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("name", "creator", "message"),
    [
        ("", make_cartpole, "non-empty string"),
        ("gymnax:mine", make_cartpole, "reserved"),
        ("gymnasium:mine", make_cartpole, "reserved"),
        ("mine", 5, "must be callable"),
    ],
)
def test_bad_registrations(name: str, creator: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message):
        register_env(name, creator)


def test_params_are_a_pytree_of_strongly_typed_numbers() -> None:
    leaves = jax.tree.leaves(CartPoleParams())
    assert len(leaves) == len(dataclasses.fields(CartPoleParams))
    for leaf in leaves:
        assert leaf.dtype == np.float32
        assert leaf.shape == ()


def test_making_our_environment_starts_no_backend_and_imports_no_gymnax() -> None:
    code = (
        "import sys; from jax._src import xla_bridge; from jaxrl.envs import make, list_envs;"
        "m = make('CartPole-v1'); m.env.observation_space(m.params); list_envs();"
        "assert not xla_bridge.backends_are_initialized();"
        "assert 'gymnax' not in sys.modules and 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    with pytest.raises(EnvError, match=r"pip install 'jaxrl\[envpool\]'"):
        make("envpool:CartPole-v1")
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.mujoco")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(EnvError, match=r"pip install 'jaxrl\[mujoco\]'"):
        make("gymnasium:HalfCheetah-v5")
