"""The file that runs without jaxrl: its Python, its operations, its random inputs."""

import ast
import functools
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core as jex_core

from jaxrl.errors import ExportError
from jaxrl.export import artifact, numpy_program
from jaxrl.export.numpy_program import DRAW_KINDS, OPERATIONS, Program, draw
from jaxrl.export.trace import TracedFunction, make_batch_symbol
from tests.export.exports import CARTPOLE, SAC, get_export, get_policy, load

FILE = Path(numpy_program.__file__)


def test_it_is_python_3_9_and_imports_numpy_alone() -> None:
    tree = ast.parse(FILE.read_text(), feature_version=(3, 9))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
        assert not isinstance(node, ast.Match)
        if isinstance(node, ast.Call):  # arguments of later versions
            assert "strict" not in {keyword.arg for keyword in node.keywords}
    assert imported - set(sys.stdlib_module_names) == {"numpy"}
    assert not {"pickle", "importlib", "subprocess", "marshal"} & imported
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not {"eval", "exec", "compile", "__import__"} & names


def test_it_runs_where_neither_jax_nor_jaxrl_is(tmp_path: Path) -> None:
    folder = get_export(CARTPOLE).write(tmp_path / "exported")
    (tmp_path / "policy_file.py").write_text(FILE.read_text())
    code = (
        "import sys\n"
        "for name in ('jax', 'jaxlib', 'flax', 'jaxrl'): sys.modules[name] = None\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import numpy as np\n"
        "from policy_file import NumpyPolicy\n"
        f"policy = NumpyPolicy({str(folder)!r})\n"
        "print(*[int(policy.act(np.full(4, x, np.float32))) for x in (-0.2, 0.0, 0.1, 0.2)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    policy = get_policy(CARTPOLE)
    policy.reset()
    expected = [int(policy.act(np.full(4, x, np.float32))) for x in (-0.2, 0.0, 0.1, 0.2)]
    assert done.stdout.split() == [str(action) for action in expected]


def trace(function: Callable[..., Any], *arrays: np.ndarray) -> TracedFunction:
    """A function of batches, traced as the policies are."""
    batch = make_batch_symbol()
    specs = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in arrays]
    closed: jex_core.ClosedJaxpr = jax.make_jaxpr(lambda *x: jax.tree.leaves(function(*x)))(*specs)
    names = [f"obs/{i}" for i in range(len(arrays))]
    outputs = [str(i) for i in range(len(closed.out_avals))]
    return TracedFunction(
        closed=closed, inputs=list(zip(names, specs, strict=True)), outputs=outputs, owner="Module"
    )


def run_both(
    function: Callable[..., Any], *arrays: np.ndarray
) -> tuple[list[np.ndarray], list[np.ndarray], set[str]]:
    """Outputs of an exported function, those of the original, and the operations it has."""
    traced = trace(function, *arrays)
    exported, _ = traced.to_program()
    constants: dict[str, np.ndarray] = {}
    data = artifact._program_to_data("greedy", exported, constants)
    program = Program("greedy", data, constants)
    prepared = program.prepare({})
    program.check_run(prepared)
    inputs = dict(zip([name for name, _ in traced.inputs], arrays, strict=True))
    found = program.run(prepared, len(arrays[0]), inputs)
    expected = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*arrays))]
    used = {operation.name for operation in exported.operations}
    return [found[name] for name in traced.outputs], expected, used


class _Images(nn.Module):
    """Convolutions and pooling of flax, as a user's own network has them."""

    @nn.compact
    def __call__(self, x: jax.Array) -> list[jax.Array]:
        y = nn.Conv(3, (3, 2), strides=(2, 1), kernel_dilation=(1, 2))(x)
        z = nn.max_pool(y, (2, 2), strides=(1, 2), padding="SAME")
        return [y, z, nn.avg_pool(z, (2, 2)), nn.LayerNorm()(z), nn.gelu(z), nn.elu(z), nn.silu(z)]


@functools.cache
def _parameters() -> Any:
    shapes = jax.eval_shape(_Images().init, jax.random.key(0), jnp.zeros((1, 7, 6, 2)))
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(x.dtype), shapes)


def _images(x: jax.Array) -> list[jax.Array]:
    return _Images().apply(_parameters(), x)  # pyright: ignore


def _integers(x: jax.Array) -> list[jax.Array]:
    n = (x * 3).astype(jnp.int32)
    return [
        n // 2, n % 3, jax.lax.div(n, jnp.full_like(n, -2)), jax.lax.rem(n, jnp.full_like(n, 3)),
        n ** 2, ~n, n ^ 5, n & 3, n | 8, (n > 0) ^ (n > 1), n.astype(jnp.uint8), jnp.sign(n),
        jnp.sum(n > 0, axis=1), jnp.any(n > 2, axis=1), jnp.all(n < 2, axis=1),
    ]  # fmt: skip


def _orders(x: jax.Array) -> list[jax.Array]:
    index = jnp.argmax(x, axis=1)
    table = jnp.arange(12.0).reshape(6, 2) * 0.1
    return [
        jnp.cumsum(x, axis=1), jnp.cumprod(x, axis=1), jax.lax.cummax(x, axis=1),
        jax.lax.cummin(x, axis=1, reverse=True), jnp.sort(x, axis=1), jnp.argmin(x, axis=1),
        x[:, ::-1], x[:, 1:4:2], jnp.take(table, index, axis=0), x[:, 2],
        jnp.take_along_axis(x, index[:, None], axis=1), table[index, 1],
        jnp.min(x, axis=1), jnp.prod(x, axis=1), jnp.var(x, axis=1), jnp.roll(x, 1, axis=1),
    ]  # fmt: skip


