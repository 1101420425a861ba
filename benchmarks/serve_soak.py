"""Ten minutes of `jaxrl serve --follow` under load: `python -m benchmarks.serve_soak`.

A run saves a checkpoint every few seconds, and the server replaces its policy each time. Clients on kept
connections send one observation after another. Failed requests are counted, and the latencies of all
requests are drawn as a histogram.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from benchmarks import machine
from benchmarks.commands import build_header, save_results, start_results
from benchmarks.serve import JSON, make_request, post, run_server
from jaxrl import Algorithm, PPOConfig
from jaxrl.bench.markdown import Table, render_document

PERCENTILES = (50, 99, 99.9, 100)
MAX_RELOAD_S = 60.0
"""Seconds after which a checkpoint that was not served is counted as such."""


def main(argv: Sequence[str] | None = None) -> int:
    """Load a server, write `serve_soak.json`, `.md` and `.png`, and print the table.

    Returns:
        Exit code: 1 if a request failed, or a checkpoint was never served.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    options = _parse(arguments)
    results = start_results("benchmarks.serve_soak", arguments, is_quick=options.minutes < 10)
    with tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-") as folder:
        latencies, results["requests"] = run_load(options, folder)
    results |= {"peers": {}, "clients": options.clients, "minutes": options.minutes}
    percentiles = np.percentile(latencies, PERCENTILES)
    results["milliseconds"] = dict(zip(map(str, PERCENTILES), percentiles.tolist(), strict=True))
    save_results(results, options.out, "serve_soak", render_markdown)
    draw_histogram(latencies, options.out / "serve_soak.png")
    requests = results["requests"]
    return int(bool(requests["failed"]) or requests["policies_served"] < requests["policies_saved"])


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_soak", description=__doc__)
    for name, default, text in (
        ("minutes", 10.0, "minutes of load"),
        ("interval", 5.0, "seconds between checkpoints"),
    ):
        text = f"{text} (default: %(default)s)"
        parser.add_argument(f"--{name}", type=float, default=default, help=text)
    parser.add_argument("--clients", type=int, default=8, help="clients (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args(arguments)
    if options.minutes <= 0 or options.interval <= 0 or options.clients < 1:
        parser.error("--minutes, --interval and --clients must be positive")
    options.out = options.out or machine.choose_results_folder(is_complete=options.minutes >= 10)
    return options


def run_load(options: argparse.Namespace, folder: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the latencies of all requests in milliseconds, and the numbers of requests."""
    config = PPOConfig().environment("CartPole-v1").learners(num_devices=1)
    config.env_runners(num_envs_per_env_runner=4)
    config.training(train_batch_size=128, minibatch_size=64, num_epochs=1)
    config.rl_module(model_config={"fcnet_hiddens": [64, 64]})
    config.debugging(loggers=[], results_dir=folder)
    with config.build() as algorithm:
        algorithm.train()
        algorithm.save()
        with run_server(str(algorithm.run_dir), "--follow") as port:
            load = Load(options.clients, port)
            saving = threading.Thread(target=load.save_checkpoints, args=(algorithm, options))
            saving.start()
            try:
                asyncio.run(load.run())
            finally:
                load.is_over.set()
                saving.join()
    return 1000 * np.asarray(load.latencies), {
        "sent": len(load.latencies) + len(load.failures),
        "failed": len(load.failures),
        "failures": load.failures[:8],
        "policies_saved": len(load.saved),
        "policies_served": len(load.saved & set(load.versions)),
    }


class Load:
    """Clients of a server, and the run whose checkpoints it follows.

    Args:
        num_clients: Number of connections, each with one request at a time.
        port: Port of the server.

    Attributes:
        latencies: Seconds of each answered request.
        failures: What went wrong with the others.
        versions: Number of answers of each policy.
        saved: Names of the checkpoints.
        is_over: Set when no further request should be sent.
    """

    def __init__(self, num_clients: int, port: int) -> None:
        self._num_clients, self._port = num_clients, port
        self.latencies: list[float] = []
        self.failures: list[str] = []
        self.versions: Counter[str] = Counter()
        self.saved: set[str] = set()
        self.is_over = threading.Event()

    def save_checkpoints(self, algorithm: Algorithm, options: argparse.Namespace) -> None:
        """Train and save until the time is over, and wait for the last one to be served."""
        try:
            for _ in range(round(60 * options.minutes / options.interval)):
                algorithm.train()
                version = Path(algorithm.save()).name
                self.saved.add(version)
                self.is_over.wait(options.interval)
                self._wait_for(version)
        finally:
            self.is_over.set()

    def _wait_for(self, version: str) -> None:
        deadline = time.monotonic() + MAX_RELOAD_S
        while version not in self.versions and time.monotonic() < deadline:
            time.sleep(0.01)

    async def run(self) -> None:
        """Send requests on all connections until the time is over."""
        await asyncio.gather(*(self._run_client(number) for number in range(self._num_clients)))

    async def _run_client(self, number: int) -> None:
        rng = np.random.default_rng(number)
        connection = await asyncio.open_connection("127.0.0.1", self._port)
        while not self.is_over.is_set():
            request = make_request(rng.uniform(-0.05, 0.05, (1, 4)).astype(np.float32), JSON)
            try:
                seconds, answer = await post(*connection, request)
            except (OSError, EOFError, RuntimeError) as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                connection = await asyncio.open_connection("127.0.0.1", self._port)
                continue
            self.latencies.append(seconds)
            self.versions[json.loads(answer)["policy_version"]] += 1
        connection[1].close()


def render_markdown(results: Mapping[str, Any]) -> str:
    """Render the table as Markdown."""
    requests, latencies = results["requests"], results["milliseconds"]
    text = (
        f"`jaxrl serve --follow` for {results['minutes']:g} minutes: {results['clients']} clients, each "
        "with one observation at a time, while a run beside it trains and saves checkpoints. Latencies "
        "in milliseconds, of all requests; [histogram](serve_soak.png)."
    )
    names = ("requests", "failed", "checkpoints", "of them served")
    keys = ("sent", "failed", "policies_saved", "policies_served")
    header = (*names, *(f"p{name}" if name != "100" else "largest" for name in latencies))
    row = (*(f"{requests[key]:,}" for key in keys), *(f"{x:.2f}" for x in latencies.values()))
    table = Table(text=text, header=header, rows=[row])
    return render_document(*build_header(results, "Serving under load"), table)


def draw_histogram(latencies: np.ndarray, path: Path) -> None:
    """Draw the histogram of latencies in milliseconds, both axes logarithmic, as a PNG file."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    bins = np.geomspace(latencies.min(), latencies.max() * 1.001, 80)
    axes.hist(latencies, bins=bins.tolist())
    axes.set(xscale="log", yscale="log", xlabel="latency in milliseconds", ylabel="requests")
    for percent in PERCENTILES[:-1]:
        at = float(np.percentile(latencies, percent))
        axes.axvline(at, color="black", linewidth=0.8)
        axes.text(at, axes.get_ylim()[1], f" p{percent}", rotation=90, va="top", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
