"""Level-based foraging (Christianos et al. 2020, Papoudakis et al. 2021): collect food together.

Rules, observations and rewards are those of the package lbforaging 2.0
(https://github.com/semitable/lb-foraging).
"""

from collections.abc import Mapping
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces
from jaxtyping import Array, Bool, Float, Int

from jaxrl.core.struct import pytree, replace
from jaxrl.core.types import Key, PyTree
from jaxrl.envs.base import ResetMode
from jaxrl.envs.classic.raster import Canvas, Color
from jaxrl.envs.multi.base import (
    ALL,
    MultiAgentJaxEnv,
    MultiStart,
    MultiStep,
    make_flags,
    make_no_ends,
    number_agents,
)
from jaxrl.envs.params import check_bool, check_count, scalar
from jaxrl.errors import EnvError

LOAD = 5
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1], [0, 0]], np.int32)
"""Change of row and column by nothing, north, south, west, east, and loading."""
MIN_SIZE = 5
"""Smallest grid: food lies off the edge, apart from other food."""
MAX_SIZE = 1000
"""Largest grid: places are drawn by one number for each cell, which then hardly ever are equal."""
CELL_PIXELS = 48
"""Width and height in pixels of a rendered cell."""
FOOD_COLOR: Color = (190, 50, 50)
PLAYER_COLOR: Color = (60, 90, 170)
LEVEL_COLOR: Color = (255, 255, 255)


@pytree
class ForagingParams:
    """Price that each player pays for an attempt to load for which the levels do not suffice."""

    penalty: Float[Array, ""] = scalar(0.0)


@pytree
class ForagingState:
    """Rows and columns and levels of players and food; what is eaten, or found no place, has 0.

    Food is in the order of rows and columns. `spawned` is the sum of its first levels.
    """

    player: Int[Array, "*batch players 2"]
    player_level: Int[Array, "*batch players"]
    food: Int[Array, "*batch food 2"]
    food_level: Int[Array, "*batch food"]
    spawned: Int[Array, "*batch"]


