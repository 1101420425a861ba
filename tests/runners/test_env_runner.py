"""The host EnvRunner: its fragments are those of the compiled loop, and go on exactly."""

import dataclasses
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.assembly.assemble import assemble
from jaxrl.core.types import Columns
from jaxrl.envs.faults import FaultyEnv
from jaxrl.errors import ConfigError, EnvError, ModuleError
from jaxrl.runners.env_runner import EnvRunner, make_env_runner
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.host_policy import PackedLayout
from tests.helpers import small
from tests.runners.scripted import (
    SEED,
    Counting,
    Drawing,
    Scripted,
    actor_of,
    scripted_runner,
    weights_of,
)


def in_graph(config: Any, num_envs: int, num_steps: int, fragments: int) -> list[Any]:
    """Rollouts and records of the compiled loop."""
    assembly = assemble(config)
    return roll(assembly, assembly.rollout_worker, num_envs, num_steps, fragments)


def roll(assembly: Any, sampler: Any, num_envs: int, num_steps: int, fragments: int) -> list[Any]:
    made, actor = assembly.made, actor_of(sampler)
    env_key = jax.random.split(jax.random.key(SEED), 3)[1]
    state = jax.jit(sampler.env.reset)(env_key, jnp.arange(num_envs), made.params)
    carry = sampler.initial_carry(num_envs)
    rollout = jax.jit(lambda *a: sampler.rollout(actor, *a, made.params, num_steps))
    got: list[Any] = []
    for _ in range(fragments):
        state, carry, *data = rollout(state, carry)
        got.append(jax.tree.map(np.asarray, data))
    return got


def host_runner(config: Any, num_envs: int, first: int = 0) -> EnvRunner:
    runner = make_env_runner(config, num_envs=num_envs, first_env_index=first)
    runner.set_weights(weights_of(runner.policy_step))
    return runner


def assert_same(fragment: Fragment, rollout: Any, record: Any) -> None:
    for got, want in ((fragment.rollout, rollout), (fragment.record, record)):
        for name, value in vars(want).items():
            leaves = jax.tree.leaves(vars(got)[name])
            for leaf, wanted in zip(leaves, jax.tree.leaves(value), strict=True):
                assert leaf.dtype == wanted.dtype, name
                assert leaf.shape == wanted.shape, name
                if leaf.dtype == np.float32:  # two programs round differently
                    np.testing.assert_allclose(leaf, wanted, rtol=1e-5, atol=1e-6, err_msg=name)
                else:
                    np.testing.assert_array_equal(leaf, wanted, err_msg=name)


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("box")
@pytest.mark.parametrize(
    ("env", "num_steps"),
    [
        ("CartPole-v1", 20),
        ("Pendulum-v1", 9),
        (FaultyEnv("CartPole-v1", "reward"), 20),
        (FaultyEnv("CartPole-v1", "obs"), 20),
    ],
    ids=["discrete", "box", "faulty reward", "faulty observation"],
)
def test_a_jax_environment_gives_the_transitions_of_the_compiled_loop(
    env: Any, num_steps: int
) -> None:
    config = small(env=env).environment(max_episode_steps=13).debugging(seed=SEED)
    faulty = isinstance(env, FaultyEnv)
    if faulty:
        config.environment(env_config={"at_step": 5, "fraction": 0.5})
    wanted = in_graph(config, 6, num_steps, 3)
    runner = host_runner(config, 6)
    ends = faults = 0
    for rollout, record in wanted:
        fragment = runner.sample_fragment(num_steps)
        assert_same(fragment, rollout, record)
        assert fragment.num_env_steps == rollout.mask.sum()
        assert len(fragment.faults) == (record.fault > 0).sum()
        ends += int(record.ended.sum())
        faults += len(fragment.faults)
    assert ends > 5
    assert (faults > 5) == faulty
    if not faulty:
        half = host_runner(config, 3, first=3)
        rollout, record = (jax.tree.map(lambda x: x[:, 3:], part) for part in wanted[0])
        assert_same(half.sample_fragment(num_steps), rollout, record)


