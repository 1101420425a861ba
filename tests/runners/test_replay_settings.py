"""Effects of the settings of replay on a run, before anything is compiled."""

from typing import Any

import jax
import pytest

from jaxrl.assembly.assemble import Assembly, assemble
from jaxrl.buffers.replay import ReplayBuffer
from jaxrl.config.batch_plan import ReplayPlan
from jaxrl.errors import ConfigError
from jaxrl.runners.placement import check_memory
from tests.replays import CAPACITY, NUM_ENVS, PRIORITIZED, ROWS, STEPS, replaying


def built(buffer: dict[str, Any] | None = None, **training: Any) -> ReplayBuffer:
    replay = assemble(replaying(buffer=buffer, **training)).train_step.experience
    assert isinstance(replay, ReplayBuffer)
    return replay


def test_every_setting_of_replay_reaches_the_buffer() -> None:
    plain = built()
    assert (plain.length, plain.num_envs, plain.batch_size) == (20, NUM_ENVS, ROWS)
    assert plain.num_updates == 4 * NUM_ENVS * STEPS // ROWS
    assert plain.min_rows_to_learn == 32
    assert plain.n_step == (1, 1)
    assert plain.prioritization is None
    assert built({"capacity": 40}).length == 10
    assert built(training_intensity=8.0).num_updates == 4
    assert built(training_intensity=None).num_updates == 1
    assert built(num_steps_sampled_before_learning_starts=0).min_rows_to_learn == NUM_ENVS
    assert built(num_steps_sampled_before_learning_starts=37).min_rows_to_learn == 40
    assert built(n_step=3).n_step == (3, 3)
    assert built(n_step=(1, 5)).n_step == (1, 5)
    prioritized = built(PRIORITIZED).prioritization
    assert prioritized is not None
    assert prioritized.alpha == 0.6
    assert float(prioritized.beta.value_at(500.0)) == pytest.approx(0.7)
    for name in ("PrioritizedReplayBuffer", "PrioritizedEpisodeReplayBuffer"):
        of_rllib = built({**PRIORITIZED, "type": name}).prioritization
        assert of_rllib is not None
        assert of_rllib.alpha == 0.6


@pytest.mark.parametrize(
    ("intensity", "num_envs", "rows", "steps", "updates"),
    [(8.0, 1, 32, 4, 1), (1.0, 8, 32, 4, 1), (0.1, 1, 32, 320, 1), (96.0, 2, 64, 1, 3)],
)
def test_a_rollout_is_as_long_as_exact_ratios_need(
    intensity: float, num_envs: int, rows: int, steps: int, updates: int
) -> None:
    config = replaying(
        training_intensity=intensity, train_batch_size=rows, buffer={"capacity": 640}
    )
    config.env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length="auto")
    plan = config.plan()
    assert isinstance(plan, ReplayPlan)
    assert (plan.rollout_fragment_length, plan.num_minibatches) == (steps, updates)
    assert updates * rows == intensity * num_envs * steps
    assert f"rollout_fragment_length='auto': {steps}." in plan.notes


def test_what_is_not_as_it_was_set_is_told() -> None:
    config = replaying(buffer={"capacity": 83})
    assert any("['capacity']=83: 80, the most" in note for note in config.plan().notes)
    small = type(replaying())().training(replay_buffer_config={"capacity": 500})
    assert any("learning_starts=1000: 500, when" in note for note in small.plan().notes)
    assert not any("capacity" in note for note in replaying().plan().notes)


def size_of(assembly: Assembly) -> int:
    """Compute the size of the buffer's arrays."""
    state = jax.eval_shape(
        lambda key: assembly.run.init(key, assembly.made.params), jax.random.key(0)
    )
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state.buffer))


@pytest.mark.representatives("buffer0")
@pytest.mark.parametrize(
    "buffer",
    [
        pytest.param({"capacity": 4000}, marks=pytest.mark.slow),
        {**PRIORITIZED, "capacity": 4000},  # whose tree grows in jumps
    ],
)
def test_a_buffer_that_is_too_large_is_refused_with_a_capacity_that_fits(
    buffer: dict[str, Any],
) -> None:
    def checked(capacity: int, limit: int) -> int:
        config = replaying(buffer={**buffer, "capacity": capacity}, max_buffer_bytes=limit)
        assembly = assemble(config)
        check_memory(assembly, jax.local_devices()[:1])
        return size_of(assembly)

    size = checked(4000, 2**30)
    assert checked(4000, size) == size == assemble(replaying(buffer=buffer)).buffer_bytes
    for limit in (size - 1, size // 3):
        with pytest.raises(ConfigError, match="set the capacity to at most") as refused:
            checked(4000, limit)
        fits = int(str(refused.value).partition("at most ")[2].partition(",")[0])
        assert fits % (NUM_ENVS * STEPS) == 0
        assert checked(fits, limit) <= limit
        with pytest.raises(ConfigError, match="MiB"):
            checked(fits + NUM_ENVS * STEPS, limit)
    with pytest.raises(ConfigError, match=r"allows 0\.00 MiB: raise max_buffer_bytes\."):
        checked(CAPACITY, 100)


def test_left_to_us_it_may_take_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assembly, device = assemble(replaying(buffer={"capacity": 8000})), jax.local_devices()[:1]
    limit = "jaxrl.runners.placement.get_memory_limit"
    monkeypatch.setattr(limit, lambda _: 2 * assembly.buffer_bytes)
    check_memory(assembly, device)
    monkeypatch.setattr(limit, lambda _: 2 * assembly.buffer_bytes - 2)
    with pytest.raises(ConfigError, match="max_buffer_bytes='auto' allows"):
        check_memory(assembly, device)
