"""Policies that simulators compute themselves: the program once, the weights at each version."""

import importlib
import threading
from typing import Any

import jax

from jaxrl.assembly.assemble import Assembly
from jaxrl.errors import JaxrlError
from jaxrl.external.frames import Arrays, Kind, LinkError, encode
from jaxrl.runners.fragment import Weights

_SENDING = "jaxrl.export.sending"
"""Module that exports policies. It is above the runners, and imported when a simulator asks."""

_PER_ENV = ("epsilon_ladder", "exploration_sigma_max")
"""Settings by which environments explore differently from one another."""


class PolicyExporter:
    """Frames of POLICY messages, of which those of the newest weights are kept.

    Args:
        assembly: Assembled run.
    """

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._lock = threading.Lock()
        self._export: Any = None
        self._failure: LinkError | None = None
        self._kept: tuple[Weights, dict[bool, Arrays]] | None = None

    def make_frame(self, weights: Weights, request: int, has_program: bool) -> bytes:
        """Return the frame that answers a request; called in a thread that may wait.

        Raises:
            LinkError: If the policy has no form that simulators can compute.
        """
        with self._lock:
            arrays = self._make_arrays(weights, has_program)
        head = {"request": request, "version": weights.version, "has_program": not has_program}
        return encode(Kind.POLICY, head, arrays)

    def _make_arrays(self, weights: Weights, has_program: bool) -> Arrays:
        if self._failure is not None:
            raise self._failure
        if self._kept is None or self._kept[0] is not weights:
            self._kept = weights, {}
        kept = self._kept[1]
        if has_program not in kept:
            kept[has_program] = self._export_arrays(weights, has_program)
        return kept[has_program]

    def _export_arrays(self, weights: Weights, has_program: bool) -> Arrays:
        sending = importlib.import_module(_SENDING)
        actor = jax.device_get(weights.actor)
        if found := [name for name in _PER_ENV if name in actor.hparams]:
            self._failure = LinkError(
                f"Simulators explore differently from one another, by {found[0]}, and one that computes "
                "its actions itself does not know its place: use inference_mode='remote'."
            )
            raise self._failure
        try:
            if self._export is None:
                self._export = sending.export_in_memory(self._assembly.policy_step, actor)
        except JaxrlError as error:
            self._failure = LinkError(
                f"The policy cannot be computed by simulators ({error}): use "
                "inference_mode='remote'."
            )
            raise self._failure from error
        arrays: Arrays = {} if has_program else sending.encode_program(self._export)
        named = self._export.collect_weights(actor)
        return {**arrays, **{f"weights/{name}": array for name, array in named.items()}}