def lanes(fragments: list[Fragment]) -> list[dict[str, Any]]:
    """Return each environment's transitions, one after another, without the other rows."""
    result: list[dict[str, Any]] = []
    for b in range(fragments[0].rollout.mask.shape[1]):
        lane: dict[str, Any] = {}
        for name in ("obs", "action", "reward", "terminated", "truncated", "final_obs"):
            parts = [
                np.asarray(vars(f.rollout)[name])[np.asarray(f.rollout.mask)[:, b], b]
                for f in fragments
            ]
            lane[name] = np.concatenate(parts)
        result.append(lane)
    return result


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_rows_of_a_host_vector(mode: str) -> None:
    vector = Scripted([3, 4], mode)
    runner = scripted_runner(vector)
    fragments = [runner.sample_fragment(5) for _ in range(4)]
    is_first = np.concatenate([np.asarray(f.rollout.is_first) for f in fragments])
    for b, length in enumerate((3, 4)):
        lane = lanes(fragments)[b]
        steps = len(lane["reward"])
        step = np.arange(steps) % length
        episode = np.arange(steps) // length
        np.testing.assert_array_equal(lane["obs"][:, 0], episode)
        np.testing.assert_array_equal(lane["obs"][:, 1], step)
        # The successor is that before the reset, also at an end.
        np.testing.assert_array_equal(lane["final_obs"][:, 0], episode)
        np.testing.assert_array_equal(lane["final_obs"][:, 1], step + 1)
        over = step == length - 1
        np.testing.assert_array_equal(lane["terminated"], over & (episode % 2 == 0))
        np.testing.assert_array_equal(lane["truncated"], over & (episode % 2 == 1))
        rows = np.arange(20)
        period = length + (mode == "next_step")
        np.testing.assert_array_equal(is_first[:, b], rows % period == 0)
        mask = np.concatenate([np.asarray(f.rollout.mask)[:, b] for f in fragments])
        np.testing.assert_array_equal(mask, rows % period < length)
        ended = np.concatenate([np.asarray(f.record.ended)[:, b] for f in fragments])
        np.testing.assert_array_equal(ended, rows % period == length - 1)
        lengths = np.concatenate([np.asarray(f.record.episode_length)[:, b] for f in fragments])
        returns = np.concatenate([np.asarray(f.record.episode_return)[:, b] for f in fragments])
        np.testing.assert_array_equal(lengths[ended], length)
        np.testing.assert_array_equal(returns[ended], sum(range(1, length + 1)))
        env_step = np.concatenate([np.asarray(f.record.env_step)[:, b] for f in fragments])
        np.testing.assert_array_equal(env_step, rows)
    assert [f.number for f in fragments] == [0, 1, 2, 3]
    assert sum(f.num_env_steps for f in fragments) == sum(
        len(x["reward"]) for x in lanes(fragments)
    )


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_the_carry_is_blank_exactly_at_episode_starts(mode: str) -> None:
    runner = scripted_runner(Scripted([3, 4], mode), module=Counting)
    fragments = [runner.sample_fragment(5) for _ in range(3)]
    carry = np.concatenate([f.rollout.extras[Columns.ACTION_LOGP] for f in fragments])
    is_first = np.concatenate([f.rollout.is_first for f in fragments])
    assert_counts(carry, is_first)
    for i, fragment in enumerate(fragments):
        carry_in: Any = fragment.rollout.carry_in
        np.testing.assert_array_equal(carry_in.module, carry[5 * i])
    assert carry.max() == (3 if mode == "same_step" else 4)


