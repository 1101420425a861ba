"""Writes RLlib's own configs as `<algorithm>.json` next to this file, as its params.json has them.

    python tests/config/rllib/make.py

in an environment with `ray[rllib]` and `torch` (the files here are those of Ray 2.60.0). Ray Tune
writes a trial's config to params.json by `SafeFallbackEncoder`: tuples become lists, and classes,
functions and members of enums strings, such as "<class 'ray.rllib.callbacks.callbacks.RLlibCallback'>".
The address in a function's string is replaced by 0x0, so that the files are the same every time.
"""

import importlib
import json
import re
from pathlib import Path

from ray.air._internal.json import SafeFallbackEncoder

ALGORITHMS = ("PPO", "DQN", "SAC", "IMPALA", "APPO", "TQC", "BC", "MARWIL", "CQL", "IQL")


def main() -> None:
    for name in ALGORITHMS:
        module = importlib.import_module(f"ray.rllib.algorithms.{name.lower()}")
        config = getattr(module, f"{name}Config")()
        text = json.dumps(config.to_dict(), indent=1, sort_keys=True, cls=SafeFallbackEncoder)
        text = re.sub(r" at 0x[0-9a-f]+>", " at 0x0>", text)
        (Path(__file__).parent / f"{name.lower()}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
