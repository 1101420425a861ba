"""The folder of one run: what lies where, and that only one process writes to it."""

import contextlib
import datetime
import errno
import fcntl
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

from jaxrl.config import signature
from jaxrl.config.serialize import describable_dict
from jaxrl.config.stop import parse_stop
from jaxrl.errors import ConfigError, JaxrlError, RunFolderError
from jaxrl.runs import files, results

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig

DEFAULT_RESULTS_DIR = "~/jaxrl_results"
logger = logging.getLogger("jaxrl")

LOCK_FILE = ".lock"
RESULT_FILE, PROGRESS_FILE = "result.json", "progress.csv"
_MAX_NAME = 80


def results_root(results_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where runs go: the setting or, if that is the default, `$JAXRL_RESULTS_DIR` if it is set."""
    chosen = results_dir or DEFAULT_RESULTS_DIR
    if str(chosen) == DEFAULT_RESULTS_DIR:
        chosen = os.environ.get("JAXRL_RESULTS_DIR") or chosen
    return Path(os.path.abspath(Path(chosen).expanduser()))


class RunFolder:
    """One run's folder, held by one process until `close()` (or its end).

    ```
    params.json    the config          checkpoints/               what `resume` continues from
    run.json       id, stop criterion  plots/learning_curve.png   return against steps
    result.json    a line per iteration
    progress.csv   the same as a table events.out.tfevents.*      for TensorBoard
                                       videos/                    of evaluations
    ```
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock, self._release = lock, weakref.finalize(self, os.close, lock)
        self._known: dict[str, Any] = {"id": uuid.uuid4().hex[:12], "stop": None}

    @classmethod
    def create(cls, config: "AlgorithmConfig", *, checkpoints: bool = True) -> "RunFolder":
        """The folder of a new run of this config; see `make`."""
        debugging = config.debugging_settings
        name = debugging.run_name or default_name(
            config.algo_name or type(config).__name__.removesuffix("Config"),
            config.environment_settings.env,
            debugging.seed,
        )
        return cls.make(
            name,
            describable_dict(config),
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
        """A new folder `<results_dir>/<name>`, or `<name>_2`, ... if that is taken.

        Args:
            name: The run's name, without path separators.
            params: The config as a dictionary, written to `params.json`.
            results_dir: Parent folder; made if missing. None for the default.
            checkpoints: Whether there will be some; a sweep's are those of its lanes.

        Raises:
            ConfigError: If the name cannot be a folder's.
            RunFolderError: If the folder cannot be made or written to.
        """
        check_name(name)
        root = results_root(results_dir)
        with files.one_sentence("create a run folder in", root):
            root.mkdir(parents=True, exist_ok=True)
            path = _make_unique(root, name)
        try:
            with files.one_sentence("write to the run folder", path):
                folder = cls(path, _lock(path))
                folder._fill(params, checkpoints=checkpoints)
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        return folder

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "RunFolder":
        """An existing run's folder, to go on writing to it.

        Raises:
            RunFolderError: If there is none, if it cannot be written to, or if another process
                (or an Algorithm of this one that was not stopped) is still writing to it.
        """
        folder = Path(os.path.abspath(Path(path).expanduser()))
        if not is_run_folder(folder):
            raise RunFolderError(
                f"{folder} is no run folder: it has no params.json; give the folder that "
                "'jaxrl train' printed."
            )
        with files.one_sentence("write to the run folder", folder):
            opened = cls(folder, _lock(folder))
        with contextlib.suppress(RunFolderError):  # told when somebody asks for it
            opened._run_info()
        return opened

    def make_again(self, config: "AlgorithmConfig", *, checkpoints: bool = True) -> bool:
        """Make the folder anew if somebody removed it, or its files, since it was made.

        The run has the same id and stop criterion; what it wrote until then is gone.

        Args:
            config: Of the run.
            checkpoints: As for `make`.

        Returns:
            Whether that was necessary.

        Raises:
            RunFolderError: It cannot be made, or another process made it meanwhile.
        """
        if not self._release.alive or (self._is_ours() and is_run_folder(self.path)):
            return False
        with files.one_sentence("create again the run folder", self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._is_ours():
                lock = _lock(self.path)
                self._release()
                self._lock, self._release = lock, weakref.finalize(self, os.close, lock)
            self._fill(describable_dict(config), checkpoints=checkpoints)
        logger.warning(
            "The run folder %s was removed while the run went on: it was made again, without what "
            "had been written until now.",
            self.path,
        )
        return True

    def _is_ours(self) -> bool:
        """Whether the folder is the one that was locked, and not another of its name."""
        try:
            return os.path.samestat(os.stat(self.path / LOCK_FILE), os.fstat(self._lock))
        except FileNotFoundError:
            return False

    def _fill(self, params: Mapping[str, Any], *, checkpoints: bool) -> None:
        if checkpoints:
            self.checkpoints.mkdir(exist_ok=True)
        _write_json(self.params_file, params)
        signed = signature.sign(self.params_file.read_bytes())
        self._known = {**self._known, "params_signature": signed}
        _write_json(self.run_file, self._known)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.path.name

    @property
    def params_file(self) -> Path:
        """The config, as JSON."""
        return self.path / "params.json"

    @property
    def run_file(self) -> Path:
        """What belongs to the run and not to its config: its id and its stop criterion."""
        return self.path / "run.json"

    @property
    def result_file(self) -> Path:
        """One JSON document per iteration and line."""
        return self.path / RESULT_FILE

    @property
    def progress_file(self) -> Path:
        """The scalars of the results as a table."""
        return self.path / PROGRESS_FILE

    @property
    def checkpoints(self) -> Path:
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        """The folder of the videos of evaluations."""
        return self.path / "videos"

    @property
    def learning_curve(self) -> Path:
        """The picture of return against environment steps."""
        return self.path / "plots" / "learning_curve.png"

    @property
    def run_id(self) -> str:
        """An identifier that stays the same when the run is resumed or moved."""
        return str(self._run_info()["id"])

    @property
    def stop_criterion(self) -> dict[str, float] | None:
        """What the run was last told to stop at; None if nobody said."""
        stop = self._run_info()["stop"]
        try:
            return None if stop is None else parse_stop(stop)
        except JaxrlError as error:
            raise RunFolderError(f"{self.run_file} is damaged: {error}") from error

    def save_stop_criterion(self, stop: Mapping[str, Any]) -> None:
        """Remembers what the run is to stop at, for `jaxrl resume`."""
        with files.one_sentence("write", self.run_file):
            _write_json(self.run_file, {**self._run_info(), "stop": dict(stop)})
        self._known["stop"] = dict(stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets others write to the folder; may be called twice."""
        self._release()

    def _run_info(self) -> dict[str, Any]:
        try:
            info = json.loads(self.run_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise RunFolderError(f"Cannot read {self.run_file}: {error}.") from error
        if not isinstance(info, dict) or "id" not in info or "stop" not in info:
            raise RunFolderError(f"{self.run_file} is damaged: it has no 'id' and 'stop'.")
        if not isinstance(info["id"], str) or not isinstance(info["stop"], dict | None):
            raise RunFolderError(
                f"{self.run_file} is damaged: id must be a string and stop a dictionary or null, got "
                f"{info['id']!r} and {info['stop']!r}."
            )
        self._known = info
        return info


def check_name(name: str) -> None:
    """Refuses a run's name that cannot be a folder's.

    Raises:
        ConfigError: It is empty, hidden, or has a path separator.
    """
    if not name or name.startswith(".") or re.search(r"[/\\\0]", name):
        raise ConfigError(
            f"debugging(run_name={name!r}) cannot be a folder's name: use letters, digits, "
            "'-' and '_', and choose the parent folder with results_dir."
        )


def params_are_own(path: Path) -> bool:
    """Whether the user of this process wrote a run's `params.json` on this machine."""
    try:
        signed = json.loads((path / "run.json").read_bytes())["params_signature"]
        return signature.is_own((path / "params.json").read_bytes(), signed)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False


def is_run_folder(path: Path) -> bool:
    """Whether a run was logged there."""
    return (path / "params.json").is_file() and (path / "run.json").is_file()


def default_name(algo: str, env: object, seed: int | None) -> str:
    """`PPO_CartPole-v1_2024-05-01_12-30-00_seed0`: the name of a run that was given none."""
    label = env if isinstance(env, str) else _class_name(env)
    label = re.split(r"[:.](?=[A-Za-z_]\w*$)", label)[-1]  # the class of a class path
    label = re.sub(r"[^A-Za-z0-9._+-]+", "-", label)[:_MAX_NAME]
    now = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    return f"{algo}_{label}_{now}" + ("" if seed is None else f"_seed{seed}")


def _class_name(env: object) -> str:
    if env is None:
        return "no-env"
    return (env if isinstance(env, type) else type(env)).__name__


def _make_unique(root: Path, name: str) -> Path:
    """Makes `root/name`, or the first `root/name_<n>` that is free (mkdir decides, no race)."""
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
    """Takes the folder for this process; the kernel gives it back when the process ends."""
    handle = os.open(path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
    except OSError as error:
        holder = os.pread(handle, 20, 0).decode(errors="replace") or "unknown"
        if error.errno in (errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS):
            return handle  # a network file system without locks
        os.close(handle)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise RunFolderError(
            f"{path} is in use by process {holder}: wait for it to end, or call stop() on the "
            "Algorithm that writes there."
        ) from error
    return handle


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with files.replacing(path) as file:
        json.dump(results.to_json(value), file, indent=2, allow_nan=False)
        file.write("\n")


def iteration_of(checkpoint: Path) -> int:
    """The iteration after which a checkpoint of a run folder was written."""
    return int(checkpoint.name.rsplit("_", maxsplit=1)[1])
