"""The experiment files that come with jaxrl."""

from pathlib import Path

import jaxrl
from jaxrl.errors import UnknownNameError, did_you_mean


def shipped_configs() -> dict[str, Path]:
    """The files that come with jaxrl by their ids, as in "classic/cartpole-ppo"."""
    root = Path(jaxrl.__file__).parent / "configs"
    return {
        path.relative_to(root).with_suffix("").as_posix(): path for path in root.rglob("*.yaml")
    }


def config_file(given: str) -> Path:
    """The file that a path or an id means.

    Raises:
        UnknownNameError: If there is neither such a file nor such an id.
    """
    path = Path(given).expanduser()
    if path.is_file():
        return path
    shipped = shipped_configs()
    name = given.removeprefix("configs/").removesuffix(".yaml")
    if name not in shipped:
        raise UnknownNameError(
            f"There is no config file '{given}', and no shipped config of this name "
            f"('jaxrl list configs' names them).{did_you_mean(name, shipped)}"
        )
    return shipped[name]
