"""The arithmetic of a train batch is exact; what is refused comes with numbers that work."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl import DQNConfig, PPOConfig
from jaxrl.config.batch_plan import (
    BatchPlan,
    BatchRequest,
    BatchSizeError,
    choose_num_devices,
    divisors,
    find_nearest,
    make_plan,
)
from jaxrl.config.fields import MAX_COUNT
from jaxrl.errors import ConfigError


def plan_of(**values: object) -> BatchPlan:
    return PPOConfig().update_from_dict(values).plan()


def sizes(plan: BatchPlan) -> tuple[int, ...]:
    return plan.num_envs, plan.rollout_fragment_length, plan.minibatch_size, plan.num_shards


def test_defaults() -> None:
    plan = plan_of()
    assert plan.train_batch_size == 4000
    assert sizes(plan) == (16, 250, 125, 1)
    assert (plan.num_minibatches, plan.num_epochs) == (32, 30)
    assert plan.describe() == (
        "16 envs x 250 steps = 4000; 32 minibatches of 125 x 30 epochs = 960 updates an iteration"
    )
    assert "125 instead of the default 128" in " ".join(plan.notes)


@pytest.mark.parametrize(
    ("values", "batch", "expected"),
    [
        # explicit values are kept
        ({"train_batch_size": 512, "num_envs_per_env_runner": 4}, 512, (4, 128, 128, 4)),
        ({"train_batch_size": 4000, "minibatch_size": 160}, 4000, (16, 250, 160, 8)),
        ({"train_batch_size": 100, "minibatch_size": None}, 100, (20, 5, 100, 4)),
        # the train batch adapts to explicit environments and steps
        ({"num_envs_per_env_runner": 64, "rollout_fragment_length": 32}, 2048, (64, 32, 128, 8)),
        ({"num_envs_per_env_runner": 64}, 4032, (64, 63, 126, 2)),
        ({"rollout_fragment_length": 200}, 4000, (20, 200, 125, 1)),
        ({"minibatch_size": 128}, 3968, (16, 248, 128, 8)),
        # shards are kept too, and everything default follows them
        ({"num_shards": 8}, 4000, (16, 250, 160, 8)),
        # a train batch that is smaller than the default minibatch
        ({"train_batch_size": 32}, 32, (16, 2, 32, 8)),
        ({"train_batch_size": 7}, 7, (7, 1, 7, 1)),
    ],
)
def test_examples(values: dict[str, object], batch: int, expected: tuple[int, ...]) -> None:
    plan = plan_of(**values)
    assert plan.train_batch_size == batch
    assert sizes(plan) == expected


def test_every_default_that_adapted_is_announced() -> None:
    notes = " ".join(plan_of(num_envs_per_env_runner=64).notes)
    assert "4032 instead of the default 4000" in notes
    assert "126 instead of the default 128" in notes
    assert plan_of(train_batch_size=2048, num_envs_per_env_runner=16).notes == ()


def test_explicit_minibatches_need_not_divide_the_batch() -> None:
    plan = plan_of(train_batch_size=4000, minibatch_size=128)
    assert plan.train_batch_size == 4000
    assert sizes(plan) == (16, 250, 128, 8)
    assert plan.updates_per_iteration == 938  # 30 x 4000 / 128, rounded up
    assert "31.25 minibatches of 128 x 30 epochs = 938 updates" in plan.describe()
    assert plan.rounding is None


def test_a_minibatch_is_at_most_the_train_batch() -> None:
    with pytest.raises(BatchSizeError, match="minibatch_size=500 is more than train_batch_size=4"):
        plan_of(train_batch_size=400, minibatch_size=500)


@pytest.mark.parametrize(
    ("values", "batch", "steps"),
    [
        ({"num_env_runners": 3, "num_envs_per_env_runner": 1}, 3999, 1333),
        ({"num_env_runners": 7, "num_envs_per_env_runner": 2}, 4004, 286),
        ({"num_envs_per_env_runner": 7, "train_batch_size": 4001}, 4004, 572),
        ({"num_env_runners": 3, "minibatch_size": 128}, 3999, 1333),
        ({"num_env_runners": 3, "model_config": {"use_lstm": True}}, 4020, 1340),
    ],
)
def test_a_train_batch_is_rounded_to_whole_steps_of_all_runners(
    values: dict[str, object], batch: int, steps: int
) -> None:
    config = PPOConfig().update_from_dict({"train_batch_size": 4000, **values})
    plan = config.plan()
    assert (plan.train_batch_size, plan.rollout_fragment_length) == (batch, steps)
    assert plan.rounding in plan.notes
    asked = values.get("train_batch_size", 4000)
    assert f"train_batch_size={asked} is rounded to {batch}, {steps} steps" in str(plan.rounding)
    assert f"train_batch_size = {batch} (from {asked})" in config.explain()
    assert str(plan.rounding) in config.explain()


def test_a_rounding_of_more_than_a_tenth_is_refused() -> None:
    with pytest.raises(BatchSizeError, match="train_batch_size=100 is not a multiple of num_envs"):
        plan_of(train_batch_size=100, num_envs_per_env_runner=64)


def test_several_problems_get_one_joint_answer() -> None:
    with pytest.raises(BatchSizeError) as caught:
        plan_of(train_batch_size=50, num_envs_per_env_runner=41, minibatch_size=13, num_shards=4)
    assert len(caught.value.suggestions) == 1
    assert "num_envs_per_env_runner=4" in str(caught.value)


def some(low: int, high: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(low, high)


REQUESTS = st.builds(
    BatchRequest,
    train_batch_size=some(1, 5000),
    envs_per_runner=some(1, 70),
    rollout_fragment_length=some(1, 70),
    minibatch_size=some(1, 300),
    num_shards=some(1, 16),
    num_env_runners=st.sampled_from([1, 1, 2, 3, 4, 6]),
    num_learners=st.sampled_from([1, 1, 2, 3]),
    is_async=st.booleans(),
    num_epochs=st.integers(1, 4),
    is_whole_batch=st.booleans(),
    default_train_batch_size=st.integers(1, 5000),
    default_minibatch_size=st.integers(1, 300),
).map(lambda r: dataclasses.replace(r, minibatch_size=None) if r.is_whole_batch else r)


def check_identities(request: BatchRequest, plan: BatchPlan) -> None:
    assert plan.num_envs * plan.rollout_fragment_length == plan.train_batch_size
    assert plan.num_minibatches == math.ceil(plan.train_batch_size / plan.minibatch_size)
    assert plan.num_envs % plan.num_shards == plan.minibatch_size % plan.num_shards == 0
    assert plan.num_shards % request.num_learners == 0
    assert plan.num_env_runners == request.num_env_runners
    assert plan.total_envs == plan.num_env_runners * plan.envs_per_runner
    assert plan.num_envs == plan.fragments_per_batch * plan.envs_per_runner
    has_both = request.envs_per_runner is not None and request.rollout_fragment_length is not None
    if not request.is_async:
        assert plan.total_envs * plan.fragments_per_env == plan.num_envs
        assert has_both or plan.fragments_per_env == 1
    assert min(plan.num_envs, plan.rollout_fragment_length, plan.minibatch_size) >= 1
    asked_batch = request.train_batch_size
    if asked_batch is None or asked_batch % math.prod(request.factors.values()) == 0:
        assert asked_batch in (None, plan.train_batch_size)
        assert plan.rounding is None
    else:
        assert abs(plan.train_batch_size - asked_batch) <= 0.1 * asked_batch
        assert plan.rounding in plan.notes
    for name in (
        "envs_per_runner",
        "rollout_fragment_length",
        "minibatch_size",
        "num_shards",
    ):
        asked = getattr(request, name)
        assert asked is None or getattr(plan, name) == asked
    if request.is_whole_batch:
        assert plan.minibatch_size == plan.train_batch_size
    if request.num_shards is None:
        columns = plan.num_envs if request.is_async else plan.total_envs
        common = math.gcd(columns, plan.minibatch_size)
        assert common % plan.num_shards == 0
        if request.num_learners == 1:
            assert plan.num_shards == math.gcd(common, 8)


def check_help(request: BatchRequest, refusal: BatchSizeError) -> None:
    assert refusal.suggestions
    for change in refusal.suggestions:
        changed = dataclasses.replace(request, **change)
        assert changed != request
        check_identities(changed, make_plan(changed))
        assert all(str(value) in str(refusal) for value in change.values())


@settings(max_examples=1500, deadline=None, derandomize=True)
@given(REQUESTS)
def test_accepted_plans_are_exact_and_refusals_help(request: BatchRequest) -> None:
    try:
        check_identities(request, make_plan(request))
    except BatchSizeError as refusal:
        check_help(request, refusal)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(REQUESTS.filter(lambda r: r.num_shards is None))
def test_only_explicit_values_are_refused(request: BatchRequest) -> None:
    """With at most one explicit size there is always a plan for a runner and a learner."""
    request = dataclasses.replace(request, num_env_runners=1, num_learners=1)
    names = ("train_batch_size", "envs_per_runner", "rollout_fragment_length", "minibatch_size")
    for kept in names:
        free = {name: None for name in names if name != kept}
        make_plan(dataclasses.replace(request, **free))


@pytest.mark.parametrize(
    ("values", "numbers", "said"),
    [
        # one fragment of each runner
        (
            {"num_env_runners": 2, "train_batch_size": 2048, "num_envs_per_env_runner": 4},
            (8, 256, 2, 4, 2),
            "2 runners x 4 envs x 256 steps = 2048",
        ),
        ({"num_env_runners": 4}, (16, 250, 4, 4, 4), "4 runners x 4 envs x 250 steps = 4000"),
        (
            {"num_env_runners": 3, "rollout_fragment_length": 50},
            (81, 50, 3, 27, 3),
            "3 runners x 27 envs x 50 steps = 4050",
        ),
        ({"num_env_runners": 1}, (16, 250, 1, 16, 1), "16 envs x 250 steps = 4000"),
        # learners share columns and minibatches
        (
            {"num_learners": 3, "train_batch_size_per_learner": 100, "minibatch_size": None},
            (15, 20, 1, 15, 1),
            "15 envs x 20 steps = 300",
        ),
    ],
)
def test_runners_and_learners_share_the_batch(
    values: dict[str, object], numbers: tuple[int, ...], said: str
) -> None:
    plan = plan_of(**values)
    assert (
        plan.num_envs,
        plan.rollout_fragment_length,
        plan.num_env_runners,
        plan.envs_per_runner,
        plan.fragments_per_batch,
    ) == numbers
    assert plan.describe().startswith(said)
    assert plan.num_shards % max(1, int(str(values.get("num_learners", 1)))) == 0


class Asynchronous(PPOConfig):
    is_async = True


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        # columns, steps, environments of a runner, fragments
        ({"train_batch_size": 500, "rollout_fragment_length": 50}, (10, 50, 5, 2)),
        (
            {
                "train_batch_size": 600,
                "rollout_fragment_length": 50,
                "num_envs_per_env_runner": 4,
            },
            (12, 50, 4, 3),
        ),
        ({"num_envs_per_env_runner": 1, "rollout_fragment_length": 50}, (80, 50, 1, 80)),
        ({"num_envs_per_env_runner": 5}, (10, 400, 5, 2)),
    ],
)
def test_a_batch_of_any_fragments(values: dict[str, int], numbers: tuple[int, ...]) -> None:
    config = Asynchronous().env_runners(num_env_runners=2).training(minibatch_size=None)
    plan = config.update_from_dict(values).plan()
    assert (
        plan.num_envs,
        plan.rollout_fragment_length,
        plan.envs_per_runner,
        plan.fragments_per_batch,
    ) == numbers
    assert plan.total_envs == 2 * plan.envs_per_runner
    if plan.fragments_per_batch != 2:
        assert f"{numbers[3]} fragments x {numbers[2]} envs" in plan.describe()


def test_without_actors_all_environments_make_the_batch() -> None:
    config = Asynchronous().env_runners(rollout_fragment_length=50)
    plan = config.training(train_batch_size=500).plan()
    assert plan.total_envs == plan.num_envs == 10


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        # columns, steps, fragments, of each environment, train batch
        ({"num_env_runners": 2, "num_envs_per_env_runner": 1}, (20, 200, 20, 10, 4000)),
        ({"num_envs_per_env_runner": 4}, (20, 200, 5, 5, 4000)),
        ({"num_env_runners": 2, "num_envs_per_env_runner": 10}, (20, 200, 2, 1, 4000)),
        ({"num_envs_per_env_runner": 3}, (21, 200, 7, 7, 4200)),
    ],
)
def test_several_fragments_of_each_environment_fill_a_batch(
    values: dict[str, int], numbers: tuple[int, ...]
) -> None:
    plan = plan_of(rollout_fragment_length=200, train_batch_size=4000, **values)
    assert numbers == (
        plan.num_envs,
        plan.rollout_fragment_length,
        plan.fragments_per_batch,
        plan.fragments_per_env,
        plan.train_batch_size,
    )
    assert (plan.rounding is None) == (plan.train_batch_size == 4000)
    assert plan.total_envs % plan.num_shards == 0


def test_fragments_that_make_no_batch_are_refused() -> None:
    config = Asynchronous().env_runners(num_env_runners=2, num_envs_per_env_runner=3)
    config.env_runners(rollout_fragment_length=50).training(train_batch_size=500)
    with pytest.raises(BatchSizeError, match="x rollout_fragment_length=50 = 150") as caught:
        config.plan()
    assert {"envs_per_runner": 2} in caught.value.suggestions
    assert {"train_batch_size": 450} in caught.value.suggestions
    assert "num_env_runners" not in str(caught.value)  # would change nothing


def test_numbers_of_runners_are_suggested_to_those_who_have_runners() -> None:
    with pytest.raises(BatchSizeError, match="set num_env_runners to 2 or 4, or train_batch"):
        plan_of(num_env_runners=3, rollout_fragment_length=1000, train_batch_size=4000)
    with pytest.raises(BatchSizeError) as caught:
        plan_of(num_envs_per_env_runner=7, rollout_fragment_length=1000, train_batch_size=4000)
    assert "num_env_runners" not in str(caught.value)


def test_a_batch_per_learner_is_suggested_per_learner() -> None:
    with pytest.raises(BatchSizeError) as caught:
        plan_of(num_learners=2, train_batch_size_per_learner=50, num_envs_per_env_runner=64)
    assert "train_batch_size_per_learner=50 x num_learners=2 = 100" in str(caught.value)
    assert "train_batch_size_per_learner to 32 or 64" in str(caught.value)


def test_two_train_batch_sizes_must_agree() -> None:
    agreeing = {"num_learners": 2, "train_batch_size": 1024, "train_batch_size_per_learner": 512}
    assert plan_of(**agreeing).train_batch_size == 1024
    assert plan_of(train_batch_size_per_learner=512).train_batch_size == 512
    with pytest.raises(
        ConfigError, match=r"train_batch_size=1024 is not .*=512 for each of 1 lear"
    ):
        plan_of(**{**agreeing, "num_learners": 0})


def test_learners_share_whole_shards() -> None:
    with pytest.raises(BatchSizeError, match="num_shards=4 is not a multiple of num_learners=3"):
        plan_of(num_learners=3, num_shards=4)
    with pytest.raises(BatchSizeError, match="minibatch_size=125 is not a multiple of num_learn"):
        plan_of(num_learners=2, minibatch_size=125)


def test_divisors_and_nearest() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(12, multiple_of=2) == [2, 4, 6, 12]
    assert find_nearest(divisors(4000), 128) == 125
    assert find_nearest([8, 32], 16) == 32
    assert find_nearest([], 3) is None


@pytest.mark.parametrize(
    ("envs", "steps", "minibatch", "cores", "expected"),
    [
        (64, 32, 512, 8, 8),
        (64, 32, 512, 2, 2),
        (64, 32, 512, 3, 2),
        (64, 32, 128, 8, 2),  # 64 rows of a minibatch each
        (16, 128, 512, 8, 8),
        (4, 128, 128, 8, 2),
        (4, 128, 64, 8, 1),
    ],
)
def test_cores_are_taken_where_it_pays(
    envs: int, steps: int, minibatch: int, cores: int, expected: int
) -> None:
    plan = plan_of(
        num_envs_per_env_runner=envs, rollout_fragment_length=steps, minibatch_size=minibatch
    )
    number, why = choose_num_devices(plan, "cpu", cores)
    assert number == expected
    assert str(expected) in why
    assert plan.num_shards % number == 0


def test_accelerators_are_all_taken() -> None:
    plan = plan_of(num_envs_per_env_runner=8, rollout_fragment_length=16, minibatch_size=64)
    assert choose_num_devices(plan, "gpu", 4)[0] == 4
    assert choose_num_devices(plan, "gpu", 3)[0] == 2
    assert choose_num_devices(plan, "gpu", 4, is_on_host=True)[0] == 4


def test_updates_alone_are_not_divided_over_cores() -> None:
    plan = plan_of(num_envs_per_env_runner=64, rollout_fragment_length=32, minibatch_size=512)
    number, why = choose_num_devices(plan, "cpu", 8, is_on_host=True)
    assert number == 1
    assert "the environments are on the host" in why
    assert choose_num_devices(plan, "cpu", 8, 4, is_on_host=True)[0] == 4


def test_requested_devices() -> None:
    plan = plan_of(num_envs_per_env_runner=8, rollout_fragment_length=16, minibatch_size=64)
    assert choose_num_devices(plan, "cpu", 8, 4)[0] == 4
    with pytest.raises(ConfigError, match=r"num_devices=3 .* num_shards=8 .*1, 2, 4 or 8"):
        choose_num_devices(plan, "cpu", 8, 3)
    with pytest.raises(ConfigError, match="at most the 2 local devices: use 1 or 2"):
        choose_num_devices(plan, "cpu", 2, 4)


def test_sequences_stay_whole_where_sizes_are_free() -> None:
    model = {"use_lstm": True, "max_seq_len": 20}
    plan = PPOConfig().rl_module(model_config=model).plan()
    assert plan.sequence_length == 20
    assert plan.rollout_fragment_length % 20 == plan.minibatch_size % 20 == 0
    in_shard = plan.rollout_fragment_length // 20 * (plan.num_envs // plan.num_shards)
    assert in_shard % plan.num_minibatches == 0
    assert abs(plan.train_batch_size - 4000) <= 200


def test_sequences_are_as_long_as_explicit_sizes_allow() -> None:
    config = PPOConfig().rl_module(model_config={"use_lstm": True, "max_seq_len": 20})
    config.env_runners(num_envs_per_env_runner=8, rollout_fragment_length=128)
    config.training(train_batch_size=1024, minibatch_size=256)
    plan = config.plan()
    assert (plan.rollout_fragment_length, plan.minibatch_size) == (128, 256)
    assert plan.sequence_length == 16
    assert PPOConfig().plan().sequence_length is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"minibatch_size": 2**63}, "minibatch_size must be .* at most 2147483647"),
        ({"train_batch_size": 2**61 - 1}, "train_batch_size must be .* at most 2147483647"),
        ({"num_envs_per_env_runner": 10**18}, "num_envs_per_env_runner must be"),
        ({"num_envs_per_env_runner": MAX_COUNT, "num_env_runners": 2}, "more than 2147483647 rows"),
        ({"num_envs_per_env_runner": MAX_COUNT, "minibatch_size": MAX_COUNT - 1}, "more than"),
        ({"train_batch_size_per_learner": MAX_COUNT, "num_learners": 9}, "more than 2147483647"),
    ],
)
def test_sizes_beyond_all_arrays_are_refused_at_once(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan_of(**values)


def test_the_largest_sizes_are_planned_at_once() -> None:
    assert plan_of(train_batch_size=MAX_COUNT).train_batch_size == MAX_COUNT
    most = {"use_lstm": True, "max_seq_len": 10**9}
    assert plan_of(model_config=most).sequence_length == 10**9
    with pytest.raises(BatchSizeError, match="minibatch_size to 698377680 or 1396755360"):
        plan_of(train_batch_size=1396755360, minibatch_size=1396755359, num_shards=2)


@given(st.integers(1, 5000), st.integers(1, 12))
def test_divisors_are_all_divisors(number: int, unit: int) -> None:
    found = [d for d in range(1, number + 1) if number % d == 0 and d % unit == 0]
    assert divisors(number, unit) == found


@pytest.mark.parametrize("intensity", [1e-30, 1e30, float("inf")])
def test_an_intensity_of_no_or_countless_updates_is_refused(intensity: float) -> None:
    with pytest.raises(ConfigError, match=r"training_intensity=.* must be at least 0.0001"):
        DQNConfig().training(training_intensity=intensity).plan()
    many = DQNConfig().training(training_intensity=1e9, train_batch_size=1)
    with pytest.raises(BatchSizeError, match="lower it"):
        many.env_runners(num_envs_per_env_runner=64).plan()
