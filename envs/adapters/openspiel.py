"""Games of OpenSpiel as Python environments of several agents."""

import importlib
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from gymnasium import spaces

from jaxrl.core.types import PyTree
from jaxrl.envs.adapters.host_creators import Creator
from jaxrl.envs.context import EnvContext
from jaxrl.envs.host import EnvRequest
from jaxrl.envs.multi.base import ALL
from jaxrl.envs.multi.host_env import AgentDict, AgentID, MultiAgentEnv
from jaxrl.errors import EnvError, UnknownNameError, did_you_mean, summarize_exception

PREFIX = "openspiel"
OBSERVATIONS, ACTION_MASK = "observations", "action_mask"
_TENSORS = {
    "information_state": (
        "provides_information_state_tensor",
        "information_state_tensor_size",
        "information_state_tensor",
    ),
    "observation": (
        "provides_observation_tensor",
        "observation_tensor_size",
        "observation_tensor",
    ),
}
"""Flag of the type of a game, size in the game, and method of a state, by what is observed."""
_UNUSED_ACTION = 0
"""Action of a player without legal ones in a simultaneous node, which is ignored."""


class OpenSpielEnv(MultiAgentEnv):
    """A game of OpenSpiel, played by the agents 0, 1, ...

    The players of a node act: one in a sequential node, all that have a legal action in a
    simultaneous one. An observation is a Dict of the flat tensor, `"observations"`, and of the legal
    actions, `"action_mask"`. Chance is drawn from the environment's own generator, so that a seed
    determines an episode. The rewards of a step are what the players' returns grew by, also of those
    that did not act.
    """

    def __init__(self, env: Any, observe: str = "auto") -> None:
        """Wrap a game.

        Args:
            env: Game, as `pyspiel.load_game` returns it.
            observe: Tensor of an observation: "information_state", all that a player knows;
                "observation", what the player sees now; or "auto", the first of them that the game
                has.

        Raises:
            EnvError: If the game has no such tensor, or is a mean field game.
        """
        self.env, self.type = env, env.get_type()
        name = self.type.short_name
        if str(self.type.dynamics) == "Dynamics.MEAN_FIELD":
            raise EnvError(
                f"{PREFIX}:{name} is a mean field game, whose population is no agent that acts; use "
                "a sequential or a simultaneous game."
            )
        self.observe = _choose_tensor(self.type, observe)
        self.agents = self.possible_agents = list(range(env.num_players()))
        super().__init__()
        _, size, self._tensor = _TENSORS[self.observe]
        self._num_actions = env.num_distinct_actions()
        space = spaces.Dict(
            {
                OBSERVATIONS: spaces.Box(-np.inf, np.inf, (getattr(env, size)(),), np.float32),
                ACTION_MASK: spaces.MultiBinary(self._num_actions),
            }
        )
        self.observation_spaces = dict.fromkeys(self.possible_agents, space)
        self.action_spaces = dict.fromkeys(self.possible_agents, spaces.Discrete(self._num_actions))
        self.game_state: Any = None
        self._returns = np.zeros(len(self.agents))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[AgentDict, AgentDict]:
        super().reset(seed=seed)
        self.game_state = self.env.new_initial_state()
        self._resolve_chance()
        self._returns = np.asarray(self.game_state.returns())
        return self._observe_players(), {}

    def step(
        self, action_dict: AgentDict
    ) -> tuple[AgentDict, AgentDict, AgentDict, AgentDict, AgentDict]:
        """Apply the actions.

        Raises:
            EnvError: If an action is illegal.
        """
        state = self.game_state
        for player, action in action_dict.items():
            self._check_legal(player, int(action))
        if state.is_simultaneous_node():
            state.apply_actions([int(action_dict.get(p, _UNUSED_ACTION)) for p in self.agents])
        else:
            state.apply_action(int(action_dict[state.current_player()]))
        self._resolve_chance()
        before, self._returns = self._returns, np.asarray(state.returns())
        gains = self._returns - before
        over = bool(state.is_terminal())
        rewards = {player: float(gain) for player, gain in enumerate(gains)}
        flags = dict.fromkeys(self.agents, over)
        return self._observe_players(), rewards, {**flags, ALL: over}, {ALL: False}, {}

    def _resolve_chance(self) -> None:
        while self.game_state.is_chance_node():
            outcomes, weights = zip(*self.game_state.chance_outcomes(), strict=True)
            weights = np.asarray(weights) / np.sum(weights)
            self.game_state.apply_action(int(self.np_random.choice(outcomes, p=weights)))

    def _observe_players(self) -> AgentDict:
        """Return observations of who acts next; nobody does after the end."""
        state = self.game_state
        if state.is_terminal():
            return {}
        if not state.is_simultaneous_node():
            player = state.current_player()
            return {player: self._observe_player(player)}
        acting = [player for player in self.agents if state.legal_actions(player)]
        return {player: self._observe_player(player) for player in acting}

    def get_final_observation(self, agent_id: AgentID) -> dict[str, PyTree]:
        """Return what a player observes whose turn it is not; it may do anything."""
        obs = self._observe_player(cast("int", agent_id))
        return {**obs, ACTION_MASK: np.ones(self._num_actions, np.int8)}

    def _observe_player(self, player: int) -> dict[str, PyTree]:
        mask = np.zeros(self._num_actions, np.int8)
        mask[self.game_state.legal_actions(player)] = 1
        tensor = getattr(self.game_state, self._tensor)(player)
        return {OBSERVATIONS: np.asarray(tensor, np.float32), ACTION_MASK: mask}

    def _check_legal(self, player: int, action: int) -> None:
        legal = self.game_state.legal_actions(player)
        if action not in legal:
            raise EnvError(
                f"{PREFIX}:{self.type.short_name}: action {action} of player {player} is illegal; "
                f"legal are {legal}, the ones of the observation's {ACTION_MASK!r}."
            )


