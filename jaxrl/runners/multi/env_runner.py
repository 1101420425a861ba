"""Runner of environments of several agents in Python, with rollouts of the compiled form."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int

from jaxrl.assembly.multi_agent import make_multi_policy_step
from jaxrl.callbacks import CallbackList
from jaxrl.config.multi_agent import LIVE_SETTINGS
from jaxrl.core.hparams import get_abstract_values
from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.host import HostFault
from jaxrl.envs.multi.checked import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_vector import CopyStep, MultiHostVector, make_multi_vector
from jaxrl.metrics import DEFAULT_MODULE
from jaxrl.runners.env_keys import make_env_keys, make_episode_seeds
from jaxrl.runners.episode_sampling import RandomActions
from jaxrl.runners.episode_tracker import EnvsView, announce_envs, is_tracking
from jaxrl.runners.fragment import Fragment, RunnerFault, Weights
from jaxrl.runners.hooks import NoHooks, RunnerHooks
from jaxrl.runners.host_policy import HostPolicy, PrevStep
from jaxrl.runners.metrics_logger import MetricsLogger
from jaxrl.runners.multi.modules import (
    build_rollouts,
    get_modules_state,
    make_group_states,
    set_modules_state,
    split_steps,
)
from jaxrl.runners.multi.parts import MultiRunnerParts
from jaxrl.runners.multi.records import AgentTallies, FragmentRecords
from jaxrl.runners.multi.rows import CompletedRows, RowStep
from jaxrl.runners.multi.scenes import CriticScenes
from jaxrl.runners.multi.slots import AgentSlots
from jaxrl.runners.multi.state import AgentStepArrays, count_pending_rows, move_places
from jaxrl.runners.multi.tracker import MultiEpisodeTracker
from jaxrl.runners.protocols import make_policies
from jaxrl.runners.quotas import EvalEpisodes, EvalShare, play_share
from jaxrl.training.multi_rollout import MultiPolicyStep, MultiRollout

if TYPE_CHECKING:
    from jaxrl.config.config import Config
    from jaxrl.policy.policy import Policy


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Unfinished fragment: completed rows by group, records, and where it began."""

    rows: dict[str, CompletedRows]
    records: FragmentRecords
    plays: dict[str, list[np.ndarray]]
    start_time: float


