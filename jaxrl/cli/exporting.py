"""`jaxrl export` and `jaxrl parity`: policies as files, and their comparison with the original."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxrl.cli import terminal
from jaxrl.cli.errors import make_log_level_override
from jaxrl.errors import ExportError
from jaxrl.export import numpy_program as npp
from jaxrl.export.parity import Check, compare, format_table
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm

EXAMPLES = "examples.npz"


def export(
    checkpoint: str,
    out: str,
    formats: str,
    explore: bool | None,
    log_level: int | None = None,
    *,
    policy_id: str | None = None,
    trust: Sequence[str] | None = None,
) -> None:
    """Export the policy of a checkpoint and print what was written.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        out: New or empty folder.
        formats: Names of formats, separated by commas.
        explore: Whether the exported policy samples; None exports both programs.
        log_level: Level of jaxrl's Python loggers; None for the run's.
        policy_id: Module of a run of several agents.
        trust: Packages that may be imported; see `--trust`.

    Raises:
        JaxrlError: If the checkpoint cannot be used, or its policy cannot be exported.
    """
    from jaxrl.export.artifact import check_options, check_target

    target = Path(out).expanduser()
    names = [name.strip() for name in formats.split(",")]
    modes = (False, True) if explore is None else (explore,)
    check_options(names, modes)
    check_target(target)
    with open_checkpoint(checkpoint, log_level, trust) as (path, algorithm):
        module_id = policy_id or DEFAULT_MODULE
        folder = algorithm.export(target, formats=names, explore=modes, policy_id=module_id)
    terminal.echo(f"exported    {folder}")
    for file in sorted(Path(folder).iterdir()):
        terminal.echo(f"            {file.name}  {file.stat().st_size} bytes")
    terminal.echo(f"checkpoint  {path}")


def parity(
    folder: str,
    checkpoint: str | None,
    log_level: int | None = None,
    *,
    policy_id: str | None = None,
    trust: Sequence[str] | None = None,
) -> int:
    """Compare an exported policy with the original, print a table, and return the exit code.

    Args:
        folder: Folder of the export.
        checkpoint: Checkpoint that computes anew what is compared; None compares with what was
            recorded at the export, which needs no JAX.
        log_level: Level of jaxrl's Python loggers; None for the run's.
        policy_id: Module of a run of several agents.
        trust: Packages that may be imported; see `--trust`.

    Raises:
        JaxrlError: If the export or the checkpoint cannot be used.
    """
    path = str(Path(folder).expanduser())
    if checkpoint is None and policy_id is not None:
        raise ExportError(
            f"--policy-id {policy_id} names a module of a checkpoint: name the checkpoint as well."
        )
    with _translate_errors():
        manifest = npp.read_json(path, npp.MANIFEST)
        npp.check_manifest(manifest, path)
        policies, unchecked = _load_policies(path, manifest, with_jax=checkpoint is not None)
        if checkpoint is None:
            examples = npp.read_arrays(path, EXAMPLES)
            checks: list[Check] = []
        else:
            examples, checks = _record_anew(
                checkpoint, policies, manifest, log_level, policy_id, trust
            )
        for name, policy in policies.items():
            terminal.echo(f"{name}: {path}")
            found = [*checks, *compare(policy, examples)]
            for line in format_table(found):
                terminal.echo(f"  {line}")
            checks = [check for check in found if not check.is_equal]
            if checks:
                worst = max(checks, key=lambda check: check.worst)
                terminal.echo(
                    f"different: {worst.name} of the program '{worst.mode}' is off by "
                    f"{worst.worst:.1e}, and {worst.limit:.0e} is allowed"
                )
                return 1
    for name, reason in unchecked.items():
        terminal.echo(f"{name}: not checked, because {reason}")
    terminal.echo("equal")
    return 0


@contextlib.contextmanager
def open_checkpoint(
    checkpoint: str, log_level: int | None, trust: Sequence[str] | None
) -> "Generator[tuple[Path, Algorithm]]":
    """Open a checkpoint's algorithm for the policy in it, without callbacks.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        log_level: Level of jaxrl's Python loggers; None for the run's.
        trust: Packages that may be imported; see `--trust`.
    """
    from rich.console import Console

    from jaxrl.algorithm import Algorithm
    from jaxrl.cli import terminal
    from jaxrl.cli.interrupts import RaiseOnInterrupt
    from jaxrl.cli.records import find_run, resolve_checkpoint
    from jaxrl.config.settings.run import WITHOUT_CALLBACKS

    path, console = resolve_checkpoint(find_run(checkpoint)), Console()
    overrides = {**WITHOUT_CALLBACKS, **make_log_level_override(log_level)}
    with (
        RaiseOnInterrupt(),
        terminal.redirect_output(console),
        console.status(f"loading {path.name} and computing its actions"),
        Algorithm.from_checkpoint(str(path), trust=trust, **overrides) as algorithm,
    ):
        yield path, algorithm


@contextlib.contextmanager
def _translate_errors() -> Generator[None]:
    """Translate the errors of the file that runs without jaxrl."""
    try:
        yield
    except (npp.PolicyFileError, npp.PolicyInputError) as error:
        raise ExportError(str(error)) from error


def _load_policies(
    path: str, manifest: dict[str, object], *, with_jax: bool
) -> tuple[dict[str, npp.NumpyPolicy], dict[str, str]]:
    """Return the policy in each format that can be run here, and why one cannot."""
    from jaxrl.export.onnx_policy import has_runtime, load_onnx

    formats = manifest.get("formats")
    formats = formats if isinstance(formats, list) else []
    explore = npp.GREEDY not in (manifest.get("programs") or {})  # pyright: ignore
    policies: dict[str, npp.NumpyPolicy] = {}
    unchecked: dict[str, str] = {}
    if "numpy" in formats:
        policies["numpy"] = npp.NumpyPolicy(path, explore=explore)
    if "onnx" in formats and (has_runtime() or formats == ["onnx"]):
        policies["onnx"] = load_onnx(path, explore=explore)
    elif "onnx" in formats:
        unchecked["onnx"] = "onnxruntime is not installed: pip install onnxruntime"
    if "stablehlo" in formats and (with_jax or not policies):
        from jaxrl.export.stablehlo import load_stablehlo

        policies["stablehlo"] = load_stablehlo(path, explore=explore)
    elif "stablehlo" in formats:
        unchecked["stablehlo"] = "it takes JAX: name the checkpoint as well"
    if not policies:
        raise ExportError(f"{path} has no format that can be run here, only {formats}.")
    return policies, unchecked


def _record_anew(
    checkpoint: str,
    policies: dict[str, npp.NumpyPolicy],
    manifest: dict[str, object],
    log_level: int | None,
    policy_id: str | None,
    trust: Sequence[str] | None,
) -> tuple[dict[str, np.ndarray], list[Check]]:
    """Return new examples of a checkpoint, and the comparison of its weights."""
    from jaxrl.export.artifact import collect_weights
    from jaxrl.export.examples import record_examples
    from jaxrl.export.spaces import describe_space

    with open_checkpoint(checkpoint, log_level, trust) as (path, algorithm):
        chosen = policy_id or DEFAULT_MODULE
        policy = algorithm.get_policy(chosen)
        algorithm.get_module(chosen)  # raises for an unknown id
        space = describe_space(policy.inference.observation_space, "observation_space")
        if space != manifest.get("observation_space"):
            raise ExportError(
                f"{path} has another observation space than the export: give the checkpoint that "
                "was exported."
            )
        weights = next(iter(policies.values())).get_weights()
        try:
            own = collect_weights(policy.actor, weights)
        except KeyError as error:
            raise ExportError(
                f"{path} has no weights {error}: give the checkpoint that was exported."
            ) from error
        programs = manifest.get("programs")
        modes = [mode for mode, name in ((False, npp.GREEDY), (True, npp.SAMPLE))
                 if isinstance(programs, dict) and name in programs]  # fmt: skip
        examples = record_examples(policy.inference, policy.actor, modes, num_steps=64, seed=1)
    check = Check("all", "weights", limit=0.0)
    for name, array in own.items():
        check.num_values += array.size
        is_equal = np.array_equal(weights[name], array, equal_nan=array.dtype.kind == "f")
        check.worst = check.worst if is_equal else np.inf
    return examples, [check]
