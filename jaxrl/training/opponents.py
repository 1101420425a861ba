"""Opponents that are drawn at the start of an episode, play to its end and are not trained.

Opponents of one architecture are a stack of parameters with a slot for each, and who plays is a
number in the carry of each row. Adding one writes a slot, so that nothing is compiled again.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.config.settings.multi_agent import Draw
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Key, Keys, Progress, PyTree, Rollout
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.completed_rows import (
    AgentStep,
    BegunRow,
    PendingRows,
    complete_rows,
    make_no_rows,
)
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep
from jaxrl.training.row_blocks import choose_block_size, compute_in_blocks, put, take

MAX_ID_BYTES = 64
"""Maximum length of the id of an opponent, in bytes."""
_DRAW_SALT = 0x6F70706F
"""Constant folded into an agent's key for the draw of its module."""


@pytree
class OpponentState:
    """Opponents of a run.

    Attributes:
        actors: Parameters, connector statistics and hyperparameters by kind, `[capacity, ...]`.
        names: Id in each slot in UTF-8, filled up with zeros; an empty slot has zeros alone.
        weights: Weight of each slot in each Draw of the mapping.
        is_open: Whether an opponent that is added joins a Draw, with weight 1.
        games: Numbers of games that the snapshot in a slot had won, drawn and lost against the
            opponent in another when it was taken. The last three rows are the values of
            `OpponentCarry.games`, over all rows, when the two latest windows of games began, the
            older one first, and when the latest snapshot was taken. None without a league.
    """

    actors: dict[str, ActorState]
    names: UInt8[Array, "S bytes"]
    weights: Float[Array, "D S"]
    is_open: Bool[Array, " D"]
    games: Int[Array, "S+3 S 3"] | None = None


@pytree
class OpponentCarry:
    """Opponents between steps, `[R, ...]`: the slot that plays each row, and what it remembers.

    `slot` is valid within an episode. `pending` is None where rows complete at once. With a league,
    `lead` is by how much the others' returns in the episode exceed that of the row's agent, and
    `games` are the numbers of episodes that the others won, drew and lost against each slot.
    """

    slot: Int[Array, " R"]
    acting: dict[str, ActorCarry]
    pending: PendingRows | None
    lead: Float[Array, " R"] | None = None
    games: Int[Array, "R S 3"] | None = None


@pytree
class OpponentInputs:
    """Random inputs of opponents: a number in [0, 1) for who plays, and each kind's draws."""

    who: Float[Array, " R"]
    draws: dict[str, PyTree]


@pytree
class OpponentRows:
    """Observations of opponents, `[R, ...]`, whether they act, and where they begin.

    `begins` is whether the row's environment begins anew.
    """

    obs: PyTree
    acts: Bool[Array, " R"]
    is_first: Bool[Array, " R"]
    index: Int[Array, " R"]
    begins: Bool[Array, " R"]


