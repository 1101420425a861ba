"""The actor's class, without Ray: what it is made of, and that it raises nothing."""

import threading
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl import PPOConfig
from jaxrl.assembly.assemble import assemble
from jaxrl.errors import ConfigError, EnvError
from jaxrl.runners.fragment import Weights
from jaxrl.runners.ray.env_runner import ActorJob, RayEnvRunner, pack_job, to_exception_info
from jaxrl.runners.ray.start import ExceptionInfo
from jaxrl.training.report import to_host
from tests.runners.ray.toys import Toy

# An actor asks Ray where it runs, which starts one where there is none.
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]


def config_for(env: Any = Toy, **env_config: Any) -> Any:
    config = PPOConfig().environment(env, env_config=env_config, disable_env_checking=True)
    config.env_runners(num_env_runners=1, num_envs_per_env_runner=2, rollout_fragment_length=4)
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    return config.training(train_batch_size=8)


def job_for(config: Any) -> bytes:
    config.freeze()
    made = assemble(config).made
    return pack_job(
        ActorJob(config=config, made=made, num_workers=3, num_envs=2, fragment_length=4, seed=5)
    )


def weights_for(config: Any) -> Weights:
    runner = assemble(config).train_step
    return Weights(
        version=1,
        actor=to_host(runner.make_actor_state(runner.init_without_envs(jax.random.key(0), 2))),
    )


def test_a_runner_started_again_draws_what_was_not_drawn_before() -> None:
    config = config_for("gymnasium:CartPole-v1")
    job, weights = job_for(config), weights_for(config)
    fragments: list[Any] = []
    for incarnation, env_steps in ((0, 0), (1, 4)):
        actor = RayEnvRunner()
        assert actor.start(job, 2, incarnation, env_steps) is None
        fragments.append(actor.sample(weights, None))
        assert actor.close() is None
    first, second = fragments
    assert first.env_index.tolist() == second.env_index.tolist() == [2, 3]
    assert first.record.env_step[:, 0].tolist() == [0, 1, 2, 3]
    assert second.record.env_step[:, 0].tolist() == [4, 5, 6, 7]
    assert not np.array_equal(first.rollout.obs[0], second.rollout.obs[0])
    assert second.number == 0


@pytest.mark.slow
def test_batch_mode_is_the_runners_too() -> None:
    config = config_for()
    config.env_runners(batch_mode="complete_episodes")
    job, weights = job_for(config), weights_for(config)
    actor = RayEnvRunner()
    actor.start(job, 1, 0, 0)
    fragment = actor.sample(weights, None)
    assert fragment.rollout.terminated.any(axis=0).all()
    assert fragment.num_env_steps == 20  # two episodes of ten steps
    fewer = actor.evaluate(None, None, "sample_fragment", {"num_steps": 3})
    assert fewer.rollout.reward.shape == (3, 2)
    assert fewer.weights_version == 1
    assert actor.apply(None, None, lambda runner, add: runner.worker_index + add, 10) == 11


def test_what_fails_is_returned() -> None:
    asked_too_early = RayEnvRunner().sample(None, None)
    assert isinstance(asked_too_early, ExceptionInfo)
    assert "before it was started" in asked_too_early.message
    actor = RayEnvRunner()
    raised = actor.start(job_for(config_for(fault="start", worker=1)), 1, 0, 0)
    assert isinstance(raised, ExceptionInfo)
    assert raised.user_error_class is None
    assert "no such simulator" in raised.message
    assert "raise OSError" in raised.traceback


def test_an_error_without_a_cause_is_a_refusal() -> None:
    assert to_exception_info(EnvError("The reward is a str.")).user_error_class is EnvError
    caused = EnvError("step raised ValueError.")
    caused.__cause__ = ValueError("boom")
    assert to_exception_info(caused).user_error_class is None
    assert to_exception_info(KeyError("x")).message == "KeyError: 'x'"
    assert to_exception_info(KeyError("x")).user_error_class is None


def test_the_setting_that_cannot_be_pickled_is_named() -> None:
    lock = threading.Lock()

    def connector() -> Any:
        with lock:
            return []

    config = config_for()
    config.env_runners(env_to_module_connector=connector)
    with pytest.raises(ConfigError, match=r"^env_to_module_connector cannot be sent.*TypeError"):
        job_for(config)
    with pytest.raises(ConfigError, match=r"^env cannot be sent"):
        job_for(config_for(lambda context: lock and Toy(context)))


def test_what_only_the_driver_reads_need_not_be_picklable() -> None:
    lock = threading.Lock()
    config = config_for()
    config.evaluation(custom_evaluation_function=lambda algorithm: {"free": not lock.locked()})
    config.callbacks(on_train_result=lambda **kwargs: lock.locked())
    assert isinstance(job_for(config), bytes)
    config = config_for()
    config.callbacks(on_episode_end=lambda **kwargs: lock.locked())
    with pytest.raises(ConfigError, match=r"^on_episode_end cannot be sent"):
        job_for(config)
