"""Tasks of MuJoCo Playground, `playground:CartpoleBalance` (https://playground.mujoco.org).

`env_config` has the fields of a task's config, with dots for those within others.
"""

import importlib
import inspect
from importlib.metadata import version
from typing import Any

from jaxrl.envs.adapters import brax
from jaxrl.envs.adapters.suite_env import SuiteEnv, remove_layers
from jaxrl.errors import EnvError, did_you_mean


def list_ids() -> list[str]:
    """List the tasks of all three groups."""
    return list(_open().registry.ALL_ENVS)


def find_refused() -> dict[str, str]:
    """Return the reason for each task that Playground cannot make with the installed MuJoCo."""
    _open()
    reacher = importlib.import_module("mujoco_playground._src.dm_control_suite.reacher")
    has_method = hasattr(importlib.import_module("mujoco").MjSpec, "find_body")
    if has_method or "find_body" not in inspect.getsource(reacher):
        return {}
    reason = (
        f"Playground {version('playground')} calls MjSpec.find_body, which MuJoCo {version('mujoco')} "
        "does not have"
    )
    return dict.fromkeys(("ReacherEasy", "ReacherHard"), reason)


def make(name: str, /, **arguments: object) -> SuiteEnv:
    """Make a task, simulated by MJX's own implementation in JAX unless `impl` says otherwise.

    Raises:
        EnvError: If the task needs MuJoCo Menagerie's robots, which Playground would download.
    """
    package = _open()
    robots = importlib.import_module("mujoco_playground._src.mjx_env").MENAGERIE_PATH
    if name not in package.dm_control_suite.ALL_ENVS and not robots.exists():
        raise EnvError(
            f"playground:{name} needs the robots of MuJoCo Menagerie, which are not at {robots}; "
            "jaxrl downloads nothing: clone google-deepmind's repository mujoco_menagerie there, or "
            "take one of Playground's dm_control tasks, such as playground:CheetahRun."
        )
    known = list(package.registry.get_default_config(name))
    for given in arguments:
        if (field := given.partition(".")[0]) not in known:
            raise EnvError(
                f"playground:{name} has no field {field!r} in its config.{did_you_mean(field, known)} "
                f"Known: {', '.join(known)}."
            )
    return adapt(package.registry.load(name, config_overrides={"impl": "jax", **arguments}))


def adapt(env: Any) -> SuiteEnv:
    """Return an environment of Playground, with or without wrappers for training."""
    env = remove_layers(env, "env", brax.LAYERS)
    return brax.wrap_physics("playground", env, int(env.unwrapped._config.episode_length))


def _open() -> Any:
    package = importlib.import_module("mujoco_playground")
    brax.check_mujoco()
    return package