def test_the_carry_of_the_compiled_loop_is_blank_exactly_at_episode_starts() -> None:
    config = small().environment(max_episode_steps=7)
    assembly = assemble(config)
    plain = assembly.rollout_worker
    module = Counting(
        observation_space=plain.module.observation_space,
        action_space=plain.module.action_space,
        model_config={"fcnet_hiddens": [4]},
    )
    sampler = dataclasses.replace(plain, module=module)
    rollouts = [rollout for rollout, _ in roll(assembly, sampler, 6, 20, 2)]
    carry = np.concatenate([rollout.extras[Columns.ACTION_LOGP] for rollout in rollouts])
    is_first = np.concatenate([rollout.is_first for rollout in rollouts])
    assert_counts(carry, is_first)
    assert is_first[1:].sum() > 20
    np.testing.assert_array_equal(rollouts[1].carry_in.module, carry[20])


def test_a_recurrent_module_is_refused_by_learners_that_would_ignore_it() -> None:
    with pytest.raises(ModuleError, match="recurrent"):
        small().rl_module(rl_module_spec=Counting).build()


def assert_counts(carry: np.ndarray, is_first: np.ndarray) -> None:
    """Check that a carry counts the steps since the latest first one."""
    want = np.zeros(carry.shape[1])
    for t in range(len(carry)):
        want = np.where(is_first[t], 0.0, want)
        np.testing.assert_array_equal(carry[t], want)
        want = want + 1.0


@pytest.mark.allow_key_reuse
@pytest.mark.parametrize("mode", ["same_step", "next_step"])
def test_complete_episodes_are_never_cut(mode: str) -> None:
    plain = scripted_runner(Scripted([3, 7, 30], mode), module=Counting)
    wanted = lanes([plain.sample_fragment(80)])
    runner = scripted_runner(Scripted([3, 7, 30], mode), module=Counting)
    fragments = [runner.sample_complete_episodes(8) for _ in range(2)]
    for fragment in fragments:
        rollout: Any = fragment.rollout
        assert rollout.mask.shape == (32, 3)
        np.testing.assert_array_equal(rollout.carry_in.module, 0.0)
        for b, length in enumerate((3, 7, 30)):
            ends = np.flatnonzero(fragment.record.ended[:, b])
            least = int(np.ceil(8 / length))
            if mode == "same_step":
                assert len(ends) == least
            assert rollout.mask[: ends[0] + 1, b].all()
            assert not rollout.mask[ends[-1] + 1 :, b].any()
            assert rollout.mask[:, b].sum() == len(ends) * length
            assert rollout.is_first[0, b]
        assert fragment.num_env_steps == rollout.mask.sum()
        padding = ~rollout.mask
        for flags in (rollout.terminated, rollout.truncated, fragment.record.ended):
            assert not flags[padding].any()
        assert not rollout.reward[padding].any()
    # The same draws as without waiting: nothing was skipped, nothing came twice.
    for got, want in zip(lanes(fragments), wanted, strict=True):
        for name, column in got.items():
            np.testing.assert_array_equal(column, want[name][: len(column)], err_msg=name)


@pytest.mark.allow_key_reuse
@pytest.mark.representatives("CartPole-v1")
@pytest.mark.parametrize("env", ["CartPole-v1", "gymnasium:CartPole-v1"])
def test_environments_of_either_kind_wait_for_one_another(env: str) -> None:
    config = small(env=env).environment(max_episode_steps=20).debugging(seed=SEED)
    wanted = lanes([host_runner(config, 3).sample_fragment(64)])
    runner = host_runner(config, 3)
    fragments = [runner.sample_complete_episodes(8) for _ in range(2)]
    for fragment in fragments:
        ends = fragment.rollout.mask.sum(axis=0) - 1
        assert np.asarray(fragment.record.ended)[ends, np.arange(3)].all()
        assert np.asarray(fragment.rollout.is_first)[0].all()
    assert len({len(lane["reward"]) for lane in lanes(fragments)}) > 1
    for got, want in zip(lanes(fragments), wanted, strict=True):
        for name, column in got.items():
            np.testing.assert_array_equal(column, want[name][: len(column)], err_msg=name)


