"""Programs that somebody waits for are compiled for it, if they are small."""

import logging
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from jaxrl.assembly.assemble import assemble
from jaxrl.envs import MadeEnv
from jaxrl.runtime import program
from jaxrl.runtime.flops import count_flops
from jaxrl.runtime.program import Program
from tests.helpers import small


def product(x: jax.Array) -> jax.Array:
    return jnp.tanh(x @ x.T)


def notes(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.message
        for record in caplog.records
        if "does not support the options" in record.message
    ]


@pytest.fixture
def unknown_options(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """Return the log of an XLA that has none of the options, so that asking for them is seen."""
    monkeypatch.setattr(program, "SMALL_PROGRAM_OPTIONS", {"xla_option_of_another_version": True})
    caplog.set_level(logging.INFO, logger=program.__name__)
    return caplog


@pytest.mark.parametrize(
    ("rows", "waited_for", "asked"),
    [(8, True, True), (8, False, False), (256, True, False)],
    ids=["small", "not-waited-for", "large"],
)
def test_small_programs_that_are_waited_for(
    rows: int, waited_for: bool, asked: bool, unknown_options: pytest.LogCaptureFixture
) -> None:
    x = np.ones((rows, 64), np.float32)
    compiled = Program("product", product, low_latency=waited_for)
    np.testing.assert_allclose(compiled(x), np.tanh(x @ x.T), rtol=1e-6)
    assert len(notes(unknown_options)) == asked
    assert (compiled.compile_stats[-1].flops <= program.SMALL_FLOPS) == (rows == 8)


@pytest.mark.slow
def test_acting_on_the_host_is_waited_for(unknown_options: pytest.LogCaptureFixture) -> None:
    with small().env_runners(placement="host").build() as algorithm:
        algorithm.train()
    assert len(notes(unknown_options)) == 1


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="the options are jaxlib 0.10's")
def test_the_options_are_those_of_this_xla(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=program.__name__)
    Program("product", product, low_latency=True)(np.ones((8, 64), np.float32))
    assert notes(caplog) == []


@pytest.mark.parametrize("algo", ["PPO", "IMPALA", "DQN", "Rainbow", "SAC"])
def test_the_first_state_is_typed_as_a_restored_one(algo: str) -> None:
    """Weak types do not outlive a file, and a program that was traced for them is another one."""
    assembly = assemble(small(algo))
    made, runner = assembly.made, assembly.run
    assert isinstance(made, MadeEnv)
    first = [
        jax.eval_shape(runner.init, jax.random.key(0), made.params),
        jax.eval_shape(
            lambda key: assembly.train_step.init_without_envs(key, 16), jax.random.key(0)
        ),
    ]
    for path, leaf in jax.tree_util.tree_flatten_with_path(first)[0]:
        assert not leaf.weak_type, jax.tree_util.keystr(path)


