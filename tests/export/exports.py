"""Exported policies of shipped configs, built once for all tests."""

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxrl import Algorithm, Policy
from jaxrl.config.load import load_experiments
from jaxrl.config.registry import resolve_config_path
from jaxrl.export.artifact import Export, make_export
from jaxrl.export.numpy_program import NumpyPolicy, PolicyFileError, hash_manifest

CARTPOLE, SAC, LSTM = "classic/cartpole-ppo", "classic/pendulum-sac", "memory/statelesscartpole-ppo"
MASKED, CNN = "spaces/minefield-ppo", "minatar/breakout-dqn"
REPRESENTATIVES = (CARTPOLE, SAC, LSTM, MASKED, CNN)


def build(config_id: str) -> Algorithm:
    """The algorithm of a shipped config, untrained and without runners."""
    (experiment,) = load_experiments(resolve_config_path(config_id))
    return Algorithm(experiment.config, read_only=True)


@functools.cache
def get_policy(config_id: str, explore: bool = False) -> Policy:
    return build_once(config_id).get_policy(explore=explore)


@functools.cache
def build_once(config_id: str) -> Algorithm:
    return build(config_id)


@functools.cache
def get_export(config_id: str) -> Export:
    policy = get_policy(config_id)
    return make_export(policy.inference, policy.actor, num_examples=8)


@functools.cache
def get_onnx_export(config_id: str) -> Export:
    policy = get_policy(config_id)
    formats = ["numpy", "onnx"]
    return make_export(policy.inference, policy.actor, formats=formats, num_examples=8)


def load(export: Export, folder: Path, explore: bool = False, seed: int = 0) -> NumpyPolicy:
    return NumpyPolicy(export.write(folder), explore=explore, seed=seed)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and its hash, as who wants to do harm would."""
    manifest = json.loads((folder / "policy.json").read_text())
    change(manifest)
    manifest["sha256"] = hash_manifest(manifest)
    (folder / "policy.json").write_text(json.dumps(manifest))


def replace(folder: Path, name: str, content: bytes) -> None:
    """Replaces a file and its hash, as who wants to do harm would."""
    (folder / name).write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    rewrite(folder, lambda manifest: manifest["files"].update({name: digest}))


def get_refusal(load: Callable[[], Any]) -> str:
    """Return the one sentence with which a file of a policy is refused."""
    with pytest.raises(PolicyFileError) as caught:
        load()
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    assert len(message) < 500
    return message
