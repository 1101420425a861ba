"""Number of threads of the peers that use torch."""

from __future__ import annotations

import argparse

import torch  # pyright: ignore[reportMissingImports]


def set_threads() -> None:
    """Set the number of torch's threads to the one given on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores)")
    threads = parser.parse_args().threads
    if threads is not None:
        torch.set_num_threads(threads)
