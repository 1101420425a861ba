"""The published rules of level-based foraging on a grid of food levels, as loops in Python."""

import dataclasses
from typing import Any

import numpy as np

NONE, NORTH, SOUTH, WEST, EAST, LOAD = range(6)
WAYS = {NONE: (0, 0), NORTH: (-1, 0), SOUTH: (1, 0), WEST: (0, -1), EAST: (0, 1), LOAD: (0, 0)}

Cell = tuple[int, int]


@dataclasses.dataclass
class Game:
    field: np.ndarray
    places: list[Cell]
    levels: list[int]
    spawned: int
    sight: int
    num_food: int
    penalty: float = 0.0

    def is_in(self, cell: Cell) -> bool:
        return min(cell) >= 0 and max(cell) < len(self.field)

    def next_to(self, cell: Cell) -> list[Cell]:
        around = [(cell[0] + dy, cell[1] + dx) for dy, dx in ((-1, 0), (1, 0), (0, -1), (0, 1))]
        return [other for other in around if self.is_in(other)]

    def is_legal(self, player: int, action: int) -> bool:
        if action == LOAD:
            return any(self.field[cell] > 0 for cell in self.next_to(self.places[player]))
        goal = self.goal_of(player, action)
        return action == NONE or (self.is_in(goal) and self.field[goal] == 0)

    def goal_of(self, player: int, action: int) -> Cell:
        way = WAYS[action]
        return self.places[player][0] + way[0], self.places[player][1] + way[1]

    def step(self, wanted: list[int]) -> list[float]:
        actions = [a if self.is_legal(i, a) else NONE for i, a in enumerate(wanted)]
        goals = [self.goal_of(i, action) for i, action in enumerate(actions)]
        for player, goal in enumerate(goals):
            if goals.count(goal) == 1:
                self.places[player] = goal
        rewards = [0.0] * len(goals)
        loading = [i for i, action in enumerate(actions) if action == LOAD]
        for food in [(int(y), int(x)) for y, x in np.argwhere(self.field > 0)]:
            group = [i for i in loading if food in self.next_to(self.places[i])]
            strength = sum(self.levels[i] for i in group)
            for i in group:
                if strength < self.field[food]:
                    rewards[i] -= self.penalty
                else:
                    rewards[i] = self.levels[i] * self.field[food] / (strength * self.spawned)
            if group and strength >= self.field[food]:
                self.field[food] = 0
        return rewards

    def observe(self, player: int) -> np.ndarray:
        me = self.places[player]
        corner = [max(c - self.sight, 0) for c in me]
        view = self.field[corner[0] : me[0] + self.sight + 1, corner[1] : me[1] + self.sight + 1]
        food: list[Any] = [(y, x, view[y, x]) for y, x in np.argwhere(view > 0)]
        others = [i for i in range(len(self.places)) if i != player]
        players: list[Any] = []
        for i in [player, *others]:
            y, x = self.places[i][0] - corner[0], self.places[i][1] - corner[1]
            if min(y, x) >= 0 and max(y, x) <= 2 * self.sight:
                players.append((y, x, self.levels[i]))
        food += [(-1, -1, 0)] * (self.num_food - len(food))
        players += [(-1, -1, 0)] * (len(self.places) - len(players))
        return np.array([*food, *players], np.float32).reshape(-1)


def is_allowed(field: np.ndarray, cell: Cell) -> bool:
    """Tell if new food may lie in a cell: off the edge, and apart from other food."""
    y, x = cell
    if not (0 < y < len(field) - 1 and 0 < x < len(field) - 1):
        return False
    around = field[y - 1 : y + 2, x - 1 : x + 2].sum()
    line = field[max(y - 2, 0) : y + 3, x].sum() + field[y, max(x - 2, 0) : x + 3].sum()
    return bool(around == 0 and line == 0)
