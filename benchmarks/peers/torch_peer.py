"""Peers that use torch, and the number of its threads."""

from __future__ import annotations

import argparse

import torch  # pyright: ignore[reportMissingImports]

from benchmarks.peers.protocol import Peer


class TorchPeer(Peer):
    """Peer whose devices are torch's threads."""

    def count_devices(self) -> int:
        """Return the number of threads."""
        return torch.get_num_threads()


def set_threads() -> None:
    """Set the number of torch's threads to the one given on the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, help="threads of torch (default: all cores)")
    threads = parser.parse_args().threads
    if threads is not None:
        torch.set_num_threads(threads)
