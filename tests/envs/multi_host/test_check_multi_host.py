"""`jaxrl check-env` of Python environments of several agents."""

import warnings
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from jaxrl.cli.app import app
from jaxrl.envs import EnvContext, make_multi_host
from jaxrl.envs.adapters.precheck import precheck_env
from jaxrl.errors import EnvError
from jaxrl.testing import check_env
from tests.envs.multi_host.scripted import Turns, at


class Wandering(Turns):
    """Turns whose lengths differ."""

    def reset(self, **options: Any) -> Any:
        result = super().reset(**options)
        self.num_steps = int(self.np_random.integers(3, 9))
        return result


def get_warnings(env: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_env(env, num_steps=12)
    return "\n".join(str(warning.message) for warning in caught)


def test_a_sound_environment_passes_without_a_word() -> None:
    assert get_warnings(Wandering) == ""


def test_the_command_takes_a_class_path() -> None:
    name = f"{Turns.__module__}:Turns"
    done = CliRunner().invoke(app, ["check-env", name, "--steps", "9"])
    assert done.exit_code == 0, done.output
    assert f"{name} passed all checks." in done.output
    assert "every episode terminated after 5 steps" in done.output


class Unseeded(Wandering):
    def draw(self) -> np.ndarray:
        return np.random.default_rng().uniform(-1.0, 1.0, 2).astype(np.float32)


class Shared(Wandering):
    shared = np.zeros(2, np.float32)

    def reset(self, **options: Any) -> Any:
        type(self).shared = np.zeros(2, np.float32)
        return super().reset(**options)

    def draw(self) -> np.ndarray:
        type(self).shared = np.clip(self.shared + 0.01, -1.0, 1.0)
        return self.shared.astype(np.float32)


class Raises(Wandering):
    def step(self, action_dict: Any) -> Any:
        raise KeyError("speed")


class WithoutSeed(Wandering):
    def reset(self) -> Any:
        return super().reset()


class TooFar(Wandering):
    def draw(self) -> np.ndarray:
        return at(3.0)


class CannotBeMade(Wandering):
    def __init__(self) -> None:
        raise OSError("no license")


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (
            Unseeded,
            "two runs from the same seed and actions differ in the obs of the reset before step 0",
        ),
        (Shared, "behaves differently when a second copy is stepped beside it, in the obs"),
        (Raises, "Raises: step raised KeyError: 'speed'"),
        (WithoutSeed, "reset must take the keyword arguments seed and options, but seed and opt"),
        (TooFar, "reset: the observation of agent '0' must lie in"),
        (CannotBeMade, "cannot be made: its creation raised OSError: no license"),
    ],
)
def test_a_broken_one_is_refused_in_one_sentence(env: Any, sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence) as caught:
        check_env(env, num_steps=12)
    assert "\n" not in str(caught.value)


class Alike(Wandering):
    def draw(self) -> np.ndarray:
        return at()

    def reset(self, **options: Any) -> Any:
        obs, infos = super().reset(**options)
        self.num_steps = 5
        return obs, infos


class Endless(Turns):
    num_steps = 10**9


class Idle(Wandering):
    """The third agent is paid and never acts."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.possible_agents = [0, 1, 2]

    def step(self, action_dict: Any) -> Any:
        obs, rewards, *rest = super().step(action_dict)
        return (obs, {**rewards, 2: 1.0}, *rest)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (Alike, "does not depend on its seed: all episodes start identically"),
        (Endless, "did not end within 2000 steps and has no time limit"),
        (Idle, "agent '2' never had an observation to act on"),
        (Idle, "rewards were of agents that had not acted yet, or had ended"),
    ],
)
def test_what_is_unusual_is_a_warning(env: Any, sentence: str) -> None:
    assert sentence in get_warnings(env)


def test_the_check_before_a_run_is_made_once_and_asks_the_user() -> None:
    made, seen = make_multi_host(Wandering), []

    def validate(env: Any, context: EnvContext) -> None:
        seen.append(type(env))
        if context.worker_index:
            raise ValueError("not here")

    precheck_env(made, EnvContext(), validate_env=validate)
    assert seen == [Wandering]
    with pytest.raises(EnvError, match=r"validate_env rejected .*Wandering: ValueError: not here"):
        precheck_env(made, EnvContext(worker_index=1), validate_env=validate)
    broken = make_multi_host(TooFar)
    precheck_env(broken, EnvContext(), check=False)
    with pytest.raises(EnvError, match="must lie in"):
        precheck_env(broken, EnvContext())


EXAMPLES = "ray.rllib.examples.envs.classes.multi_agent"


@pytest.mark.filterwarnings("ignore:.*(does not depend on its seed|every episode terminated)")
@pytest.mark.parametrize(
    ("name", "agents"),
    [
        ("rock_paper_scissors:RockPaperScissors", ("player1", "player2")),
        ("two_step_game:TwoStepGame", ("0", "1")),
        ("two_step_game:TwoStepGameWithGroupedAgents", ("agents",)),
        ("double_row_corridor_env:DoubleRowCorridorEnv", ("agent_0", "agent_1")),
    ],
)
def test_rllibs_examples_pass(name: str, agents: tuple[str, ...]) -> None:
    pytest.importorskip("ray.rllib.env.multi_agent_env")
    made = make_multi_host(f"{EXAMPLES}.{name}")
    assert made.possible_agents == agents
    check_env(made)
