"""A pipeline while users put it together: edits, lookups, and what a setting's function may be."""

from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import assemble
from jaxrl.connectors import (
    ActionConnector,
    ClipActions,
    ClipRewards,
    FlattenObservations,
    LearnerConnector,
    MeanStdFilter,
    NormalizeRewards,
    ObservationConnector,
    PipelineBuilder,
    UnsquashActions,
)
from jaxrl.connectors.pipelines import merge_user_connectors
from jaxrl.errors import ConfigError, UnknownNameError
from tests.helpers import observation_pipeline, small


class Double(ObservationConnector):
    """Twice the observation."""

    def __call__(self, state: Any, obs: Any) -> Any:
        return 2.0 * obs


class Once(Double):
    """With a name of its own."""

    name = "once"


class Negate(ActionConnector):
    """The negative action."""

    def __call__(self, action: Any) -> Any:
        return -action


class Magnify(LearnerConnector):
    """Rewards as they are."""

    def __call__(self, state: Any, per_env: Any, rollout: Any, axis_name: Any) -> Any:
        return state, per_env, rollout


def builder() -> PipelineBuilder[Any]:
    return PipelineBuilder(ObservationConnector, [FlattenObservations(), MeanStdFilter()])


# --- edits ---


@pytest.mark.parametrize("which", ["MeanStdFilter", MeanStdFilter])
def test_edits_go_where_they_say_and_chain(which: Any) -> None:
    assert builder().prepend(Double()).names == ("Double", "FlattenObservations", "MeanStdFilter")
    assert builder().append(Once()).names[-1] == "once"
    middle = ("FlattenObservations", "Double", "MeanStdFilter")
    assert builder().insert_before(which, Double()).names == middle
    assert builder().insert_after("FlattenObservations", Double()).names == middle
    assert builder().remove(which).names == ("FlattenObservations",)
    chained = builder().remove(which).append(Double()).prepend(Once())
    assert chained.names == ("once", "FlattenObservations", "Double")
    assert len(chained) == 3
    assert [type(connector) for connector in chained] == [Once, FlattenObservations, Double]
    assert isinstance(chained["once"], Once)
    assert isinstance(chained[FlattenObservations], FlattenObservations)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (
            lambda b: b.insert_after("MeanStdfilter", Double()),
            ["no connector 'MeanStdfilter'", "Did you mean 'MeanStdFilter'?"],
        ),
        (lambda b: b.remove(Double), ["no connector 'Double'", "FlattenObservations, MeanStd"]),
        (lambda b: b["x"], ["no connector 'x'", "It has: FlattenObservations, MeanStdFilter."]),
        (
            lambda b: b.append(Double()).append(Double()).remove("Double"),
            ["2 connectors", "'Double'", "a `name` of their own"],
        ),
    ],
)
def test_what_is_not_there_or_there_twice_is_named(edit: Any, words: list[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        edit(builder())
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (3, ["ObservationConnectors", "got int"]),
        (Negate(), ["got Negate"]),
        (Double, ["got the class Double", "make one with Double(...)"]),
    ],
)
def test_only_connectors_of_its_kind_go_in(value: Any, words: list[str]) -> None:
    for edit in (builder().append, lambda v: builder().insert_before("MeanStdFilter", v)):
        with pytest.raises(ConfigError) as caught:
            edit(value)
        for word in words:
            assert word in str(caught.value)


def test_a_pipeline_is_looked_into_as_a_builder_is() -> None:
    space = spaces.Dict({"action_mask": spaces.MultiBinary(2), "obs": spaces.Discrete(3)})
    pipeline = observation_pipeline(space, "MeanStdFilter")
    assert pipeline.names == ("SeparateMask", "FlattenObservations", "MeanStdFilter")
    assert len(pipeline) == len(list(pipeline)) == 3
    assert pipeline["MeanStdFilter"] is pipeline[MeanStdFilter]  # beside the mask, by its name
    with pytest.raises(UnknownNameError, match="Did you mean 'SeparateMask'"):
        pipeline["SeparateMasks"]


# --- the user's function ---


def placed(function: Any, *, first: bool = True) -> tuple[str, ...]:
    found = merge_user_connectors(
        "env_to_module_connector", function, builder(), should_prepend=first
    )
    return tuple(connector.name for connector in found)


def edits_in_place(pipeline: Any) -> None:
    pipeline.remove("MeanStdFilter")
    pipeline.append(Double())


def optional(pipeline: Any = None) -> Any:
    assert pipeline is None
    return Double()


DEFAULTS = ("FlattenObservations", "MeanStdFilter")


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (None, DEFAULTS),
        (lambda: Double(), ("Double", *DEFAULTS)),
        (Double, ("Double", *DEFAULTS)),
        (lambda: [Once(), Double()], ("once", "Double", *DEFAULTS)),
        (list, DEFAULTS),
        (optional, ("Double", *DEFAULTS)),
        (lambda pipeline: pipeline.append(Double()), (*DEFAULTS, "Double")),
        (lambda pipeline: pipeline, DEFAULTS),
        (edits_in_place, ("FlattenObservations", "Double")),
        (lambda env: [Once(), Double()], ("once", "Double", *DEFAULTS)),
    ],
)
def test_a_function_returns_connectors_or_edits_the_default_ones(
    function: Any, want: tuple[str, ...]
) -> None:
    assert placed(function) == want


