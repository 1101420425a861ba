"""No traced setting is read from the settings where lanes with different values share a program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl.algorithms.ppo import PPOLearner
from jaxrl.core.hparams import PerLane
from jaxrl.errors import ConfigError
from jaxrl.evaluation.compiled import make_evaluator
from jaxrl.sweeps.grouping import get_lane_numbers, group_lanes
from jaxrl.sweeps.lanes import Lanes, stack_trees
from tests.helpers import every_algorithm, small
from tests.lanes import lanes_at, sweepable, with_effects

pytestmark = pytest.mark.allow_key_reuse


def trace(config: Any) -> None:
    """Everything that lanes share, from settings of which no traced one can be read."""
    (group,) = group_lanes(lanes_at(config, [{}, {"seed": 1}]))
    names = sweepable(config)
    assembly = group.assemble(names)
    lanes = Lanes.from_run(assembly.run, names)
    keys = jax.random.split(jax.random.key(0), 2)
    numbers = stack_trees([get_lane_numbers(lane.config) for lane in group.lanes])
    params = stack_trees(group.env_params)
    states = jax.eval_shape(lanes.init, keys, params, numbers)
    jax.eval_shape(lanes.run_batches, states, jnp.asarray(1))
    changed = group.lanes[0].config.get_evaluation_config_object()
    evaluator = make_evaluator(
        changed.evaluation_settings,
        assembly.rollout_worker,
        assembly.made.max_episode_steps,
        explore=changed.env_runners_settings.explore,
    )

    def evaluate(key: Any) -> Any:
        learner = assembly.run.init(key, group.env_params[0])
        return evaluator(lanes.run.make_actor_state(learner), group.env_params[0], key)

    jax.eval_shape(evaluate, jax.random.key(0))


@pytest.mark.representatives("PPO", "DQN")
@pytest.mark.parametrize("algo", every_algorithm())
def test_programs_of_lanes_are_built_without_their_numbers(algo: str) -> None:
    trace(with_effects(small(algo)))


def test_a_loss_that_reads_one_is_found() -> None:
    class Careless(PPOLearner):
        def compute_loss(self, params: Any, batch: Any, values: Any, key: Any) -> Any:
            loss, metrics = super().compute_loss(params, batch, values, key)
            return loss * self.settings.entropy_coeff, metrics

    with pytest.raises(ConfigError, match="entropy_coeff was read from the settings"):
        trace(with_effects(small()).learners(learner_class=Careless))


@pytest.mark.parametrize(
    "read",
    [
        float,
        int,
        bool,
        np.asarray,
        jnp.asarray,
        list,
        lambda x: 2.0 * x,
        lambda x: x - 1,
        lambda x: jnp.ones(()) * x,
        lambda x: x == 0.0,
        lambda x: x > 0.0,
        lambda x: x in (0.0, 1.0),
        "{:.3f}".format,
    ],
)
def test_no_way_of_reading_one_gives_a_number(read: Any) -> None:
    with pytest.raises(ConfigError, match=r"lr was read .* self.settings.at"):
        read(PerLane("lr"))
