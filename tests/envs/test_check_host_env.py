"""check_env for Python environments, of one agent and of several, and the check before a run."""

import threading
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from typer.testing import CliRunner

from jaxrl.cli.app import app
from jaxrl.envs import EnvContext, make, make_multi_host
from jaxrl.envs.adapters.precheck import precheck_env
from jaxrl.errors import EnvError
from jaxrl.testing import check_env
from tests.envs.multi_host.scripted import Turns, at


class Walk(gymnasium.Env[Any, Any]):
    """A sound environment: a walk that ends beyond 3."""

    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = spaces.Discrete(2)
    drift = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.5, 0.5)
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.position += 0.4 * (2 * action - 1) + self.np_random.normal(0.0, 0.1) + self.drift
        return self.obs(), 1.0, bool(abs(self.position) > 3.0), False, {}

    def obs(self) -> Any:
        return np.array([self.position], np.float32)


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


@pytest.mark.parametrize(
    "spec", ["gymnasium:CartPole-v1", "gymnasium:Blackjack-v1", "FrozenLake-v1", Walk]
)
def test_sound_environments(spec: Any) -> None:
    check_env(spec)
    check_env(make(spec))


def test_sound_agents_pass_without_a_word() -> None:
    assert get_warnings(Wandering) == ""


def test_the_command_takes_a_class_path() -> None:
    name = f"{Turns.__module__}:Turns"
    done = CliRunner().invoke(app, ["check-env", name, "--steps", "9"])
    assert done.exit_code == 0, done.output
    assert f"{name} passed all checks." in done.output
    assert "every episode terminated after 5 steps" in done.output


class Forgets(Walk):
    """Its own generator outlives resets, though its first observations do not show it."""

    generator = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return obs, float(self.generator.random()), *rest[1:]


class Shares(Walk):
    """Environment whose copies share their state; a reset cleans up."""

    steps: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.steps.clear()
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps.append(1)
        obs, _, *rest = super().step(action)
        return obs, float(len(self.steps)), *rest


class Deaf(TimeLimit[Any, Any]):
    """Says that it is limited, and goes on."""

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Unseeded(Wandering):
    def draw(self) -> np.ndarray:
        return np.random.default_rng().uniform(-1.0, 1.0, 2).astype(np.float32)


class SharedTurns(Wandering):
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


BAD: list[tuple[Any, str]] = [
    (Forgets, "two runs from the same seed and actions differ in the reward of step 0"),
    (Shares, "it behaves differently when a second copy is stepped beside it"),
    (lambda context: Deaf(Walk(), 2), "steps, but the time limit is 2"),
    (
        Unseeded,
        "two runs from the same seed and actions differ in the obs of the reset before step 0",
    ),
    (SharedTurns, "behaves differently when a second copy is stepped beside it, in the obs"),
    (Raises, "Raises: step raised KeyError: 'speed'"),
    (WithoutSeed, "reset must take the keyword arguments seed and options, but seed and opt"),
    (TooFar, "reset: the observation of agent '0' must lie in"),
    (CannotBeMade, "cannot be made: its creation raised OSError: no license"),
]


@pytest.mark.parametrize(("spec", "message"), BAD)
def test_a_broken_one_is_refused_in_one_sentence(spec: Any, message: str) -> None:
    with pytest.raises(EnvError, match=message) as caught:
        check_env(spec, num_steps=12)
    assert "\n" not in str(caught.value)


class Alike(Walk):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = 0.0
        return self.obs(), {}

    def step(self, action: Any) -> Any:
        self.position += 0.4 * (2 * action - 1)
        return self.obs(), 1.0, abs(self.position) > 3.0, False, {}


class Endless(Walk):
    def step(self, action: Any) -> Any:
        obs, reward, _, truncated, info = super().step(action)
        self.position = np.clip(self.position, -3.0, 3.0)
        return obs, reward, False, truncated, info


class Punctual(Endless):
    """Its time limit terminates."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.count = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.count += 1
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.count == 20, truncated, info


class Locked(Walk):
    def __init__(self, lock: Any) -> None:
        self.lock = lock


LOCK = threading.Lock()


class AgentsAlike(Wandering):
    def draw(self) -> np.ndarray:
        return at()

    def reset(self, **options: Any) -> Any:
        obs, infos = super().reset(**options)
        self.num_steps = 5
        return obs, infos


class EndlessTurns(Turns):
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
    ("spec", "message"),
    [
        (Alike, "does not depend on its seed"),
        (Endless, "did not end within 2000 steps and has no time limit"),
        (Punctual, "every episode terminated after 20 steps"),
        ((lambda lock: lambda context: Locked(lock))(LOCK), "cannot be sent to another process"),
        (AgentsAlike, "does not depend on its seed: all episodes start identically"),
        (EndlessTurns, "did not end within 2000 steps and has no time limit"),
        (Idle, "agent '2' never had an observation to act on"),
        (Idle, "rewards were of agents that had not acted yet, or had ended"),
    ],
)
def test_what_is_unusual_is_a_warning(spec: Any, message: str) -> None:
    assert message in get_warnings(spec)


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