class MultiEnvRunner(MultiRunnerParts):
    """Runner that steps environments of several agents with one compiled call per vector step.

    A fragment continues where the previous one ended, possibly within an episode, with the rows that
    are pending. Data are those of the compiled program, for an environment that does the same.

    Args:
        config: Config of the run.
        vector: Copies of the environment, closed together with the runner.
        policy_step: Modules, connectors and agents.
        env_index: Indices of the environments among all environments of the run, `[B]`.
        worker_index: 0 for the runner of the main process, 1 and up for actors.
        num_workers: Number of actors.
        seed: Seed of the run, which together with `env_index` determines every random draw.
        explore: Whether to sample actions instead of taking the mode; None for the config's value.
        hooks: Callbacks; None for none.
    """

    def __init__(
        self,
        *,
        config: "Config",
        vector: MultiHostVector,
        policy_step: MultiPolicyStep,
        env_index: Int[np.ndarray, " B"],
        worker_index: int = 0,
        num_workers: int = 0,
        seed: int | None = None,
        explore: bool | None = None,
        hooks: RunnerHooks | None = None,
    ) -> None:
        super().__init__()
        debugging = config.debugging_settings
        self.vector = vector
        self.env_index = np.asarray(env_index, np.int32)
        self.worker_index, self.num_workers = worker_index, num_workers
        self.num_envs = len(self.env_index)
        self.seed = debugging.run_seed if seed is None else seed
        self.weights_version = -1
        self._num_dropped = 0
        """Rows that were pending when environments were restarted, not reported yet."""
        self._explore = config.env_runners_settings.explore if explore is None else explore
        self.config = config.copy_live(*LIVE_SETTINGS)
        self._scenes = CriticScenes.make_if(
            policy_step.views, policy_step.rows, self.num_envs, jit=debugging.compiles
        )
        self._policy = self._make_policy(config, policy_step, self._explore)
        self._policies = {self._explore: self._policy}
        self._weights: Weights | None = None
        self._random: dict[str, RandomActions] = {}
        """Random actions that replace those of the policy, by group; empty for none."""
        self._slots = AgentSlots(
            policy_step.rows,
            self._policy.groups,
            lambda: self.config.multi_agent_settings.policy_mapping_fn,
            self.env_index,
            vector,
        )
        self._set_modules(config, policy_step)
        self._env_keys = make_env_keys(self.seed, self.env_index, self._policy.device)
        self._transition_count = np.zeros(self.num_envs, np.uint32)
        self._tallies = AgentTallies(self.num_envs, len(policy_step.rows.agents))
        self._paused = np.zeros(self.num_envs, np.bool_)
        self._is_reset = self._begins_episodes = False
        self._next_number = 0
        self._env_seconds = 0.0
        self._faults: list[RunnerFault] = []
        self.metrics = MetricsLogger()
        self.env = EnvsView(vector)
        self.tracker: MultiEpisodeTracker | None = None
        if hooks is not None:
            if is_tracking(hooks):
                lookback = config.env_runners_settings.episode_lookback_horizon
                self.tracker = MultiEpisodeTracker(self, hooks, lookback)
            announce_envs(self, hooks)

    def _make_policy(
        self, config: "Config", policy_step: MultiPolicyStep, explore: bool
    ) -> HostPolicy:
        """Make what acts, without weights."""
        debugging = config.debugging_settings
        critics = {} if self._scenes is None else self._scenes.make_blank()
        return HostPolicy(
            policy_step.policies,
            policy_step.rows,
            self.env_index,
            explore=explore,
            hparams=_get_hparams(config, policy_step),
            critics={m: blank.shape for m, blank in critics.items()},
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
        )

    def _set_modules(self, config: "Config", policy_step: MultiPolicyStep) -> None:
        """Set the modules that act, without rows."""
        self.config, self.policy_step = config.copy_live(*LIVE_SETTINGS), policy_step
        self.module = {m: policy.module for m, policy in policy_step.policies.items()}
        self._readable = make_policies(policy_step.policies, config, explore=self._explore)
        self._slots.set_rows(policy_step.rows, self._policy.groups)
        self._has_ids = any(view.ids is not None for view in policy_step.views.values())
        self._groups = make_group_states(
            self._policy,
            {} if self._scenes is None else self._scenes.make_blank(),
            is_fixed=not policy_step.rows.may_change,
        )

    def change_modules(self, config: "Config", policy_step: MultiPolicyStep) -> None:
        """Act with the modules of a changed config, which has all of those before.

        Episodes go on, and so do the rows that are pending. Weights have to be set again.
        """
        policy = self._make_policy(config, policy_step, self._explore)
        self._policies = {self._explore: policy}
        self._replace_policy(policy, config, policy_step)

    def _replace_policy(
        self, policy: HostPolicy, config: "Config", policy_step: MultiPolicyStep
    ) -> None:
        """Act by another policy, which has all modules of the one before, in ongoing episodes."""
        before, members = get_modules_state(self._policy, self._groups), self._slots.members
        self._policy = policy
        self._set_modules(config, policy_step)
        after = get_modules_state(self._policy, self._groups)
        for name, own in before.items():
            for m, state in own.items():
                places = members[m], self._slots.members[m]
                after[name][m] = move_places(*places, state, after[name][m])
        set_modules_state(self._policy, self._groups, after)

    def get_policy(self, policy_id: str = DEFAULT_MODULE) -> "Policy | Any":
        """Return the policy of a module with the weights to act with, None if there is none.

        Raises:
            ConfigError: If the runner has no weights yet.
        """
        return self._readable.read(policy_id, self._policy.get_actor)

    @property
    def policy_map(self) -> "Mapping[str, Policy]":
        """Policies by id, as `get_policy` returns them."""
        return MappingProxyType({m: self.get_policy(m) for m in self.policy_step.policies})

    def set_weights(self, weights: Weights) -> None:
        """Set the weights of all modules to act with."""
        self._weights = weights
        self._policy.set_actor(cast("Any", weights.actor))
        self.weights_version = weights.version

    def _set_acting(self, explore: bool | None, random_actions: bool) -> None:
        wanted = self._explore if explore is None else explore
        if wanted not in self._policies:
            self._policies[wanted] = self._make_policy(self.config, self.policy_step, wanted)
        policy = self._policies[wanted]
        if policy is not self._policy:
            if self._weights is not None:
                policy.set_actor(cast("Any", self._weights.actor))
            self._replace_policy(policy, self.config, self.policy_step)
        self._random = self._make_random_actions() if random_actions else {}

    def _make_random_actions(self) -> dict[str, RandomActions]:
        """Return the random actions of every group, which are others at another time."""
        seeds = make_episode_seeds(self.seed, self.env_index, self._transition_count)
        return {
            g: RandomActions(
                self.policy_step.policies[g].action_pipeline,
                group.num_rows,
                seeds[0] + place,
                self._policy.device,
            )
            for place, (g, group) in enumerate(self._policy.groups.items())
        }

    def _make_tracker(self) -> MultiEpisodeTracker:
        lookback = self.config.env_runners_settings.episode_lookback_horizon
        tracker = MultiEpisodeTracker(self, NoHooks(), lookback)
        if self._is_reset:
            self._resume_episodes(tracker)
        return tracker

    def sample_fragment(self, num_steps: int) -> Fragment:
        """Sample the next `num_steps` steps of every environment."""
        part = self._begin_fragment(num_steps)
        for t in range(num_steps):
            self._step(t, part)
        return self._make_fragment(part, np.where(self._paused, 0, num_steps))

    def pause(self, paused: Bool[np.ndarray, " B"]) -> None:
        """Pause the marked environments and resume all others."""
        self._paused = np.array(paused, np.bool_)
        self.vector.pause(paused)

    def _begin_fragment(self, num_steps: int) -> _Part:
        begin = time.perf_counter()
        self._begin_episodes_if_due()
        carry = self._policy.begin_fragment(
            self._env_keys, self._transition_count, num_steps, self._make_prev()
        )
        self._env_seconds, self._faults = 0.0, []
        rows = {
            m: CompletedRows(num_steps, own.pending, jax.tree.leaves(carry[m]))
            for m, own in self._groups.items()
        }
        num_agents = len(self.policy_step.rows.agents)
        return _Part(
            rows=rows,
            records=FragmentRecords(num_steps, self.num_envs, num_agents),
            plays={m: [] for m in self._groups},
            start_time=begin,
        )

    def _make_prev(self) -> dict[str, PrevStep]:
        return {m: own.make_prev(self._paused) for m, own in self._groups.items()}

    def _step(self, t: int, part: _Part) -> None:
        """Act once in every environment and add the results to the fragment."""
        obs = [leaf for own in self._groups.values() for leaf in own.obs]
        words = self._policy.act(obs, self._make_prev() if self._policy.has_carry else {})
        acted = {m: own.get_active(self._paused) for m, own in self._groups.items()}
        chosen, outputs = self._policy.unpack_env_action(words), self._policy.unpack_recorded(words)
        actions = self._slots.split_actions(chosen, acted)
        self._begin_rows(part, acted, outputs)
        if self._random:
            actions, outputs = self._draw_actions(acted)
        if self.tracker is not None:
            self.tracker.begin_steps(actions, outputs)
        begin = time.perf_counter()
        steps = self.vector.step(actions, self._track)
        self._env_seconds += time.perf_counter() - begin
        if self.policy_step.rows.may_change:
            for m, own in self._groups.items():
                part.plays[m].append(own.plays.copy())
        self._finish_step(t, part, acted, steps)

    def _draw_actions(
        self, acted: dict[str, Bool[np.ndarray, " R"]]
    ) -> tuple[list[dict[str, PyTree]], dict[str, PyTree]]:
        """Return random actions of the environments, and of the modules as their only output."""
        drawn = {g: own.draw() for g, own in self._random.items()}
        chosen = {g: action for g, (action, _) in drawn.items()}
        outputs: dict[str, PyTree] = {g: {Columns.ACTIONS: own} for g, (_, own) in drawn.items()}
        return self._slots.split_actions(chosen, acted), outputs

    def _track(self, steps: Mapping[int, CopyStep]) -> None:
        """Call the hooks of steps, whose time is not that of the environments."""
        if self.tracker is not None:
            begin = time.perf_counter()
            self.tracker.add_steps(steps)
            self._env_seconds -= time.perf_counter() - begin

    def _begin_rows(
        self, part: _Part, acted: dict[str, Bool[np.ndarray, " R"]], outputs: dict[str, PyTree]
    ) -> None:
        before = self._policy.carry_before if self._policy.has_carry else None
        for m, own in self._groups.items():
            carry = [] if before is None else jax.tree.leaves(before[m])
            columns = jax.tree.leaves(outputs[m])
            part.rows[m].begin(acted[m], own.recorded, columns, own.is_first, carry)
            own.is_first = own.is_first & ~acted[m]

    def _finish_step(
        self,
        t: int,
        part: _Part,
        acted: dict[str, Bool[np.ndarray, " R"]],
        steps: Sequence[CopyStep],
    ) -> None:
        """Complete rows, record episodes, and set what is observed next."""
        num_agents = len(self.policy_step.rows.agents)
        happened = AgentStepArrays.make_empty(self.num_envs, num_agents)
        failed = np.zeros(self.num_envs, np.bool_)
        rows = {g: own.make_step() for g, own in self._groups.items()}
        for env, copy in enumerate(steps):
            if copy.step is not None:
                self._read_step(env, copy.step, rows)
                happened.add(env, copy.step, self._slots.position)
            elif copy.start is not None:
                failed[env] = True
                for g, own in self._groups.items():
                    rows[g].is_valid[own.get_rows(env)] = False
        self._pay(happened, rows)
        for g, after in self._watch(steps).items():
            rows[g].final_obs[-1][...] = after
        for g, own in self._groups.items():
            own.reward = own.reward.copy()
            part.rows[g].complete(rows[g], own.reward)
            own.is_first |= rows[g].terminated | rows[g].truncated
            own.acts &= np.repeat(self._paused, own.width)
            own.go_on(rows[g])
        self._tallies.add(happened, self._slots.find_actors(acted))
        part.records.add(t, happened, self._tallies)
        for copy in steps:
            for fault in copy.faults:
                part.records.add_fault(t, fault)
                self._faults.append(self._make_runner_fault(fault))
        self._tallies.clear_ended(happened, failed)
        for env, copy in enumerate(steps):
            self._observe_next(env, copy)

    def _read_step(self, env: int, step: HostMultiStep, rows: dict[str, RowStep]) -> None:
        """Write what a step meant to a copy's agents into the rows of their modules."""
        find, goes_on = self._slots.find, not step.is_over
        for agent in step.present:
            g, row = find(env, agent)
            own = rows[g]
            if step.terminated[agent]:
                own.terminated[row] = True
            if step.truncated[agent]:
                own.truncated[row] = True
            if goes_on and step.acts[agent]:
                own.acts_next[row] = True
            if agent in step.obs:
                leaves = self._flatten(env, agent, step.obs[agent])
                for to, leaf in zip(own.final_obs, leaves, strict=False):  # critics' part is last
                    to[row] = leaf

    def _watch(self, steps: Sequence[CopyStep]) -> dict[str, np.ndarray]:
        """Set what central critics see next; return what they see after the step, by group."""
        if self._scenes is None:
            return {}
        after, before = self._scenes.watch(steps)
        groups = {g: own for g, own in self._policy.groups.items() if g in after}
        for g, group in groups.items():
            self._groups[g].central[0] = group.join(before)
        return {g: group.join(after) for g, group in groups.items()}

    def _pay(self, happened: AgentStepArrays, rows: dict[str, RowStep]) -> None:
        """Give rows the rewards that their agents learn from, their own or shared ones."""
        reward, sharing = happened.reward, self.policy_step.sharing
        if sharing is not None:
            reward = reward @ sharing.T
        for g in rows:
            rows[g].reward[:] = self._slots.select(reward, g)

    def _observe_next(self, env: int, copy: CopyStep) -> None:
        """Set what agents act on next that join a copy, in a new episode if one begins."""
        if copy.start is not None:
            self._create_episode(env)
            self._begin_episode(env, copy.start)
        elif copy.step is not None:
            for agent in copy.step.joined:
                self._observe(env, agent, copy.step.obs[agent])

    def _create_episode(self, env: int) -> None:
        self._slots.begin_episode(env)
        if self.tracker is not None:
            self.tracker.create_episode(env)

    def _begin_episode(self, env: int, start: HostMultiStart) -> None:
        for own in self._groups.values():
            own.begin_episode(env)
        for agent, obs in start.obs.items():
            self._observe(env, agent, obs)
        if self.tracker is not None:
            self.tracker.start_episode(env, start)

    def _observe(self, env: int, agent: str, obs: PyTree) -> None:
        g, row = self._slots.find(env, agent)
        self._groups[g].observe(row, self._flatten(env, agent, obs))

    def _flatten(self, env: int, agent: str, obs: PyTree) -> list[Any]:
        """Return the leaves of what the module observes that plays an agent."""
        if self._has_ids:
            ids = self.policy_step.views[self._slots.find_module(env, agent)].ids
            obs = obs if ids is None else ids.join_one(agent, obs)
        return [obs] if isinstance(obs, np.ndarray) else jax.tree.leaves(obs)

    def _make_runner_fault(self, fault: HostFault) -> RunnerFault:
        return RunnerFault(
            worker_index=self.worker_index,
            env_index=int(self.env_index[fault.row]),
            what=fault.what,
            detail=fault.detail,
            silent=fault.silent,
        )

    def _make_fragment(self, part: _Part, taken: Int[np.ndarray, " B"]) -> Fragment:
        """Build the fragment and advance each environment's transition count by `taken`."""
        record, agents = part.records.build(self._transition_count)
        plays = part.plays if self.policy_step.rows.may_change else None
        make = cast("Any", MultiRollout)  # its fields hold arrays of either kind
        rollout = make(
            rollouts=build_rollouts(self._policy, self._groups, part.rows),
            record=record,
            agents=agents,
            mask=part.records.mask,
            plays=plays and split_steps(self._policy, plays),
        )
        self._transition_count = self._transition_count + taken.astype(np.uint32)
        if self.tracker is not None:
            self.tracker.finish_fragment()
        lost = self._num_dropped + sum(rows.num_lost for rows in part.rows.values())
        self._num_dropped, begins, self._begins_episodes = 0, self._begins_episodes, False
        self._next_number += 1
        return Fragment(
            worker_index=self.worker_index,
            number=self._next_number - 1,
            weights_version=self.weights_version,
            rollout=rollout,
            record=record,
            env_index=self.env_index,
            begins_episodes=begins,
            num_env_steps=int(part.records.mask.sum()),
            seconds=time.perf_counter() - part.start_time,
            env_seconds=self._env_seconds,
            faults=tuple(self._faults),
            metrics=self.metrics.take(),
            completed=split_steps(self._policy, {g: x.completed for g, x in part.rows.items()}),
            num_agent_steps_lost=lost,
            num_pending_rows=sum(own.num_pending for own in self._groups.values()),
            rewards_without_action=self.vector.take_rewards_without_action(),
        )

    def _begin_episodes_if_due(self) -> None:
        """Reset the environments if they are new, or were left behind by `sample`."""
        if self._is_reset and not self._needs_reset:
            return
        seeds = None
        if self._is_reset:
            seeds = make_episode_seeds(self.seed, self.env_index, self._transition_count)
        self._tallies = AgentTallies(self.num_envs, len(self.policy_step.rows.agents))
        self._policy.set_carry(None)
        self._reset(seeds)

    def _reset(self, seeds: list[int] | None) -> None:
        self._needs_reset = False
        self._num_dropped += sum(own.clear() for own in self._groups.values())
        self._is_reset = self._begins_episodes = True
        starts = self.vector.reset(seeds)
        for env, start in enumerate(starts):
            self._create_episode(env)
            self._begin_episode(env, start)
        self._watch([CopyStep(start=start) for start in starts])

    def get_state(self) -> dict[str, PyTree]:
        """Return the state of the environments, their agents and pending rows, in NumPy.

        Arrays have a leading axis B. `env` is None if the environments cannot save their state.
        """
        self._begin_episodes_if_due()
        return {
            "key": np.asarray(jax.random.key_data(self._env_keys)),
            "count": self._transition_count.copy(),
            "tallies": self._tallies.get_state(),
            "played_by": self._slots.get_state(),
            **get_modules_state(self._policy, self._groups),
            "env": self.vector.get_state(),
            **({} if self._scenes is None else {"scenes": self._scenes.get_state()}),
        }

    def set_state(self, state: dict[str, PyTree] | None) -> None:
        """Restore a state returned by `get_state`; None restarts the environments.

        Environments that cannot be restored start new episodes, seeded by the seed of the run,
        their index and their transition count; their pending rows are lost.
        """
        self._policy.set_carry(None)
        self._tallies = AgentTallies(self.num_envs, len(self.policy_step.rows.agents))
        if state is None:
            self._env_keys = make_env_keys(self.seed, self.env_index, self._policy.device)
            self._transition_count = np.zeros(self.num_envs, np.uint32)
            self._reset(None)
            return
        key = jax.random.wrap_key_data(jnp.asarray(state["key"], jnp.uint32))
        self._env_keys = jax.device_put(key, self._policy.device)
        self._transition_count = np.array(state["count"], np.uint32)
        if state["env"] is None:
            self._num_dropped += count_pending_rows(state)
        for own in self._groups.values():
            own.clear()  # rows of what is left behind are not lost
        if state["env"] is None:
            self._reset(make_episode_seeds(self.seed, self.env_index, self._transition_count))
            return
        self.vector.reset()
        self._is_reset, self._begins_episodes = True, False
        self.vector.set_state(state["env"])
        self._tallies.set_state(state["tallies"])
        self._slots.set_state(state["played_by"])
        set_modules_state(self._policy, self._groups, state)
        if self._scenes is not None:
            self._scenes.set_state(state["scenes"])
            self._watch([])
        if self.tracker is not None:
            self._resume_episodes(self.tracker)

    def _resume_episodes(self, tracker: MultiEpisodeTracker) -> None:
        """Let a tracker continue the ongoing episodes."""
        for env in range(self.num_envs):
            length = int(self._tallies.episode_length[env])
            tracker.resume_episode(env, length, self._get_observed(env))

    def _get_observed(self, env: int) -> dict[str, PyTree]:
        """Return what an environment's agents act on next, as modules observe it."""
        observed: dict[str, PyTree] = {}
        for g, own in self._groups.items():
            unflatten = own.structures[0].unflatten
            for row in np.flatnonzero(own.acts[own.get_rows(env)]) + env * own.width:
                _, agent = self._slots.get_agent(g, int(row))
                observed[agent] = unflatten([leaf[row].copy() for leaf in own.obs])
        return observed

    def restart(self, seed: int, env_index: Int[np.ndarray, " B"]) -> None:
        """Start new episodes in all environments with another seed and other indices."""
        self._env_keys = make_env_keys(seed, env_index, self._policy.device)
        self._transition_count = np.zeros(self.num_envs, np.uint32)
        self._tallies = AgentTallies(self.num_envs, len(self.policy_step.rows.agents))
        self._policy.set_carry(None)
        self._reset(make_episode_seeds(seed, env_index))

    def run_episodes(self, share: EvalShare) -> EvalEpisodes:
        """Play a share of an evaluation."""
        return play_share(self, share, rows=self.policy_step.rows)

    def close(self) -> None:
        """Close the environments; safe to call more than once."""
        self.vector.close()