@pytest.mark.allow_key_reuse
def test_an_episode_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.runners.env_runner.MAX_EPISODE_STEPS", 40)
    runner = scripted_runner(Scripted([3, 10**6], "same_step"))
    with pytest.raises(EnvError, match=r"environment 1 has not ended .* max_episode_steps"):
        runner.sample_complete_episodes(8)


@pytest.mark.allow_key_reuse
def test_held_environments_do_not_move() -> None:
    moving = scripted_runner(Scripted([3, 7], "same_step"), module=Counting)
    wanted = lanes([moving.sample_fragment(24)])
    runner = scripted_runner(Scripted([3, 7], "same_step"), module=Counting)
    fragments = [runner.sample_fragment(4)]
    runner.pause(np.array([False, True]))
    fragments.append(runner.sample_fragment(4))
    assert not fragments[1].rollout.mask[:, 1].any()
    runner.pause(np.array([False, False]))
    fragments.append(runner.sample_fragment(4))
    carry: Any = fragments[2].rollout.extras[Columns.ACTION_LOGP]
    np.testing.assert_array_equal(carry[:, 1], [4, 5, 6, 0])
    for got, want in zip(lanes(fragments), wanted, strict=True):
        for name, column in got.items():
            np.testing.assert_array_equal(column, want[name][: len(column)], err_msg=name)


def same(a: Fragment, b: Fragment) -> None:
    for got, want in ((a.rollout, b.rollout), (a.record, b.record)):
        for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.allow_key_reuse
def test_a_state_is_gone_on_from_exactly() -> None:
    config = small().environment(max_episode_steps=13).debugging(seed=SEED)
    runner = host_runner(config, 6)
    runner.sample_fragment(20)
    state = pickle.loads(pickle.dumps(runner.get_state()))
    other = host_runner(config, 6)
    other.sample_fragment(3)
    other.set_state(state)
    same(other.sample_fragment(20), runner.sample_fragment(20))

    scripted = scripted_runner(Scripted([3, 7], "same_step", restorable=True), module=Counting)
    scripted.sample_fragment(5)
    restored = scripted_runner(Scripted([3, 7], "same_step", restorable=True), module=Counting)
    restored.set_state(pickle.loads(pickle.dumps(scripted.get_state())))
    same(restored.sample_fragment(9), scripted.sample_fragment(9))