@pytree
class _Acting:
    obs: PyTree
    carry: ActorCarry
    is_first: Bool[Array, " R"]
    index: Int[Array, " R"]
    draws: PyTree


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OpponentKind:
    """Opponents of one architecture.

    Attributes:
        name: Id of the module that it is the architecture of.
        policy: Module and connectors.
        capacity: Number of slots.
        ids: Opponents that are there from the start, in the first slots.
    """

    name: str
    policy: PolicyStep
    capacity: int
    ids: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OpponentPool:
    """Opponents that a run draws from.

    Attributes:
        kinds: Opponents by architecture; the slots of one follow those of the other.
        draws: Different Draws of the mapping.
        patterns: Draw of each agent in the copies of the environment in turn; None for agents that
            are not drawn.
        rows: Agents in rows.
        counts_games: Whether outcomes are counted, for a league.
    """

    kinds: tuple[OpponentKind, ...]
    draws: tuple[Draw, ...]
    patterns: tuple[Mapping[str, Draw | None], ...]
    rows: AgentRows
    counts_games: bool = False

    @functools.cached_property
    def first_slots(self) -> dict[str, int]:
        """First slot of each kind."""
        ends = np.cumsum([kind.capacity for kind in self.kinds]).tolist()
        return dict(zip((kind.name for kind in self.kinds), (0, *ends), strict=False))

    @property
    def num_slots(self) -> int:
        """Number of slots of all kinds."""
        return sum(kind.capacity for kind in self.kinds)

    def find_kind(self, slot: int) -> OpponentKind:
        """Return the kind of a slot."""
        return next(k for k in reversed(self.kinds) if self.first_slots[k.name] <= slot)

    def get_actor(self, state: OpponentState, slot: int) -> ActorState:
        """Return the inputs of acting of the opponent in a slot."""
        kind = self.find_kind(slot)
        index = slot - self.first_slots[kind.name]
        return jax.tree.map(lambda x: x[index], state.actors[kind.name])

    def init(self, key: Key, like: ActorState) -> OpponentState:
        """Return the opponents at the start of a run. Consumes the key.

        Args:
            key: Key of their parameters.
            like: Inputs of acting of a module that is trained, for its hyperparameters.
        """
        names, actors = [""] * self.num_slots, dict[str, ActorState]()
        for kind in self.kinds:
            first = self.first_slots[kind.name]
            names[first : first + len(kind.ids)] = kind.ids
            keys = [jax.random.fold_in(key, first + i) for i in range(len(kind.ids))]
            actors[kind.name] = self._stack(kind, keys, like)
        weights = [weigh_names(draw, names) for draw in self.draws]
        return OpponentState(
            actors=actors,
            names=jnp.asarray(np.stack([encode_name(name) for name in names])),
            weights=jnp.asarray(np.stack(weights)),
            is_open=jnp.asarray([not draw.ids for draw in self.draws]),
            games=jnp.zeros((self.num_slots + 3, self.num_slots, 3), jnp.int32)
            if self.counts_games
            else None,
        )

    def _stack(self, kind: OpponentKind, keys: list[Key], like: ActorState) -> ActorState:
        def make(key: Key) -> ActorState:
            return ActorState(
                params=kind.policy.module.init(key),
                obs_state=kind.policy.obs_pipeline.init(),
                hparams=like.hparams,
                progress=Progress.zeros(),
            )

        shapes = jax.eval_shape(make, jax.random.key(0))
        empty = jax.tree.map(lambda x: jnp.zeros((kind.capacity, *x.shape), x.dtype), shapes)
        for i, key in enumerate(keys):
            empty = put(empty, i, make(key))
        return empty

    def initial_carry(self, num_envs: int, *, completes_at_once: bool) -> OpponentCarry:
        """Return the carry at the start of an episode in every environment.

        Args:
            num_envs: Number of environments.
            completes_at_once: Whether every agent that is present acts at every step.
        """
        number = self.rows.count_rows(DRAWN, num_envs)
        begun = BegunRow(
            obs=(), action=(), extras={}, is_first=jnp.zeros((number,), bool), carry=()
        )
        return OpponentCarry(
            slot=jnp.zeros((number,), jnp.int32),
            acting={kind.name: kind.policy.initial_carry(number) for kind in self.kinds},
            pending=None if completes_at_once else make_no_rows(begun),
            lead=jnp.zeros((number,), jnp.float32) if self.counts_games else None,
            games=jnp.zeros((number, self.num_slots, 3), jnp.int32) if self.counts_games else None,
        )

    def sample_inputs(self, keys: Keys) -> OpponentInputs:
        """Draw the random inputs of steps, `[T, R]`, given the keys of environments `[T, B]`.

        A module draws what it does where it plays the agent in every episode.
        """
        own = self.rows.derive_keys(keys, DRAWN)
        fold = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))
        draw_uniform = jax.vmap(jax.vmap(jax.random.uniform))
        return OpponentInputs(
            who=draw_uniform(fold(jax.random.clone(own), jnp.uint32(_DRAW_SALT))),
            draws={
                kind.name: jax.vmap(kind.policy.module.draw)(jax.random.clone(own))
                for kind in self.kinds
            },
        )

    def get_draw_index(self, num_envs: int) -> np.ndarray:
        """Return the index of the Draw of each row, int32 `[R]`."""
        agents = self.rows.agents
        found: list[int] = []
        for env, agent in self.rows.get_cells(DRAWN, num_envs).tolist():
            draw = self.patterns[env % len(self.patterns)][agents[agent]]
            assert draw is not None
            found.append(self.draws.index(draw))
        return np.asarray(found, np.int32)

    def act(
        self,
        state: OpponentState,
        carry: OpponentCarry,
        rows: OpponentRows,
        inputs: OpponentInputs,
        num_envs: int,
        explore: bool,
    ) -> tuple[PyTree, OpponentCarry]:
        """Draw who plays where an episode begins, and compute the actions of those who act.

        Returns:
            The environment's actions, which have no meaning in rows that do not act, and the carry
            after acting, which `advance` completes.
        """
        weights = state.weights[self.get_draw_index(num_envs)]
        slot = jnp.where(rows.begins, draw_slots(weights, inputs.who), carry.slot)
        actions: PyTree = None
        acting: dict[str, ActorCarry] = {}
        for kind in self.kinds:
            first, before = self.first_slots[kind.name], carry.acting[kind.name]
            is_own = rows.acts & (slot >= first) & (slot < first + kind.capacity)
            own = _Acting(
                obs=rows.obs,
                carry=before,
                is_first=rows.is_first,
                index=rows.index,
                draws=inputs.draws[kind.name],
            )
            member = jnp.where(is_own, slot - first, -1)
            chosen, after = _compute(kind, state.actors[kind.name], member, own, explore)
            acting[kind.name] = where_rows(is_own, after, before)
            actions = chosen if actions is None else where_rows(is_own, chosen, actions)
        return actions, replace(carry, slot=slot, acting=acting)

    def advance(
        self,
        carry: OpponentCarry,
        before: OpponentCarry,
        acts: Bool[Array, " R"],
        step: AgentStep,
        is_first: Bool[Array, " R"],
    ) -> tuple[OpponentCarry, Rollout]:
        """Complete the carry after a step of the environments.

        Args:
            carry: Carry after `act`.
            before: Carry before it.
            acts: Whether each agent acted.
            step: What the step meant to the agents; its observations are not read.
            is_first: Whether each agent begins anew next.

        Returns:
            The carry, and the rows that were completed, without observations and actions.
        """
        begun = BegunRow(obs=(), action=(), extras={}, is_first=is_first, carry=())
        pending = make_no_rows(begun) if carry.pending is None else carry.pending
        pending, row = complete_rows(pending, acts, begun, step)
        acting: dict[str, ActorCarry] = {}
        for kind in self.kinds:
            after, old = carry.acting[kind.name], before.acting[kind.name]
            reward = step.reward
            if carry.pending is not None:
                after = where_rows(acts, after, old)
                if old.reward is not None:
                    reward = jnp.where(row.mask, row.reward, old.reward)
            acting[kind.name] = kind.policy.advance(after, reward, is_first)
        kept = None if carry.pending is None else pending
        return replace(carry, acting=acting, pending=kept), row

    def count_games(
        self,
        carry: OpponentCarry,
        rewards: Float[Array, "B A"],
        ended: Bool[Array, " B"],
        begins: Bool[Array, " B"],
    ) -> OpponentCarry:
        """Return the carry with the outcomes of the episodes that a step ended.

        Args:
            carry: Carry after `advance`.
            rewards: Rewards of all agents.
            ended: Whether an episode ended that counts.
            begins: Whether an episode begins next.
        """
        if carry.lead is None or carry.games is None:
            return carry
        own = self.rows.select(rewards, DRAWN)
        total = self.rows.repeat(rewards.sum(axis=1), DRAWN)
        lead = carry.lead + total - 2.0 * own
        outcome = 1 - jnp.sign(lead).astype(jnp.int32)
        counts = self.rows.repeat(ended, DRAWN).astype(jnp.int32)
        games = carry.games.at[jnp.arange(own.shape[0]), carry.slot, outcome].add(counts)
        lead = jnp.where(self.rows.repeat(begins, DRAWN), 0.0, lead)
        return replace(carry, lead=lead, games=games)


