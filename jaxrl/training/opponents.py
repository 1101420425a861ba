"""Opponents that are drawn at the start of an episode, play to its end and are not trained.

Opponents of one architecture are a stack of parameters with a slot for each, and who plays is a
number in the carry of each row. Adding one writes a slot, so that nothing is compiled again.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt8, UInt32

from jaxrl.config.agent_mapping import DRAWN
from jaxrl.config.settings.multi_agent import Draw
from jaxrl.core.struct import pytree, replace, where_rows
from jaxrl.core.types import Columns, Key, Keys, Progress, PyTree, Rollout
from jaxrl.modules.planner import Planner
from jaxrl.training.agent_rows import (
    AgentRows,
    AgentStep,
    BegunRow,
    PendingRows,
    complete_rows,
    make_no_rows,
)
from jaxrl.training.league import LeaguePlayers, LeagueTally, add_games
from jaxrl.training.rollout import ActorCarry, ActorState, PolicyStep
from jaxrl.training.train_state import TrainState

T = TypeVar("T")

MIN_BLOCK = 8
"""Minimum number of rows of a block."""


@pytree
class Blocks:
    """Blocks of rows, `N` of `block` rows each.

    Attributes:
        source: Row in each place of each block; 0 in places that are not filled.
        member: Member that each block belongs to.
        place: Place of each row, counted over all blocks.
        count: Number of blocks that have rows, the first ones.
    """

    source: Int[Array, "N block"]
    member: Int[Array, " N"]
    place: Int[Array, " R"]
    count: Int[Array, ""]


def choose_block_size(num_rows: int, num_members: int) -> int:
    """Return the number of rows of a block: a quarter of a member's mean share, a power of two."""
    share = max(1, num_rows // (4 * num_members))
    return min(num_rows, max(MIN_BLOCK, 2 ** round(math.log2(share))))


def make_blocks(member: Int[Array, " R"], num_members: int, size: int) -> Blocks:
    """Sort rows into blocks of the same member, in their order.

    Args:
        member: Member of each row; a row of none, -1, has a place that is not its own.
        num_members: Number of members.
        size: Number of rows of a block.
    """
    num_rows = member.shape[0]
    number = -(-num_rows // size) + num_members
    is_of = member[:, None] == jnp.arange(num_members, dtype=jnp.int32)[None]
    counts = jnp.cumsum(is_of, axis=0, dtype=jnp.int32)
    blocks_of = -(-counts[-1] // size)
    first = jnp.cumsum(blocks_of) - blocks_of
    known = jnp.clip(member, 0)
    rank = jnp.take_along_axis(counts, known[:, None], axis=1)[:, 0] - 1
    place = first[known] * size + rank
    rows = jnp.arange(num_rows, dtype=jnp.int32)
    target = jnp.where(member >= 0, place, number * size)
    source = jnp.zeros((number * size,), jnp.int32).at[target].set(rows, mode="drop")
    index = jnp.arange(number, dtype=jnp.int32)
    owner = (index[:, None] >= jnp.cumsum(blocks_of)[None]).sum(axis=1, dtype=jnp.int32)
    return Blocks(
        source=source.reshape(number, size),
        member=jnp.minimum(owner, num_members - 1),
        place=jnp.clip(place, 0, number * size - 1),
        count=blocks_of.sum(dtype=jnp.int32),
    )


def compute_in_blocks(
    function: Callable[[PyTree, T], PyTree],
    stack: PyTree,
    member: Int[Array, " R"],
    rows: T,
    size: int,
) -> PyTree:
    """Apply a function of a member and rows `[n, ...]` to the rows of each member.

    Args:
        function: Function of the parameters of one member, and rows of it, whose results have a
            leading axis of rows, and each of whose rows depends on that row alone.
        stack: Parameters of all members, `[K, ...]`.
        member: Member of each row; results of rows of none, -1, are those of any other row.
        rows: Inputs `[R, ...]`.
        size: Number of rows of a block.

    Returns:
        Results `[R, ...]`, each row computed by its own member.
    """
    num_members = jax.tree.leaves(stack)[0].shape[0]
    blocks = make_blocks(member, num_members, size)

    def compute(source: Int[Array, " block"], owner: Int[Array, ""]) -> PyTree:
        return function(take(stack, owner), take(rows, source))

    def compute_in_turn(blocks: Blocks) -> PyTree:
        number = blocks.member.shape[0]
        shapes = jax.eval_shape(compute, blocks.source[0], blocks.member[0])
        empty = jax.tree.map(lambda x: jnp.zeros((number, *x.shape), x.dtype), shapes)

        def add(i: Int[Array, ""], results: PyTree) -> PyTree:
            return put(results, i, compute(blocks.source[i], blocks.member[i]))

        return jax.lax.fori_loop(0, blocks.count, add, empty)

    results: PyTree = jax.lax.platform_dependent(
        blocks,
        cpu=compute_in_turn,
        default=lambda blocks: jax.vmap(compute)(blocks.source, blocks.member),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[blocks.place], results)


def put(stack: PyTree, index: Int[Array, ""] | int, member: PyTree) -> PyTree:
    """Return a stack with another member at an index."""
    return jax.tree.map(lambda x, new: x.at[index].set(new.astype(x.dtype)), stack, member)


def take(tree: T, index: Int[Array, "*n"]) -> T:
    """Return members of a stacked tree."""
    return jax.tree.map(lambda x: x[index], tree)


def follow_learners(
    stack: ActorState,
    follows: Bool[Array, " S"],
    leaders: Sequence[str],
    actors: Mapping[str, ActorState],
) -> ActorState:
    """Return a stack in which those that follow a learner explore as it does now.

    Args:
        stack: Inputs of acting of opponents, `[S, ...]`.
        follows: Whether each of them follows.
        leaders: Learner of each slot.
        actors: Inputs of acting of the learners.
    """
    different = sorted(set(leaders))
    of_slot = np.array([different.index(name) for name in leaders])

    def choose(own: Array, *now: Array) -> Array:
        return jnp.where(follows, jnp.stack(now)[of_slot], own)

    hparams = [actors[name].hparams for name in different]
    progress = [actors[name].progress for name in different]
    return replace(
        stack,
        hparams=jax.tree.map(choose, stack.hparams, *hparams),
        progress=jax.tree.map(choose, stack.progress, *progress),
    )


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
        follows: Whether the opponent in a slot explores as the learner of its kind does now, with
            that one's hyperparameters and progress. A snapshot keeps those of its time.
        games: Numbers of games that the snapshot in a slot had won, drawn and lost against the
            opponent in another when it was taken. The last three rows are the values of
            `OpponentCarry.games`, over all rows, when the two latest windows of games began, the
            older one first, and when the latest snapshot was taken. None without SelfPlay.
        waits: Whether a snapshot of SelfPlay waits for a slot in which a removed one still plays.
        league: Games of a league of several learners, None without.
    """

    actors: dict[str, ActorState]
    names: UInt8[Array, "S bytes"]
    weights: Float[Array, "D S"]
    is_open: Bool[Array, " D"]
    follows: Bool[Array, " S"]
    games: Int[Array, "S+3 S 3"] | None = None
    waits: Bool[Array, ""] | None = None
    league: LeagueTally | None = None


@pytree
class OpponentCarry:
    """Opponents between steps, `[R, ...]`: the slot that plays each row, and what it remembers.

    `slot` is valid within an episode. `pending` is None where rows complete at once. With a league,
    `lead` `[C]` is by how much the others' returns in the episode exceed that of the counted agent,
    which is the row's, and `games` are the numbers of episodes that the others won, drew and lost
    against each slot. With several learners, the second agent of copies with a fixed pair of them
    is counted, too, and the games are those of the train batch.
    """

    slot: Int[Array, " R"]
    acting: dict[str, ActorCarry]
    pending: PendingRows | None
    lead: Float[Array, " C"] | None = None
    games: Int[Array, "C S 3"] | None = None


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
        learner: Module that is trained, as which they explore.
        learners: Opponents that are met with the parameters that a module which is trained has at
            present, in the last slots, and that module: itself, or the one that an opponent
            searches with. They are not part of the state.
    """

    name: str
    policy: PolicyStep
    capacity: int
    ids: tuple[str, ...]
    learner: str = ""
    learners: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


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
        players: Players of a league of several learners, None without.
    """

    kinds: tuple[OpponentKind, ...]
    draws: tuple[Draw, ...]
    patterns: tuple[Mapping[str, Draw | None], ...]
    rows: AgentRows
    counts_games: bool = False
    players: LeaguePlayers | None = None

    def with_policies(self, change: Callable[[PolicyStep], PolicyStep]) -> "OpponentPool":
        """Return the opponents with changed policies of the same parameters."""
        kinds = tuple(dataclasses.replace(k, policy=change(k.policy)) for k in self.kinds)
        return dataclasses.replace(self, kinds=kinds)

    @functools.cached_property
    def first_slots(self) -> dict[str, int]:
        """First slot of each kind."""
        ends = np.cumsum([kind.capacity for kind in self.kinds]).tolist()
        return dict(zip((kind.name for kind in self.kinds), (0, *ends), strict=False))

    @property
    def _first_versions(self) -> Mapping[str, str]:
        """Learner whose first parameters an opponent of the start has."""
        return {} if self.players is None else self.players.first_versions

    def _list_leaders(self, kind: OpponentKind) -> list[str]:
        """Return the learner that each slot of a kind follows."""
        own = [self._first_versions.get(name, kind.learner) for name in kind.ids]
        return own + [kind.learner] * (kind.capacity - len(own))

    @property
    def num_slots(self) -> int:
        """Number of slots of all kinds."""
        return sum(kind.capacity for kind in self.kinds)

    def find_kind(self, slot: int) -> OpponentKind:
        """Return the kind of a slot."""
        return next(k for k in reversed(self.kinds) if self.first_slots[k.name] <= slot)

    def _list_present(self, kind: OpponentKind) -> list[tuple[int, str]]:
        """Return the slots of a kind that have the present parameters of a learner, with it."""
        end = self.first_slots[kind.name] + kind.capacity
        return list(enumerate(kind.learners.values(), end - len(kind.learners)))

    @functools.cached_property
    def present(self) -> dict[int, str]:
        """Learner of each slot in which one is met with the parameters of the present."""
        return dict(pair for kind in self.kinds for pair in self._list_present(kind))

    def get_actor(self, state: OpponentState, slot: int) -> ActorState:
        """Return the inputs of acting of the opponent in a slot."""
        kind = self.find_kind(slot)
        index = slot - self.first_slots[kind.name]
        return jax.tree.map(lambda x: x[index], state.actors[kind.name])

    def init(
        self,
        key: Key,
        actors: Mapping[str, ActorState],
        modules: Mapping[str, TrainState],
    ) -> OpponentState:
        """Return the opponents at the start of a run. Consumes the key.

        Args:
            key: Key of their parameters.
            actors: Inputs of acting of the run's own modules.
            modules: Their states.
        """
        names, stacks = list_names(self.kinds), dict[str, ActorState]()
        for kind in self.kinds if self.draws else ():
            first = self.first_slots[kind.name]
            keys = [jax.random.fold_in(key, first + i) for i in range(len(kind.ids))]
            stack = self._stack(kind, keys, actors[kind.learner])
            for i, name in enumerate(kind.ids):
                if name in self._first_versions:
                    stack = put(stack, i, actors[self._first_versions[name]])
            stacks[kind.name] = stack
        weights = [weigh_names(draw, names) for draw in self.draws]
        players, number = self.players, self.num_slots
        is_self_play = self.counts_games and players is None
        return OpponentState(
            actors=stacks,
            names=jnp.asarray(np.stack([encode_name(name) for name in names])),
            weights=jnp.asarray(np.stack(weights) if players is None else players.weights),
            is_open=jnp.asarray([not draw.ids for draw in self.draws], bool),
            follows=jnp.ones((number,), bool),
            games=jnp.zeros((number + 3, number, 3), jnp.int32) if is_self_play else None,
            waits=jnp.zeros((), bool) if is_self_play else None,
            league=None if players is None else players.init(number, modules),
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
        kinds = self.kinds if self.draws else ()
        counted = len(self.get_counted(num_envs))
        return OpponentCarry(
            slot=jnp.zeros((number,), jnp.int32),
            acting={kind.name: kind.policy.initial_carry(number) for kind in kinds},
            pending=None if completes_at_once or not kinds else make_no_rows(begun),
            lead=jnp.zeros((counted,), jnp.float32) if self.counts_games else None,
            games=jnp.zeros((counted, self.num_slots, 3), jnp.int32) if self.counts_games else None,
        )

    def sample_inputs(self, keys: Keys) -> OpponentInputs | None:
        """Draw the random inputs of steps, `[T, R]`, given the keys of environments `[T, B]`.

        A module draws what it does where it plays the agent in every episode. None if nothing is
        drawn.
        """
        if not self.draws:
            return None
        own = self.rows.derive_keys(keys, DRAWN)
        fold = jax.vmap(jax.vmap(jax.random.fold_in, (0, None)), (0, None))
        draw_uniform = jax.vmap(jax.vmap(functools.partial(jax.random.uniform, dtype=jnp.float32)))
        return OpponentInputs(
            who=draw_uniform(fold(jax.random.clone(own), jnp.uint32(_DRAW_SALT))),
            draws={
                kind.name: jax.vmap(kind.policy.module.draw)(jax.random.clone(own))
                for kind in self.kinds
            },
        )

    def get_counted(self, num_envs: int) -> np.ndarray:
        """Return the environment and the agent whose opponent's games are counted, int32 `[C, 2]`.

        That is the agent of each row, and with several learners also the second agent of each copy
        in which two of them meet.
        """
        if self.players is None:
            return self.rows.get_cells(DRAWN, num_envs)
        return self.players.list_counted(self.rows, num_envs)

    def place_learners(
        self, state: OpponentState, actors: Mapping[str, ActorState]
    ) -> OpponentState:
        """Return the opponents as they play now: learners, and those that explore as one does."""
        stacks = dict(state.actors)
        for kind in self.kinds if self.draws else ():
            first, leaders = self.first_slots[kind.name], self._list_leaders(kind)
            follows = state.follows[first : first + kind.capacity]
            stack = follow_learners(state.actors[kind.name], follows, leaders, actors)
            for slot, learner in self._list_present(kind):
                stack = put(stack, slot - first, actors[learner])
            stacks[kind.name] = stack
        return replace(state, actors=stacks)

    def add_games(
        self,
        state: OpponentState,
        carry: OpponentCarry,
        steps: UInt32[Array, ""],
        num_envs: int,
        axis_name: str | None,
    ) -> tuple[OpponentState, OpponentCarry]:
        """Move the games of a train batch to the state, with several learners.

        Args:
            state: Opponents.
            carry: Their carry after the batch.
            steps: Environment steps of the batch, over all devices.
            num_envs: Number of environments.
            axis_name: Mesh axis that environments are sharded over, or None.
        """
        if state.league is None or carry.games is None:
            return state, carry
        assert self.players is not None
        homes = self.players.find_homes(self.rows, num_envs)
        tally = add_games(state.league, homes, carry.games, steps, axis_name)
        return replace(state, league=tally), replace(carry, games=jnp.zeros_like(carry.games))

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
        num_envs = rewards.shape[0]
        envs, agents = self.get_counted(num_envs).T
        own, total = rewards[envs, agents], rewards.sum(axis=1)[envs]
        lead = carry.lead + total - 2.0 * own
        outcome = 1 - jnp.sign(lead).astype(jnp.int32)
        players, met = self.players, carry.slot
        if players is not None:
            met = players.find_met(self.rows, carry.slot, num_envs)
        counts = ended[envs].astype(jnp.int32)
        games = carry.games.at[jnp.arange(own.shape[0], dtype=jnp.int32), met, outcome].add(counts)
        lead = jnp.where(begins[envs], 0.0, lead)
        return replace(carry, lead=lead, games=games)


def _compute(
    kind: OpponentKind, stack: ActorState, member: Int[Array, " R"], rows: _Acting, explore: bool
) -> tuple[PyTree, ActorCarry]:
    """Return the environment's actions of a kind and its carries; other rows' have no meaning.

    Rows are sorted into blocks where there are several members, or one whose actions cost a search.
    """

    def act(actor: ActorState, own: _Acting) -> tuple[PyTree, ActorCarry]:
        out: dict[str, Any] = kind.policy.act(
            actor, own.obs, own.carry, own.is_first, own.index, own.draws, explore
        )
        return kind.policy.action_pipeline(out[Columns.ACTIONS]), out[Columns.STATE_OUT]

    if kind.capacity == 1 and not isinstance(kind.policy.module, Planner):
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


def list_names(kinds: Sequence[OpponentKind]) -> list[str]:
    """Return the id in each slot at the start of a run, "" in an empty one."""
    names: list[str] = []
    for kind in kinds:
        empty = kind.capacity - len(kind.ids) - len(kind.learners)
        names += [*kind.ids, *[""] * empty, *kind.learners]
    return names


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
