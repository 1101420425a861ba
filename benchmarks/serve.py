"""Latency and rate of `jaxrl serve`: `python -m benchmarks.serve`.

A server in a process of its own, with a policy of 64-64 networks for CartPole-v1, answers one client,
32 clients, and batches of 64 rows, all on kept connections over loopback. The cases take turns, so
that other load on the machine affects all alike.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from benchmarks import machine, measure
from benchmarks.commands import Benchmark, Options, Results, describe_packages
from benchmarks.peers import launch
from benchmarks.statistics import estimate_median, estimate_ratio, show, show_value, to_dict
from jaxrl import PPOConfig
from jaxrl.bench.markdown import Cells, Table
from jaxrl.bench.peers import run_process

ROWS = 64
OURS, RLLIB = "jaxrl", "RLlib in Ray Serve"
JSON, ARRAYS = "application/json", "application/x-safetensors"
CASES: dict[str, tuple[int, int, str]] = {
    "1 client": (1, 1, JSON),
    "32 clients": (32, 1, JSON),
    "batches, JSON": (1, ROWS, JSON),
    "batches, arrays": (1, ROWS, ARRAYS),
}
"""Number of clients, rows per request, and type of the bodies."""
NUM_REQUESTS = 2000
"""Requests of all clients together in a round."""


def run(options: Options) -> dict[str, Any]:
    """Measure each case."""
    peers = {OURS: describe_packages("jax", "uvicorn", "httptools")}
    if options.peer:
        peers[RLLIB] = {"devices": 1, "versions": get_rllib_versions()}
    cases = measure_cases(options.requests, options.pairs, has_peer=options.peer)
    return {"peers": peers, **cases}


def measure_cases(num_requests: int, rounds: int, *, has_peer: bool = False) -> dict[str, Any]:
    """Measure the latencies and the rows per second of each case in every round.

    Args:
        num_requests: Requests of all clients together in a round.
        rounds: Number of rounds.
        has_peer: Whether RLlib takes turns.

    Returns:
        `cases`, and with a peer also `peer_cases` and `ratios` of the rates.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jaxrl-benchmark-"))
        ports = {OURS: stack.enter_context(run_server(_save_policy(folder)))}
        if has_peer:
            ports[RLLIB] = stack.enter_context(_run_process(_get_rllib_command()))
        functions = {
            f"{peer} {name}": partial(_run_round, port, case, num_requests)
            for name, case in CASES.items()
            for peer, port in ports.items()
            if peer == OURS or case[2] == JSON
        }
        found = measure.take_turns(functions, rounds)
    peers = [
        {name: found[f"{peer} {name}"] for name in CASES if f"{peer} {name}" in found}
        for peer in (OURS, RLLIB)
    ]
    ours, theirs = ({n: _summarize(x, CASES[n][1]) for n, x in cases.items()} for cases in peers)
    if not has_peer:
        return {"cases": ours}
    ratios = {
        name: to_dict(estimate_ratio(_get_rates(peers[0][name]), _get_rates(rounds)))
        for name, rounds in peers[1].items()
    }
    return {"cases": ours, "peer_cases": theirs, "ratios": ratios}


def _get_rllib_command() -> list[str]:
    return [*launch.get_python("rllib"), "-m", "benchmarks.peers.rllib.serve_worker"]


def get_rllib_versions() -> dict[str, str]:
    """Return the versions of RLlib's environment."""
    code = "from importlib.metadata import version as v; print(v('ray'), v('torch'))"
    output = run_process([*launch.get_python("rllib"), "-c", code], Path.cwd())
    return dict(zip(("ray", "torch"), output.split(), strict=True))


@contextlib.contextmanager
def run_server(path: str, *options: str) -> Generator[int]:
    """Run a server of a checkpoint or run in another process, and yield its port."""
    command = [sys.executable, "-m", "jaxrl", "serve", path, "--port", "0", *options]
    with _run_process(command) as port:
        yield port


