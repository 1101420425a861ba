"""Encoding of an episode's frames as an mp4 file."""

import contextlib
import importlib
import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import UInt8

from jaxrl.errors import ConfigError, EnvError, RunFolderError

DEFAULT_FPS = 30.0
"""Frames per second for environments that do not specify it."""


def check_ffmpeg() -> None:
    """Raise if videos cannot be written.

    Raises:
        ConfigError: If imageio-ffmpeg is not installed, or has no ffmpeg for this machine.
    """
    try:
        _get_ffmpeg()
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"record_video writes mp4 files with imageio-ffmpeg, which is not available ({error}): "
            "pip install 'jaxrl[video]'."
        ) from error


def check_frame(name: str, frame: object) -> UInt8[np.ndarray, "height width 3"]:
    """Check a frame rendered by an environment and return it.

    Args:
        name: Name of the environment, for the error message.
        frame: Return value of the environment's `render`.

    Raises:
        EnvError: If it is not an RGB image.
    """
    if not isinstance(frame, np.ndarray):
        got = f"a {type(frame).__name__}"
    elif frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        got = f"{frame.dtype}{list(frame.shape)}"
    else:
        return frame
    raise EnvError(
        f"record_video: {name} must render frames of type uint8 and shape [height, width, 3], "
        f"got {got}."
    )


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float) -> Path:
    """Write a video frame by frame; the file appears when it is complete.

    Frames are padded to an even height and width, which most players require.

    Args:
        path: Path of the file, ending in .mp4; its folder is created.
        frames: Frames, uint8 `[height, width, 3]`, at least one.
        fps: Frames per second.

    Returns:
        The path of the file.

    Raises:
        EnvError: If the frames differ in size.
        RunFolderError: If the file cannot be written.
    """
    partial = path.with_name(f".{path.stem}.part{path.suffix}")
    encoder: _Encoder | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.touch()  # the encoder's messages are of many lines
        for picture in frames:
            if encoder is None:
                encoder = _Encoder(partial, picture.shape, fps)
            encoder.add(picture)
        assert encoder is not None
        encoder.finish()
        partial.replace(path)
    except OSError as error:
        reason = error.strerror or error
        raise RunFolderError(f"record_video cannot write {path}: {reason}.") from error
    finally:
        if encoder is not None:
            encoder.kill()
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
    return path


class _Encoder:
    """ffmpeg process that encodes frames.

    The process is started here because imageio-ffmpeg forks in a way that JAX warns about.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], fps: float) -> None:
        self._shape = shape
        height, width = (length + length % 2 for length in shape[:2])
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        target = ["-an", "-vcodec", "libx264", "-crf", "23", "-pix_fmt", "yuv420p"]
        rate = ["-r", f"{fps:g}"]
        self._process = subprocess.Popen(
            [_get_ffmpeg(), "-y", "-v", "error", *source, *rate, "-i", "-", *target, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            process_group=0,  # keeps Ctrl-C from reaching ffmpeg
        )

    def add(self, frame: np.ndarray) -> None:
        if frame.shape != self._shape:
            raise EnvError(
                f"record_video: all frames of an episode must have the same size, got "
                f"{list(self._shape)} and then {list(frame.shape)}."
            )
        height, width = frame.shape[:2]
        even = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(even.tobytes())
        except BrokenPipeError:
            self.finish()  # raises ffmpeg's error

    def finish(self) -> None:
        _, stderr = self._process.communicate()
        if self._process.returncode:
            raise OSError(stderr.decode(errors="replace").strip() or "ffmpeg failed")

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def _get_ffmpeg() -> str:
    return importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe()
