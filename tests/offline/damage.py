"""Files of every format that is read, and damage of what they say, for tests of recorded data."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from gymnasium import spaces

from jaxrl import EpisodeWriter
from tests.offline.parts import RLLIB_ROWS, make_part

BOX = spaces.Box(-np.inf, np.inf, (2,), np.float32)
DISCRETE = spaces.Discrete(3)


def _nest(value: Any, depth: int, key: str | None = None) -> Any:
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


def _make_hostile() -> list[Any]:
    """New values each time, since a second change may put one into another."""
    return [
        *(None, True, -1, 2, 5, 0.5, math.nan, math.inf, 1e300, 2**62, 2**70, 10**400),
        *("", "x", "x" * 2000, "|O", "(1,", b"x", [], {}, [1, "a"], [[1], [2, 3]], [None, 1.0]),
        *([10**400, 0.5], [1e300, 1.0], [0.5, -1.0], ["a", "b"], [10**6, 10**7], [-1, -2]),
        *(
            _nest(1, 40),
            _nest(1, 700),
            _nest({"type": "Dict"}, 40, "subspaces"),
            _nest(1, 700, "a"),
        ),
    ]


def _damage_array(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """An array of another type or shape, or with a value that it should not have."""
    changes: list[Callable[[], Any]] = [
        lambda: array.astype(str),
        lambda: array.astype("S"),
        lambda: array.astype(np.float64) + 0.5,
        lambda: array.astype(np.int64),
        lambda: array.astype(np.complex64),
        lambda: array.astype(">f4"),
        lambda: -array.astype(np.float64) - 1,
        lambda: array.astype(bool),
        lambda: array[:-1],
        lambda: array[:0],
        lambda: array[:1],
        lambda: array[0],
        lambda: array[..., None],
        lambda: array.reshape(-1),
        lambda: np.stack([array, array]),
        lambda: array.T[:, None],
        *(lambda x=x: _with_value(array, x, rng) for x in (math.nan, math.inf, 1e300, -1.0, 2**62)),
    ]
    return np.asarray(changes[rng.integers(len(changes))]())


def _with_value(array: np.ndarray, value: float, rng: np.random.Generator) -> np.ndarray:
    is_float = not math.isfinite(value) or abs(value) > 2**63
    changed = array.astype(np.float64 if is_float or array.dtype.kind == "f" else np.int64)
    changed.flat[rng.integers(changed.size)] = value
    return changed


def _iter_nodes(tree: Any, depth: int = 12) -> Iterator[tuple[Any, Any]]:
    """The containers of a tree with each of their keys."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield tree, key
        if isinstance(value, dict | list) and depth:
            yield from _iter_nodes(value, depth - 1)


def damage(content: Any, rng: np.random.Generator) -> Any:
    """A copy of a tree of dictionaries, lists and arrays with one or two changes."""
    content = copy.deepcopy(content)
    for _ in range(rng.integers(1, 3)):
        nodes = list(_iter_nodes(content))
        if not nodes:
            break
        owner, key = nodes[rng.integers(len(nodes))]
        value = owner[key]
        if rng.random() < 0.15:
            del owner[key]
        elif isinstance(value, np.ndarray):
            try:
                owner[key] = _damage_array(value, rng)
            except (TypeError, ValueError, IndexError, Warning):
                owner[key] = np.zeros(1)
        elif isinstance(value, list) and value and rng.random() < 0.3:
            owner[key] = [value[:-1], [*value, value[-1]], value[0]][rng.integers(3)]
        else:
            hostile = _make_hostile()
            owner[key] = hostile[rng.integers(len(hostile))]
    return content


def _make_own(folder: Path, file_format: str) -> Path:
    with EpisodeWriter(folder, BOX, DISCRETE, file_format=file_format) as writer:
        for i in range(3):
            part = make_part(
                2, observation_space=BOX, action_space=DISCRETE, episode_id=f"{i}", seed=i,
                terminated=i == 1, truncated=i == 2,
            )  # fmt: skip
            writer.add_parts([part])
    (path,) = folder.glob("part-*")
    return path