def _compute(
    kind: OpponentKind, stack: ActorState, member: Int[Array, " R"], rows: _Acting, explore: bool
) -> tuple[PyTree, ActorCarry]:
    """Return the environment's actions of a kind and its carries; other rows' have no meaning."""

    def act(actor: ActorState, own: _Acting) -> tuple[PyTree, ActorCarry]:
        out: dict[str, Any] = kind.policy.act(
            actor, own.obs, own.carry, own.is_first, own.index, own.draws, explore
        )
        return kind.policy.action_pipeline(out[Columns.ACTIONS]), out[Columns.STATE_OUT]

    if kind.capacity == 1:
        return act(take(stack, jnp.zeros((), jnp.int32)), rows)
    size = choose_block_size(member.shape[0], kind.capacity)
    return compute_in_blocks(act, stack, member, rows, size)


def draw_slots(weights: Float[Array, "R S"], who: Float[Array, " R"]) -> Int[Array, " R"]:
    """Return a slot for each row, with probabilities in proportion to its weights.

    Args:
        weights: Weights, not all 0.
        who: Number in [0, 1).
    """
    ends = jnp.cumsum(weights, axis=1)
    slot = (ends <= (who * ends[:, -1])[:, None]).sum(axis=1, dtype=jnp.int32)
    number = weights.shape[1]
    last = number - 1 - jnp.argmax(weights[:, ::-1] > 0.0, axis=1).astype(jnp.int32)
    return jnp.minimum(slot, last)  # a product may be rounded up to the sum


def encode_name(name: str) -> np.ndarray:
    """Return an id as bytes of a fixed number."""
    raw = np.frombuffer(name.encode(), np.uint8)
    return np.pad(raw, (0, MAX_ID_BYTES - len(raw)))


def decode_names(names: np.ndarray) -> list[str]:
    """Return the id in each slot, "" in one that is empty."""
    return [bytes(row).rstrip(b"\0").decode(errors="replace") for row in np.asarray(names)]


def weigh_names(draw: Draw, names: list[str]) -> np.ndarray:
    """Return the weight of each slot in a Draw, float32 `[S]`."""
    if not draw.ids:
        return np.array([float(bool(name)) for name in names], np.float32)
    weights = draw.weights or (1.0,) * len(draw.ids)
    by_id = dict(zip(draw.ids, weights, strict=True))
    return np.array([by_id.get(name, 0.0) for name in names], np.float32)
