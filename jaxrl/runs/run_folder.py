"""Run folder: its layout, and a lock that admits only one writing process."""

import contextlib
import datetime
import json
import logging
import os
import re
import shutil
import uuid
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jaxrl.config.serialize import serialize_for_display
from jaxrl.config.signature import is_signed_by_user, sign
from jaxrl.config.stop import parse_stop
from jaxrl.errors import ConfigError, JaxrlError, RunFolderError
from jaxrl.runs import results
from jaxrl.runtime import files

if TYPE_CHECKING:
    from jaxrl.config.config import Config

DEFAULT_RESULTS_DIR = "~/jaxrl_results"
logger = logging.getLogger("jaxrl")

LOCK_FILE = ".lock"
RESULT_FILE, PROGRESS_FILE = "result.json", "progress.csv"
_MAX_LABEL_LENGTH = 80


def resolve_results_dir(results_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the parent folder of runs.

    Args:
        results_dir: The setting; if it is the default, `$JAXRL_RESULTS_DIR` takes precedence.
    """
    path = results_dir or DEFAULT_RESULTS_DIR
    if str(path) == DEFAULT_RESULTS_DIR:
        path = os.environ.get("JAXRL_RESULTS_DIR") or path
    return Path(os.path.abspath(Path(path).expanduser()))


class RunFolder:
    """Folder of one run, locked by one process until `close()` or the end of the process.

    ```
    params.json              config
    run.json                 run id, stop criterion
    manifest.json            versions, devices, flags, git: see `jaxrl.runs.manifest`
    result.json              results, one line per iteration
    progress.csv             scalars of the results as a table
    events.out.tfevents.*    scalars for TensorBoard
    checkpoints/             checkpoints, from which `resume` continues
    plots/learning_curve.png return against environment steps
    videos/                  videos of evaluations
    ```

    Args:
        path: Path of the folder.
        lock: File descriptor of the lock file.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock, self._release = lock, weakref.finalize(self, os.close, lock)
        self._run_info: dict[str, Any] = {"id": uuid.uuid4().hex[:12], "stop": None}
        """Latest known content of `run.json`."""

    @classmethod
    def create(cls, config: "Config", *, checkpoints: bool = True) -> "RunFolder":
        """Create the folder of a new run of a config; see `make`."""
        debugging = config.debugging_settings
        name = debugging.run_name or make_default_name(
            config.algo_name or type(config).__name__.removesuffix("Config"),
            config.environment_settings.env,
            debugging.run_seed,
        )
        return cls.make(
            name,
            serialize_for_display(config),
            results_dir=debugging.results_dir,
            checkpoints=checkpoints,
        )

    @classmethod
    def make(
        cls,
        name: str,
        params: Mapping[str, Any],
        *,
        results_dir: str | os.PathLike[str] | None = None,
        checkpoints: bool = True,
    ) -> "RunFolder":
        """Create a folder `<results_dir>/<name>`, or `<name>_2`, ... if the name is taken.

        Args:
            name: Name of the run, without path separators.
            params: Config as a dictionary, written to `params.json`.
            results_dir: Parent folder, created if missing; None for the default.
            checkpoints: Whether to create a folder for checkpoints; a sweep has those of its lanes.

        Raises:
            ConfigError: If the name is not a valid folder name.
            RunFolderError: If the folder cannot be created or written to.
        """
        check_name(name)
        root = resolve_results_dir(results_dir)
        with files.translate_os_errors("create a run folder in", root):
            root.mkdir(parents=True, exist_ok=True)
            path = _make_unique(root, name)
        try:
            with files.translate_os_errors("write to the run folder", path):
                folder = cls(path, _lock(path))
                folder._write_files(params, checkpoints=checkpoints)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """Open the folder of an existing run for writing.

        Raises:
            RunFolderError: If it is not a run folder, cannot be written to, or is locked by another
                process (or by an Algorithm of this process that was not stopped).
        """
        folder = Path(os.path.abspath(Path(path).expanduser()))
        if not is_run_folder(folder):
            raise RunFolderError(
                f"{folder} is not a run folder: params.json or run.json is missing; pass the "
                "folder that 'jaxrl train' printed."
            )
        with files.translate_os_errors("write to the run folder", folder):
            opened = cls(folder, _lock(folder))
        with contextlib.suppress(RunFolderError):  # raised again on first use
            opened._read_run_info()
        return opened

    def recreate(self, config: "Config", *, checkpoints: bool = True) -> bool:
        """Create the folder again if it or its files were removed while the run continued.

        The run keeps its id and stop criterion; previously written data are lost.

        Args:
            config: Config of the run.
            checkpoints: Whether to create a folder for checkpoints; see `make`.

        Returns:
            Whether the folder was created.

        Raises:
            RunFolderError: If it cannot be created, or another process has created it.
        """
        if not self._release.alive or (self._is_locked_folder() and is_run_folder(self.path)):
            return False
        with files.translate_os_errors("create again the run folder", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._is_locked_folder():
                lock = _lock(self.path)
                self._release()
                self._lock, self._release = lock, weakref.finalize(self, os.close, lock)
            self._write_files(serialize_for_display(config), checkpoints=checkpoints)
        logger.warning(
            "The run folder %s was removed during the run: it was created again, but previously "
            "written data are lost.",
            self.path,
        )
        return True

    def _is_locked_folder(self) -> bool:
        """Return whether the path is the locked folder, and not another one of the same name."""
        try:
            return os.path.samestat(os.stat(self.path / LOCK_FILE), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def _write_files(self, params: Mapping[str, Any], *, checkpoints: bool) -> None:
        if checkpoints:
            self.checkpoints.mkdir(exist_ok=True)
        _write_json(self.params_file, params)
        params_signature = sign(self.params_file.read_bytes())
        self._run_info = {**self._run_info, "params_signature": params_signature}
        _write_json(self.run_file, self._run_info)

    @property
    def name(self) -> str:
        """Name of the folder, without its parents."""
        return self.path.name

    @property
    def params_file(self) -> Path:
        """File with the config as JSON."""
        return self.path / "params.json"

    @property
    def run_file(self) -> Path:
        """File with run data that are not part of the config: run id and stop criterion."""
        return self.path / "run.json"

    @property
    def result_file(self) -> Path:
        """File with the results, one JSON document per line and iteration."""
        return self.path / RESULT_FILE

    @property
    def progress_file(self) -> Path:
        """File with the scalars of the results as a table."""
        return self.path / PROGRESS_FILE

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """Folder of evaluation videos."""
        return self.path / "videos"

    @property
    def learning_curve(self) -> Path:
        """Figure of the return against environment steps."""
        return self.path / "plots" / "learning_curve.png"

    @property
    def run_id(self) -> str:
        """Identifier that stays the same when the run is resumed or moved."""
        return str(self._read_run_info()["id"])

    @property
    def stop_criterion(self) -> dict[str, float] | None:
        """Latest stop criterion of the run; None if there was none."""
        stop = self._read_run_info()["stop"]
        try:
            return None if stop is None else parse_stop(stop)
        except JaxrlError as error:
            raise RunFolderError(f"{self.run_file} is damaged: {error}") from error

    def save_stop_criterion(self, stop: Mapping[str, Any]) -> None:
        """Store the stop criterion, for `jaxrl resume`."""
        with files.translate_os_errors("write", self.run_file):
            _write_json(self.run_file, {**self._read_run_info(), "stop": dict(stop)})
        self._run_info["stop"] = dict(stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock of the folder; idempotent."""
        self._release()

    def _read_run_info(self) -> dict[str, Any]:
        try:
            info = json.loads(self.run_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"Cannot read {self.run_file}: {error}.") from error
        if not isinstance(info, dict) or "id" not in info or "stop" not in info:
            raise RunFolderError(f"{self.run_file} is damaged: it must have 'id' and 'stop'.")
        if not isinstance(info["id"], str) or not isinstance(info["stop"], dict | None):
            raise RunFolderError(
                f"{self.run_file} is damaged: id must be a string and stop a dictionary or null, "
                f"got {info['id']!r} and {info['stop']!r}."
            )
        self._run_info = info
        return info


MAX_NAME_BYTES = 200
"""Maximum length of a run's name; file systems allow 255 bytes, which a number may follow."""


def is_folder_name(name: str) -> bool:
    """Return whether a name is not empty, short enough, visible, and without separators or lines."""
    if not name.strip() or name.startswith(".") or len(os.fsencode(name)) > MAX_NAME_BYTES:
        return False
    return re.search(r"[/\\\x00-\x1f\x7f]", name) is None


def check_name(name: str) -> None:
    """Raise ConfigError if a run's name is not a valid folder name."""
    if not is_folder_name(name):
        raise ConfigError(
            f"debugging(run_name={name[:80]!r}) is not a valid folder name: use letters, digits, "
            "'-' and '_', and choose the parent folder with results_dir."
        )


def has_own_params(path: Path) -> bool:
    """Return whether the current user wrote a run's `params.json` on this machine."""
    try:
        params_signature = json.loads((path / "run.json").read_bytes())["params_signature"]
        return is_signed_by_user((path / "params.json").read_bytes(), params_signature)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def is_run_folder(path: Path) -> bool:
    """Return whether a path is a run folder."""
    return (path / "params.json").is_file() and (path / "run.json").is_file()


def make_default_name(algo: str, env: object, seed: int | None) -> str:
    """Return the default name of a run, such as `PPO_CartPole-v1_2024-05-01_12-30-00_seed0`."""
    label = env if isinstance(env, str) else _get_class_name(env)
    label = re.split(r"[:.](?=[A-Za-z_]\w*$)", label)[-1]  # the class of a class path
    label = re.sub(r"[^A-Za-z0-9._+-]+", "-", label)[:_MAX_LABEL_LENGTH]
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return f"{algo}_{label}_{now}" + ("" if seed is None else f"_seed{seed}")


def _get_class_name(env: object) -> str:
    if env is None:
        return "no-env"
    return (env if isinstance(env, type) else type(env)).__name__


def _make_unique(root: Path, name: str) -> Path:
    """Create `root/name` or the first free `root/name_<n>`; mkdir makes this free of races."""
    number = 1
    while True:
        path = root / (name if number == 1 else f"{name}_{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _lock(path: Path) -> int:
    """Lock the folder for this process; the kernel releases the lock when the process ends."""
    try:
        return files.lock_file(path / LOCK_FILE)
    except BlockingIOError as error:
        raise RunFolderError(
            f"{path} is in use by process {error.strerror}: wait for it to end, or call stop() on the "
            "Algorithm that writes there."
        ) from error


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with files.open_atomic(path) as file:
        json.dump(results.to_json(value), file, indent=2, allow_nan=False)
        file.write("\n")


def parse_iteration(checkpoint: Path) -> int:
    """Return the iteration after which a checkpoint of a run folder was written."""
    return int(checkpoint.name.rsplit("_", maxsplit=1)[1])
