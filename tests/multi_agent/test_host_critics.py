"""Central critics over Python environments, against the compiled program and by hand."""

from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from jaxrl import Algorithm, RLModuleSpec
from jaxrl.algorithms.mappo import MAPPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.core.keys import make_key
from jaxrl.core.types import CentralObs, Progress, PyTree
from jaxrl.envs.host_vector import make_vector
from jaxrl.envs.multi.checked import CheckedMultiAgentEnv
from jaxrl.envs.multi.host_env import MultiAgentEnv
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.errors import ConfigError
from jaxrl.modules.scripted import RandomRLModule
from jaxrl.runners.env_runner import make_env_runner
from jaxrl.runners.fragment import Weights
from jaxrl.runners.multi.env_runner import MultiEnvRunner
from jaxrl.training.rollout import ActorState
from tests.multi_agent.agent_envs import Torture
from tests.multi_agent.host_envs import Duel
from tests.multi_agent.test_host_runner import Playback

NUM_ENVS, NUM_STEPS = 6, 48
BOX = gymnasium.spaces.Box(0.0, 1e6, (3,), np.float32)


class Streams(Torture):
    """Torture with a global state, in which an agent observes the same at any time."""

    name = "streams"

    def state_space(self, params: PyTree) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Dict(
            of=gymnasium.spaces.Box(0.0, 1e6, (1,), np.float32), third=gymnasium.spaces.Discrete(3)
        )

    def global_state(self, state: Any, params: PyTree) -> PyTree:
        return {"of": state.episode[None] + state.time, "third": state.time % 3}

    def _observe(self, state: Any) -> dict[str, Array]:
        seen = [jnp.stack([state.episode, jnp.float32(i), jnp.zeros(())]) for i in range(3)]
        return dict(zip(self.possible_agents, seen, strict=True))


class StatePlayback(Playback):
    """Recorded steps with their global states, whose place can be saved."""

    state_space = Streams().state_space(None)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.time < len(self.seen):
            before = self.seen[self.time][2]
            self.now = jax.tree.map(lambda leaf: leaf[self.row], before)
        return super().reset(seed=seed, options=options)

    def step(self, action_dict: dict[Any, Any]) -> Any:
        after = self.seen[self.time][3].final_global_state
        self.now = jax.tree.map(lambda leaf: leaf[self.row], after)
        return super().step(action_dict)

    def state(self) -> PyTree:
        return self.now

    def get_state(self) -> Any:
        return np.asarray(self.time)

    def set_state(self, state: Any) -> None:
        self.time = int(state)


