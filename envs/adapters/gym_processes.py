"""The processes of an asynchronous vector environment: starting them and ending them."""

import time
from typing import Any

import cloudpickle
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from jaxrl.envs.adapters.host_spaces import logger
from jaxrl.errors import EnvError

CLOSE_TIMEOUT_S = 5.0


def start_processes(
    name: str, barriers: list[Any], autoreset_mode: AutoresetMode
) -> AsyncVectorEnv:
    """One process for each barrier, which make and step their copies there.

    Raises:
        EnvError: The copies cannot be sent to processes, or those do not start.
    """
    try:
        cloudpickle.dumps(barriers)
    except Exception as error:
        raise EnvError(
            f"{name}: gym_env_vectorize_mode='async' sends the environment's creator to other "
            f"processes, but it cannot be pickled ({error}); use 'sync', or a creator that makes "
            f"what it needs itself."
        ) from error
    try:
        # Never a fork: JAX has threads by now, whose locks a forked process inherits.
        return AsyncVectorEnv(barriers, context="spawn", autoreset_mode=autoreset_mode)
    except (EOFError, BrokenPipeError, ConnectionResetError, RuntimeError) as error:
        raise EnvError(
            f"{name}: the processes of gym_env_vectorize_mode='async' did not start; a script "
            f"that trains must do so under `if __name__ == '__main__':`."
        ) from error


def close_processes(vector: AsyncVectorEnv) -> None:
    """End the copies' processes, by force where they do not answer."""
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    pipes = [pipe for pipe in vector.parent_pipes if pipe is not None and not pipe.closed]
    for pipe in pipes:
        try:
            pipe.send(("close", None))
        except OSError:
            logger.debug("a process had ended before it was closed", exc_info=True)
    for process in vector.processes:
        process.join(max(0.0, deadline - time.monotonic()))
        for end in (process.terminate, process.kill):
            if process.is_alive():
                end()
                process.join(1.0)
    for pipe in pipes:
        pipe.close()
    vector.closed = True
