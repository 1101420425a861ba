"""Folder of an exported policy: programs, weights, their description, and examples to check them by."""

import contextlib
import dataclasses
import hashlib
import inspect
import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import jax
import numpy as np
from gymnasium import spaces

from jaxrl.config.serialize import hash_config, serialize_restorable
from jaxrl.connectors.base import Connector
from jaxrl.errors import ExportError, did_you_mean
from jaxrl.export import numpy_program as npp
from jaxrl.export.examples import record_examples
from jaxrl.export.program import ExportedProgram, encode_dim
from jaxrl.export.stablehlo import serialize_function
from jaxrl.export.trace import (
    DrawSpec,
    TracedFunction,
    get_input_shapes,
    name_leaves,
    trace_act,
    trace_set_previous_action,
)
from jaxrl.modules.planner import Planner
from jaxrl.modules.rl_module import make_zeros
from jaxrl.policy.inference import Inference
from jaxrl.runtime.versions import get_versions
from jaxrl.training.rollout import ActorState, PolicyStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config

FORMATS = ("numpy", "stablehlo", "onnx")
EXAMPLES = "examples.npz"


def describe_space(
    space: gymnasium.Space[Any], path: str, ignored: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a space as plain data, which `export.numpy_program` reads.

    Args:
        space: Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these.
        path: Name of the space, for the error message.
        ignored: Names of parts of a Dict that values may have beside those of the space.

    Raises:
        ExportError: If a Dict has names that are not strings.
    """
    kind = type(space).__name__
    match space:
        case spaces.Dict():
            names = list(space.spaces)
            if not all(isinstance(name, str) for name in names):
                raise ExportError(f"{path} has names that are not strings, {names}: rename them.")
            parts = [[n, describe_space(part, f"{path}.{n}")] for n, part in space.spaces.items()]
            extra = {"ignored": list(ignored)} if ignored else {}
            return {"kind": kind, "spaces": parts, **extra}
        case spaces.Tuple():
            return {
                "kind": kind,
                "spaces": [describe_space(x, f"{path}[{i}]") for i, x in enumerate(space.spaces)],
            }
        case spaces.Discrete():
            low, high = int(space.start), int(space.start) + int(space.n) - 1
        case spaces.MultiDiscrete():
            low, high = space.start, space.start + space.nvec - 1
        case spaces.MultiBinary():
            low, high = 0, 1
        case spaces.Box():
            low, high = space.low, space.high
        case _:
            raise ExportError(f"{path} is {space}, which exported policies do not have.")
    bounds = {"low": _describe_bound(low), "high": _describe_bound(high)}
    return {"kind": kind, **bounds, "shape": list(space.shape or ()), "dtype": str(space.dtype)}


def _describe_bound(bound: object) -> object:
    """Return the bounds of every entry; one number where they are equal, infinite ones as text."""
    array = np.asarray(bound)
    if array.size and (array == array.flat[0]).all():
        array = array.flat[0]
    return _to_plain(array.tolist())


def _to_plain(value: object) -> object:
    if isinstance(value, list):
        return [_to_plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Exported policy in memory.

    Attributes:
        manifest: Contents of `policy.json`, without the hashes of files.
        program: Contents of `program.json`; None without the format "numpy".
        constants: Contents of `constants.npz`.
        weights: Contents of `weights.npz`.
        examples: Contents of `examples.npz`.
        blobs: Contents of other files by name.
    """

    manifest: dict[str, Any]
    program: dict[str, Any] | None
    constants: dict[str, np.ndarray]
    weights: dict[str, np.ndarray]
    examples: dict[str, np.ndarray]
    blobs: dict[str, bytes]

    def collect_weights(self, actor: ActorState) -> dict[str, np.ndarray]:
        """Return the weights of another actor of the same run, for `NumpyPolicy.set_weights`."""
        return collect_weights(actor, self.weights)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write the folder, whole or not at all, and return its path.

        Raises:
            ExportError: If the folder exists and is not empty, or cannot be written.
        """
        target = Path(folder).expanduser().absolute()
        check_target(target)
        temporary: str | None = None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.")
            self._write_files(Path(temporary))
            os.chmod(temporary, 0o777 & ~_get_umask())
            with contextlib.suppress(FileNotFoundError):
                target.rmdir()
            os.rename(temporary, target)
        except OSError as error:
            raise ExportError(
                f"{target} cannot be written: {error.strerror or error}; choose another folder."
            ) from error
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)
        return target

    def _write_files(self, folder: Path) -> None:
        arrays = {npp.CONSTANTS: self.constants, npp.WEIGHTS: self.weights, EXAMPLES: self.examples}
        for name, content in arrays.items():
            # In C order; `ascontiguousarray` makes a vector of a scalar.
            in_order: dict[str, Any] = {
                key: np.ascontiguousarray(array).reshape(array.shape)
                for key, array in content.items()
            }
            np.savez(folder / name, allow_pickle=False, **in_order)
        if self.program is not None:
            (folder / npp.PROGRAM).write_text(_to_json(self.program))
        for name, blob in self.blobs.items():
            (folder / name).write_bytes(blob)
        files = {path.name: npp.hash_file(str(path)) for path in sorted(folder.iterdir())}
        manifest = {**self.manifest, "files": files}
        manifest = {**manifest, npp.SHA256: npp.hash_manifest(manifest)}
        (folder / npp.MANIFEST).write_text(_to_json(manifest, indent=1))


def _get_umask() -> int:
    """Return the process's umask, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _to_json(data: object, indent: int | None = None) -> str:
    return json.dumps(data, indent=indent, allow_nan=False, separators=(",", ":")) + "\n"


def check_target(folder: Path) -> None:
    """Raise ExportError if a folder exists and is not empty."""
    if folder.is_dir() and not any(folder.iterdir()):
        return
    if folder.exists() or folder.is_symlink():
        raise ExportError(
            f"{folder} exists and is not an empty folder: export into a new one, or remove it."
        )


def check_options(formats: object, explore: object) -> tuple[list[str], list[bool]]:
    """Return the formats and modes of an export as lists.

    Raises:
        ExportError: If there is none of them, or one is unknown.
    """
    names = [formats] if isinstance(formats, str) else formats
    if not isinstance(names, Collection) or not names:
        raise ExportError(f"formats={formats!r} must name at least one of {', '.join(FORMATS)}.")
    for name in names:
        if name not in FORMATS:
            raise ExportError(
                f"There is no format {name!r}; formats are {', '.join(FORMATS)}."
                f"{did_you_mean(name, FORMATS)}"
            )
    modes = [explore] if isinstance(explore, bool) else explore
    if not isinstance(modes, Collection) or not modes or set(modes) - {False, True}:
        raise ExportError(
            f"explore={explore!r} must be True, False or both, (False, True): the actions to export."
        )
    return list(dict.fromkeys(names)), sorted({bool(mode) for mode in modes})


def collect_weights(actor: ActorState, names: Collection[str]) -> dict[str, np.ndarray]:
    """Return the leaves of an actor that an export uses, by name."""
    found = {name.partition("/")[2]: leaf for name, leaf in name_leaves("weights", actor)}
    leaves = jax.device_get({name: found[name] for name in names})
    return {name: np.asarray(leaf) for name, leaf in leaves.items()}


def make_export(
    inference: Inference,
    actor: ActorState,
    *,
    formats: Iterable[str] = ("numpy",),
    explore: object = (False, True),
    source: Mapping[str, Any] | None = None,
    num_examples: int = 16,
    opset: int | None = None,
) -> Export:
    """Export a policy.

    Args:
        inference: Forward passes of the run.
        actor: Parameters and connector statistics.
        formats: "numpy", "stablehlo", "onnx".
        explore: Modes: False for the most likely action, True for a sampled one.
        source: Facts about the run to record.
        num_examples: Number of steps of the recorded examples.
        opset: Version of ONNX's operators; None takes 17, which most runtimes have.

    Raises:
        ExportError: If the policy has no form in one of the formats.
    """
    kinds, modes = check_options(formats, explore)
    render = _make_renderer(opset) if "onnx" in kinds else None
    policy_step = inference.policy_step
    others = [kind for kind in kinds if kind != "stablehlo"]
    if isinstance(policy_step.module, Planner) and others:
        raise ExportError(
            f"The policy acts by search, which the format {others[0]!r} does not have: export with "
            "formats=('stablehlo',), or with planner={'num_simulations': 0} the network alone."
        )
    functions = {
        npp.SAMPLE if explore else npp.GREEDY: trace_act(policy_step, actor, explore=explore)
        for explore in modes
    }
    if inference.can_read_prev_action():
        functions[npp.SET_PREVIOUS_ACTION] = trace_set_previous_action(policy_step)
    lowered = {}
    if "numpy" in kinds or render is not None:
        lowered = {name: function.to_program() for name, function in functions.items()}
    blobs: dict[str, bytes] = {}
    drawn: dict[str, list[DrawSpec]] = {}
    if "stablehlo" in kinds:
        for name, function in functions.items():
            blobs[f"{name}.stablehlo"], specs = serialize_function(function)
            drawn[name] = specs
    drawn.update({name: [*drawn.get(name, ()), *specs] for name, (_, specs) in lowered.items()})
    programs = {name: program for name, (program, _) in lowered.items()}
    names = _find_weights(functions, programs if "stablehlo" not in kinds else {})
    carry = policy_step.initial_carry(1)
    constants = {f"initial/{n}": np.asarray(leaf)[0] for n, leaf in name_leaves("state", carry)}
    weights = collect_weights(actor, names)
    if render is not None:
        for name, program in programs.items():
            blobs[f"{name}.onnx"] = render(name, functions[name], program, weights)
    data = None
    if "numpy" in kinds:
        data = {n: _program_to_data(n, program, constants) for n, program in programs.items()}
    manifest = _make_manifest(inference, actor, functions, names, drawn)
    run = {
        **(source or {}),
        "num_env_steps_sampled_lifetime": int(actor.progress.env_steps),
        "versions": get_versions(),
    }
    return Export(
        manifest={**manifest, "formats": kinds, "source": run},
        program=None if data is None else {"programs": data},
        constants=constants,
        weights=weights,
        examples=record_examples(inference, actor, modes, num_steps=num_examples),
        blobs=blobs,
    )


def _make_renderer(
    opset: int | None,
) -> Callable[[str, TracedFunction, ExportedProgram, Mapping[str, np.ndarray]], bytes]:
    """Return the function that renders a program as ONNX.

    Raises:
        ExportError: If onnx is not installed, or does not know the version of the operators.
    """
    try:
        from jaxrl.export import onnx_program
    except ImportError as error:
        raise ExportError("The format 'onnx' needs onnx: pip install 'jaxrl[export]'.") from error
    version = onnx_program.check_opset(onnx_program.OPSET if opset is None else opset)

    def render(
        name: str,
        function: TracedFunction,
        program: ExportedProgram,
        weights: Mapping[str, np.ndarray],
    ) -> bytes:
        rows = next((key, spec) for key, spec in function.inputs if not key.startswith("weights/"))
        batch = (rows[0], str(rows[1].dtype), [encode_dim(size) for size in rows[1].shape])
        try:
            return onnx_program.render_program(name, program, weights, batch, version)
        except ExportError as error:
            raise ExportError(f"{function.owner} cannot be exported to ONNX: {error}") from error

    return render


def _find_weights(
    functions: Mapping[str, TracedFunction], programs: Mapping[str, ExportedProgram]
) -> list[str]:
    """Return the names of the weights that programs use, or traced functions without programs."""
    used = {name for program in programs.values() for name in program.input_names}
    if not programs:
        used = {name for function in functions.values() for name in function.find_used_inputs()}
    names = (name for function in functions.values() for name, _ in function.inputs)
    return [name.partition("/")[2] for name in dict.fromkeys(names)
            if name.startswith("weights/") and name in used]  # fmt: skip


def _program_to_data(
    name: str, program: ExportedProgram, constants: dict[str, np.ndarray]
) -> dict[str, Any]:
    """Return a program as plain data; arrays among its constants are added to the others."""
    scalars: list[list[Any]] = []
    for number, array in program.constants:
        value: object = array.tolist()
        if array.ndim:
            digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
            value = f"constants/{digest}-{array.dtype}-{'x'.join(map(str, array.shape))}"
            constants[value] = array
        elif isinstance(value, float) and not np.isfinite(value):
            value = str(value)
        scalars.append([number, value])
    return {
        "values": [[dtype, dims] for dtype, dims in program.values],
        "inputs": [[key, number] for key, number in program.inputs],
        "constants": scalars,
        "operations": [
            [o.name, list(o.inputs), o.attributes, o.output] for o in program.operations
        ],
        "outputs": [[key, number] for key, number in program.outputs],
    }


def _make_manifest(
    inference: Inference,
    actor: ActorState,
    functions: Mapping[str, TracedFunction],
    weights: Sequence[str],
    drawn: Mapping[str, Sequence[DrawSpec]],
) -> dict[str, Any]:
    policy_step = inference.policy_step
    obs, carry = get_input_shapes(policy_step, 1)
    action = jax.eval_shape(lambda: make_zeros(policy_step.action_pipeline.space, (1,)))
    leaves = {name.partition("/")[2]: leaf for name, leaf in name_leaves("weights", actor)}
    act = next(iter(functions.values()))
    draws = {spec.name: spec for specs in drawn.values() for spec in specs}
    reads = set(inference.get_read_inputs())
    if npp.SET_PREVIOUS_ACTION not in functions:
        reads.discard("prev_action")
    return {
        "format": npp.FORMAT,
        "version": npp.VERSION,
        "observation_space": describe_space(
            inference.observation_space, "observation_space", inference.ignored_parts
        ),
        "action_space": describe_space(policy_step.action_pipeline.space, "action_space"),
        "reads": sorted(reads),
        "signature": {
            "weights": [_describe_array(name, leaves[name], 0) for name in weights],
            "obs": _describe_rows("obs", obs),
            "state": _describe_rows("state", carry),
            "prev_action": _describe_rows("prev_action", action),
            "draws": [spec.to_data() for _, spec in sorted(draws.items())],
            "actions": _select(act.outputs, "actions"),
            "module_actions": _select(act.outputs, "module_actions"),
        },
        "programs": {
            name: {
                "inputs": function.find_used_inputs(),
                "draws": list(dict.fromkeys(spec.name for spec in drawn.get(name, ()))),
                "outputs": function.outputs,
            }
            for name, function in functions.items()
        },
        "module": type(policy_step.module).__name__,
        "connectors": {
            "observations": [_describe_connector(c) for c in policy_step.obs_pipeline],
            "actions": [_describe_connector(c) for c in policy_step.action_pipeline],
        },
    }


def _select(names: Sequence[str], group: str) -> list[str]:
    return [name for name in names if name.partition("/")[0] == group]


def _describe_rows(prefix: str, tree: object) -> list[dict[str, Any]]:
    return [_describe_array(name, leaf, 1) for name, leaf in name_leaves(prefix, tree)]


def _describe_array(name: str, leaf: jax.ShapeDtypeStruct, num_skipped: int) -> dict[str, Any]:
    return {"name": name, "dtype": str(leaf.dtype), "shape": list(leaf.shape[num_skipped:])}


def _describe_connector(connector: Connector) -> str:
    """Return a connector's name and the first sentence of its docstring."""
    summary = (inspect.getdoc(type(connector.unwrapped)) or "").partition("\n\n")[0]
    return f"{connector.unwrapped.name}: {' '.join(summary.split())}"


def describe_run(config: "Config", iteration: int) -> dict[str, Any]:
    """Return the facts about a run that an export records.

    Args:
        config: Config of the run.
        iteration: Number of completed iterations.
    """
    saved, _ = serialize_restorable(config)
    env = config.environment_settings.env
    return {
        "algorithm": config.algo_name,
        "env": env if isinstance(env, str) else getattr(env, "__name__", str(env)),
        "training_iteration": iteration,
        "config_sha256": hash_config(saved),
    }


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