def list_ids() -> list[str]:
    """List the names of OpenSpiel's games."""
    return list(_import_pyspiel("").registered_names())


def make(name: str, request: EnvRequest, env_id: str) -> Creator:
    """Return the creator of a game by its name, which may have parameters: `hex(board_size=5)`.

    The `env_config` has the game's parameters, and `observe` (see `OpenSpielEnv`).

    Raises:
        UnknownNameError: If there is no such game.
        EnvError: If OpenSpiel is not installed.
    """
    del request, env_id
    known = _import_pyspiel(name).registered_names()
    game = name.partition("(")[0]
    if game not in known:
        raise UnknownNameError(f"OpenSpiel has no game {game!r}.{did_you_mean(game, known)}")
    return _GameCreator(name)


class _GameCreator:
    """Creator of a game by its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, context: EnvContext) -> MultiAgentEnv:
        parameters = dict(context)
        observe = parameters.pop("observe", "auto")
        return OpenSpielEnv(load_game(self._name, parameters), observe)


def load_game(name: str, parameters: Mapping[str, Any]) -> Any:
    """Return a game.

    Raises:
        EnvError: If it has no such parameter, or OpenSpiel is not installed.
    """
    pyspiel = _import_pyspiel(name)
    try:
        return pyspiel.load_game(name, dict(parameters)) if parameters else pyspiel.load_game(name)
    except Exception as error:
        raise EnvError(f"{PREFIX}:{name}: {summarize_exception(error)}.") from error


def _import_pyspiel(name: str) -> Any:
    try:
        return importlib.import_module("pyspiel")
    except ModuleNotFoundError as error:
        raise EnvError(
            f"{PREFIX}:{name} lacks the package 'open_spiel'; install it with: "
            "pip install 'jaxrl[openspiel]'."
        ) from error


def _choose_tensor(game_type: Any, observe: str) -> str:
    available = [name for name, (flag, *_) in _TENSORS.items() if getattr(game_type, flag)]
    if observe == "auto" and available:
        return available[0]
    if observe not in available:
        raise EnvError(
            f"{PREFIX}:{game_type.short_name}: observe={observe!r} is not available; 'auto' and "
            f"{available} are."
            if available
            else f"{PREFIX}:{game_type.short_name} has no tensor to observe."
        )
    return observe