def make_own_npz(folder: Path) -> Any:
    with np.load(_make_own(folder, "npz")) as found:
        arrays = dict(found)
    header = json.loads(arrays.pop("jaxrl_header").tobytes())
    return {"header": header, "arrays": arrays}


def write_own_npz(folder: Path, content: Any) -> None:
    header = np.frombuffer(json.dumps(content["header"]).encode(), np.uint8)
    arrays = {name: np.asarray(array) for name, array in content["arrays"].items()}
    with (folder / "a.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, jaxrl_header=header, **cast("Any", arrays))


def make_own_parquet(folder: Path) -> Any:
    table = pq.read_table(_make_own(folder, "parquet"))
    header = json.loads(table.schema.metadata[b"jaxrl"])
    _TYPES.update({field.name: field.type for field in table.schema})
    return {"header": header, "columns": table.to_pydict()}


_TYPES: dict[str, pa.DataType] = {}


def write_own_parquet(folder: Path, content: Any) -> None:
    table = _make_table(content["columns"], _TYPES)
    metadata = {"jaxrl": json.dumps(content["header"])}
    pq.write_table(table.replace_schema_metadata(metadata), folder / "a.parquet")


def _make_table(columns: dict[str, Any], types: dict[str, pa.DataType]) -> pa.Table:
    """A table in which short columns have missing values at the end, and mixed ones are texts."""
    lists = {
        name: list(values) if isinstance(values, list | np.ndarray) else [values]
        for name, values in columns.items()
    }
    length = max(map(len, lists.values()), default=0)
    arrays: dict[str, pa.Array] = {}
    for name, values in lists.items():
        padded = [*values, *[None] * (length - len(values))]
        texts = [str(value)[:50] for value in padded]
        for cells, kind in ((padded, types.get(name)), (padded, None), (texts, None)):
            try:
                arrays[name] = pa.array(cells, kind)
            except (pa.ArrowException, TypeError, OverflowError):
                continue
            break
    return pa.table(arrays)


def make_manifest(folder: Path) -> Any:
    _make_own(folder, "npz")
    return json.loads((folder / "manifest.json").read_text())


def write_manifest(folder: Path, content: Any) -> None:
    text = json.dumps(content)
    whole = Path(f"{folder.parent}-manifest")
    if not whole.exists():
        _make_own(whole, "npz")
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    (folder / "manifest.json").write_text(text)


def make_rllib_rows(folder: Path) -> Any:
    del folder
    return {**copy.deepcopy(RLLIB_ROWS), "action_logp": [-1.0, -2.0, -3.0]}


def write_rllib_columns(folder: Path, content: Any) -> None:
    pq.write_table(_make_table(content, {}), folder / "a.parquet", row_group_size=2)


def make_rllib_columns(folder: Path) -> Any:
    return {name: np.asarray(values) for name, values in make_rllib_rows(folder).items()}


def make_rllib_json(folder: Path) -> Any:
    rows = make_rllib_rows(folder)
    batch = {"type": "SampleBatch", **rows}
    other = {"type": "MultiAgentBatch", "policy_batches": {"p": {**rows, "eps_id": [1, 1, 2]}}}
    return [batch, other, {**batch, "eps_id": ["c", "c", "d"]}]


def write_rllib_json(folder: Path, content: Any) -> None:
    (folder / "a.json").write_text("\n".join(json.dumps(line) for line in content))


def make_rllib_episodes(folder: Path) -> Any:
    del folder

    def encode(values: np.ndarray) -> dict[bytes, Any]:
        shape = list(values.shape)
        return {b"nd": True, b"type": values.dtype.str, b"kind": b"", b"shape": shape,
                b"data": values.tobytes()}  # fmt: skip

    def make_buffer(data: Any, *, finalized: bool = False) -> dict[str, Any]:
        return {"data": data, "lookback": 0, "finalized": finalized}

    rows = [encode(np.full(2, i, np.float32)) for i in range(3)]
    number = {b"nd": False, b"type": "<i8", b"data": np.int64(1).tobytes()}
    lists = {
        "id_": "a",
        "t_started": 0,
        "t": 2,
        "is_terminated": False,
        "is_truncated": True,
        "observations": make_buffer(rows),
        "actions": make_buffer([number, number]),
        "rewards": make_buffer([0.5, 1.0]),
        "extra_model_outputs": {"action_logp": make_buffer([-1.0, -2.0])},
    }
    arrays = {
        **lists,
        "id_": "b",
        "observations": make_buffer(encode(np.zeros((3, 2), np.float32)), finalized=True),
        "actions": make_buffer(encode(np.zeros(2, np.int64)), finalized=True),
        "rewards": make_buffer(encode(np.zeros(2, np.float32)), finalized=True),
    }
    return [lists, arrays]


def write_rllib_episodes(folder: Path, content: Any) -> None:
    import msgpack

    rows = [msgpack.packb(state) for state in content]
    pq.write_table(pa.table({"item": pa.array(rows, pa.binary())}), folder / "a.parquet")


def make_minari(folder: Path) -> Any:
    del folder
    box = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-9.0, -9.0], "high": [9.0, 9.0]}
    episode = {
        "observations": {"a": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.int64)},
        "actions": np.asarray([0, 1]),
        "rewards": np.asarray([1.0, 2.0]),
        "terminations": np.asarray([False, True]),
        "truncations": np.asarray([False, False]),
    }
    nested = {"a": box, "b": {"type": "Discrete", "n": 3, "start": 0}}
    return {
        "metadata": {
            "observation_space": {"type": "Dict", "subspaces": nested},
            "action_space": {"type": "Discrete", "n": 3, "start": 0},
            "env_spec": {"id": "A-v0"},
            "dataset_id": "a/b-v0",
        },
        "episodes": {"episode_0": episode, "episode_1": episode},
    }


