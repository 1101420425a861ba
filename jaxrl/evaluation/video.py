"""Videos: the pictures of an episode, one after another, into an mp4 file."""

import importlib
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from jaxrl.errors import ConfigError, EnvError, RunFolderError

DEFAULT_FPS = 30.0
"""Pictures a second, of environments that do not say."""


def check_can_write() -> None:
    """Refuse before anything runs what could not be written.

    Raises:
        ConfigError: The package is not installed, or has no ffmpeg for this machine.
    """
    try:
        _ffmpeg()
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"record_video writes mp4 files with imageio-ffmpeg, which is not there ({error}): "
            "pip install 'jaxrl[video]'."
        ) from error


def checked_picture(name: str, picture: Any) -> UInt8[np.ndarray, "height width 3"]:
    """A picture of an environment's.

    Raises:
        EnvError: It is none.
    """
    if not isinstance(picture, np.ndarray):
        got = f"a {type(picture).__name__}"
    elif picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        got = f"{picture.dtype}{list(picture.shape)}"
    else:
        return picture
    raise EnvError(
        f"record_video: {name} must render pictures of type uint8 and shape [height, width, 3], "
        f"got {got}."
    )


def write_video(path: Path, pictures: Iterable[np.ndarray], fps: float) -> Path:
    """Write pictures as they come; the file appears when it is complete.

    A row or a column is added where there is an odd number of them, which most players need.

    Args:
        path: Of the file, ending in .mp4; its folder is made.
        pictures: uint8 `[height, width, 3]`, at least one.
        fps: Pictures a second.

    Raises:
        EnvError: The pictures differ in size.
        RunFolderError: The file cannot be written.
    """
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    encoder: _Encoder | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for picture in pictures:
            if encoder is None:
                encoder = _Encoder(partial, picture.shape, fps)
            encoder.add(picture)
        assert encoder is not None
        encoder.finish()
        partial.replace(path)
    except OSError as error:
        raise RunFolderError(f"record_video cannot write {path}: {error}.") from error
    finally:
        if encoder is not None:
            encoder.kill()
            partial.unlink(missing_ok=True)
    return path


class _Encoder:
    """An ffmpeg process that gets pictures.

    It is started here and not by imageio-ffmpeg, which forks in a way that JAX warns of.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self._shape = shape
        height, width = (length + length % 2 for length in shape[:2])
        given = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}"]
        wanted = ["-an", "-vcodec", "libx264", "-crf", "23", "-pix_fmt", "yuv420p"]
        self._process = subprocess.Popen(
            [_ffmpeg(), "-y", "-v", "error", *given, "-i", "-", *wanted, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # Ctrl-C is ours
        )

    def add(self, picture: np.ndarray) -> None:
        if picture.shape != self._shape:
            raise EnvError(
                f"record_video: the pictures of an episode must have one size, got "
                f"{list(self._shape)} and then {list(picture.shape)}."
            )
        height, width = picture.shape[:2]
        even = np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(even.tobytes())
        except BrokenPipeError:
            self.finish()  # which says what ffmpeg said

    def finish(self) -> None:
        _, said = self._process.communicate()
        if self._process.returncode:
            raise OSError(said.decode(errors="replace").strip() or "ffmpeg failed")

    def kill(self) -> None:
        """End it, if it was not finished."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _ffmpeg() -> str:
    return importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
