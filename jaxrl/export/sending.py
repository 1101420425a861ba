"""Exports that are sent to simulators instead of written to a folder."""

import json

import numpy as np

from jaxrl.export.artifact import Export, make_export
from jaxrl.policy.inference import Inference
from jaxrl.training.rollout import ActorState, PolicyStep


def export_in_memory(policy_step: PolicyStep, actor: ActorState) -> Export:
    """Export a policy for NumPy, with both modes; its observations are whole, as critics learn them.

    Raises:
        ExportError: If it has no such form.
    """
    inference = Inference(policy_step, max_retraces=None)
    return make_export(inference, actor, formats=("numpy",), explore=(False, True), num_examples=1)


def encode_program(export: Export) -> dict[str, np.ndarray]:
    """Return manifest, program and constants as arrays; both texts as bytes of JSON."""
    texts = {"manifest": export.manifest, "program": export.program}
    return {
        **{
            name: np.frombuffer(json.dumps(data, allow_nan=False).encode(), np.uint8)
            for name, data in texts.items()
        },
        **{f"constants/{name}": array for name, array in export.constants.items()},
    }