def _get_hparams(config: "Config", policy_step: MultiPolicyStep) -> dict[str, PyTree]:
    """Return the shapes of the hyperparameters of each module."""
    own, common = config.get_training_by_module(), config.training_settings
    return {m: get_abstract_values(own.get(m, common)) for m in policy_step.policies}


def change_modules(
    runner: MultiEnvRunner,
    config: "Config",
    made: MadeMultiHostEnv,
    *,
    has_new_mapping: bool,
) -> None:
    """Let a runner act with the modules of a changed config; see `EnvRunnerGroup.change_modules`."""
    mapping_fn = runner.config.multi_agent_settings.policy_mapping_fn
    runner.change_modules(config, make_multi_policy_step(config, made))
    if not has_new_mapping:
        runner.config.multi_agent(policy_mapping_fn=mapping_fn)


def make_multi_env_runner(
    config: "Config",
    made: MadeMultiHostEnv,
    *,
    worker_index: int = 0,
    num_workers: int = 0,
    num_envs: int,
    first_env_index: int,
    seed: int | None = None,
    explore: bool | None = None,
    hooks: RunnerHooks | None = None,
) -> MultiEnvRunner:
    """Create the runner of a config for several agents; see `make_env_runner`.

    Raises:
        JaxrlError: If the environment or a module cannot be created.
    """
    environment, policy_step = config.environment_settings, make_multi_policy_step(config, made)
    vector = make_multi_vector(
        made,
        num_envs=num_envs,
        first_index=first_env_index,
        worker_index=worker_index,
        num_workers=num_workers,
        seed=config.debugging_settings.run_seed if seed is None else seed,
        mode=config.env_runners_settings.gym_env_vectorize_mode,
        timeout_s=config.env_runners_settings.sample_timeout_s,
        restart_failed=config.fault_tolerance_settings.restart_failed_sub_environments,
        reads_state=policy_step.reads_state,
        check=not environment.disable_env_checking,
        validate_env=environment.validate_env,
    )
    return MultiEnvRunner(
        config=config,
        vector=vector,
        policy_step=policy_step,
        env_index=np.arange(first_env_index, first_env_index + num_envs, dtype=np.int32),
        worker_index=worker_index,
        num_workers=num_workers,
        seed=seed,
        explore=explore,
        hooks=CallbackList(config.callbacks_settings) if hooks is None else hooks,
    )
