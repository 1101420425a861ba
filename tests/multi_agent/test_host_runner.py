"""Runner of Python environments of several agents against the compiled program, row by row."""

from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.core.types import PyTree
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.multi.host_env import MultiAgentEnv
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.runners.fragment import Weights
from jaxrl.runners.multi.env_runner import MultiEnvRunner
from jaxrl.training.in_graph import CompiledRun
from tests.multi_agent.test_rollout import (
    AGENTS,
    NUM_ENVS,
    make_runner,
    roll,
    watch,
)

SPACE = gymnasium.spaces.Box(0.0, 1e6, (3,), np.float32)


class Playback(MultiAgentEnv):
    """Steps of one environment in the compiled program, played back one by one."""

    possible_agents = AGENTS
    observation_spaces = dict.fromkeys(AGENTS, SPACE)
    action_spaces = dict.fromkeys(AGENTS, gymnasium.spaces.Discrete(3))

    def __init__(self, seen: list[Any], row: int) -> None:
        super().__init__()
        self.seen, self.row, self.time = seen, row, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        del seed, options
        if self.time == len(self.seen):
            return {}, {}
        obs, acts, *_ = self.seen[self.time]
        return {a: obs[a][self.row] for a in AGENTS if acts[a][self.row]}, {}

    def step(self, action_dict: dict[Any, Any]) -> Any:
        _, acts, _, step = self.seen[self.time]
        assert set(action_dict) == {a for a in AGENTS if acts[a][self.row]}
        self.time += 1
        row, here = self.row, [a for a in AGENTS if step.present[a][self.row]]
        over = bool(step.ended[row])
        cut = over and all(step.truncated[a][row] for a in here if not step.terminated[a][row])
        ends = {a: step.terminated[a][row] or step.truncated[a][row] for a in here}
        shown = [a for a in AGENTS if step.acts[a][row] or ends.get(a)]
        terminated = {a: bool(step.terminated[a][row]) for a in here}
        truncated = {a: bool(step.truncated[a][row]) for a in here}
        return (
            {a: step.final_obs[a][row] for a in shown},
            {a: float(step.reward[a][row]) for a in here},
            {**terminated, "__all__": over and not cut},
            {**truncated, "__all__": over and cut},
            {},
        )


def make_host_runner(runner: CompiledRun, state: PyTree, seen: list[Any]) -> MultiEnvRunner:
    """Return a runner that plays the recorded environments with the same parameters and keys."""
    made = MadeMultiHostEnv(
        id="playback",
        create=lambda context: Playback(seen, context.vector_index),
        observation_spaces=Playback.observation_spaces,
        action_spaces=Playback.action_spaces,
        max_episode_steps=None,
        env_config={},
    )
    host = MultiEnvRunner(
        config=PPOConfig().debugging(seed=2),
        vector=make_vector(made, num_envs=NUM_ENVS, seed=2, check=False),
        policy_step=runner.rollout_worker,
        env_index=np.arange(NUM_ENVS),
    )
    host.set_weights(Weights(version=0, actor=jax.device_get(runner.make_actor_state(state))))
    return host


@pytest.mark.parametrize(
    ("window", "use_lstm"),
    [
        pytest.param(60, False, marks=pytest.mark.slow),
        pytest.param(12, False, marks=pytest.mark.slow),
        pytest.param(1, False, marks=pytest.mark.slow),
        (12, True),
        pytest.param(1, True, marks=pytest.mark.slow),
    ],
)
def test_rows_are_those_of_the_compiled_program(window: int, use_lstm: bool) -> None:
    runner, state, params = make_runner(use_lstm=use_lstm)
    host = make_host_runner(runner, state, watch(runner, state, params))
    total = lost = 0
    for expected in roll(runner, state, params, window):
        fragment = host.sample_fragment(window)
        found: Any = fragment.rollout
        lost += fragment.num_agent_steps_lost
        np.testing.assert_array_equal(found.mask, expected.mask)
        for own, record in ((found.record, expected.record), (found.agents, expected.agents)):
            for name in ("ended", "env_step", "fault"):
                np.testing.assert_array_equal(getattr(own, name), getattr(record, name), name)
            for name in ("episode_return", "episode_length"):
                _check_close(getattr(own, name)[own.ended], getattr(record, name)[own.ended])
        for m, rollout in expected.rollouts.items():
            own, mask = found.rollouts[m], rollout.mask
            np.testing.assert_array_equal(own.mask, mask)
            assert fragment.completed is not None
            np.testing.assert_array_equal(fragment.completed[m], expected.completed[m])
            for name in ("terminated", "truncated", "is_first"):
                np.testing.assert_array_equal(getattr(own, name), getattr(rollout, name), name)
            pairs = (own.obs, rollout.obs), (own.action, rollout.action)
            for one, other in (*pairs, (own.extras, rollout.extras)):
                jax.tree.map(lambda x, y, m=mask: _check_close(x[m], y[m]), one, other)
            np.testing.assert_allclose(own.reward, rollout.reward, atol=1e-5)
            np.testing.assert_array_equal(own.final_obs[mask], rollout.final_obs[mask])
            _check_bootstrap(own, rollout)
            started = np.repeat(mask[:1].any(axis=0), 1)
            jax.tree.map(
                lambda x, y, s=started: _check_close(x[s], y[s]), own.carry_in, rollout.carry_in
            )
            total += int(mask.sum())
    assert total > 300
    assert lost == 0


def _check_close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, atol=1e-5)


def _check_bootstrap(own: Any, rollout: Any) -> None:
    """The row behind the last complete one has the observation to bootstrap from."""
    numbers = rollout.mask.sum(axis=0)
    columns = np.flatnonzero((numbers > 0) & (numbers < len(rollout.mask)))
    places = numbers[columns]
    np.testing.assert_array_equal(own.obs[places, columns], rollout.obs[places, columns])
