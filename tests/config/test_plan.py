"""The arithmetic of a train batch is exact; what is refused comes with numbers that work."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl.algorithms.ppo import PPOConfig
from jaxrl.config.plan import (
    BatchPlan,
    BatchRequest,
    BatchSizeError,
    choose_num_devices,
    divisors,
    make_plan,
    nearest,
)
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


def test_explicit_values_never_adapt() -> None:
    with pytest.raises(BatchSizeError, match="minibatch_size to 125 or 160") as caught:
        plan_of(train_batch_size=4000, minibatch_size=128)
    assert {"minibatch_size": 125} in caught.value.suggestions
    assert {"train_batch_size": 4096} in caught.value.suggestions


def test_several_problems_get_one_joint_answer() -> None:
    with pytest.raises(BatchSizeError) as caught:
        plan_of(train_batch_size=100, num_envs_per_env_runner=7, minibatch_size=13, num_shards=4)
    assert len(caught.value.suggestions) == 1
    assert "num_envs_per_env_runner=4" in str(caught.value)


def some(low: int, high: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(low, high)


REQUESTS = st.builds(
    BatchRequest,
    train_batch_size=some(1, 5000),
    num_envs=some(1, 70),
    rollout_fragment_length=some(1, 70),
    minibatch_size=some(1, 300),
    num_shards=some(1, 16),
    num_epochs=st.integers(1, 4),
    whole_batch=st.booleans(),
    default_train_batch_size=st.integers(1, 5000),
    default_minibatch_size=st.integers(1, 300),
).map(lambda r: dataclasses.replace(r, minibatch_size=None) if r.whole_batch else r)


def check_identities(request: BatchRequest, plan: BatchPlan) -> None:
    assert plan.num_envs * plan.rollout_fragment_length == plan.train_batch_size
    assert plan.num_minibatches * plan.minibatch_size == plan.train_batch_size
    assert plan.num_envs % plan.num_shards == plan.minibatch_size % plan.num_shards == 0
    assert min(plan.num_envs, plan.rollout_fragment_length, plan.minibatch_size) >= 1
    for name in (
        "train_batch_size",
        "num_envs",
        "rollout_fragment_length",
        "minibatch_size",
        "num_shards",
    ):
        asked = getattr(request, name)
        assert asked is None or getattr(plan, name) == asked
    if request.whole_batch:
        assert plan.minibatch_size == plan.train_batch_size
    if request.num_shards is None:
        common = math.gcd(plan.num_envs, plan.minibatch_size)
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
    """With at most one explicit size there is always a plan."""
    names = ("train_batch_size", "num_envs", "rollout_fragment_length", "minibatch_size")
    for kept in names:
        free = {name: None for name in names if name != kept}
        make_plan(dataclasses.replace(request, **free))


def test_divisors_and_nearest() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
    assert divisors(12, multiple_of=2) == [2, 4, 6, 12]
    assert nearest(divisors(4000), 128) == 125
    assert nearest([8, 32], 16) == 32
    assert nearest([], 3) is None


@pytest.mark.parametrize(
    ("envs", "steps", "minibatch", "cores", "expected"),
    [
        (64, 32, 512, 8, 8),
        (64, 32, 512, 2, 2),
        (64, 32, 512, 3, 2),
        (64, 32, 128, 8, 2),  # 64 rows of a minibatch each
        (16, 128, 512, 8, 2),  # 8 environments each
        (4, 128, 128, 8, 1),
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


def test_requested_devices() -> None:
    plan = plan_of(num_envs_per_env_runner=8, rollout_fragment_length=16, minibatch_size=64)
    assert choose_num_devices(plan, "cpu", 8, 4)[0] == 4
    with pytest.raises(ConfigError, match=r"num_devices=3 .* num_shards=8 .*1, 2, 4 or 8"):
        choose_num_devices(plan, "cpu", 8, 3)
    with pytest.raises(ConfigError, match="at most the 2 local devices: use 1 or 2"):
        choose_num_devices(plan, "cpu", 2, 4)
