"""Equal modules that a runner on the host computes and records together."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.runners import host_policy
from jaxrl.runners.fragment import Fragment
from jaxrl.runners.module_groups import ModuleGroup, describe_function, make_groups
from tests.multi_agent.host_envs import Duel
from tests.multi_agent.test_host_training import make_config

VECTOR = jax.ShapeDtypeStruct((3,), np.float32)


def test_rows_by_module_and_together() -> None:
    group = ModuleGroup(modules=("a", "b"), num_envs=2, size=3)
    rows = np.arange(group.num_rows)
    split = np.asarray(group.split(jnp.asarray(rows)))
    np.testing.assert_array_equal(split, [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]])
    np.testing.assert_array_equal(group.merge(jnp.asarray(split)), rows)
    by_module = {m: group.select(rows[None], m, axis=1)[0] for m in group.modules}
    np.testing.assert_array_equal(list(by_module.values()), split)
    np.testing.assert_array_equal(group.join(by_module), rows)
    state = [rows.reshape(2, -1, 1)]
    again = group.join_state(group.split_state(state))
    np.testing.assert_array_equal(again[0], state[0])


def test_functions_are_told_apart_by_their_constants_and_steps() -> None:
    def scale(factor: np.ndarray) -> Any:
        return describe_function(lambda x: jax.jit(lambda y: y * factor)(x) + 0.1, VECTOR)

    ones, twos = np.ones(3, np.float32), np.full(3, 2, np.float32)
    assert scale(ones) == scale(ones.copy())
    assert scale(ones) != scale(twos)
    assert describe_function(lambda x: x + 0.1, VECTOR) != describe_function(
        lambda x: x + 0.1000001, VECTOR
    )
    assert describe_function(lambda x: {"a": x}, VECTOR) != describe_function(lambda x: x, VECTOR)

    def call(x: Any) -> Any:
        return jax.pure_callback(np.asarray, VECTOR, x)

    assert describe_function(call, VECTOR) is None


def test_what_a_program_does_not_show_is_on_its_own() -> None:
    exported = jax.export.export(jax.jit(lambda x: 2 * x))(VECTOR)
    assert describe_function(exported.call, VECTOR) is None


def test_groups_have_equal_functions_and_sizes() -> None:
    keys = {"d": 1, "b": 1, "c": None, "a": 2, "e": 1, "f": None}
    groups = make_groups(keys, {**dict.fromkeys(keys, 1), "e": 2}, num_envs=4)
    found = {name: group.modules for name, group in groups.items()}
    assert found == {"a": ("a",), "b": ("b", "d"), "c": ("c",), "e": ("e",), "f": ("f",)}


def sample() -> tuple[list[str], Fragment, Any]:
    algorithm: Any = make_config(Duel).build()
    with algorithm:
        runner = algorithm._loop.runners.runner
        runner.set_weights(algorithm._learners.get_weights(0))
        return list(runner._policy.groups), runner.sample_fragment(12), runner.get_state()


def test_what_is_recorded_together_is_what_each_module_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups, together, state = sample()
    assert groups == ["one"]
    monkeypatch.setattr(host_policy, "describe_function", lambda *_: None)
    alone_groups, alone, alone_state = sample()
    assert alone_groups == ["one", "two"]
    for one, other in ((together.rollout, alone.rollout), (state, alone_state)):
        assert jax.tree.structure(one) == jax.tree.structure(other)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