@contextlib.contextmanager
def _run_process(command: Sequence[str]) -> Generator[int]:
    """Run a server that prints its address in the second line."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=machine.ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        _, address = process.stdout.readline(), process.stdout.readline()
        try:
            yield int(address.rpartition(":")[2])
        finally:
            process.stdin.close()
            process.terminate()


def _save_policy(folder: str) -> str:
    config = PPOConfig().environment("CartPole-v1").learners(num_devices=1)
    config.rl_module(model_config={"fcnet_hiddens": [64, 64]})
    with config.debugging(loggers=[], results_dir=folder).build() as algorithm:
        return algorithm.save(folder)


def _run_round(
    port: int, case: tuple[int, int, str], num_requests: int
) -> tuple[float, list[float]]:
    """Return the seconds of a round, and those of each request."""
    return asyncio.run(_run_clients(port, *case, num_requests))


async def _run_clients(
    port: int, num_clients: int, num_rows: int, content_type: str, num_requests: int
) -> tuple[float, list[float]]:
    rows = np.linspace(-0.04, 0.04, 4 * num_rows, dtype=np.float32).reshape(num_rows, 4)
    request = make_request(rows, content_type)
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(num_clients)]
    start = time.perf_counter()
    found = await asyncio.gather(
        *(_run_client(*client, request, num_requests // num_clients) for client in clients)
    )
    seconds = time.perf_counter() - start
    for _, writer in clients:
        writer.close()
    return seconds, [latency for latencies in found for latency in latencies]


def make_request(rows: np.ndarray, content_type: str) -> bytes:
    """Return a request for the actions of observations, `[n, size]`."""
    body = _make_body(rows, content_type)
    return (
        f"POST /v1/actions HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def _make_body(rows: np.ndarray, content_type: str) -> bytes:
    if content_type == ARRAYS:
        return save({"observations": rows})
    if len(rows) == 1:
        return json.dumps({"observation": rows[0].tolist()}).encode()
    return json.dumps({"observations": rows.tolist()}).encode()


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[float, bytes]:
    """Send a request, and return its seconds and the body of the answer.

    Raises:
        RuntimeError: If the status is not 200.
    """
    start = time.perf_counter()
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    if not head.startswith(b"http/1.1 200"):
        raise RuntimeError(f"the server answered {head.decode()}")
    if b"content-length:" in head:
        length = head.split(b"content-length:")[1].split(b"\r\n")[0]
        body = await reader.readexactly(int(length))
    else:  # transfer-encoding: chunked
        body = b"".join([chunk async for chunk in _read_chunks(reader)])
    return time.perf_counter() - start, body


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while length := int(await reader.readuntil(b"\r\n"), 16):
        yield (await reader.readexactly(length + 2))[:length]
    await reader.readuntil(b"\r\n")


async def _run_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, count: int
) -> list[float]:
    return [(await post(reader, writer, request))[0] for _ in range(count)]


def _summarize(rounds: Sequence[tuple[float, list[float]]], num_rows: int) -> dict[str, Any]:
    """Return the medians over the rounds of rows per second and of latencies, in milliseconds."""
    rates = [num_rows * rate for rate in _get_rates(rounds)]
    return {
        "rate": to_dict(estimate_median(rates)),
        **{
            f"p{percent}_ms": to_dict(
                estimate_median(
                    [1000 * float(np.percentile(latencies, percent)) for _, latencies in rounds]
                )
            )
            for percent in (50, 99)
        },
    }


def _get_rates(rounds: Sequence[tuple[float, list[float]]]) -> list[float]:
    """Return the requests per second of each round."""
    return [len(latencies) / seconds for seconds, latencies in rounds]


def build_tables(results: Results) -> Iterator[Table]:
    """Build the table of the cases, and the peer's."""
    header = ("case", "actions/s", "p50", "p99")
    yield Table(
        text=f"Actions of a policy for CartPole-v1 over loopback; batches have {ROWS} rows. Medians over "
        "the rounds with 95 % intervals; latencies in milliseconds.",
        header=header,
        rows=[_make_row(name, case) for name, case in results["cases"].items()],
    )
    if "peer_cases" in results:
        yield Table(
            text="The same requests, answered in turn by RLlib's module in one replica of Ray Serve. The "
            "ratio is that of the rates above to these, within a round.",
            header=(*header, "ratio"),
            rows=[
                (*_make_row(name, case), show(results["ratios"][name], ".1f"))
                for name, case in results["peer_cases"].items()
            ],
        )


def _make_row(name: str, case: Results) -> Cells:
    latencies = (show(case[key], ".2f") for key in ("p50_ms", "p99_ms"))
    return (name, show_value(case["rate"], ",.0f"), *latencies)


BENCHMARK = Benchmark(
    name="serve",
    about=__doc__,
    title="Serving",
    measure=run,
    build_tables=build_tables,
    numbers={"requests": (NUM_REQUESTS, "requests per case and round")},
    quick={"requests": 64},
    peer="measure RLlib in Ray Serve in turn; start the command with .ci/loopback",
)
main = BENCHMARK.main

if __name__ == "__main__":
    sys.exit(main())
