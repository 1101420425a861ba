"""Bodies of requests and responses: JSON, or arrays in the format of safetensors."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import safetensors
from safetensors.numpy import load, save

from jaxrl.errors import did_you_mean
from jaxrl.serve.backend import (
    RequestError,
    State,
    Structure,
    Value,
    join_arrays,
    list_names,
    map_structure,
    split_arrays,
)
from jaxrl.serve.batching import Answer

JSON, ARRAYS = "application/json", "application/x-safetensors"
MAX_ID_LENGTH = 256
_HEADER_BYTES = 8
_PLURALS = {
    "observation": "observations",
    "episode_id": "episode_ids",
    "prev_reward": "prev_rewards",
    "prev_action": "prev_actions",
}
_OPTIONS = ("explore", "is_first", "state", "return_state")
_FIELDS = (*_PLURALS, *_PLURALS.values(), *_OPTIONS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActRequest:
    """Request for actions, not yet compared with the spaces.

    Args:
        observations: One observation per row.
        is_single: Whether there is one row, without a batch axis.
        is_first: Whether each row starts an episode; None if the request does not say.
        episode_ids: Ids of the episodes; None if the client keeps the states, or needs none.
        state: Leaves of the states, `[n, ...]`; None without.
        should_return_state: Whether to return the states.
        explore: Whether to sample actions; None is as configured.
        prev_rewards: Rewards of the previous steps.
        prev_actions: Environment actions that were executed.
    """

    observations: Sequence[Value]
    is_single: bool
    is_first: Sequence[bool] | None
    episode_ids: Sequence[str] | None
    state: State | None
    should_return_state: bool
    explore: bool | None
    prev_rewards: Sequence[float] | None
    prev_actions: Sequence[Value] | None


def parse_request(
    body: bytes,
    content_type: str,
    observation: Structure,
    action: Structure,
    max_rows: int,
    ignored: Sequence[str] = (),
) -> ActRequest:
    """Parse the body of a request for actions.

    Args:
        body: Body.
        content_type: `JSON` or `ARRAYS`.
        observation: Structure of observations.
        action: Structure of actions.
        max_rows: Maximum number of rows.
        ignored: Names of parts of observations that are dropped where there are arrays of them.

    Raises:
        RequestError: If the body is not of this type, or its fields are unknown or of a wrong type.
    """
    if content_type == JSON:
        fields = _parse_json(body)
    elif content_type == ARRAYS:
        fields = _parse_arrays(body, observation, action, ignored)
    else:
        raise RequestError(f"Content-Type is {content_type!r}; send {JSON} or {ARRAYS}.", 415)
    for name in fields:
        if name not in _FIELDS:
            raise RequestError(f"There is no field {name!r}.{did_you_mean(name, _FIELDS)}")
    return _make_request(fields, max_rows)


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(body, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise RequestError("The body is nested too deeply.") from error
    except ValueError as error:
        raise RequestError(f"The body is not JSON: {error}.") from error
    if not isinstance(fields, dict):
        raise RequestError("The body must be a JSON object with observations.")
    return cast("dict[str, Any]", fields)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _parse_arrays(
    body: bytes, observation: Structure, action: Structure, ignored: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of arrays: options are JSON under "options" in the metadata."""
    try:
        arrays = load(body)
        size = int.from_bytes(body[:_HEADER_BYTES], "little")
        header = json.loads(body[_HEADER_BYTES : _HEADER_BYTES + size])
        metadata: Mapping[str, str] = header.get("__metadata__", {})
    except (safetensors.SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise RequestError(f"The body is not of the format of safetensors: {error}.") from error
    fields = _parse_json(metadata.get("options", "{}").encode())
    for name in _PLURALS.values():
        if name in fields and name != "episode_ids":
            raise RequestError(f"{name} are arrays of the body, not options.")
    num = _take_tree(arrays, "observations", observation, fields)
    _take_tree(arrays, "prev_actions", action, fields, num)
    dropped = tuple(f"observations.{name}." for name in ignored)
    arrays = {name: x for name, x in arrays.items() if not f"{name}.".startswith(dropped)}
    for name in ("is_first", "prev_rewards"):
        if name in arrays:
            fields[name] = arrays.pop(name).tolist()
    leaves = [name for name in arrays if name.startswith("state.")]
    if leaves:
        fields["state"] = [
            arrays.pop(f"state.{i}") for i in range(len(leaves)) if f"state.{i}" in arrays
        ]
    if arrays:
        known = [*list_names(observation, "observations"), "is_first", "prev_rewards", "state.0"]
        raise RequestError(f"There is no array {min(arrays)!r}.{did_you_mean(min(arrays), known)}")
    return fields


def _take_tree(
    arrays: dict[str, np.ndarray],
    root: str,
    structure: Structure,
    fields: dict[str, Any],
    num: int | None = None,
) -> int | None:
    """Move the arrays of observations or actions to the fields, as rows; return their number."""
    names = list_names(structure, root)
    found = {name: arrays.pop(name) for name in names if name in arrays}
    if not found:
        return None
    lengths = {len(array) if array.ndim else None for array in found.values()}
    if len(found) < len(names) or len(lengths) > 1 or None in lengths:
        raise RequestError(f"{root} must be the arrays {names}, all with the same leading axis.")
    tree = join_arrays(structure, root, found)
    size = len(next(iter(found.values())))
    fields[root] = [map_structure(structure, lambda leaf, i=i: leaf[i], tree) for i in range(size)]
    return size if num is None else num


def _make_request(fields: Mapping[str, Any], max_rows: int) -> ActRequest:
    is_single = "observation" in fields
    if is_single == ("observations" in fields):
        raise RequestError("The body must have either observation, or observations for several.")
    given = dict(fields)
    for single, plural in _PLURALS.items():
        wrong = plural if is_single else single
        if wrong in given:
            other = single if is_single else plural
            raise RequestError(
                f"{wrong} does not go with {'one' if is_single else 'several'} observation(s): use {other}."
            )
        if is_single and single in given:
            given[plural] = [given.pop(single)]
    observations = given["observations"]
    if not isinstance(observations, list) or not observations:
        raise RequestError("observations must be a list of at least one observation.")
    num = len(cast("list[object]", observations))
    if num > max_rows:
        raise RequestError(f"There are {num} observations; send at most {max_rows} at once.", 413)
    is_first = given.get("is_first")
    if isinstance(is_first, bool):
        is_first = [is_first] * num
    return ActRequest(
        observations=cast("list[Value]", observations),
        is_single=is_single,
        is_first=_check_list(is_first, "is_first", bool, num),
        episode_ids=_check_ids(given.get("episode_ids"), num),
        state=_parse_state(given.get("state"), num, is_single=is_single),
        should_return_state=_check_flag(given, "return_state") or "state" in given,
        explore=_check_flag(given, "explore"),
        prev_rewards=_check_list(given.get("prev_rewards"), "prev_rewards", (int, float), num),
        prev_actions=_check_list(given.get("prev_actions"), "prev_actions", object, num),
    )


def _check_flag(fields: Mapping[str, Any], name: str) -> bool | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise RequestError(f"{name} must be true or false, got {value!r:.80}.")
    return value


def _check_list(
    value: object, name: str, kind: type | tuple[type, ...], num: int
) -> list[Any] | None:
    if value is None:
        return None
    entries = cast("list[Any]", value) if isinstance(value, list) else []
    is_number = kind is not bool and kind is not object
    wrong = [e for e in entries if not isinstance(e, kind) or (is_number and isinstance(e, bool))]
    if len(entries) != num or wrong:
        raise RequestError(f"{name} must have one entry per observation, got {value!r:.80}.")
    return entries


def _check_ids(value: object, num: int) -> list[str] | None:
    ids = _check_list(value, "episode_ids", str, num)
    for episode_id in ids or ():
        if not 0 < len(episode_id) <= MAX_ID_LENGTH:
            raise RequestError(f"An episode id must have 1 to {MAX_ID_LENGTH} characters.")
    return ids


def _parse_state(value: object, num: int, *, is_single: bool) -> State | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise RequestError("state must be a list of arrays, as the previous response has it.")
    try:
        leaves = [np.asarray(leaf) for leaf in cast("list[Any]", value)]
    except ValueError as error:
        raise RequestError("state must be a list of arrays without ragged rows.") from error
    if is_single:
        leaves = [leaf[None] for leaf in leaves]
    if any(leaf.dtype.kind not in "biuf" or leaf.shape[:1] != (num,) for leaf in leaves):
        raise RequestError("Every array of state must be numbers, with one row per observation.")
    return leaves


def format_answer(
    answer: Answer, request: ActRequest, content_type: str, action: Structure
) -> bytes:
    """Return the body of a response.

    Args:
        answer: Actions and states.
        request: Request that is answered.
        content_type: Type of the body, that of the request.
        action: Structure of actions.
    """
    states = _stack_states(answer.states) if request.should_return_state else None
    if content_type == ARRAYS:
        arrays = split_arrays(action, "actions", answer.actions)
        for i, leaf in enumerate(states or ()):
            arrays[f"state.{i}"] = leaf
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        return save(arrays, metadata={"policy_version": answer.version})
    document: dict[str, Any] = {"policy_version": answer.version}
    columns = map_structure(action, lambda leaf: leaf.tolist(), answer.actions)
    rows = _split_rows(action, columns, len(answer.states))
    if request.is_single:
        document["action"] = rows[0]
    else:
        document["actions"] = rows
    if states is not None:
        document["state"] = [(leaf[0] if request.is_single else leaf).tolist() for leaf in states]
    return json.dumps(document, separators=(",", ":")).encode()


def _stack_states(states: Sequence[State]) -> State:
    return [np.stack([state[i] for state in states]) for i in range(len(states[0]))]


def _split_rows(structure: Structure, columns: Value, num: int) -> list[Any]:
    if structure is None:
        return cast("list[Any]", columns)
    return [map_structure(structure, lambda leaf, i=i: leaf[i], columns) for i in range(num)]