def test_returned_connectors_come_after_the_default_ones_in_a_learner() -> None:
    assert placed(lambda: [Once(), Double()], first=False) == (*DEFAULTS, "once", "Double")


def edits_and_returns(pipeline: Any) -> Any:
    pipeline.append(Double())
    return [Once()]


def fails(pipeline: Any) -> Any:
    raise KeyError("something of the user's")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda: None, ["returned None", "let it return connectors"]),
        (lambda pipeline: None, ["returned None"]),
        (edits_and_returns, ["edited the pipeline and returned something else"]),
        (
            lambda a, b, c, d: [],
            ["a function of no arguments or of the default pipeline", "env, spaces, device", "(a,"],
        ),
        (fails, ["raised KeyError", "something of the user's"]),
        (lambda p: p.remove("Flatten"), ["no connector 'Flatten'", "FlattenObservations"]),
        (lambda: [Double], ["got the class Double"]),
        (lambda e: e.observation_space, ["raised AttributeError", "name the parameter env"]),
    ],
)
def test_other_functions_are_refused_by_the_settings_name(function: Any, words: list[str]) -> None:
    with pytest.raises((ConfigError, UnknownNameError)) as caught:
        placed(function)
    assert "env_to_module_connector" in str(caught.value)
    for word in words:
        assert word in str(caught.value)


# --- in a run ---


def late(pipeline: Any) -> Any:
    return pipeline.append(Double())


def test_users_put_connectors_anywhere_in_all_three_pipelines() -> None:
    config = small(env="Pendulum-v1").env_runners(
        observation_filter="MeanStdFilter",
        normalize_rewards=True,
        env_to_module_connector=late,
        module_to_env_connector=lambda p: p.append(Negate()),
    )
    config.environment(clip_rewards=1.0)
    config.learners(learner_connector=lambda p: p.insert_before(NormalizeRewards, Magnify()))
    assembly = assemble(config)
    assert assembly.policy_step.obs_pipeline.names == ("MeanStdFilter", "Double")
    actions = assembly.policy_step.action_pipeline
    assert actions.names == ("UnsquashActions", "Negate")
    np.testing.assert_allclose(actions(jnp.array([[0.5]])), [[-1.0]])  # torque in [-2, 2]
    learner = assembly.train_step.learner_pipeline
    assert learner.names == ("ClipRewards", "Magnify", "NormalizeRewards")
    assert isinstance(learner["ClipRewards"], ClipRewards)


class ToVector(ObservationConnector):
    """A Discrete observation as two numbers."""

    def output_space(self, space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __call__(self, state: Any, obs: Any) -> Any:
        return jnp.stack([obs, -obs], axis=-1).astype(jnp.float32)


def test_default_connectors_fit_themselves_to_what_comes_before_them() -> None:
    space = spaces.Discrete(2)
    assert observation_pipeline(space).names == ("FlattenObservations",)
    assert observation_pipeline(space, extra=(ToVector(),)).names == ("ToVector",)


def test_without_the_default_connectors_there_are_the_users_alone() -> None:
    config = small(env="Pendulum-v1").env_runners(
        add_default_connectors_to_env_to_module_pipeline=False,
        add_default_connectors_to_module_to_env_pipeline=False,
        env_to_module_connector=lambda: [MeanStdFilter()],
    )
    assembly = assemble(config)
    assert assembly.policy_step.obs_pipeline.names == ("MeanStdFilter",)
    assert assembly.policy_step.action_pipeline.names == ()
    assert assembly.module.action_space == assembly.policy_step.action_pipeline.space
    own = ClipActions, UnsquashActions
    for kind in own:  # the library's own can be put in by hand, and find their space
        config.env_runners(module_to_env_connector=kind)
        pipeline = assemble(config).policy_step.action_pipeline
        np.testing.assert_allclose(pipeline(jnp.array([[3.0]])), [[2.0]])
    config = small(normalize_advantages=False)
    config.learners(add_default_connectors_to_learner_pipeline=False)
    assert len(assemble(config).train_step.learner_pipeline) == 0


@pytest.mark.parametrize(
    ("group", "settings", "words"),
    [
        (
            "env_runners",
            {
                "add_default_connectors_to_env_to_module_pipeline": False,
                "observation_filter": "MeanStdFilter",
            },
            ["observation_filter='MeanStdFilter'", "add_default_connectors_to_env_to_module"],
        ),
        (
            "environment",
            {"normalize_actions": True},
            ["normalize_actions=True", "add_default_connectors_to_module_to_env"],
        ),
        (
            "environment",
            {"clip_rewards": 1.0},
            ["clip_rewards=1.0", "add_default_connectors_to_learner"],
        ),
    ],
)
def test_settings_that_only_default_connectors_read_are_not_set_in_vain(
    group: str, settings: dict[str, Any], words: list[str]
) -> None:
    config = small()
    if "normalize_actions" in settings:
        config.env_runners(add_default_connectors_to_module_to_env_pipeline=False)
    if "clip_rewards" in settings:
        config.learners(add_default_connectors_to_learner_pipeline=False)
    getattr(config, group)(**settings)
    with pytest.raises(ConfigError) as caught:
        assemble(config)
    for word in words:
        assert word in str(caught.value)


def test_rllibs_place_for_the_switch_is_understood() -> None:
    config: Any = small().training(add_default_connectors_to_learner_pipeline=False)
    assert config.add_default_connectors_to_learner_pipeline is False
