"""Connectors as RLlib's code has them: signatures of the functions, pieces and their arguments."""

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl import AlgorithmConfig
from jaxrl.assembly.env import EnvToInspect, get_rllib_spaces
from jaxrl.compat.rllib.connectors import (
    FrameStackingLearner,
    NumpyToTensor,
    choose_arguments,
    is_for_agents,
)
from jaxrl.connectors import (
    ClipRewards,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    ObservationConnector,
    PipelineBuilder,
    PrevActionsPrevRewards,
    SingleAgentObservationPreprocessor,
)
from jaxrl.envs import make
from jaxrl.errors import ConfigError
from tests.helpers import small

PIPELINE = object()
OFFERS = {"env": lambda: "E", "spaces": lambda: "S", "device": lambda: None}
LEARNER_OFFERS = {"input_observation_space": lambda: "O", "input_action_space": lambda: "A"}


class Halves(SingleAgentObservationPreprocessor):
    """Sees one observation at a time."""

    def preprocess(self, observation: Any, episode: Any) -> Any:
        return {"half": observation / 2, "sum": observation.sum()}

    def recompute_output_observation_space(
        self, input_observation_space: Any, input_action_space: Any
    ) -> Any:
        unbounded = gymnasium.spaces.Box(-np.inf, np.inf, input_observation_space.shape, np.float32)
        return gymnasium.spaces.Dict(
            {"half": unbounded, "sum": gymnasium.spaces.Box(-np.inf, np.inf, (), np.float32)}
        )


class ReadsEpisode(Halves):
    def preprocess(self, observation: Any, episode: Any) -> Any:
        return observation * episode.get_return()


def build(**settings: Any) -> Any:
    """The assembled pipelines of a small run, and its module."""
    learner = settings.pop("learner_connector", None)
    config = small().env_runners(**settings).learners(learner_connector=learner)
    return assemble(config.debugging(loggers=[]))


def assemble(config: AlgorithmConfig) -> Any:
    from jaxrl.assembly.assemble import assemble as assemble_run

    return assemble_run(config)


# --- signatures ---


@pytest.mark.parametrize(
    ("function", "positional", "named"),
    [
        (lambda: 0, [], {}),
        (lambda pipeline: 0, [PIPELINE], {}),
        (lambda _: 0, [PIPELINE], {}),
        (lambda env: 0, [], {"env": "E"}),
        (lambda spaces: 0, [], {"spaces": "S"}),
        (lambda env, spaces, device: 0, [], {"env": "E", "spaces": "S", "device": None}),
        (lambda env=None, spaces=None: 0, [], {"env": "E", "spaces": "S"}),
        (lambda env, num_frames=4: 0, [], {"env": "E"}),
        (lambda *, env: 0, [], {"env": "E"}),
        (lambda env, /: 0, ["E"], {}),
        (lambda _, __: 0, ["E", "S"], {}),
        (lambda e, s, d: 0, ["E", "S", None], {}),
        (lambda env, **more: 0, [], {"env": "E"}),
        (lambda *args: 0, [], {}),
    ],
)
def test_names_and_number_of_parameters_choose_the_arguments(
    function: Any, positional: list[Any], named: dict[str, Any]
) -> None:
    found = choose_arguments("env_to_module_connector", function, PIPELINE, OFFERS)
    assert found == (positional, named)


@pytest.mark.parametrize(
    ("function", "positional", "named"),
    [
        (lambda obs_space, act_space: 0, [], {"obs_space": "O", "act_space": "A"}),
        (lambda input_observation_space: 0, [], {"input_observation_space": "O"}),
        (lambda o, a: 0, ["O", "A"], {}),
        (lambda pipeline: 0, [PIPELINE], {}),
    ],
)
def test_a_function_for_the_learner_receives_spaces(
    function: Any, positional: list[Any], named: dict[str, Any]
) -> None:
    found = choose_arguments("learner_connector", function, PIPELINE, LEARNER_OFFERS)
    assert found == (positional, named)


def test_env_is_the_environment_in_the_form_of_a_vector_environment() -> None:
    env = EnvToInspect(make("CartPole-v1"))
    assert env.single_observation_space.shape == (4,)
    assert env.observation_space.shape == (1, 4)
    assert env.unwrapped is env
    host = EnvToInspect(make("gymnasium:CartPole-v1"))
    assert host.envs[0].spec.id == "CartPole-v1"
    assert host.spec.id == "CartPole-v1"
    host.close()
    assert get_rllib_spaces(make("CartPole-v1").spaces)["__env_single__"][1].n == 2


# --- pieces ---


