"""RLlib's connector pieces and their arguments, and the arguments of functions that make them."""

import copy
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import gymnasium
import jax
import numpy as np

from jaxrl.connectors.base import ObservationConnector
from jaxrl.connectors.pipelines import Offers
from jaxrl.core.spaces import get_leaf_spaces, map_leaves
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError, SpaceError, did_you_mean

_SPACE_ARGUMENTS = ("input_observation_space", "input_action_space")
_AGENT_ARGUMENTS: Mapping[str, object] = {"multi_agent": False, "agent_ids": None}
"""Arguments of RLlib's pieces for several agents, with their defaults."""
_NEUTRAL_ARGUMENTS: Mapping[str, tuple[object, ...]] = {
    "keys_to_remove": (None, []),
    "de_mean_to_zero": (True,),
    "de_std_to_one": (True,),
    "update_stats": (True,),
    "as_learner_connector": (False, True),
}
"""Arguments of RLlib's pieces that have no counterpart, with the values that change nothing here."""
_REASONS: Mapping[str, str] = {
    "keys_to_remove": "write an ObservationConnector that leaves parts out",
    "de_mean_to_zero": "the filter subtracts the mean and divides by the standard deviation",
    "de_std_to_one": "the filter subtracts the mean and divides by the standard deviation",
    "update_stats": "statistics are updated in training and frozen in evaluation",
}


class NoPreprocessor:
    """Preprocessor of a space: models here take observations as the environment returns them.

    Args:
        obs_space: Observation space.
        options: Argument of RLlib's, which has no effect.

    Attributes:
        observation_space: Space of what it returns.
        shape: Shape of what it returns; None for a Dict or Tuple.
    """

    def __init__(self, obs_space: gymnasium.Space[Any], options: object = None) -> None:
        del options
        self.observation_space, self.shape = obs_space, obs_space.shape

    def transform(self, observation: PyTree) -> PyTree:
        """Return an observation as arrays of the types of its space.

        Raises:
            SpaceError: If it does not have the structure and the shapes of the space.
        """
        space = self.observation_space
        try:
            arrays = map_leaves(lambda leaf, x: np.asarray(x, leaf.dtype), space, observation)
            shapes = [x.shape for x in jax.tree.leaves(arrays)]
            fits = shapes == [leaf.shape for _, leaf in get_leaf_spaces(space)]
        except (KeyError, TypeError, ValueError, IndexError):
            fits, arrays = False, None
        if not fits:
            raise SpaceError(f"{observation!r:.80} is no observation of {space}.")
        return arrays


def get_preprocessor(space: gymnasium.Space[Any]) -> type[NoPreprocessor]:
    """Return the class of the preprocessor for a space, which is the same for all."""
    del space
    return NoPreprocessor


