"""The peer that runs JAX-CORL's functions from a checkout, with a file that has their form."""

from pathlib import Path

import jax
import pytest

from benchmarks.peers.jax_corl.worker import UPDATES_PER_DISPATCH, JaxCorlPeer
from benchmarks.settings import JAX_CORL_VARIABLE, OfflineSetting, write_data

FILE = """
import os
from typing import NamedTuple
import d4rl, gym, jax, jax.numpy as jnp, tqdm, wandb
from omegaconf import OmegaConf

def make_env(env: gym.Env): ...

class IQLConfig:
    def __init__(self, **values):
        self.__dict__ |= values

config = IQLConfig(**OmegaConf.from_cli())

class Transition(NamedTuple):
    observations: jax.Array
    actions: jax.Array
    rewards: jax.Array
    next_observations: jax.Array
    dones: jax.Array

def create_iql_train_state(key, observations, actions, config):
    assert observations.shape + actions.shape == (17, 6)
    assert config.hidden_dims == (8, 8) and not config.layer_norm
    return jnp.zeros((), jnp.int32)

class IQL:
    def update_n_times(self, state, data, key, config):
        last = jnp.sum(jax.tree_util.tree_map(lambda x: x[-1].sum(), data).dones)
        return state + config.n_jitted_updates + last.astype(jnp.int32), {}
"""


def test_updates_come_in_dispatches_of_eight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "algos").mkdir()
    (tmp_path / "algos" / "iql.py").write_text(FILE)
    write_data(tmp_path / "data.npz")
    monkeypatch.setenv(JAX_CORL_VARIABLE, str(tmp_path))
    monkeypatch.setattr(jax, "tree_map", jax.tree.map, raising=False)  # else it stays
    setting = OfflineSetting(algorithm="IQL", hidden_size=8, batch_size=4, num_updates=20)
    request = {"setting": setting.to_dict(), "data": str(tmp_path / "data.npz")}
    peer = JaxCorlPeer()
    peer.setup(request)
    assert int(peer.state) == UPDATES_PER_DISPATCH * (1 + 3)  # to compile, and to warm up
    assert peer.run({})["seconds"] > 0
    assert int(peer.state) == UPDATES_PER_DISPATCH * 7


@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_a_checkout_that_is_missing_is_named(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_data(tmp_path / "data.npz")
    monkeypatch.setenv(JAX_CORL_VARIABLE, folder)
    setting = OfflineSetting(algorithm="CQL", hidden_size=8, batch_size=4, num_updates=20)
    request = {"setting": setting.to_dict(), "data": str(tmp_path / "data.npz")}
    with pytest.raises(SystemExit, match=rf"algos/cql\.py: JAX_CORL=FOLDER.*is '{folder}'"):
        JaxCorlPeer().setup(request)
