"""Settings of placement have their effect when the Algorithm is built."""

import os

import jax
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl.assembly.assemble import assemble
from jaxrl.core.space_arrays import count_bytes
from jaxrl.core.types import PyTree
from jaxrl.errors import ConfigError
from jaxrl.runners.placement import check_memory
from tests.helpers import small


def devices_of(tree: PyTree) -> set[jax.Device]:
    return {device for leaf in jax.tree.leaves(tree) for device in leaf.devices()}


def test_the_one_device_to_use() -> None:
    with small().learners(local_device_idx=1).build() as algorithm:
        algorithm.train()
        assert algorithm.devices == [jax.local_devices()[1]]
        assert devices_of(algorithm.state) == {jax.local_devices()[1]}
        assert "Local device 1, as set." in algorithm.explain()


def test_a_run_on_the_host_learns_on_one_cpu_device() -> None:
    wide = small().training(train_batch_size=256, minibatch_size=256).learners(num_devices="auto")
    with wide.copy().build() as compiled, wide.env_runners(placement="host").build() as hosted:
        assert len(compiled.devices) > 1
        assert len(hosted.devices) == 1
        assert "1 cpu device: XLA's threads share each update" in hosted.explain()


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"local_device_idx=8 is not one of the 8 .* from 0 to 7"):
        small().learners(local_device_idx=8).build()


def test_variables_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_TEST_VARIABLE", "before")
    config = small().python_environment(
        extra_python_environs_for_driver={"JAXRL_TEST_VARIABLE": "after"}
    )
    assert os.environ["JAXRL_TEST_VARIABLE"] == "before"
    with config.build():
        assert os.environ["JAXRL_TEST_VARIABLE"] == "after"


@pytest.mark.slow
def test_a_jax_environment_is_shown_to_validate_env_once() -> None:
    seen = []
    config = small().environment(
        env_config={"gravity": 9.0}, validate_env=lambda *args: seen.append(args)
    )
    with config.build() as algorithm:
        algorithm.train()
    ((env, context),) = seen
    assert env.action_space(env.default_params).n == 2
    assert context == {"gravity": 9.0}
    assert context.worker_index == 0


def test_what_validate_env_raises_ends_the_build() -> None:
    def refuse(env: object, context: object) -> None:
        raise ValueError("gravity points upwards")

    with pytest.raises(ValueError, match="gravity points upwards"):
        small().environment(validate_env=refuse).build()


def test_explain_knows_the_place() -> None:
    with small().build() as algorithm:
        assert "In-graph: rollout, targets and updates" in algorithm.explain()


def test_the_size_of_an_observation_is_known_without_making_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = {
        "image": spaces.Box(0, 255, (8, 8, 3), np.uint8),
        "wide": spaces.Box(-1.0, 1.0, (5,), np.float64),
        "choice": spaces.Tuple([spaces.Discrete(7), spaces.MultiDiscrete([3, 4])]),
        "flags": spaces.MultiBinary(6),
    }
    assert count_bytes(spaces.Dict(parts)) == 8 * 8 * 3 + 5 * 4 + 4 + 2 * 4 + 6
    config = small().env_runners(placement="host")
    assembly = assemble(config)
    monkeypatch.setattr(spaces.Box, "sample", lambda self: pytest.fail("makes one"))
    check_memory(assembly, jax.local_devices()[:1])


def test_a_module_that_is_too_large_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxrl.runners.placement.get_memory_limit", lambda _: 2**25)
    config = small().rl_module(model_config={"fcnet_hiddens": [2048, 2048]})
    with pytest.raises(ConfigError, match=r"module and its optimizer need .* layers of model_conf"):
        config.build()