class Foraging(MultiAgentJaxEnv[ForagingState, ForagingParams]):
    """Players on a grid who load food next to them if the sum of their levels is at least its own.

    Actions: nothing (0), north, south, west, east (4), load (5). Moves off the grid, onto food or
    to a cell that somebody else moves to or stays in do nothing. Food of level `f` pays a player of
    level `l` who takes part `l f / (sum of levels of those who load * sum of all food)`, so that an
    episode pays at most 1 in all. It is terminated when all food is eaten, and truncated after 50
    steps.

    Observed are row, column and level of all food in sight, then of oneself, then of the other
    players in sight, each in order; what is missing is (-1, -1, 0).
    """

    name = "Foraging-v0"
    max_episode_steps = 50
    reset_mode: ResetMode = "on_demand"
    render_fps = 5

    def __init__(
        self,
        size: int = 8,
        num_players: int = 2,
        num_food: int = 2,
        force_coop: bool = True,
        max_player_level: int = 2,
        sight: int | None = None,
        action_mask: bool = False,
    ) -> None:
        """Create the environment.

        Args:
            size: Number of rows and of columns.
            num_players: Number of players.
            num_food: Number of foods; fewer appear where no cell is left for them.
            force_coop: Whether every food needs the three weakest players, or all if they are
                fewer. Otherwise its level is uniform up to theirs.
            max_player_level: Largest level of a player; levels are uniform from 1.
            sight: Number of cells seen in each direction, None for all. Places observed are
                relative to the first row and column in sight.
            action_mask: Whether observations are `{"action_mask": [6], "obs": vector}`.

        Raises:
            EnvError: If an argument is not of its kind, too small or too large.
        """
        self.size = check_count("size", size, at_least=MIN_SIZE)
        self.num_players = check_count("num_players", num_players)
        self.num_food = check_count("num_food", num_food)
        self.max_player_level = check_count("max_player_level", max_player_level)
        self.sight = size if sight is None else check_count("sight", sight)
        self.force_coop = check_bool("force_coop", force_coop)
        self.action_mask = check_bool("action_mask", action_mask)
        if size > MAX_SIZE:
            raise EnvError(f"size={size} must be at most {MAX_SIZE}.")
        if num_players > size**2:
            raise EnvError(
                f"num_players={num_players} do not fit on the {size**2} cells of size={size}."
            )
        self.agent_kinds: Mapping[str, int] = {"player": num_players}
        self.possible_agents = number_agents("player", num_players)
        self.teams: Mapping[str, tuple[str, ...]] = {"team": self.possible_agents}

    @property
    def default_params(self) -> ForagingParams:
        return ForagingParams()

    def observation_space(self, agent: str, params: ForagingParams) -> gymnasium.Space[Any]:
        box = self._make_box(1)
        if not self.action_mask:
            return box
        return spaces.Dict({"action_mask": spaces.MultiBinary(len(MOVES)), "obs": box})

    def action_space(self, agent: str, params: ForagingParams) -> gymnasium.Space[Any]:
        return spaces.Discrete(len(MOVES))

    def state_space(self, params: ForagingParams) -> spaces.Box:
        return self._make_box(self.num_players)

    def global_state(self, state: ForagingState, params: ForagingParams) -> Float[Array, " size"]:
        """Return the vectors that all players observe, one after the other."""
        return self.observe(state).reshape(-1)

    def _make_box(self, times: int) -> spaces.Box:
        last, most = self.size - 1, min(3, self.num_players) * self.max_player_level
        food = [last, last, most] * self.num_food
        players = [last, last, self.max_player_level] * self.num_players
        low = [-1, -1, 0] * (self.num_food + self.num_players)
        return spaces.Box(
            np.array(low * times, np.float32), np.array((food + players) * times, np.float32)
        )

    def reset(self, key: Key, params: ForagingParams) -> tuple[ForagingState, MultiStart]:
        state = self.sample_state(key)
        return state, MultiStart(obs=self._make_obs(state), acts=make_flags(self, value=True))

    def step(
        self,
        key: Key,
        state: ForagingState,
        actions: dict[str, PyTree],
        params: ForagingParams,
    ) -> tuple[ForagingState, MultiStep]:
        """Move all players at once, then load; nothing is random."""
        is_chosen = jax.nn.one_hot(actions["player"], len(MOVES), dtype=bool)
        is_chosen = is_chosen & self.find_legal_actions(state)
        moved = replace(state, player=self._move(state, is_chosen))
        after, reward = self._load(moved, is_chosen[:, LOAD], params)
        never = make_no_ends(self)
        return after, MultiStep(
            obs=self._make_obs(after),
            acts=make_flags(self, value=True),
            reward={"player": reward},
            terminated={**never, ALL: ~jnp.any(after.food_level > 0)},
            truncated=never,
        )

    def find_legal_actions(self, state: ForagingState) -> Bool[Array, "players 6"]:
        """Return which actions do something: moves to cells without food, loading beside food."""
        target = state.player[:, None] + MOVES[None]
        is_inside = jnp.all((target >= 0) & (target < self.size), axis=-1)
        is_food = jnp.all(target[:, :, None] == state.food[None, None], axis=-1)
        is_blocked = jnp.any(is_food & (state.food_level > 0)[None, None], axis=-1)
        has_food = jnp.any(is_blocked[:, 1:LOAD], axis=-1)
        return (is_inside & ~is_blocked).at[:, LOAD].set(has_food)

    def _move(
        self, state: ForagingState, is_chosen: Bool[Array, "players 6"]
    ) -> Int[Array, "players 2"]:
        """Move those whose target is nobody else's; who stays has a target, too."""
        target = state.player + is_chosen.astype(jnp.int32) @ jnp.asarray(MOVES)
        is_same = jnp.all(target[:, None] == target[None], axis=-1)
        is_contested = jnp.any(is_same & ~np.eye(self.num_players, dtype=bool), axis=-1)
        return jnp.where(is_contested[:, None], state.player, target)

    def _load(
        self, state: ForagingState, loads: Bool[Array, " players"], params: ForagingParams
    ) -> tuple[ForagingState, Float[Array, " players"]]:
        """Return what is left after loading, and the rewards."""
        distance = jnp.abs(state.player[:, None] - state.food[None]).sum(axis=-1)
        helps = (distance == 1) & loads[:, None] & (state.food_level > 0)[None]
        level = jnp.where(helps, state.player_level[:, None], 0)
        strength = level.sum(axis=0)
        is_taken = (state.food_level > 0) & (strength >= state.food_level)
        total = jnp.maximum(strength * state.spawned, 1).astype(jnp.float32)
        share = (level * state.food_level[None]).astype(jnp.float32) / total[None]
        paid = jnp.where(is_taken[None], share, jnp.where(helps, -params.penalty, 0.0))
        left = replace(state, food_level=jnp.where(is_taken, 0, state.food_level))
        return left, paid.sum(axis=-1)

    def sample_state(self, key: Key) -> ForagingState:
        """Sample a first state. Consumes the key.

        Players are uniform over free cells. Food is uniform over the cells off the edge that are
        free and have no food beside them, across a corner, or two cells off in a straight line.
        """
        place_key, level_key, food_key = jax.random.split(key, 3)
        count = self.num_players
        noise = jax.random.uniform(place_key, (count + self.num_food, self.size**2), jnp.float32)
        player = self._place_players(noise[:count])
        food, has_place = self._place_food(noise[count:], player)
        player_level = jax.random.randint(
            level_key, (count,), 1, self.max_player_level + 1, jnp.int32
        )
        most = jnp.sort(player_level)[:3].sum(dtype=jnp.int32)
        food_level = jnp.full((self.num_food,), most, jnp.int32)
        if not self.force_coop:
            food_level = jax.random.randint(food_key, food_level.shape, 1, most + 1, jnp.int32)
        food_level = jnp.where(has_place, food_level, 0)
        order = jnp.argsort(food[:, 0] * self.size + food[:, 1])
        return ForagingState(
            player=player,
            player_level=player_level,
            food=food[order],
            food_level=food_level[order],
            spawned=food_level.sum(dtype=jnp.int32),
        )

    def _place_players(self, noise: Float[Array, "players cells"]) -> Int[Array, "players 2"]:
        cells = jnp.arange(self.size**2, dtype=jnp.int32)
        free, places = jnp.ones(cells.shape, bool), []
        for row in noise:
            place = jnp.argmax(jnp.where(free, row, -1.0)).astype(jnp.int32)
            free = free & (cells != place)
            places.append(place)
        return self._to_places(jnp.stack(places))

    def _place_food(
        self, noise: Float[Array, "food cells"], player: Int[Array, "players 2"]
    ) -> tuple[Int[Array, "food 2"], Bool[Array, " food"]]:
        """Return places of food, and whether there was one for it."""
        cells = np.stack(np.divmod(np.arange(self.size**2, dtype=np.int32), self.size), axis=-1)
        is_inner = np.all((cells > 0) & (cells < self.size - 1), axis=-1)
        on_player = jnp.all(cells[:, None] == player[None], axis=-1).any(axis=-1)
        free, places, found = jnp.asarray(is_inner) & ~on_player, [], []
        for row in noise:
            place = self._to_places(jnp.argmax(jnp.where(free, row, -1.0)).astype(jnp.int32))
            has_place, gap = free.any(), jnp.abs(cells - place[None])
            is_near = (gap.max(axis=-1) <= 1) | ((gap.max(axis=-1) <= 2) & (gap.min(axis=-1) == 0))
            free = free & ~(is_near & has_place)
            places.append(place)
            found.append(has_place)
        return jnp.stack(places), jnp.stack(found)

    def _to_places(self, cell: Int[Array, "*n"]) -> Int[Array, "*n 2"]:
        return jnp.stack([cell // self.size, cell % self.size], axis=-1)

    def observe(self, state: ForagingState) -> Float[Array, "players size"]:
        """Return the vector that each player observes."""
        return jnp.concatenate([self._see_food(state), self._see_players(state)], axis=-1)

    def _make_obs(self, state: ForagingState) -> dict[str, PyTree]:
        obs = self.observe(state)
        if not self.action_mask:
            return {"player": obs}
        mask = self.find_legal_actions(state).astype(jnp.int8)
        return {"player": {"action_mask": mask, "obs": obs}}

    def _see_food(self, state: ForagingState) -> Float[Array, "players _"]:
        gap = jnp.abs(state.food[None] - state.player[:, None]).max(axis=-1)
        seen = (gap <= self.sight) & (state.food_level > 0)[None]
        return self._list_seen(state, state.food, state.food_level, seen)

    def _see_players(self, state: ForagingState) -> Float[Array, "players _"]:
        """Return oneself, then the others in sight.

        As in the package, who is near the edge sees players as far as the far end of its view.
        """
        count = self.num_players
        place = state.player[None] - self._find_first_in_sight(state)[:, None]
        seen = jnp.all((place >= 0) & (place <= 2 * self.sight), axis=-1)
        own = np.eye(count, dtype=bool)
        oneself = self._list_seen(state, state.player, state.player_level, jnp.asarray(own))[:, :3]
        others = self._list_seen(state, state.player, state.player_level, seen & ~own)
        return jnp.concatenate([oneself, others[:, : 3 * (count - 1)]], axis=-1)

    def _find_first_in_sight(self, state: ForagingState) -> Int[Array, "players 2"]:
        return jnp.maximum(state.player - self.sight, 0)

    def _list_seen(
        self,
        state: ForagingState,
        place: Int[Array, "n 2"],
        level: Int[Array, " n"],
        seen: Bool[Array, "players n"],
    ) -> Float[Array, "players _"]:
        """Return what each player sees, without gaps, then (-1, -1, 0) for what is missing."""
        relative = place[None] - self._find_first_in_sight(state)[:, None]
        levels = jnp.broadcast_to(level[None, :, None], (*seen.shape, 1))
        things = jnp.concatenate([relative, levels], axis=-1)
        rank = jnp.cumsum(seen, axis=-1) - 1
        slots = np.arange(seen.shape[1])
        goes = seen[:, None] & (rank[:, None] == slots[None, :, None])  # players, slots, things
        listed = jnp.sum(jnp.where(goes[..., None], things[:, None], 0), axis=2)
        filled = goes.any(axis=-1)[..., None]
        listed = jnp.where(filled, listed, np.array([-1, -1, 0], np.int32)[None, None])
        return listed.reshape(seen.shape[0], -1).astype(jnp.float32)

    def render(self, state: ForagingState, params: ForagingParams) -> np.ndarray:
        """Render the grid: food in red, players in blue, and a white dot for each level."""
        canvas = Canvas(height=self.size * CELL_PIXELS, width=self.size * CELL_PIXELS)
        groups = (
            (state.food, state.food_level, FOOD_COLOR, 0.45),
            (state.player, state.player_level, PLAYER_COLOR, 0.35),
        )
        for places, levels, color, radius in groups:
            for place, level in zip(np.asarray(places), np.asarray(levels), strict=True):
                if level > 0:
                    self._draw(canvas, place, int(level), color, radius)
        picture = canvas.to_uint8()
        picture[::CELL_PIXELS] = picture[:, ::CELL_PIXELS] = 200
        return picture

    def _draw(
        self, canvas: Canvas, place: np.ndarray, level: int, color: Color, radius: float
    ) -> None:
        center = np.array([place[1] + 0.5, self.size - place[0] - 0.5]) * CELL_PIXELS
        canvas.fill_circle(center, radius * CELL_PIXELS, color)
        for index in range(level):
            angle = 2 * np.pi * index / level
            offset = 0.22 * CELL_PIXELS * np.array([np.sin(angle), np.cos(angle)])
            canvas.fill_circle(center + (offset if level > 1 else 0.0), 3.0, LEVEL_COLOR)
