"""Rules of the board games again, on plain boards of numbers, many games at once in NumPy."""

import dataclasses
import functools
import itertools

import numpy as np


@dataclasses.dataclass(frozen=True)
class Rules:
    """Size of a board, length of a line, and whether stones fall."""

    rows: int
    columns: int
    length: int
    falls: bool

    @property
    def num_moves(self) -> int:
        return self.columns if self.falls else self.rows * self.columns

    @functools.cached_property
    def lines(self) -> dict[tuple[int, int], list[list[tuple[int, int]]]]:
        """Lines through every cell, as the cells that they have."""
        found: dict[tuple[int, int], list[list[tuple[int, int]]]] = {}
        starts = itertools.product(range(self.rows), range(self.columns))
        for (row, column), (down, right) in itertools.product(
            starts, ((0, 1), (1, 0), (1, 1), (1, -1))
        ):
            cells = [(row + k * down, column + k * right) for k in range(self.length)]
            if all(0 <= r < self.rows and 0 <= c < self.columns for r, c in cells):
                for cell in cells:
                    found.setdefault(cell, []).append(cells)
        return found


RULES = {"TicTacToe-v0": Rules(3, 3, 3, False), "ConnectFour-v0": Rules(6, 7, 4, True)}


@dataclasses.dataclass(frozen=True)
class Games:
    """Random games, `[T, N, ...]`: what is seen before each move, the move, and what follows it.

    `board` has 0 for empty cells and 1 or 2 for stones of seats 0 and 1, before and after the move;
    `live` marks the moves of games that are not over.
    """

    mover: np.ndarray
    board: np.ndarray
    move: np.ndarray
    live: np.ndarray
    board_after: np.ndarray
    reward: np.ndarray
    over: np.ndarray


def find_legal(rules: Rules, board: np.ndarray) -> np.ndarray:
    """Legal moves `[N, moves]` of boards `[N, rows, columns]`."""
    if rules.falls:
        return (board == 0).any(axis=1)
    return (board == 0).reshape(len(board), -1)


def play_random_games(rules: Rules, first: np.ndarray, *, share_illegal: float, seed: int) -> Games:
    """Play a game for each entry of `first`, the seat that begins; some moves are illegal."""
    rng = np.random.default_rng(seed)
    number = len(first)
    board = np.zeros((number, rules.rows, rules.columns), int)
    live, mover = np.ones(number, bool), first.copy()
    steps = []
    for _ in range(rules.rows * rules.columns):
        before, was_live, who = board.copy(), live.copy(), mover.copy()
        legal = find_legal(rules, board)
        illegal = rng.random(number) < share_illegal
        wanted = np.where((illegal & ~legal.all(axis=1))[:, None], ~legal, legal)
        move = (rng.random(legal.shape) + wanted).argmax(axis=1)
        reward, over = np.zeros((number, 2)), np.zeros(number, bool)
        for n in np.flatnonzero(live):
            reward[n], over[n] = play_move(rules, board[n], int(move[n]), int(who[n]))
        live, mover = live & ~over, 1 - mover
        steps.append((who, before, move, was_live, board.copy(), reward, over))
    return Games(*(np.stack(parts) for parts in zip(*steps, strict=True)))


def play_move(
    rules: Rules, board: np.ndarray, move: int, seat: int
) -> tuple[tuple[float, float], bool]:
    """Place a stone on a board, and return both rewards and whether the game is over."""
    if rules.falls:
        column = move
        free = [row for row in range(rules.rows) if board[row, column] == 0]
        cell = (free[-1], column) if free else None
    else:
        cell = divmod(move, rules.columns)
        cell = cell if board[cell] == 0 else None
    if cell is None:
        return ((-1.0, 0.0), (0.0, -1.0))[seat], True
    board[cell] = seat + 1
    for line in rules.lines[cell]:
        if all(board[at] == seat + 1 for at in line):
            return ((1.0, -1.0), (-1.0, 1.0))[seat], True
    return (0.0, 0.0), bool((board != 0).all())
