"""Conditions of every test: eight host devices, no silent broadcast, no reused key or stray file."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Everything up to `import jax` has to be said before JAX starts; subprocesses inherit it.
_DEVICES = "--xla_force_host_platform_device_count"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")  # `JAX_PLATFORMS=cuda,cpu make test` takes the GPU
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(
        Path(__file__).parent.parent / ".pytest_cache" / "jax"
    )
    # Bounded means locked: without a size, two workers read each other's half-written entries.
    os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(2 * 1024**3)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
# Programs are lowered sooner if their instructions do not tell which lines they are from.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
os.environ.setdefault("MPLBACKEND", "agg")
# The key that checkpoints are signed with, also those of fixtures that outlive a test.
os.environ["XDG_STATE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "state")
os.environ.setdefault("MPLCONFIGDIR", str(Path(__file__).parent.parent / ".pytest_cache" / "mpl"))

import jax
import pytest

SLOW_SECONDS = 3600
"""Seconds that a test of the slow set has, unless it says more; two at once share two cores."""

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_key_reuse", True)
jax.devices()  # JAX starts now, with the flags from above, whatever a test does to the environment


@pytest.fixture(autouse=True)
def _key_reuse_is_an_error(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that no key is consumed twice, but in tests marked `allow_key_reuse`."""
    with jax.debug_key_reuse("allow_key_reuse" not in request.keywords):
        yield


@pytest.fixture(autouse=True)
def _home_is_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends run folders and caches that a test does not name to the test's own folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(tmp_path / "jaxrl_results"))


@pytest.fixture(scope="module", autouse=True)
def _programs_are_shared_within_a_file() -> Iterator[None]:
    """Keeps the programs of a file's tests for equal configs of its later ones, and of no others.

    JAX keeps thousands more, and allocations become slower with the gigabytes that they fill.
    """
    from jaxrl.runtime import kept_programs  # here: the checks of `make test-shapes` come first

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kept_programs, "MAX_SHARED_PROGRAMS", 64)
        patch.setattr(kept_programs, "SHARED_PROGRAMS", kept_programs.SharedPrograms())
        yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Ray of four logical CPUs for all tests marked `ray`, ended with the session."""
    import ray

    from jaxrl.runners.ray.start import start_local_ray

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("ray_home")))  # for its token
        start_local_ray(
            4, object_store_memory=200 * 2**20, log_to_driver=False, logging_level="ERROR"
        )
    yield
    ray.shutdown()


@pytest.fixture(autouse=True)
def _ray_is_small_and_shared(request: pytest.FixtureRequest) -> Iterator[None]:
    """Starts the one Ray before any test marked `ray`; no other test may start one."""
    is_marked = request.node.get_closest_marker("ray") is not None  # not: in a folder of this name
    if is_marked:
        request.getfixturevalue("ray_cluster")
    was_started = _is_ray_started()
    yield
    assert is_marked or _is_ray_started() == was_started, "starts Ray, but is not marked `ray`"


def _is_ray_started() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def pytest_collection_finish() -> None:
    """Leave modules out of garbage collection, and look through all other objects less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 10, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the parameters that `representatives` does not name to the slow set, which has longer."""
    unnamed: dict[str, set[str]] = {}
    for item in items:
        marker = item.get_closest_marker("representatives")
        if marker is not None and isinstance(item, pytest.Function):
            function = item.nodeid.partition("[")[0]
            missing = unnamed.setdefault(function, set(marker.args))
            if item.callspec.id in marker.args:
                missing.discard(item.callspec.id)
            else:
                item.add_marker(pytest.mark.slow)
        is_slow = item.get_closest_marker("slow") is not None
        if is_slow and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
    is_selected = any("::" in argument for argument in config.args)  # so not all are collected
    wrong = [f"{function}: {missing}" for function, missing in unnamed.items() if missing]
    if wrong and not is_selected:
        raise pytest.UsageError(f"No parameters have the ids of `representatives` of {wrong}.")
