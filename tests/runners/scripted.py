"""Host environments that do as they are told: what a runner makes of them can be foretold."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl.assembly.assemble import make_policy_step
from jaxrl.core.types import Columns, Progress, PyTree
from jaxrl.envs import MadeHostEnv
from jaxrl.envs.host import HostFault, HostStep
from jaxrl.modules.actor_critic import ActorCriticModule
from jaxrl.runners.env_runner import EnvRunner
from jaxrl.runners.fragment import Weights
from jaxrl.training.rollout import ActorState
from tests.helpers import small

SEED = 3

SPACES = spaces.Box(-np.inf, np.inf, (2,), np.float32), spaces.Discrete(3)


class Scripted:
    """Observes the number of its episode and of its step; the reward is the step's number from 1.

    Even episodes terminate, odd ones are truncated, after each copy's own number of steps.

    Args:
        lengths: Of each copy's episodes.
        mode: "same_step" resets where an episode ends, "next_step" takes a step of its own for it.
        restorable: Whether its state can be told.
        fault_at: At which of its steps the first copy fails, once.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        mode: str,
        *,
        restorable: bool = False,
        fault_at: int | None = None,
    ) -> None:
        self.num_envs = len(lengths)
        self.seeds: list[int] | None = None
        self.closed = 0
        self._lengths = np.array(lengths)
        self._mode, self._restorable, self._fault_at = mode, restorable, fault_at
        self._held = np.zeros(self.num_envs, np.bool_)
        self._total = 0

    def reset(self, seeds: Sequence[int] | None = None) -> PyTree:
        self.seeds = None if seeds is None else list(seeds)
        self._episode = np.zeros(self.num_envs, np.int64)
        self._step = np.zeros(self.num_envs, np.int64)
        self._to_reset = np.zeros(self.num_envs, np.bool_)
        return self._obs()

    def _obs(self) -> np.ndarray:
        return np.stack([self._episode, self._step], axis=1).astype(np.float32)

    def get_reset_info(self, row: int) -> dict[str, Any]:
        return {"reset": int(self._episode[row])}

    def step(self, action: PyTree, on_step: Any = None) -> HostStep:
        assert action.shape == (self.num_envs,)
        before = self._obs()
        live = ~self._to_reset & ~self._held
        resets = self._to_reset & ~self._held
        self._step = np.where(live, self._step + 1, self._step)
        over = live & (self._step >= self._lengths)
        even = self._episode % 2 == 0
        reward = np.where(live, self._step, 0).astype(np.float32)
        final = self._obs()
        fresh = resets if self._mode == "next_step" else over
        self._to_reset = (self._to_reset & self._held) | (over & (self._mode == "next_step"))
        mask, truncated, faults = live.copy(), over & ~even, ()
        if self._total == self._fault_at:
            mask[0], truncated[0], reward[0] = False, True, 0.0
            final[0] = before[0]
            fresh = fresh | np.array([True, *[False] * (self.num_envs - 1)])
            faults = (HostFault(row=0, what="raised", detail="boom"),)
        self._total += 1
        told = HostStep(
            obs=self._obs(),
            reward=reward,
            terminated=over & even & mask,
            truncated=truncated,
            final_obs=final,
            mask=mask,
            starts=fresh,
            faults=faults,
            infos=lambda row: {"step": int(final[row, 1])},
        )
        if on_step is not None:
            on_step(told)
        self._episode = np.where(fresh, self._episode + 1, self._episode)
        self._step = np.where(fresh, 0, self._step)
        return dataclasses.replace(told, obs=self._obs())

    def pause(self, held: np.ndarray) -> None:
        self._held = held

    def get_state(self) -> PyTree | None:
        if not self._restorable:
            return None
        return {"episode": self._episode, "step": self._step, "to_reset": self._to_reset}

    def set_state(self, state: PyTree) -> None:
        self._episode, self._step = state["episode"], state["step"]
        self._to_reset = state["to_reset"]

    def get_sub_environments(self) -> list[Any]:
        return [f"copy {i}" for i in range(self.num_envs)]

    def close(self) -> None:
        self.closed += 1


def actor_of(acting: Any, seed: int = 0) -> ActorState:
    return ActorState(
        params=acting.module.init(jax.random.key(seed)),
        obs_state=acting.obs_pipeline.init(),
        hparams={},
        progress=Progress.zeros(),
    )


def weights_of(acting: Any, version: int = 0) -> Weights:
    return Weights(version=version, actor=jax.tree.map(np.asarray, actor_of(acting, version)))


def scripted_runner(
    vector: Scripted, *, module: Any = None, config: Any = None, **settings: Any
) -> EnvRunner:
    """A runner over scripted environments, by the ordinary module or another."""
    config = (config or small()).debugging(seed=SEED)
    made = MadeHostEnv(
        id="scripted",
        create=lambda context: vector.get_sub_environments()[0],
        observation_space=SPACES[0],
        action_space=SPACES[1],
        max_episode_steps=None,
        env_config={},
    )
    acting = make_policy_step(config, made)
    if module is not None:
        acting = dataclasses.replace(
            acting,
            module=module(
                observation_space=acting.module.observation_space,
                action_space=acting.module.action_space,
                model_config={"fcnet_hiddens": [4]},
            ),
        )
    runner = EnvRunner(
        config=config,
        vector=vector,
        policy_step=acting,
        env_index=np.arange(vector.num_envs),
        **settings,
    )
    runner.set_weights(weights_of(acting))
    return runner


class Counting(ActorCriticModule):
    """Its carry counts the steps since it was blank, and stands in for the log-probability."""

    def initial_carry(self, batch_size: int) -> Any:
        return jnp.zeros((batch_size,), jnp.float32)

    def forward_exploration(self, params: Any, obs: Any, carry: Any, *args: Any) -> Any:
        out = super().forward_exploration(params, obs, carry, *args)
        return {**out, Columns.STATE_OUT: carry + 1.0, Columns.ACTION_LOGP: carry}


class Drawing(ActorCriticModule):
    """Module whose draws stand in for the log-probability."""

    def forward_exploration(self, *args: Any) -> Any:
        return {**super().forward_exploration(*args), Columns.ACTION_LOGP: args[-1][:, 0]}
