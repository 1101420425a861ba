"""Runner of environments of several agents in Python, with rollouts of the compiled form."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import numpy as np
from jaxtyping import Bool

from jaxrl.assembly.env import Spaces
from jaxrl.assembly.multi_agent import make_multi_policy_step
from jaxrl.config.multi_agent import LIVE_SETTINGS
from jaxrl.core.hparams import get_abstract_values
from jaxrl.core.types import Columns, PyTree
from jaxrl.envs.multi.checked import HostMultiStart, HostMultiStep
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.host_vector import CopyStep, MultiHostVector
from jaxrl.episodes import MultiAgentEpisode
from jaxrl.runners.fragment import Weights
from jaxrl.runners.hooks import RunnerHooks
from jaxrl.runners.host_policy import Carries, HostPolicy, PrevStep
from jaxrl.runners.host_runner import HostRunner
from jaxrl.runners.multi.modules import (
    build_rollouts,
    get_modules_state,
    make_group_states,
    set_modules_state,
    split_steps,
)
from jaxrl.runners.multi.records import AgentTallies, FragmentRecords
from jaxrl.runners.multi.rows import CompletedRows, RowStep
from jaxrl.runners.multi.scenes import CriticScenes
from jaxrl.runners.multi.slots import AgentSlots
from jaxrl.runners.multi.state import AgentStepArrays, count_pending_rows, move_places
from jaxrl.runners.multi.tally import AgentTally
from jaxrl.runners.multi.tracker import MultiEpisodeTracker
from jaxrl.runtime.program import Program
from jaxrl.training.episode_stats import EpisodeRecord
from jaxrl.training.multi_rollout import MultiPolicyStep, MultiRollout
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Part:
    """Unfinished fragment: completed rows by group, records, and who plays."""

    rows: dict[str, CompletedRows]
    records: FragmentRecords
    plays: dict[str, list[np.ndarray]]


class MultiEnvRunner(
    HostRunner[MultiAgentEpisode, MultiEpisodeTracker, MultiHostVector, MultiPolicyStep, _Part]
):
    """Runner of environments of several agents, whose rows are complete when agents act again.

    A fragment begins with the rows that are pending. Data are those of the compiled program, for an
    environment that does the same.
    """

    slots: AgentSlots
    """Places of agents in rows, with the ongoing episodes, which have data only if callbacks need them."""

    def _init_rows(self) -> None:
        self._num_dropped = 0
        """Rows that were pending when environments were restarted, not reported yet."""
        self.slots = AgentSlots(
            self.policy_step.rows,
            self._policy.groups,
            lambda: self.config.multi_agent_settings.policy_mapping_fn,
            self.env_index,
            self.vector,
        )
        self._set_modules()
        self._clear()

    @functools.cached_property
    def _scenes(self) -> CriticScenes | None:
        """View of central critics; None without any."""
        views, rows = self.policy_step.views, self.policy_step.rows
        jit = self.config.debugging_settings.compiles
        return CriticScenes.make_if(views, rows, self.num_envs, jit=jit)

    @property
    def policy_steps(self) -> Mapping[str, PolicyStep]:
        return self.policy_step.policies

    def _make_policy(self, explore: bool) -> HostPolicy:
        config, debugging = self.config, self.config.debugging_settings
        critics = {} if self._scenes is None else self._scenes.make_blank()
        own, common = config.get_training_by_module(), config.training_settings
        return HostPolicy(
            self.policy_steps,
            self.policy_step.rows,
            self.env_index,
            explore=explore,
            hparams={m: get_abstract_values(own.get(m, common)) for m in self.policy_steps},
            critics={m: blank.shape for m, blank in critics.items()},
            max_retraces=debugging.max_retraces,
            jit=debugging.compiles,
        )

    @property
    def programs(self) -> list[Program]:
        """Compiled programs of the runner."""
        return [*super().programs, *([] if self._scenes is None else [self._scenes.program])]

    @property
    def spaces(self) -> dict[str, Spaces]:
        """Observation and action space of every module."""
        return {m: (own.observation_space, own.action_space) for m, own in self.module.items()}

    def _set_modules(self) -> None:
        """Set the modules that act, without rows."""
        policy_step, self.config = self.policy_step, self.config.copy_live(*LIVE_SETTINGS)
        self.module = {m: policy.module for m, policy in policy_step.policies.items()}
        self._readable = None
        self.slots.set_rows(policy_step.rows, self._policy.groups)
        self._has_ids = any(view.ids is not None for view in policy_step.views.values())
        self._groups = make_group_states(
            self._policy,
            {} if self._scenes is None else self._scenes.make_blank(),
            is_fixed=not policy_step.rows.may_change,
        )

    def change_modules(
        self, config: "Config", made: MadeMultiHostEnv, *, has_new_mapping: bool
    ) -> None:
        """Act with the modules of a changed config, see `ChangingRunners.change_modules`.

        Episodes go on, and so do the rows that are pending. Weights have to be set again.
        """
        mapping_fn = self.config.multi_agent_settings.policy_mapping_fn
        before, self.config = self._get_modules_state(), config
        self.policy_step = make_multi_policy_step(config, made)
        self._policies = {}
        self._policy = self._get_policy(self._explore)
        self._restore_modules(before)
        if not has_new_mapping:
            self.config.multi_agent(policy_mapping_fn=mapping_fn)

    def _replace_policy(self, policy: HostPolicy) -> None:
        before, self._policy = self._get_modules_state(), policy
        self._restore_modules(before)

    def _get_modules_state(self) -> tuple[dict[str, dict[str, PyTree]], dict[str, Any]]:
        """Return rows and carries by module, and the agents of each."""
        return get_modules_state(self._policy, self._groups), self.slots.members

    def _restore_modules(
        self, state: tuple[dict[str, dict[str, PyTree]], Mapping[str, Any]]
    ) -> None:
        """Go on with the rows of another policy, whose modules the present one has."""
        before, members = state
        self._set_modules()
        after = get_modules_state(self._policy, self._groups)
        for name, own in before.items():
            for m, rows in own.items():
                places = members[m], self.slots.members[m]
                after[name][m] = move_places(*places, rows, after[name][m])
        set_modules_state(self._policy, self._groups, after)

    def _get_actors(self, weights: Weights) -> Mapping[str, ActorState]:
        return cast("Any", weights.actor)

    def make_tally(self) -> AgentTally:
        return AgentTally(self.policy_step.rows)

    def _begin_rows(self, num_steps: int, carry: Carries) -> _Part:
        rows = {
            m: CompletedRows(num_steps, own.pending, jax.tree.leaves(carry[m]))
            for m, own in self._groups.items()
        }
        num_agents = len(self.policy_step.rows.agents)
        return _Part(
            rows=rows,
            records=FragmentRecords(num_steps, self.num_envs, num_agents),
            plays={m: [] for m in self._groups},
        )

    def _make_prev(self) -> dict[str, PrevStep]:
        return {m: own.make_prev(self._paused) for m, own in self._groups.items()}

    def _step(self, part: _Part) -> None:
        obs = [leaf for own in self._groups.values() for leaf in own.obs]
        words = self._policy.act(obs, self._make_prev() if self._policy.has_carry else {})
        acted = {m: own.get_active(self._paused) for m, own in self._groups.items()}
        chosen, outputs = self._policy.unpack_env_action(words), self._policy.unpack_recorded(words)
        actions = self.slots.split_actions(chosen, acted)
        self._act_in_rows(part, acted, outputs)
        if self._random:
            actions, outputs = self._draw_actions(acted)
        if self.tracker is not None:
            self.tracker.begin_steps(actions, outputs)
        steps = self._step_envs(actions, self.tracker and self.tracker.add_steps)
        if self.policy_step.rows.may_change:
            for m, own in self._groups.items():
                part.plays[m].append(own.plays.copy())
        self._finish_step(part, acted, steps)

    def _draw_actions(
        self, acted: dict[str, Bool[np.ndarray, " R"]]
    ) -> tuple[list[dict[str, PyTree]], dict[str, PyTree]]:
        """Return random actions of the environments, and of the modules as their only output."""
        drawn = {g: own.draw() for g, own in self._random.items()}
        chosen = {g: action for g, (action, _) in drawn.items()}
        outputs: dict[str, PyTree] = {g: {Columns.ACTIONS: own} for g, (_, own) in drawn.items()}
        return self.slots.split_actions(chosen, acted), outputs

    def _act_in_rows(
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
                happened.add(env, copy.step, self.slots.position)
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
        self._tallies.add(happened, self.slots.find_actors(acted))
        part.records.add(happened, self._tallies)
        for copy in steps:
            self._add_faults(copy.faults)
            for fault in copy.faults:
                part.records.add_fault(fault)
        self._tallies.clear_ended(happened, failed)
        for env, copy in enumerate(steps):
            self._observe_next(env, copy)

    def _read_step(self, env: int, step: HostMultiStep, rows: dict[str, RowStep]) -> None:
        """Write what a step meant to a copy's agents into the rows of their modules."""
        find, goes_on = self.slots.find, not step.is_over
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
            rows[g].reward[:] = self.slots.select(reward, g)

    def _observe_next(self, env: int, copy: CopyStep) -> None:
        """Set what agents act on next that join a copy, in a new episode if one begins."""
        if copy.start is not None:
            self._create_episode(env)
            self._begin_episode(env, copy.start)
        elif copy.step is not None:
            for agent in copy.step.joined:
                self._observe(env, agent, copy.step.obs[agent])

    def _create_episode(self, env: int) -> None:
        self.slots.begin_episode(env)
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
        g, row = self.slots.find(env, agent)
        self._groups[g].observe(row, self._flatten(env, agent, obs))

    def _flatten(self, env: int, agent: str, obs: PyTree) -> list[Any]:
        """Return the leaves of what the module observes that plays an agent."""
        if self._has_ids:
            ids = self.policy_step.views[self.slots.find_module(env, agent)].ids
            obs = obs if ids is None else ids.join_one(agent, obs)
        return [obs] if isinstance(obs, np.ndarray) else jax.tree.leaves(obs)

    def _build_rollout(self, part: _Part) -> tuple[MultiRollout, EpisodeRecord]:
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
        return rollout, record

    def _describe_rows(self, part: _Part) -> dict[str, Any]:
        lost = self._num_dropped + sum(rows.num_lost for rows in part.rows.values())
        self._num_dropped = 0
        return {
            "completed": split_steps(self._policy, {g: x.completed for g, x in part.rows.items()}),
            "num_agent_steps_lost": lost,
            "num_pending_rows": sum(own.num_pending for own in self._groups.values()),
            "rewards_without_action": self.vector.take_rewards_without_action(),
        }

    def _begin_all(self, seeds: list[int] | None) -> None:
        self._num_dropped += sum(own.clear() for own in self._groups.values())
        starts = self.vector.reset(seeds)
        for env, start in enumerate(starts):
            self._create_episode(env)
            self._begin_episode(env, start)
        self._watch([CopyStep(start=start) for start in starts])

    def _clear(self) -> None:
        self._policy.set_carry(None)
        self._tallies = AgentTallies(self.num_envs, len(self.policy_step.rows.agents))

    def _drop_rows(self, state: dict[str, PyTree]) -> None:
        if state["env"] is None:
            self._num_dropped += count_pending_rows(state)
        for own in self._groups.values():
            own.clear()  # rows of what is left behind are not lost

    def _get_rows_state(self) -> dict[str, PyTree]:
        return {
            "tallies": self._tallies.get_state(),
            "played_by": self.slots.get_state(),
            **get_modules_state(self._policy, self._groups),
            **({} if self._scenes is None else {"scenes": self._scenes.get_state()}),
        }

    def _set_rows_state(self, state: dict[str, PyTree]) -> None:
        self._tallies.set_state(state["tallies"])
        self.slots.set_state(state["played_by"])
        set_modules_state(self._policy, self._groups, state)
        if self._scenes is not None:
            self._scenes.set_state(state["scenes"])
            self._watch([])

    def _make_tracker(self, hooks: RunnerHooks, lookback: int) -> MultiEpisodeTracker:
        return MultiEpisodeTracker(self, hooks, lookback)

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
                _, agent = self.slots.get_agent(g, int(row))
                observed[agent] = unflatten([leaf[row].copy() for leaf in own.obs])
        return observed
