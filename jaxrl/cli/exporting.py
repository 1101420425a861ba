"""`jaxrl export`, `parity` and `serve`: policies as files, their comparison, and a server of them."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl.cli import terminal
from jaxrl.errors import ConfigError, ExportError
from jaxrl.export import numpy_program as npp
from jaxrl.export.parity import Check, compare, format_table
from jaxrl.metrics import DEFAULT_MODULE

if TYPE_CHECKING:
    from jaxrl.serve.backend import Load
    from jaxrl.serve.settings import ServeSettings

EXAMPLES = "examples.npz"


def make_planner(simulations: int | None) -> dict[str, int] | None:
    """Return the search of --simulations; None without."""
    return None if simulations is None else {"num_simulations": simulations}


def export(
    checkpoint: str,
    out: str,
    overrides: Mapping[str, Any],
    *,
    formats: str,
    explore: bool | None,
    policy_id: str | None,
    simulations: int | None,
    trust: Sequence[str] | None,
) -> None:
    """Export the policy of a checkpoint and print what was written.

    Args:
        checkpoint: Checkpoint, or a run for its newest one.
        out: New or empty folder.
        overrides: Settings from -v.
        formats: Names of formats, separated by commas.
        explore: Whether the exported policy samples; None exports both programs.
        policy_id: Module of a run of several agents.
        simulations: Steps of the search for each action; None acts as in training.
        trust: Packages that may be imported.
    """
    from jaxrl.cli.records import open_policy
    from jaxrl.export.artifact import check_options, check_target

    target = Path(out).expanduser()
    names = [name.strip() for name in formats.split(",")]
    modes = (False, True) if explore is None else (explore,)
    check_options(names, modes)
    check_target(target)
    with open_policy(checkpoint, overrides, trust) as (path, algorithm):
        module_id = policy_id or DEFAULT_MODULE
        folder = algorithm.export(
            target,
            formats=names,
            explore=modes,
            policy_id=module_id,
            planner=make_planner(simulations),
        )
    terminal.echo(f"exported    {folder}")
    for file in sorted(Path(folder).iterdir()):
        terminal.echo(f"            {file.name}  {file.stat().st_size} bytes")
    terminal.echo(f"checkpoint  {path}")


def parity(
    folder: str,
    checkpoint: str | None,
    overrides: Mapping[str, Any],
    *,
    policy_id: str | None,
    trust: Sequence[str] | None,
) -> int:
    """Compare an exported policy with the original, print a table, and return the exit code.

    Args:
        folder: Folder of the export.
        checkpoint: Checkpoint that computes anew what is compared; None compares with what was
            recorded at the export, which needs no JAX.
        overrides: Settings from -v.
        policy_id: Module of a run of several agents.
        trust: Packages that may be imported.
    """
    if checkpoint is None and policy_id is not None:
        raise ExportError(
            f"--policy-id {policy_id} names a module of a checkpoint: name the checkpoint as well."
        )
    try:
        return _compare_policies(
            str(Path(folder).expanduser()), checkpoint, overrides, policy_id, trust
        )
    except (npp.PolicyFileError, npp.PolicyInputError) as error:  # of the file without jaxrl
        raise ExportError(str(error)) from error


def _compare_policies(
    path: str,
    checkpoint: str | None,
    overrides: Mapping[str, Any],
    policy_id: str | None,
    trust: Sequence[str] | None,
) -> int:
    manifest = npp.read_json(path, npp.MANIFEST)
    npp.check_manifest(manifest, path)
    policies, unchecked = _load_policies(path, manifest, with_jax=checkpoint is not None)
    if checkpoint is None:
        examples = npp.read_arrays(path, EXAMPLES)
        checks: list[Check] = []
    else:
        examples, checks = _record_anew(checkpoint, policies, manifest, overrides, policy_id, trust)
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
    overrides: Mapping[str, Any],
    policy_id: str | None,
    trust: Sequence[str] | None,
) -> tuple[dict[str, np.ndarray], list[Check]]:
    """Return new examples of a checkpoint, and the comparison of its weights."""
    from jaxrl.cli.records import open_policy
    from jaxrl.export.artifact import collect_weights, describe_space
    from jaxrl.export.examples import record_examples

    with open_policy(checkpoint, overrides, trust) as (path, algorithm):
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
            saved = collect_weights(policy.actor, weights)
        except KeyError as error:
            raise ExportError(
                f"{path} has no weights {error}: give the checkpoint that was exported."
            ) from error
        programs = manifest.get("programs")
        modes = [mode for mode, name in ((False, npp.GREEDY), (True, npp.SAMPLE))
                 if isinstance(programs, dict) and name in programs]  # fmt: skip
        examples = record_examples(policy.inference, policy.actor, modes, num_steps=64, seed=1)
    check = Check("all", "weights", limit=0.0)
    for name, array in saved.items():
        check.num_values += array.size
        is_equal = np.array_equal(weights[name], array, equal_nan=array.dtype.kind == "f")
        check.worst = check.worst if is_equal else np.inf
    return examples, [check]


# --- serving ---


@dataclasses.dataclass(frozen=True)
class _Source:
    """Path of policies, and functions that load the newest one and return its name."""

    path: Path
    load: "Load"
    get_newest: Callable[[], str]


def serve(
    given: str,
    *,
    token_file: str | None,
    follow: bool,
    policy_id: str | None,
    simulations: int | None,
    trust: Sequence[str] | None,
    log_level: int | None,
    **settings: Any,
) -> None:
    """Serve a policy until Ctrl-C or SIGTERM.

    Args:
        given: Checkpoint, a run for its newest one, or an exported policy.
        token_file: File with the token; None for the environment variable.
        follow: Whether to serve newer checkpoints of the run as they are saved.
        policy_id: Module of a run of several agents.
        simulations: Steps of the search for each action; None acts as in training.
        trust: Packages that may be imported.
        log_level: Level of jaxrl's Python loggers; None for reloads alone.
        **settings: Fields of ServeSettings.
    """
    try:
        from jaxrl.serve.server import PolicyServer
        from jaxrl.serve.settings import ServeSettings, read_token
    except ImportError as error:
        raise ConfigError(f"jaxrl serve needs {error.name}: pip install 'jaxrl[serve]'.") from error
    chosen = ServeSettings(token=read_token(token_file), **settings)
    logging.getLogger("jaxrl").setLevel(logging.INFO if log_level is None else log_level)
    source = _open_source(
        given, chosen, follow=follow, policy_id=policy_id, simulations=simulations, trust=trust
    )
    backend = source.load(None)
    server = PolicyServer(
        backend,
        chosen,
        load=source.load,
        get_newest=source.get_newest if follow else None,
    )
    bound = server.bind()
    terminal.echo(f"policy            {backend.version} of {source.path}")
    terminal.echo(f"serving at        {_format_address(chosen, bound.getsockname()[1])}")
    server.run(bound)


def _open_source(
    given: str,
    settings: "ServeSettings",
    *,
    follow: bool,
    policy_id: str | None,
    simulations: int | None,
    trust: Sequence[str] | None,
) -> _Source:
    """Return where policies come from: an export, which needs no JAX, or else checkpoints."""
    from jaxrl.serve import backend

    folder = Path(given).expanduser()
    if backend.is_export(folder):
        if trust:
            raise ConfigError("--trust is for checkpoints; an export imports nothing.")
        if policy_id is not None:
            raise ConfigError("--policy-id is for checkpoints; an export has one module.")
        if simulations is not None:
            raise ConfigError(
                "--simulations is for checkpoints; jaxrl export --format stablehlo --simulations N "
                "writes the search of an export."
            )
        return _Source(
            folder,
            partial(backend.load_export, folder),
            partial(backend.get_version, folder),
        )
    from jaxrl.cli.records import find_run, resolve_checkpoint
    from jaxrl.runs.run_folder import is_run_folder

    path = find_run(given)
    resolve_checkpoint(path)  # raises before JAX is imported
    if follow and not is_run_folder(path):
        raise ConfigError(f"--follow serves the checkpoints of a run, and {path} is none.")
    from jaxrl.serve.jax_backend import load_backend

    return _Source(
        path,
        lambda replaced: load_backend(
            path,
            replaced,
            max_batch=settings.max_batch,
            policy_id=policy_id,
            planner=make_planner(simulations),
            trust=trust,
        ),
        lambda: resolve_checkpoint(path).name,
    )


def _format_address(settings: "ServeSettings", port: int) -> str:
    scheme = "http" if settings.certfile is None else "https"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{port}"