def _waves(x: jax.Array) -> list[jax.Array]:
    y = jnp.abs(x) + 0.1
    return [
        jnp.sin(x), jnp.cos(x), jnp.tan(x), jnp.arcsin(x / 9), jnp.arccos(x / 9), jnp.arctan(x),
        jnp.sinh(x), jnp.cosh(x), jnp.arcsinh(x), jnp.arccosh(y + 1), jnp.arctanh(x / 9),
        jnp.arctan2(x, y), jnp.cbrt(x), jnp.exp2(x), jnp.expm1(x), jnp.log1p(y), jax.lax.rsqrt(y),
        y ** x, jnp.ceil(x), jnp.floor(x), jnp.round(x), jax.scipy.special.erf(x),
        jnp.isfinite(x / 0), jax.nn.sigmoid(x), jax.nn.softmax(x), jnp.clip(x, -1, 1),
        jax.lax.clamp(-0.5, x, 0.5), x ** 3, jnp.logaddexp(x, y), jax.nn.relu6(x * 9), jnp.log(y), x == y, x >= 0, x <= 0,
    ]  # fmt: skip


def _shapes(x: jax.Array) -> list[jax.Array]:
    y = x.reshape(-1, 2, 3)
    return [
        jnp.einsum("bij,bkj->bik", y, y), jnp.einsum("bij,jk->bki", y, jnp.ones((3, 4))),
        jnp.pad(y, ((0, 0), (1, 0), (2, 1)), constant_values=7), y.transpose(0, 2, 1),
        jnp.stack([x, x + 1], axis=1), jnp.concatenate([x, x], axis=1), jnp.squeeze(x[:, :1], 1),
        jnp.tile(x, (1, 2)), jnp.outer(x[:, 0], jnp.ones(3)), *jnp.split(x, 3, axis=1),
        jnp.where(x > 0, x, -1), jnp.broadcast_to(x[:, None], (x.shape[0], 2, 6)),
        jnp.full(x.shape, 3.0) * jnp.arange(x.shape[0])[:, None], jnp.linalg.norm(y, axis=-1),
    ]  # fmt: skip


VECTORS = (_integers, _orders, _waves, _shapes)


@functools.cache
def run_on_normal(
    function: Callable[..., Any],
) -> tuple[list[np.ndarray], list[np.ndarray], set[str]]:
    shape = (3, 7, 6, 2) if function is _images else (5, 6)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return run_both(function, x * 3)


@pytest.mark.parametrize("function", VECTORS)
def test_operations_of_vectors(function: Callable[..., Any]) -> None:
    found, expected, _ = run_on_normal(function)
    for number, (got, wanted) in enumerate(zip(found, expected, strict=True)):
        assert got.dtype == wanted.dtype, number
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6, err_msg=str(number))


def test_operations_of_images() -> None:
    found, expected, used = run_on_normal(_images)
    assert {"conv", "reduce_window_max"} <= used
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_every_operation_is_met_by_these_functions() -> None:
    used = set().union(*(run_on_normal(function)[2] for function in (*VECTORS, _images)))
    assert set(OPERATIONS) - used <= {"reduce_window_min"}


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (
            lambda x: jax.lax.scan(lambda c, r: (c + r[None], c), x, jnp.ones((4, 3)))[0],
            "operation 'scan'",
        ),
        (lambda x: jnp.linalg.cholesky(jnp.einsum("bi,bj->bij", x, x)), "operation 'cholesky'"),
        (lambda x: jax.pure_callback(np.sin, x, x), "operation 'pure_callback'"),
        (lambda x: x.astype(jnp.bfloat16), "type bfloat16, which NumPy does not have"),
        (lambda x: jax.lax.round(x), "rounds halves away from zero"),
    ],
)
def test_operations_without_a_counterpart_are_refused(
    function: Callable[..., Any], match: str
) -> None:
    with pytest.raises(ExportError, match=match) as caught:
        run_both(function, np.ones((2, 3), np.float32))
    assert "Module" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", DRAW_KINDS)
def test_random_inputs_are_distributed_as_those_of_jax(kind: str) -> None:
    num, key = 20_000, jax.random.key(0)
    low, high = {"uniform": (-1.0, 3.0), "randint": (2, 7), "bernoulli": (0, 0.3)}.get(kind, (0, 1))
    original: dict[str, Callable[[], jax.Array]] = {
        "uniform": lambda: jax.random.uniform(key, (num,), minval=low, maxval=high),
        "randint": lambda: jax.random.randint(key, (num,), low, high),
        "bernoulli": lambda: jax.random.bernoulli(key, high, (num,)),
    }
    expected = np.asarray(original.get(kind, lambda: getattr(jax.random, kind)(key, (num,)))())
    spec = {"kind": kind, "shape": [], "dtype": str(expected.dtype), "low": low, "high": high}
    found = draw(np.random.default_rng(0), spec, num)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    quantiles = np.linspace(0.05, 0.95, 10)
    np.testing.assert_allclose(
        np.quantile(found.astype(float), quantiles, method="lower"),
        np.quantile(expected.astype(float), quantiles, method="lower"),
        atol=0.08,
    )
    if kind == "uniform":
        assert found.min() >= low
        assert found.max() < high


def test_act_leaves_out_what_only_steps_return(tmp_path: Path) -> None:
    policy = load(get_export(SAC), tmp_path / "exported")
    obs = np.asarray([0.1, -0.2, 0.3], np.float32)
    names = policy._acting["greedy"].output_names
    assert "log_prob" not in names
    assert len(policy._acting["greedy"]._steps) < len(policy._programs["greedy"]._steps)
    np.testing.assert_array_equal(policy.act(obs), policy.step(obs[None]).actions[0])
