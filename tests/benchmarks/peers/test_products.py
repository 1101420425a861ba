"""The peer of matrix products computes those of the gradients of SAC's losses."""

import dataclasses
import math
import re
from collections import Counter
from typing import Any

import chex
import jax
import jax.numpy as jnp
import pytest

from benchmarks.peers import products_worker
from benchmarks.settings import PRODUCTS, make_replay_settings


def test_the_products_are_those_of_the_gradients_of_sac() -> None:
    setting = make_replay_settings("sac")[PRODUCTS]
    networks, batches = products_worker.make_arguments(setting, obs_size=3, action_size=1)
    batch = [rows[0] for rows in batches]
    products = _products(products_worker.compute_update, networks, batch)
    assert products == _products(_linear_sac, networks, batch)
    assert products[256**3] == 16
    assert 2 * sum(size * count for size, count in products.items()) == pytest.approx(
        550e6, rel=0.03
    )


def test_no_product_is_left_out_of_the_loop() -> None:
    """They are of other numbers in each turn, so the loop of 32 has the results of the last."""
    setting = dataclasses.replace(make_replay_settings("sac")[PRODUCTS], hidden_size=8)
    networks, batches = products_worker.make_arguments(setting, obs_size=3, action_size=1)
    looped = jax.jit(lambda *args: products_worker.run_updates(*args, 32))(networks, batches)
    once = products_worker.compute_update(networks, [rows[31 % len(rows)] for rows in batches])
    chex.assert_trees_all_close(looped, once, rtol=1e-4, atol=1e-4)


def _linear_sac(networks: Any, batch: Any) -> Any:
    """Gradients of SAC's losses, with networks of matrices alone and no noise in the actions."""
    inputs, next_inputs = batch

    def critic_loss(critics: Any) -> Any:
        next_obs, policy = next_inputs[:, :3], networks["policy"]
        action = products_worker.forward(policy, next_obs)[-1][:, :1]
        following = jnp.concatenate([next_obs, action], axis=-1)
        target = sum(
            products_worker.forward(target, following)[-1] for target in networks["targets"]
        )
        values = [products_worker.forward(critic, inputs)[-1] for critic in critics]
        return sum(jnp.sum((value - target) ** 2) for value in values)

    def policy_loss(policy: Any) -> Any:
        action = products_worker.forward(policy, inputs[:, :3])[-1][:, :1]
        chosen = jnp.concatenate([inputs[:, :3], action], axis=-1)
        values = [products_worker.forward(critic, chosen)[-1] for critic in networks["critics"]]
        return sum(jnp.sum(value**2) for value in values)

    return jax.grad(critic_loss)(networks["critics"]), jax.grad(policy_loss)(networks["policy"])


def _products(fn: Any, *arguments: Any) -> Counter[int]:
    """Count the matrix products of a function by their number of multiplications."""
    text = jax.jit(fn).lower(*arguments).as_text()
    shapes = re.findall(r"dot_general .*: \(tensor<(.*?)>, tensor<(.*?)>\) -> tensor<(.*?)>", text)
    sizes = [
        math.isqrt(math.prod(int(n) for shape in three for n in shape.split("x")[:-1]))
        for three in shapes  # MK, KN and MN numbers
    ]
    return Counter(sizes)