def read_piece_arguments(
    piece: object,
    parameters: Collection[str],
    renamed: Mapping[str, str],
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments of a connector, from those of RLlib's piece.

    RLlib passes the spaces first, which are known here when the pipeline is made. Arguments without
    a counterpart may have the value that changes nothing.

    Args:
        piece: Connector, which remembers the agents that it is for.
        parameters: Names of the connector's arguments.
        renamed: Arguments here, by their names in RLlib.
        args: Positional arguments.
        kwargs: Arguments by name.

    Raises:
        ConfigError: If an argument has no effect here.
    """
    for _ in _SPACE_ARGUMENTS:
        if args and (args[0] is None or isinstance(args[0], gymnasium.Space)):
            args = args[1:]
    named = {renamed.get(name, name): value for name, value in kwargs.items()}
    others = {name: value for name, value in named.items() if name not in parameters}
    _set_agents(piece, others)
    _check_rllib_arguments(type(piece).__name__, others)
    return args, {name: value for name, value in named.items() if name in parameters}


def _set_agents(piece: object, arguments: dict[str, Any]) -> None:
    """Move RLlib's arguments for several agents, where they say something, to the piece itself."""
    given = {name: arguments.pop(name, default) for name, default in _AGENT_ARGUMENTS.items()}
    if given != _AGENT_ARGUMENTS:
        object.__setattr__(piece, "_rllib_agents", given)


def is_for_agents(piece: object, agents: Sequence[str] | None) -> bool:
    """Return whether a piece is part of the pipeline of a module.

    Args:
        piece: Connector or piece of RLlib's, for the agents of its `agent_ids` alone, if it has any.
        agents: Agents of the module; None for the pipeline of a single agent.

    Raises:
        ConfigError: If there is a single agent, or the piece is for some of the module's agents.
    """
    given: Mapping[str, Any] = getattr(piece, "_rllib_agents", _AGENT_ARGUMENTS)
    name, ids = type(piece).__name__, given["agent_ids"]
    if agents is None:
        set_ = next((n for n, default in _AGENT_ARGUMENTS.items() if given[n] != default), None)
        if set_ is not None:
            raise ConfigError(
                f"{name}({set_}={given[set_]!r}) has no effect with a single agent: leave it out."
            )
        return True
    if ids is None:
        return True
    chosen = {str(agent) for agent in ids}
    inside = [agent for agent in agents if agent in chosen]
    if inside and len(inside) < len(agents):
        raise ConfigError(
            f"{name}(agent_ids={sorted(chosen)}) is for some of the agents of a module, which are "
            f"{', '.join(agents)}, and they have one pipeline: name all of them or none."
        )
    return bool(inside)


def _check_rllib_arguments(piece: str, arguments: Mapping[str, object]) -> None:
    """Check that arguments without a counterpart change nothing.

    Raises:
        ConfigError: If one does; the message says why.
    """
    for name, value in arguments.items():
        if name in _SPACE_ARGUMENTS:
            continue
        if name not in _NEUTRAL_ARGUMENTS:
            hint = did_you_mean(name, [*_NEUTRAL_ARGUMENTS, *_AGENT_ARGUMENTS])
            raise ConfigError(f"{piece} has no argument {name!r}.{hint}")
        if not any(value == neutral for neutral in _NEUTRAL_ARGUMENTS[name]):
            raise ConfigError(f"{piece}({name}={value!r}) has no effect here: {_REASONS[name]}.")


class ImpliedPiece:
    """Piece of RLlib whose work is part of every run here, and which pipelines leave out.

    Args:
        *args: RLlib's arguments, which only have to be neutral for a single agent.
        **kwargs: As before.
    """

    def __init__(self, *args: object, **kwargs: object) -> None:
        _set_agents(self, kwargs)


def is_implied(piece: object) -> bool:
    """Return whether a piece is one of RLlib's whose work is part of every run here."""
    return isinstance(piece, ImpliedPiece)


class AddObservationsFromEpisodesToBatch(ImpliedPiece):
    """Reading of observations, which every pipeline begins with."""


class AddStatesFromEpisodesToBatch(ImpliedPiece):
    """Reading of the recurrent state, which the rollout carries."""


class AddTimeDimToBatchAndZeroPad(ImpliedPiece):
    """Cutting of rollouts into sequences, which `max_seq_len` controls."""


class AddColumnsFromEpisodesToTrainBatch(ImpliedPiece):
    """Reading of actions and rewards, which the rollout holds."""


class AddOneTsToEpisodesAndTruncate(ImpliedPiece):
    """Addition of the last observation, which the rollout holds as `final_obs`."""


class BatchIndividualItems(ImpliedPiece):
    """Batching of single items, which are arrays from the start."""


class GetActions(ImpliedPiece):
    """Sampling of actions, which the module does."""


class ListifyDataForVectorEnv(ImpliedPiece):
    """Splitting of actions by environment, which the vector environment does."""


class NumpyToTensor(ImpliedPiece):
    """Transfer to the device, which the program does."""


class RemoveSingleTsTimeRankFromBatch(ImpliedPiece):
    """Removal of the time axis, which single steps do not have."""


class TensorToNumpy(ImpliedPiece):
    """Transfer from the device, which the program does."""


class UnBatchToIndividualItems(ImpliedPiece):
    """Splitting of a batch, which the vector environment does."""


class WriteObservationsToEpisodes(ImpliedPiece):
    """Storing of transformed observations; the learner applies the same connectors instead."""


class FrameStackingLearner(ImpliedPiece):
    """Stacking of frames for the learner, which applies the connectors of the runners itself.

    Args:
        *args: Spaces, as in RLlib.
        num_frames: Number of observations per stack, which must be that of `FrameStacking` in
            `env_to_module_connector`.
        **kwargs: Other arguments of RLlib's piece.
    """

    def __init__(self, *args: object, num_frames: int = 1, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)
        self.num_frames = num_frames


def get_stacked_frames(piece: object) -> int | None:
    """Return the number of frames that a piece for the learner stacks, None if it stacks none."""
    return piece.num_frames if isinstance(piece, FrameStackingLearner) else None


class NoEpisode:
    """Value of `episode` in `preprocess`, which has no attributes."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"preprocess() has no episode.{name} here: a TemporalConnector keeps what it needs of "
            "an episode, see the guide Connectors"
        )


NO_EPISODE: Final = NoEpisode()


class SingleAgentObservationPreprocessor(ObservationConnector):
    """Connector of one observation at a time, with RLlib's methods.

    Subclasses define `preprocess`, in jax.numpy, and `recompute_output_observation_space` if the
    space changes.

    Args:
        input_observation_space: Input space, set by `bind`.
        input_action_space: Action space of the module, set by `bind`.
        **kwargs: RLlib's other arguments, which have to be neutral.
    """

    input_observation_space: gymnasium.Space[Any] | None = None
    input_action_space: gymnasium.Space[Any] | None = None

    def __init__(
        self,
        input_observation_space: gymnasium.Space[Any] | None = None,
        input_action_space: gymnasium.Space[Any] | None = None,
        **kwargs: object,
    ) -> None:
        _set_agents(self, kwargs)
        _check_rllib_arguments(type(self).__name__, kwargs)
        self.input_observation_space = input_observation_space
        self.input_action_space = input_action_space

    def recompute_output_observation_space(
        self,
        input_observation_space: gymnasium.Space[Any],
        input_action_space: gymnasium.Space[Any],
    ) -> gymnasium.Space[Any]:
        """Return the space of the output."""
        del input_action_space
        return input_observation_space

    def preprocess(self, observation: PyTree, episode: NoEpisode) -> PyTree:
        """Transform one observation, without a batch axis; `episode` has no attributes here."""
        raise NotImplementedError(f"{type(self).__name__} does not define preprocess")

    def bind(
        self, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]
    ) -> "SingleAgentObservationPreprocessor":
        bound = copy.copy(self)
        bound.input_observation_space, bound.input_action_space = space, action_space
        return bound

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        action_space = self.input_action_space
        assert action_space is not None, "bind() has not been called"
        return self.recompute_output_observation_space(space, action_space)

    def __call__(self, state: PyTree, obs: PyTree) -> PyTree:
        del state

        def preprocess(observation: PyTree) -> PyTree:
            return self.preprocess(observation, NO_EPISODE)

        for _ in range(_count_batch_axes(self.input_observation_space, obs)):
            preprocess = jax.vmap(preprocess)
        return preprocess(obs)


def _count_batch_axes(space: gymnasium.Space[Any] | None, obs: PyTree) -> int:
    """Return the number of leading batch axes of observations."""
    assert space is not None, "bind() has not been called"
    _, leaf = get_leaf_spaces(space)[0]
    first = jax.tree.leaves(obs)[0]
    return first.ndim - len(leaf.shape or ())


_ENV_ARGUMENTS = ("env", "spaces", "device")
_ARGUMENTS: Mapping[str, Sequence[str]] = {
    "env_to_module_connector": _ENV_ARGUMENTS,
    "module_to_env_connector": _ENV_ARGUMENTS,
    "learner_connector": ("input_observation_space", "input_action_space", "device"),
}
"""Arguments that RLlib passes to the function of each setting, in order."""

_SYNONYMS: Mapping[str, Sequence[str]] = {
    "env": ("envs", "vector_env", "gym_env"),
    "spaces": (),
    "device": (),
    "input_observation_space": ("observation_space", "obs_space", "in_obs_space"),
    "input_action_space": ("action_space", "act_space", "in_action_space"),
}
"""Other names that users give to these arguments."""


def choose_arguments(
    setting: str, function: Callable[..., object], pipeline: object, offers: Offers
) -> tuple[list[object], dict[str, object]]:
    """Choose the arguments that a function for connectors is called with.

    A function whose parameters have RLlib's names, or that requires two or three, receives RLlib's
    arguments. One that can be called without arguments receives none, and one of a single parameter
    the pipeline.

    Args:
        setting: Name of the setting that the function is the value of.
        function: Function of the user.
        pipeline: Builder with the default connectors.
        offers: RLlib's arguments; those that are missing are None.

    Returns:
        Positional and keyword arguments.

    Raises:
        ConfigError: If the function has another signature.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # functions written in C may have no signature
        return [], {}
    parameters = [p for p in signature.parameters.values() if p.kind not in _VARIADIC]
    required = [p for p in parameters if p.default is inspect.Parameter.empty]
    names = _ARGUMENTS[setting]
    roles = {p.name: role for p in parameters if (role := _find_role(p.name, names)) is not None}

    def make(role: str) -> object:
        return offers[role]() if role in offers else None

    if roles and all(p.name in roles for p in required):
        given = {p.name: make(roles[p.name]) for p in parameters if p.name in roles}
        first = [given.pop(p.name) for p in parameters if p.kind is _POSITIONAL and p.name in roles]
        return first, given
    if len(required) in (2, 3) and all(p.kind in _CAN_BE_POSITIONAL for p in required):
        return [make(role) for role in names[: len(required)]], {}
    for arguments in ([], [pipeline]):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return arguments, {}
    raise ConfigError(
        f"{setting} must be a function of no arguments or of the default pipeline, or as in RLlib "
        f"of {', '.join(names)}, got one of {signature}."
    )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_CAN_BE_POSITIONAL = (_POSITIONAL, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _find_role(name: str, names: Sequence[str]) -> str | None:
    """Return RLlib's name of a parameter, None if it is not one of RLlib's."""
    plain = name.strip("_")
    return next((role for role in names if plain in (role, *_SYNONYMS[role])), None)
