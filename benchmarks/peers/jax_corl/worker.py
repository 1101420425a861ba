"""JAX-CORL's IQL, CQL and TD3+BC as a peer: `python -m benchmarks.peers.jax_corl.worker`.

JAX-CORL is no package: the variable JAX_CORL names a checkout of it
(https://github.com/nissymori/JAX-CORL), whose functions run as its scripts call them, with 8 updates
per dispatch. What the scripts import for environments, logs and command lines is replaced. Layer
normalization is off where that is a setting; TD3+BC's critics always have it.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import jax
import jax.numpy as jnp

from benchmarks.peers.handwritten_offline.algorithms import load
from benchmarks.peers.protocol import Peer, Request, serve_peer
from benchmarks.settings import ACTION_SIZE, JAX_CORL_VARIABLE, OBS_SIZE, OfflineSetting

UPDATES_PER_DISPATCH = 8
"""JAX-CORL's default."""
FILES = {"CQL": "cql", "IQL": "iql", "TD3+BC": "td3bc"}
REPLACED = ("d4rl", "gym", "wandb", "tqdm")

Step = Callable[[Any, jax.Array], Any]


class JaxCorlPeer(Peer):
    """Peer with one compiled setting, whose training continues from run to run."""

    packages = ("jax", "flax", "optax")

    def __init__(self) -> None:
        self._step: Step | None = None
        self.state: Any = None
        self._key = jax.random.key(1)
        self._num_updates = 0

    def setup(self, request: Request) -> dict[str, Any]:
        """Load the data and the algorithm's file, and compile for a setting."""
        setting = OfflineSetting.from_dict(request["setting"])
        module = import_algorithm(FILES[setting.algorithm])
        rows = load(request["data"], setting.gamma)
        data = module.Transition(
            observations=rows.obs,
            actions=rows.action,
            rewards=rows.reward,
            next_observations=rows.next_obs,
            dones=1.0 - rows.discount / setting.gamma,
        )
        make = make_cql if setting.algorithm == "CQL" else make_trained
        self.state, self._step = make(module, setting, data)
        self._num_updates = setting.num_updates
        start = time.perf_counter()
        self._take_step()
        compile_s = time.perf_counter() - start
        self.run({})
        return {"compile_s": compile_s}

    def run(self, request: Request) -> dict[str, Any]:
        """Run one measurement; seconds are those of the setting's number of updates."""
        dispatches = math.ceil(self._num_updates / UPDATES_PER_DISPATCH)
        start = time.perf_counter()
        for _ in range(dispatches - 1):
            self._dispatch()
        self._take_step()
        seconds = time.perf_counter() - start
        return {"seconds": seconds * self._num_updates / (dispatches * UPDATES_PER_DISPATCH)}

    def _dispatch(self) -> None:
        assert self._step is not None
        self._key, key = jax.random.split(self._key)
        self.state = self._step(self.state, key)

    def _take_step(self) -> None:
        self._dispatch()
        jax.block_until_ready(self.state)


def import_algorithm(name: str) -> Any:
    """Import a file of the checkout.

    Raises:
        SystemExit: If there is no checkout.
    """
    folder = os.environ.get(JAX_CORL_VARIABLE, "")
    path = Path(folder).expanduser() / "algos" / f"{name}.py"
    if not folder or not path.is_file():
        sys.exit(
            f"jax-corl needs a checkout of JAX-CORL with algos/{name}.py: {JAX_CORL_VARIABLE}=FOLDER "
            f"names it, and is {folder!r}."
        )
    jax.devices()  # before the file writes flags of a GPU into XLA_FLAGS
    if not hasattr(jax, "tree_map"):  # its name in former versions, which CQL's file has
        jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]
    arguments = types.SimpleNamespace(from_cli=dict)
    replaced = {name: MagicMock(name=name) for name in REPLACED}
    replaced["omegaconf"] = MagicMock(OmegaConf=arguments)
    missing = {name: module for name, module in replaced.items() if name not in sys.modules}
    spec = importlib.util.spec_from_file_location(f"jax_corl_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.modules.update(missing)
    try:
        spec.loader.exec_module(module)
    finally:
        for name in missing:
            del sys.modules[name]
    return module


def make_trained(module: Any, setting: OfflineSetting, data: Any) -> tuple[Any, Step]:
    """Return the state and a dispatch of IQL or TD3+BC."""
    name = "TD3BC" if setting.algorithm == "TD3+BC" else setting.algorithm
    values: dict[str, Any] = {"actor_lr": setting.lr, "critic_lr": setting.lr}
    if name == "IQL":
        values |= {"value_lr": setting.lr, "layer_norm": False, "opt_decay_schedule": False}
    config = getattr(module, f"{name}Config")(
        batch_size=setting.batch_size,
        n_jitted_updates=UPDATES_PER_DISPATCH,
        hidden_dims=(setting.hidden_size, setting.hidden_size),
        tau=setting.tau,
        discount=setting.gamma,
        **values,
    )
    first = jax.tree.map(lambda x: x[0], data)
    create = getattr(module, f"create_{name.lower()}_train_state")
    state = create(jax.random.PRNGKey(0), first.observations, first.actions, config)
    update = jax.jit(getattr(module, name)().update_n_times, static_argnums=(3,))
    return state, lambda state, key: update(state, data, key, config)[0]


def make_cql(module: Any, setting: OfflineSetting, data: Any) -> tuple[Any, Step]:
    """Return the state and a dispatch of CQL."""
    hidden = (setting.hidden_size, setting.hidden_size)
    config = module.CQLConfig(
        batch_size=setting.batch_size,
        n_jitted_updates=UPDATES_PER_DISPATCH,
        hidden_dims=hidden,
        policy_lr=setting.lr,
        qf_lr=setting.lr,
        soft_target_update_rate=setting.tau,
        discount=setting.gamma,
        target_entropy=-float(ACTION_SIZE),
    )
    policy = module.TanhGaussianPolicy(OBS_SIZE, ACTION_SIZE, hidden)
    critic = module.FullyConnectedQFunction(OBS_SIZE, ACTION_SIZE, hidden)
    trainer = module.CQLTrainer(config, policy, critic, jax.random.PRNGKey(0))
    state = (trainer._train_states, trainer._target_qf_params)
    return jax.tree.map(jnp.asarray, state), lambda state, key: trainer.train(
        *state, data, key, config, bc=False
    )[:2]


if __name__ == "__main__":
    serve_peer(JaxCorlPeer())
