"""Exported policies as StableHLO, for users of JAX: one artefact for every batch size."""

import os
from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export as jax_export

from jaxrl.errors import ExportError, summarize_exception
from jaxrl.export import numpy_program as npp
from jaxrl.export.loading import load_policy
from jaxrl.export.trace import DrawReplacer, DrawSpec, TracedFunction

PLATFORMS = ("cpu", "cuda")


def serialize_function(function: TracedFunction) -> tuple[bytes, list[DrawSpec]]:
    """Return a traced function as serialized StableHLO, and its random inputs.

    Its arguments are a list of the used inputs in order, and a list of the random inputs; its
    result is the list of the outputs.

    Raises:
        ExportError: If it cannot be exported.
    """
    closed, used = function.closed, set(function.find_used_inputs())
    uses_keys = function.has_keys and function.find_used()[-1]
    specs = _find_draws(function) if uses_keys else []
    keys = jax.random.key(0)

    def run(arrays: list[Any], draws: list[Any]) -> list[Any]:
        given = iter(arrays)
        arguments = [
            next(given) if name in used else jnp.zeros(spec.shape, spec.dtype)
            for name, spec in function.inputs
        ]
        if function.has_keys:  # every draw is replaced, so the keys decide nothing
            arguments.append(jnp.broadcast_to(keys, (function.batch,)))
        return DrawReplacer(draws or None).evaluate(closed.jaxpr, closed.consts, arguments)

    inputs = [spec for name, spec in function.inputs if name in used]
    draws = [jax.ShapeDtypeStruct((function.batch, *spec.shape), spec.dtype) for spec in specs]
    try:
        with jax.debug_key_reuse(False):  # no draw is left that would consume a key
            exported = jax_export.export(jax.jit(run), platforms=PLATFORMS)(inputs, draws)
        return bytes(exported.serialize()), specs
    except ImportError as error:
        raise ExportError(
            "The format 'stablehlo' needs flatbuffers: pip install 'jaxrl[export]'."
        ) from error
    except (TypeError, ValueError, NotImplementedError) as error:
        raise ExportError(
            f"{function.owner} cannot be exported as StableHLO: {summarize_exception(error)}."
        ) from error


def _find_draws(function: TracedFunction) -> list[DrawSpec]:
    replacer = DrawReplacer()
    closed = function.closed

    def run(*arguments: jax.Array) -> list[Any]:
        return replacer.evaluate(closed.jaxpr, closed.consts, arguments)

    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in closed.jaxpr.invars]  # pyright: ignore
    with jax.debug_key_reuse(False):
        jax.eval_shape(run, *shapes)
    return replacer.specs


class StableHloProgram:
    """Program of an export that JAX runs, with the interface of `numpy_program.Program`.

    Args:
        exported: Deserialized program.
        inputs: Names of its inputs.
        draws: Names of its random inputs.
        outputs: Names of its outputs.
    """

    def __init__(
        self, exported: jax_export.Exported, inputs: list[str], draws: list[str], outputs: list[str]
    ) -> None:
        self._call, self._inputs, self._draws = jax.jit(exported.call), inputs, draws
        self.input_names, self.output_names = [*inputs, *draws], outputs

    def prepare(self, weights: Mapping[str, np.ndarray]) -> list[Any]:
        """Return the weights by name, on the device."""
        return [{name: jnp.asarray(array) for name, array in weights.items()}]

    def run(
        self, prepared: list[Any], batch: int, inputs: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Run the program; see `numpy_program.Program.run`."""
        del batch
        weights = {f"weights/{name}": array for name, array in prepared[0].items()}
        arrays = [weights[name] if name in weights else inputs[name] for name in self._inputs]
        results = self._call(arrays, [inputs[name] for name in self._draws])
        return dict(zip(self.output_names, map(np.asarray, results), strict=True))

    def prune(self, outputs: Collection[str]) -> "StableHloProgram":
        """Return the program itself: JAX computes all outputs."""
        del outputs
        return self

    def check_run(self, prepared: list[Any]) -> None:
        """Do nothing: JAX checks types and shapes in every call."""


def load_stablehlo(
    folder: str | os.PathLike[str], *, explore: bool = False, seed: int | None = None
) -> npp.NumpyPolicy:
    """Load the StableHLO of an export as a policy with the methods of `NumpyPolicy`.

    Args:
        folder: Folder of the export.
        explore: Whether to sample actions.
        seed: Seed of the sampled actions.

    Raises:
        PolicyFileError: If the export is damaged, or has no StableHLO.
    """

    def make_program(name: str, manifest: dict[str, Any], content: bytes) -> StableHloProgram:
        exported, described = jax_export.deserialize(bytearray(content)), manifest["programs"][name]
        inputs, draws, outputs = (described[key] for key in ("inputs", "draws", "outputs"))
        return StableHloProgram(exported, inputs, draws, outputs)

    return load_policy(folder, "stablehlo", make_program, explore=explore, seed=seed)
