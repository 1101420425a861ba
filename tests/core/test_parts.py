"""Steps of parts of the parameters, and draws that do not depend on the number of devices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from jaxrl.core.keys import draw_normal_rows
from jaxrl.learners.actor_critic import combine_metrics
from jaxrl.learners.gradients import NUM_NONFINITE_UPDATES


def test_metrics_of_steps_are_joined() -> None:
    def step(loss: float, norm: float, flag: float, **own: float) -> Any:
        shared = {"total_loss": loss, "grad_norm": norm, NUM_NONFINITE_UPDATES: flag}
        return {name: jnp.float32(x) for name, x in {**shared, **own}.items()}

    metrics = combine_metrics(step(1.0, 3.0, 0.0, a=5.0), step(2.0, 4.0, 1.0, b=6.0))
    expected = {"total_loss": 3.0, "grad_norm": 5.0, NUM_NONFINITE_UPDATES: 1.0, "a": 5.0, "b": 6.0}
    assert {name: float(x) for name, x in metrics.items()} == expected


def mesh_of_eight() -> Mesh:
    return Mesh(np.asarray(jax.devices()[:8]), ("d",))


def test_normal_rows_are_the_same_on_one_device_and_on_eight() -> None:
    rows, replicated = PartitionSpec("d"), PartitionSpec()
    drawn = jax.shard_map(
        lambda key: draw_normal_rows(key, (2, 3), "d"),
        mesh=mesh_of_eight(),
        in_specs=replicated,
        out_specs=rows,
    )
    together = jax.jit(drawn)(jax.random.key(0))
    alone = draw_normal_rows(jax.random.key(0), (16, 3), None)
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(alone)) == alone.size