@pytest.mark.allow_key_reuse
def test_without_states_of_the_environments_their_episodes_restart() -> None:
    runner = scripted_runner(Scripted([5, 7], "same_step"), module=Counting)
    runner.sample_fragment(4)
    state = runner.get_state()
    assert state["env"] is None
    fragments = []
    for _ in range(2):
        vector = Scripted([5, 7], "same_step")
        other = scripted_runner(vector, module=Counting)
        other.set_state(pickle.loads(pickle.dumps(state)))
        fragments.append(other.sample_fragment(6))
        assert len(set(vector.seeds or ())) == 2
        assert set(vector.seeds or ()) != set(Scripted([5, 7], "same_step").seeds or ())
    same(*fragments)
    first: Any = fragments[0]
    assert first.rollout.is_first[0].all()
    np.testing.assert_array_equal(first.rollout.obs[:, 1, 1], [0, 1, 2, 3, 4, 5])
    np.testing.assert_array_equal(first.record.env_step[:, 0], [4, 5, 6, 7, 8, 9])
    np.testing.assert_array_equal(first.record.episode_length[:, 1], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(first.rollout.carry_in.module, 0.0)


@pytest.mark.allow_key_reuse
def test_draws_go_on_where_episodes_restart() -> None:
    runner = scripted_runner(Scripted([5, 7], "same_step"), module=Drawing)
    first = runner.sample_fragment(4)
    other = scripted_runner(Scripted([5, 7], "same_step"), module=Drawing)
    other.set_state(runner.get_state())
    drawn = [f.rollout.extras[Columns.ACTION_LOGP] for f in (first, runner.sample_fragment(6))]
    np.testing.assert_array_equal(
        other.sample_fragment(6).rollout.extras[Columns.ACTION_LOGP], drawn[1]
    )
    assert len(np.unique(np.concatenate(drawn))) == 20
    runner.set_state(None)
    np.testing.assert_array_equal(
        runner.sample_fragment(4).rollout.extras[Columns.ACTION_LOGP], drawn[0]
    )


@pytest.mark.allow_key_reuse
def test_a_fault_is_reported_and_its_row_is_no_transition() -> None:
    runner = scripted_runner(Scripted([5, 7], "same_step", fault_at=2))
    fragment = runner.sample_fragment(6)
    assert [(f.env_index, f.what, f.detail) for f in fragment.faults] == [(0, "raised", "boom")]
    assert fragment.faults[0].worker_index == 0
    np.testing.assert_array_equal(fragment.rollout.mask[:, 0], [1, 1, 0, 1, 1, 1])
    np.testing.assert_array_equal(fragment.rollout.is_first[:, 0], [1, 0, 0, 1, 0, 0])
    assert fragment.rollout.mask[:, 1].all()
    np.testing.assert_array_equal(fragment.record.episode_length[:, 0], [1, 2, 2, 1, 2, 3])
    assert not fragment.record.fault.any()
    assert fragment.num_env_steps == 11
    assert runner.sample_fragment(3).faults == ()


@pytest.mark.allow_key_reuse
def test_weights_come_first_and_carry_their_version() -> None:
    runner = scripted_runner(Scripted([3, 4], "same_step"))
    first = runner.sample_fragment(4)
    runner.set_weights(weights_of(runner.policy_step, 7))
    second = runner.sample_fragment(4)
    assert (first.weights_version, second.weights_version) == (0, 7)
    unweighted = EnvRunner(
        config=runner.config,
        vector=Scripted([3, 4], "same_step"),
        policy_step=runner.policy_step,
        env_index=np.arange(2),
    )
    with pytest.raises(ConfigError, match="set_weights"):
        unweighted.sample_fragment(4)


@pytest.mark.allow_key_reuse
def test_it_compiles_once() -> None:
    runner = scripted_runner(Scripted([3, 4], "same_step"))
    for _ in range(3):
        runner.sample_fragment(4)
    runner.sample_complete_episodes(4)
    assert [len(program.compile_stats) for program in runner.programs] == [1, 1]


# --- packing: every type goes to words and back with its bits ---


def test_every_type_comes_back() -> None:
    rng = np.random.default_rng(0)
    tree: Any = {
        "float32": rng.normal(size=(3,)).astype(np.float32),
        "nested": (
            rng.integers(-(2**31), 2**31 - 1, (3, 2, 2)).astype(np.int32),
            rng.integers(0, 2**32 - 1, (3, 1)).astype(np.uint32),
        ),
        "bool": np.array([[True, False], [False, False], [True, True]]),
        "int8": np.array([-128, 0, 127], np.int8),
        "uint8": np.array([[0, 255]] * 3, np.uint8),
        "float16": np.array([np.inf, -1.5, 0.1], np.float16),
        "nan": np.array([np.nan, -0.0, np.inf], np.float32),
    }
    packing = PackedLayout(jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree)), num_envs=3)
    words = np.asarray(jax.jit(packing.pack)(tree))
    assert words.shape == (3, packing.num_words)
    assert packing.num_words == 1 + 4 + 1 + 2 + 1 + 2 + 1 + 1
    stacked = np.stack([words, words])
    for batch, lead in ((words, ()), (stacked, (0,))):
        unpacked = packing.unpack(batch)
        assert jax.tree.structure(unpacked) == jax.tree.structure(tree)
        for got, want in zip(jax.tree.leaves(unpacked), jax.tree.leaves(tree), strict=True):
            assert got.dtype == want.dtype
            assert got[lead].tobytes() == want.tobytes()