@pytest.mark.parametrize(
    ("made", "want"),
    [
        (FrameStacking(None, None, num_frames=4, multi_agent=False), FrameStacking(4)),  # pyright: ignore
        (FrameStacking(num_frames=2, as_learner_connector=False), FrameStacking(2)),  # pyright: ignore
        (
            PrevActionsPrevRewards(None, None, n_prev_rewards=3, multi_agent=False),  # pyright: ignore
            PrevActionsPrevRewards(1, 3),
        ),
        (
            MeanStdFilter(multi_agent=False, clip_by_value=5.0, update_stats=True),
            MeanStdFilter(5.0),
        ),  # pyright: ignore
        (MeanStdFilter(clip_by_value=None), MeanStdFilter(clip=None)),  # pyright: ignore
        (FlattenObservations(keys_to_remove=None, agent_ids=None), FlattenObservations()),  # pyright: ignore
    ],
)
def test_pieces_take_rllibs_arguments(made: Any, want: Any) -> None:
    assert vars(made) == vars(want)


@pytest.mark.parametrize(
    ("make_piece", "words"),
    [
        (lambda: MeanStdFilter(de_mean_to_zero=False), "de_mean_to_zero=False.* no effect"),  # pyright: ignore
        (lambda: FlattenObservations(keys_to_remove=["a"]), "leaves parts out"),  # pyright: ignore
        (lambda: FlattenObservations(multi_agnt=False), "Did you mean 'multi_agent'"),  # pyright: ignore
    ],
)
def test_arguments_that_would_change_something_are_refused(make_piece: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_piece()


@pytest.mark.parametrize(
    "piece",
    [
        FrameStacking(num_frames=4, multi_agent=True),  # pyright: ignore
        NumpyToTensor(multi_agent=True),
        Halves(multi_agent=True),
    ],
)
def test_pieces_for_several_agents_are_for_the_agents_that_they_name(piece: Any) -> None:
    with pytest.raises(ConfigError, match=r"multi_agent=True\) has no effect with a single agent"):
        is_for_agents(piece, None)
    assert is_for_agents(piece, ["0", "1"])
    some = FlattenObservations(agent_ids={0})  # pyright: ignore
    assert is_for_agents(some, ["0"])
    assert not is_for_agents(some, ["1"])
    with pytest.raises(ConfigError, match="some of the agents of a module, which are 0, 1"):
        is_for_agents(some, ["0", "1"])


def test_an_unbounded_filter_clips_nothing() -> None:
    space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    bound: Any = MeanStdFilter(clip=None).bind(space, gymnasium.spaces.Discrete(2))
    state = bound.update(bound.init(space), jnp.zeros((4, 3, 2)), jnp.ones((4, 3), bool), None)
    assert np.asarray(bound(state, jnp.full((1, 2), 1e5))).min() > 1e4


def test_a_preprocessor_sees_single_observations_on_every_batch_shape() -> None:
    space = gymnasium.spaces.Box(-1, 1, (4,), np.float32)
    bound = Halves().bind(space, gymnasium.spaces.Discrete(2))
    out = bound((), jnp.ones((3, 5, 4)))
    assert (out["half"].shape, out["sum"].shape) == ((3, 5, 4), (3, 5))
    assert float(out["sum"][0, 0]) == 4.0
    assert Halves().input_observation_space is None


# --- in a run ---


@pytest.mark.parametrize("placement", ["in_graph", "host"])
def test_rllibs_functions_make_the_pipelines(placement: str) -> None:
    seen: list[Any] = []

    def stack(env: Any, spaces: Any, device: Any) -> Any:
        seen.append((env.single_observation_space, spaces["__env__"][0].shape, device))
        return [FrameStacking(num_frames=2), NumpyToTensor()]  # precede the default connectors

    found = build(
        placement=placement,
        env_to_module_connector=stack,
        module_to_env_connector=lambda env, spaces: [],
        learner_connector=lambda obs_space, act_space: [
            FrameStackingLearner(num_frames=2),
            FlattenObservations(as_learner_connector=True),  # pyright: ignore
            ClipRewards(-1.0, 1.0),
        ],
        observation_filter="MeanStdFilter",
    )
    assert found.policy_step.obs_pipeline.names == ("FrameStacking", "MeanStdFilter")
    assert found.policy_step.module.observation_space.shape == (8,)
    assert found.train_step.learner_pipeline.names == ("ClipRewards",)
    assert seen[0][1:] == ((1, 4), None)
    assert seen[0][0].shape == (4,)


def test_a_fresh_pipeline_may_be_returned() -> None:
    def make_own(env: Any) -> Any:
        return PipelineBuilder(ObservationConnector, [FrameStacking(2)])

    found = build(env_to_module_connector=make_own)
    assert found.policy_step.obs_pipeline.names == ("FrameStacking",)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"learner_connector": lambda o, a: FrameStackingLearner(num_frames=4)},
            "learner_connector: FrameStackingLearner.num_frames=4. differs from the runners, .* 1;",
        ),
        (
            {"learner_connector": lambda o, a: MeanStdFilter()},
            "MeanStdFilter transforms observations; .* env_to_module_connector alone",
        ),
        ({"env_to_module_connector": ReadsEpisode}, r"no episode.get_return here"),
        ({"env_to_module_connector": lambda env, spaces, device: None}, "returned None"),
        ({"env_to_module_connector": lambda env: env.nothing}, "raised AttributeError"),
    ],
)
def test_what_does_not_fit_is_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(**settings)
