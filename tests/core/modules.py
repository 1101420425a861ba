"""Small modules, their parameters and observations, for the tests of modules."""

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from jaxrl import RLModuleSpec
from jaxrl.core.types import Progress
from jaxrl.modules.rl_module import Moment

VECTOR = spaces.Box(-1.0, 1.0, (4,))


SMALL_IMAGE = spaces.Box(0, 255, (10, 10, 2), np.uint8)


TINY_IMAGE = spaces.Box(0, 255, (4, 4, 1), np.uint8)


ACTION_SPACES = {
    "discrete": spaces.Discrete(3),
    "multi": spaces.MultiDiscrete([2, 3]),
    "box": spaces.Box(-1.0, 1.0, (2,)),
}


B = 5


def build(action="discrete", obs=VECTOR, **model_config):
    space = ACTION_SPACES[action] if isinstance(action, str) else action
    return RLModuleSpec(
        observation_space=obs,
        action_space=space,
        model_config={"fcnet_hiddens": [8], **model_config},
    ).build()


def params_of(module, seed=0):
    return jax.jit(module.init)(jax.random.key(seed))


def some_obs(space=VECTOR, batch=(B,), seed=0):
    if isinstance(space, spaces.Dict):
        return {name: some_obs(part, batch, seed) for name, part in space.spaces.items()}
    rng = np.random.default_rng(seed)
    if isinstance(space, spaces.Discrete):
        return jnp.asarray(rng.integers(0, int(space.n), batch), jnp.int32)
    if np.issubdtype(space.dtype, np.floating):
        return jnp.asarray(rng.normal(size=(*batch, *space.shape)), space.dtype)
    return jnp.asarray(rng.integers(0, space.high.max(), (*batch, *space.shape)), space.dtype)


def explore(module, params, obs, seed=1):
    num = jax.tree.leaves(obs)[0].shape[0]
    keys = jax.random.split(jax.random.key(seed), num)

    def act(params, obs, keys):
        return module.forward_exploration(
            params, obs, module.initial_carry(num), {}, None, jnp.arange(num), module.draw(keys)
        )

    return jax.jit(act)(params, obs, keys)


def masked_spaces():
    return spaces.Dict({"action_mask": spaces.MultiBinary(3), "observations": VECTOR})


def moment(hparams, num_envs):
    """The start of a run of several environments."""
    index = jnp.arange(num_envs, dtype=jnp.int32)
    return Moment(hparams=hparams, progress=Progress.zeros(), env_index=index)
