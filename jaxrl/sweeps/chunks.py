"""How many lanes one program trains at once, where memory is short."""

from collections.abc import Sequence

from jaxrl.assembly.assemble import Assembly
from jaxrl.core.types import Device
from jaxrl.errors import ConfigError
from jaxrl.runners.placement import required_bytes, state_bytes
from jaxrl.runtime.devices import memory_limit


def lanes_at_once(
    number: int, assembly: Assembly, devices: Sequence[Device], most: int | None = None
) -> int:
    """The lanes that each of several turns trains; the last turn may have fewer.

    The states of all lanes are there at any moment, rollouts and targets of those alone that it is
    the turn of. What is estimated is a lower bound.

    Args:
        number: Of all lanes.
        assembly: Of one of them.
        devices: That share them.
        most: Lanes at once, at most; None for any number.

    Raises:
        ConfigError: Not even one lane at a time fits.
    """
    fit, limit = number, memory_limit(devices[0])
    if limit is not None:
        total = limit * (1 if devices[0].platform == "cpu" else len(devices))
        states = state_bytes(assembly)
        work = max(1, required_bytes(assembly) - states)
        fit = (total - number * states) // work
        if fit < 1:
            lanes = max(0, (total - work) // states)
            raise ConfigError(
                f"{number} lanes need at least {(number * states + work) / 2**30:.1f} GiB, one at a "
                f"time, and there are {total / 2**30:.1f} GiB: sweep at most {lanes} lanes, or "
                "lower train_batch_size."
            )
    turns = -(-number // min(number, fit, most or number))
    return -(-number // turns)