def make_both(**settings: Any) -> tuple[list[Any], list[MultiEnvRunner]]:
    """Return rollouts of the compiled program, and two runners on the host for the same steps."""
    config: Any = (
        MAPPOConfig()
        .environment(Streams)
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size=NUM_ENVS * NUM_STEPS, **settings)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .multi_agent(mapping={"a": "one", "b": "two", "c": "one"})
        .debugging(loggers=[], seed=5)
    )
    config.prepare()
    assembly: Any = assemble(config)
    runner, params = assembly.run, assembly.made.params
    state = jax.jit(runner.init)(make_key(2), params)
    actors, worker = runner.make_actor_state(state), runner.rollout_worker

    @jax.jit
    def roll(env: PyTree, carry: Any) -> Any:
        return worker.rollout(actors, env, carry, params, NUM_STEPS // 4)

    @jax.jit
    def step(env: PyTree, carry: Any) -> Any:
        row = jax.tree.map(lambda x: x[0], worker.sample_inputs(env, 1, params))
        return worker.step(actors, env, carry, row, params, True)[:3]

    env, carry, rollouts, seen = state.env, state.carry, [], []
    for _ in range(4):
        env, carry, rollout, _ = roll(env, carry)
        rollouts.append(jax.tree.map(np.asarray, rollout))
    env, carry = state.env, state.carry
    for _ in range(NUM_STEPS):
        after, carry, taken = step(env, carry)
        seen.append(jax.tree.map(np.asarray, (env.obs, env.acts, env.global_state, taken)))
        env = after
    made = MadeMultiHostEnv(
        id="playback",
        create=lambda context: StatePlayback(seen, context.vector_index),
        observation_spaces=Playback.observation_spaces,
        action_spaces=Playback.action_spaces,
        max_episode_steps=None,
        env_config={},
        state_space=StatePlayback.state_space,
    )
    runners = [
        MultiEnvRunner(
            config=config,
            vector=make_vector(
                made, num_envs=NUM_ENVS, seed=2, check=False, reads_state=worker.reads_state
            ),
            policy_step=worker,
            env_index=np.arange(NUM_ENVS),
            seed=2,
        )
        for _ in range(2)
    ]
    for host in runners:
        host.set_weights(Weights(version=0, actor=jax.device_get(actors)))
    return rollouts, runners


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["state", "joint", "agent_specific"])
def test_critics_see_what_they_see_in_the_compiled_program(kind: str) -> None:
    """Also after a runner was restored within episodes."""
    rollouts, (host, again) = make_both(critic_input=kind)
    found = [host.sample_fragment(NUM_STEPS // 4) for _ in range(2)]
    again.set_state(host.get_state())
    found += [again.sample_fragment(NUM_STEPS // 4) for _ in range(2)]
    total = 0
    for fragment, expected in zip(found, rollouts, strict=True):
        rows: Any = fragment.rollout
        for m, rollout in expected.rollouts.items():
            own, mask = rows.rollouts[m], rollout.mask
            np.testing.assert_array_equal(own.mask, mask)
            for name in ("obs", "final_obs"):
                seen, wanted = getattr(own, name), getattr(rollout, name)
                assert isinstance(seen, CentralObs)
                np.testing.assert_array_equal(seen.state[mask], wanted.state[mask], name)
                np.testing.assert_array_equal(seen.obs[mask], wanted.obs[mask], name)
            total += int(mask.sum())
            behind = np.flatnonzero((mask.sum(axis=0) > 0) & ~mask[-1])
            places = mask.sum(axis=0)[behind]
            np.testing.assert_array_equal(
                own.obs.state[places, behind], rollout.obs.state[places, behind]
            )
    assert total > 150


class Watched(Duel):
    """A game in turns with a global state: (whose turn it is, time)."""

    state_space = gymnasium.spaces.Box(-1.0, 20.0, (2,), np.float64)

    def state(self) -> Any:
        return np.asarray([self.time % 2, self.time])


def make_config(env: Any = Watched, **training: Any) -> Any:
    config = MAPPOConfig().environment(env).env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=64, num_epochs=2, minibatch_size=16, **training)
    return config.rl_module(model_config={"fcnet_hiddens": [8]}).debugging(loggers=[], seed=1)


def sample(config: Any, steps: int) -> Any:
    """Return a fragment of a runner whose modules have their first weights."""
    config.prepare()
    runner: Any = make_env_runner(config, num_envs=4, first_env_index=0)
    actor = {
        m: ActorState(
            params=policy.module.init(jax.random.key(3)),
            obs_state=policy.obs_pipeline.init(),
            hparams={},
            progress=Progress.zeros(),
        )
        for m, policy in runner.policy_step.policies.items()
    }
    runner.set_weights(Weights(version=0, actor=actor))
    return runner.sample_fragment(steps)


def sample_rows(config: Any, steps: int) -> Any:
    """Return the rows of the only module."""
    return sample(config, steps).rollout.rollouts["default_policy"]


def test_a_row_has_the_states_of_its_own_turns() -> None:
    """An agent acts at every second step, and its successor state is that of its next turn."""
    rows = sample_rows(make_config(critic_input="state"), 40)
    time, final_time = rows.obs.obs[..., 1], rows.final_obs.obs[..., 1]
    mask = rows.mask
    np.testing.assert_array_equal(rows.obs.state[mask][:, 1], time[mask])
    np.testing.assert_array_equal(rows.obs.state[mask][:, 0], time[mask] % 2)
    goes_on = mask & ~rows.terminated
    np.testing.assert_array_equal(rows.final_obs.state[goes_on][:, 1], final_time[goes_on])
    assert (rows.truncated & mask).any()
    assert (final_time - time)[goes_on & ~rows.truncated].max() == 2
    ids = rows.obs.state[mask][:, 2:]
    np.testing.assert_array_equal(ids.argmax(axis=1), time[mask] % 2)


def test_joint_observations_in_turns_are_the_latest_ones() -> None:
    """An agent that waits has its latest observation, and none before its first turn."""
    rows = sample_rows(make_config(critic_input="joint"), 40)
    mask, seen = rows.mask, rows.obs.state
    left = np.arange(mask.shape[1]) % 2 == 0
    own = np.where(left[None, :, None], seen[..., :3], seen[..., 3:6])
    other = np.where(left[None, :, None], seen[..., 3:6], seen[..., :3])
    np.testing.assert_array_equal(own[mask], rows.obs.obs[mask])
    time = rows.obs.obs[..., 1]
    np.testing.assert_array_equal(other[mask & (time == 0)], 0.0)
    np.testing.assert_array_equal(other[..., 1][mask & (time > 0)], time[mask & (time > 0)] - 1)


def test_a_state_that_is_not_finite_restarts_the_copy() -> None:
    class Broken(Watched):
        def state(self) -> Any:
            return np.asarray([0.0, np.nan if self.row == 1 and self.time == 3 else self.time])

    config = make_config(Broken).environment(env_config={"length": 7}, disable_env_checking=True)
    fragment = sample(config, 10)
    (fault, *_) = fragment.faults
    assert (fault.env_index, fault.what) == (1, "observation")
    assert "the global state is NaN or infinite; return finite numbers by state()" in fault.detail
    seen = fragment.rollout.rollouts["default_policy"]
    assert np.isfinite(seen.obs.state).all()


@pytest.mark.slow
def test_training_resumes_exactly(tmp_path: Path) -> None:
    config = make_config(critic_input="joint")
    with config.build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "saved")
        expected = [algorithm.train()["learners"]["default_policy"] for _ in range(2)]
    with Algorithm.from_checkpoint(tmp_path / "saved") as algorithm:
        found = [algorithm.train()["learners"]["default_policy"] for _ in range(2)]
    for one, other in zip(found, expected, strict=True):
        for name in ("total_loss", "vf_loss", "policy_loss"):
            assert one[name] == other[name]


def test_a_module_that_is_not_trained_records_no_state() -> None:
    config = make_config().multi_agent(
        mapping={"left": "main", "right": "random"},
        policies={"main": None, "random": RLModuleSpec(module_class=RandomRLModule)},
        policies_to_train=["main"],
    )
    with config.build() as algorithm:
        result = algorithm.train()
    assert np.isfinite(result["learners"]["main"]["total_loss"])


def test_an_environment_without_a_state_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'state' needs a global state.*critic_input='joint'.*and state\(\)\."
    ):
        make_config(Duel).build()


def test_who_reads_no_state_does_not_ask_for_one() -> None:
    class Asked(Watched):
        number = 0

        def state(self) -> Any:
            type(self).number += 1
            return super().state()

    for reads_state, number in ((None, 0), (True, 1)):
        CheckedMultiAgentEnv(Asked(), trains=True, reads_state=reads_state).reset()
        assert Asked.number == number


class Coin(MultiAgentEnv):
    """One step, after which both are paid a coin that the global state alone shows."""

    possible_agents = ("a", "b")
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    state_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, config: Any = None) -> None:
        super().__init__()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.coin = float(self.np_random.choice([-1.0, 1.0]))
        return dict.fromkeys(self.possible_agents, np.zeros(1, np.float32)), {}

    def step(self, action_dict: Any) -> Any:
        rewards = dict.fromkeys(self.possible_agents, self.coin)
        return {}, rewards, {"__all__": True}, {"__all__": False}, {}

    def state(self) -> Any:
        return np.asarray([self.coin], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "learns"), [("state", True), ("joint", False)])
def test_the_critic_learns_what_only_the_state_tells(kind: str, *, learns: bool) -> None:
    config = make_config(Coin, critic_input=kind, lr=3e-3).training(train_batch_size=256)
    with config.build() as algorithm:
        result = algorithm.fit(stop={"training_iteration": 10})
    found = result["learners"]["default_policy"]["vf_explained_var"]
    assert found > 0.95 if learns else found < 0.2