def test_the_first_state_is_drawn_by_a_program_that_compiles_fast(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: dict[str, Any] = {}
    compile_with_options = program.compile_with_options

    def record(options: dict[str, Any], lowered: jax.stages.Lowered) -> jax.stages.Compiled:
        asked[re.findall(r"@jit_(?:kept_)?(\w+)", lowered.as_text())[0]] = options
        return compile_with_options(options, lowered)

    monkeypatch.setattr(program, "compile_with_options", record)
    with small().debugging(compilation_cache_dir="off").build() as algo:
        algo.compile()
    assert asked["init"] == program.SINGLE_CALL_OPTIONS
    assert asked["train"] == program.FAST_COMPILE_OPTIONS
    assert program.get_compile_options()["single_call.xla_cpu_use_fusion_emitters"] is False


class Recorded:
    """A lowered program that remembers the options it is compiled with."""

    def __init__(self) -> None:
        self.options: Any = None

    def compile(self, compiler_options: Any = None) -> Any:
        self.options = compiler_options


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", {"some_level": 1, "other": True}),
        ("--some_level=0 --unrelated=1", {"other": True}),
        ("--some_level_of_more=0", {"some_level": 1, "other": True}),
        ("--other=false --some_level=3", None),
    ],
)
def test_options_that_the_flags_set_are_theirs(
    flags: str, expected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", flags)
    lowered: Any = Recorded()
    program.compile_with_options({"some_level": 1, "other": True}, lowered)
    assert lowered.options == expected


def test_an_option_that_xla_does_not_know_leaves_the_others() -> None:
    lowered: Any = jax.jit(jnp.tanh).lower(jnp.float32(0))
    tried: list[dict[str, Any] | None] = []
    compile_lowered = lowered.compile

    def record(compiler_options: Any = None) -> Any:
        tried.append(compiler_options)
        return compile_lowered(compiler_options)

    lowered.compile = record
    program.compile_with_options(
        {"xla_option_of_another_version": 1, "xla_llvm_disable_expensive_passes": True}, lowered
    )
    assert tried[1:] == [{"xla_llvm_disable_expensive_passes": True}]


def test_jaxs_own_switch_compiles_nothing() -> None:
    given = []

    def add_one(x: jax.Array) -> jax.Array:
        given.append(x)
        return x + 1

    adding, debugging = Program("add_one", add_one), small().debugging_settings
    with jax.disable_jit():
        assert adding(jnp.float32(1)) == 2
        assert not debugging.compiles
    assert not isinstance(given[0], jax.core.Tracer)
    assert not adding.compile_stats
    assert debugging.compiles
    assert adding(jnp.float32(1)) == 2
    assert len(adding.compile_stats) == 1


def test_actions_follow_jaxs_own_switch() -> None:
    obs = np.zeros(4, np.float32)
    with small().build() as algo:
        compiled = algo.compute_single_action(obs, explore=False)
        with jax.disable_jit():
            assert algo.compute_single_action(obs, explore=False) == compiled
        assert algo.compute_single_action(obs, explore=False) == compiled


# --- operations are counted as often as they run ---


M, K, N = 3, 5, 7
MATMUL = 2.0 * M * K * N


def flops_of(fn: Any, *args: Any) -> float:
    return count_flops(jax.make_jaxpr(fn)(*args))


def test_products_are_two_operations_each() -> None:
    assert flops_of(jnp.dot, jnp.ones((M, K)), jnp.ones((K, N))) == MATMUL
    batched = flops_of(jax.vmap(jnp.dot), jnp.ones((4, M, K)), jnp.ones((4, K, N)))
    assert batched == 4 * MATMUL


def test_elementwise_operations_count_their_results() -> None:
    assert flops_of(lambda x: jnp.tanh(x) * x, jnp.ones((M, N))) == 2 * M * N
    assert flops_of(lambda x: x.reshape(-1)[::2], jnp.ones((M, N))) == 0.0


@pytest.mark.parametrize("length", [1, 6, 1000])
def test_a_scan_counts_its_body_as_often_as_it_runs(length: int) -> None:
    square = jnp.ones((M, M))

    def body(x: Any, _: Any) -> tuple[Any, None]:
        return x @ square, None

    def looped(x: Any) -> Any:
        return jax.lax.scan(body, x, length=length)[0]

    assert flops_of(looped, square) == length * 2.0 * M**3
    assert flops_of(jax.jit(looped), square) == length * 2.0 * M**3

    def twice(x: Any) -> Any:
        return jax.lax.scan(lambda y, _: (looped(y), None), x, length=2)[0]

    assert flops_of(twice, square) == 2 * length * 2.0 * M**3


def test_a_convolution() -> None:
    """Each of 8 x 8 x 4 results sums 3 x 3 x 2 products."""

    def convolve(image: Any, kernel: Any) -> Any:
        return jax.lax.conv_general_dilated(
            image, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    got = flops_of(convolve, jnp.ones((1, 8, 8, 2)), jnp.ones((3, 3, 2, 4)))
    assert got == 2.0 * (8 * 8 * 4) * (3 * 3 * 2)


def test_a_branch_counts_as_the_dearest() -> None:
    square = jnp.ones((M, M))

    def branch(index: Any, x: Any) -> Any:
        return jax.lax.switch(index, [lambda y: y, lambda y: y @ y @ y, lambda y: y @ y], x)

    got = flops_of(branch, jnp.int32(0), square)
    assert 2 * 2.0 * M**3 <= got <= 2 * 2.0 * M**3 + 2  # and the clamp of the index


@pytest.mark.slow
def test_an_epoch_of_ppo_costs_the_same_each_time() -> None:
    counts = []
    for epochs in (1, 2, 4):
        assembly = assemble(small(num_epochs=epochs))
        state = jax.eval_shape(assembly.run.init, jax.random.key(0), assembly.made.params)
        counts.append(flops_of(assembly.run.step, state))
    rest = 2 * counts[0] - counts[1]  # rollout and targets
    epoch = counts[1] - counts[0]
    assert 0 < rest < counts[0]
    assert counts[2] == pytest.approx(rest + 4 * epoch, rel=0.01)
    # 128 rows through two nets of 4 x 8 and their heads (2 and 1): forward, and twice as much back
    products = 2.0 * 128 * (2 * 4 * 8 + 8 * 2 + 8 * 1)
    assert 2 * products < epoch < 6 * products


def test_a_program_over_devices_counts_the_work_of_all() -> None:
    """Each device has a product of its own rows: the same work as one device with all of them."""
    mesh = Mesh(np.asarray(jax.devices()[:4]), ("x",))
    rows, weights = jnp.ones((8, K)), jnp.ones((K, N))
    along, whole = PartitionSpec("x"), PartitionSpec()
    divided = jax.shard_map(jnp.dot, mesh=mesh, in_specs=(along, whole), out_specs=along)
    assert flops_of(divided, rows, weights) == flops_of(jnp.dot, rows, weights) == 2.0 * 8 * K * N