def write_minari(folder: Path, content: Any) -> None:
    metadata = content["metadata"]
    texts = ("observation_space", "action_space", "env_spec")
    encoded = {name: json.dumps(x) if name in texts else x for name, x in metadata.items()}
    (folder / "metadata.json").write_text(json.dumps(encoded))
    _write_hdf5(folder / "a.hdf5", content["episodes"])


def make_arrays(folder: Path) -> Any:
    del folder
    obs = np.arange(8, dtype=np.float32).reshape(4, 2)
    return {
        "observations": obs,
        "actions": np.asarray([0, 1, 2, 0]),
        "rewards": np.arange(4.0),
        "terminals": np.asarray([False, True, False, False]),
        "timeouts": np.asarray([False, False, False, True]),
        "next_observations": np.concatenate([obs[1:], obs[:1]]),
    }


def write_arrays_npz(folder: Path, content: Any) -> None:
    arrays = {name: np.asarray(array) for name, array in content.items()}
    with (folder / "a.npz").open("wb") as file:
        np.savez(file, allow_pickle=False, **cast("Any", arrays))


def write_arrays_hdf5(folder: Path, content: Any) -> None:
    _write_hdf5(folder / "a.hdf5", content)


def _write_hdf5(path: Path, content: Any) -> None:
    import h5py

    def fill(group: Any, tree: Any) -> None:
        for name, value in tree.items():
            if isinstance(value, dict):
                fill(group.create_group(name), value)
            else:
                group[name] = value

    with h5py.File(path, "w") as file:
        fill(file, content)


FORMATS: dict[str, tuple[Callable[[Path], Any], Callable[[Path, Any], None]]] = {
    "own npz": (make_own_npz, write_own_npz),
    "own Parquet": (make_own_parquet, write_own_parquet),
    "manifest": (make_manifest, write_manifest),
    "RLlib's columns": (make_rllib_columns, write_rllib_columns),
    "RLlib's lines of JSON": (make_rllib_json, write_rllib_json),
    "RLlib's episodes": (make_rllib_episodes, write_rllib_episodes),
    "Minari": (make_minari, write_minari),
    "arrays in npz": (make_arrays, write_arrays_npz),
    "arrays in HDF5": (make_arrays, write_arrays_hdf5),
}
"""Content of a whole file of each format, and a function that writes it to a folder."""
