"""Migration of experiments in YAML and JSON files, by edits of their text that keep its layout."""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from jaxrl.compat.rllib.imports import find_algorithm, get_algorithm_advice
from jaxrl.config.imports import Trust
from jaxrl.config.load import EXPERIMENT_KEYS, experiment_from_dict, parse_text, parse_yaml_value
from jaxrl.config.registry import list_algorithms
from jaxrl.config.sweep import is_sweep
from jaxrl.errors import CheckpointError, ConfigError, JaxrlError
from jaxrl.migrate.report import Ledger, Migration, Topic
from jaxrl.migrate.verdicts import (
    UNKNOWN,
    SettingsJudge,
    Verdict,
    judge_model_setting,
    judge_result_key,
)

EXPERIMENT_ADVICE: Mapping[str, str] = {
    "num_samples": "one run per experiment; sweep: {seeds: 4} trains several",
    "resources_per_trial": "Ray reserves what env_runners() and learners() ask for",
    "scheduler": "use Ray Tune from Python, or sweep: {scheduler: ...}",
    "max_failures": "a run that ends is continued by jaxrl resume",
    "restore": "continue a run with jaxrl resume",
}
Entry = tuple[yaml.ScalarNode, yaml.Node]
_MERGE = "tag:yaml.org,2002:merge"


@dataclasses.dataclass(frozen=True, order=True)
class Edit:
    """Replacement of a part of the text."""

    start: int
    end: int
    text: str


def migrate_yaml(text: str, path: Path) -> Migration:
    """Migrate the experiments of a YAML or JSON file.

    Args:
        text: Text of the file.
        path: Path of the file, whose suffix tells the format.

    Raises:
        ConfigError: If the text is neither valid YAML nor JSON.
    """
    parse_text(text, path)
    root = _compose(text, path)
    experiments = list(_find_experiments(root))
    if not experiments:
        return Migration(text, text, [], [], uses_rllib=False)
    editor = _Editor(text, path)
    for _, body in experiments:
        editor.rewrite_experiment(body)
    new = editor.apply()
    if new != text or not editor.ledger.remaining:
        _check(new, path, experiments, editor.ledger)
    ledger = editor.ledger
    return Migration(text, new, ledger.changes, ledger.remaining, uses_rllib=True)


def _compose(text: str, path: Path) -> yaml.Node | None:
    try:
        return cast(Any, yaml).compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{path}: its layout cannot be kept, since it is no YAML: indent it with spaces."
        ) from error


def _find_experiments(root: yaml.Node | None) -> Iterator[tuple[str, yaml.MappingNode]]:
    """Yield the experiments of a file, none if it holds something else."""
    if not isinstance(root, yaml.MappingNode) or not root.value:
        return
    entries = list(_get_entries(root))
    for key, body in entries:
        if not isinstance(body, yaml.MappingNode):
            return
        names = {str(name.value) for name, _ in _get_merged_entries(body)}
        if not names & {"run", "algo"} or not names & {"env", "config", "stop"}:
            return
        if names & {"steps", "jobs", "runs-on"}:  # a workflow
            return
        del key
    for key, body in entries:
        if isinstance(body, yaml.MappingNode):
            yield str(key.value), body


def _get_entries(node: yaml.Node) -> Iterator[Entry]:
    if isinstance(node, yaml.MappingNode):
        for key, value in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
            if isinstance(key, yaml.ScalarNode):
                yield key, value


def _get_merged_entries(node: yaml.Node) -> Iterator[Entry]:
    """Yield a mapping's entries, and after them those that it merges from others by `<<`."""
    merged: list[yaml.Node] = []
    for key, value in _get_entries(node):
        if key.tag == _MERGE:
            is_list = isinstance(value, yaml.SequenceNode)
            merged += cast(list[yaml.Node], value.value) if is_list else [value]
        else:
            yield key, value
    for other in merged:
        yield from _get_merged_entries(other)


def _read(node: yaml.Node) -> object:
    if node.tag == "tag:yaml.org,2002:null":  # `lr:`, which PyYAML cannot write as a document
        return None
    return parse_yaml_value(cast(Any, yaml).serialize(node), "value")


class _Editor:
    """Editor of the text of a file.

    Args:
        text: Text of the file.
        path: Path of the file.
    """

    def __init__(self, text: str, path: Path) -> None:
        self.ledger = Ledger()
        self._text = text
        self._is_json = path.suffix == ".json"
        self._edits: set[Edit] = set()
        self._judge = SettingsJudge(None)

    def rewrite_experiment(self, body: yaml.MappingNode) -> None:
        """Rewrite one experiment."""
        entries = _get_merged_entries(body)
        algo = next((v.value for k, v in entries if k.value in ("run", "algo")), None)
        self._judge = SettingsJudge(str(algo))
        for key, value in _get_entries(body):
            name = str(key.value)
            if key.tag == _MERGE:  # of an entry that is rewritten in its own place
                continue
            if name in ("run", "algo"):
                self._check_algorithm(key, str(value.value))
            elif name == "stop":
                self._rewrite_stop(value)
            elif name == "config":
                self._rewrite_settings(value)
            elif name not in EXPERIMENT_KEYS and not (name == "num_samples" and _read(value) == 1):
                advice = EXPERIMENT_ADVICE.get(name, "an experiment has no such key here")
                self._by_hand(key, "setting", name, advice)

    def _check_algorithm(self, key: yaml.Node, name: str) -> None:
        advice = get_algorithm_advice(name)
        if advice is not None or find_algorithm(name) is None:
            known = ", ".join(list_algorithms())
            self._by_hand(key, "algorithm", name, advice or f"the algorithms are {known}")

    def _rewrite_stop(self, node: yaml.Node) -> None:
        for key, _ in _get_entries(node):
            name = str(key.value)
            current = judge_result_key(name)
            if current is not None:
                self._change(key, "result key", f"{name} is {current}")
                self._rename(key, current)

    def _rewrite_settings(self, node: yaml.Node) -> None:
        entries = list(_get_entries(node))
        given = {str(key.value): value for key, value in entries}
        for position, (key, value) in enumerate(entries):
            name = str(key.value)
            schedule = given.get(f"{name}_schedule")
            if schedule is not None and _read(schedule) is not None:
                verdict = Verdict("drop", name, advice=f"{name}_schedule replaces it")
            else:
                verdict = self._judge.judge(name, _read(value))
            self._apply(verdict, node, entries, position, "setting")
            if name in ("model", "model_config"):
                self._rewrite_model(value)
            elif name == "evaluation_config":
                self._rewrite_settings(value)

    def _rewrite_model(self, node: yaml.Node) -> None:
        entries = list(_get_entries(node))
        for position, (key, value) in enumerate(entries):
            verdict = judge_model_setting(str(key.value), _read(value))
            self._apply(verdict, node, entries, position, "model")

    def _apply(
        self,
        verdict: Verdict,
        mapping: yaml.Node,
        entries: list[Entry],
        position: int,
        kind: Topic,
    ) -> None:
        key, value = entries[position]
        name = str(key.value)
        if verdict.action == "by hand":
            self._by_hand(key, kind, name, verdict.advice)
        elif verdict.action == "drop":
            self._change(key, kind, f"{name} is removed: {verdict.advice}")
            self._remove(mapping, entries, position)
        elif verdict.action == "change":
            if verdict.name != name:
                self._change(key, kind, f"{name} is {verdict.name}")
                self._rename(key, verdict.name)
            if verdict.value is not UNKNOWN:
                end = _find_end(value)
                self._edits.add(Edit(value.start_mark.index, end, self._dump(verdict.value)))

    def _change(self, node: yaml.Node, kind: Topic, what: str) -> None:
        self.ledger.change(node.start_mark.line + 1, kind, what)

    def _by_hand(self, node: yaml.Node, kind: Topic, what: str, advice: str) -> None:
        self.ledger.by_hand(node.start_mark.line + 1, kind, what, advice)

    def _dump(self, value: object) -> str:
        if self._is_json:
            return json.dumps(value)
        dumped = cast(Any, yaml).safe_dump(value, default_flow_style=True)
        return str(dumped).removesuffix("\n").removesuffix("\n...")

    def _rename(self, key: yaml.ScalarNode, name: str) -> None:
        start, end = key.start_mark.index, key.end_mark.index
        quote = self._text[start] if self._text[start] in "'\"" else ""
        self._edits.add(Edit(start, end, f"{quote}{name}{quote}"))

    def _remove(self, mapping: yaml.Node, entries: list[Entry], position: int) -> None:
        key, value = entries[position]
        start, end = key.start_mark.index, _find_end(value)
        if isinstance(mapping, yaml.MappingNode) and mapping.flow_style:
            if position + 1 < len(entries):
                end = entries[position + 1][0].start_mark.index
            else:
                start = self._find_start_of_last(mapping, entries, position)
            self._edits.add(Edit(start, end, ""))
            return
        line_start = self._text.rfind("\n", 0, start) + 1
        if self._text[line_start:start].strip():  # behind the dash of a list, or a one-line entry
            self._by_hand(key, "setting", str(key.value), "remove the entry")
            return
        line_end = self._text.find("\n", end)
        line_end = len(self._text) if line_end < 0 else line_end + 1
        indent = self._text[line_start:start]
        comments = _find_comments(self._text[start:end], self._text[end:line_end])
        newline = "\r\n" if self._text[:line_end].endswith("\r\n") else "\n"
        kept = "".join(f"{indent}{comment}{newline}" for comment in comments)
        self._edits.add(Edit(line_start, line_end, kept))

    def _find_start_of_last(self, mapping: yaml.Node, entries: list[Entry], position: int) -> int:
        """Return the end of the entry that becomes the last one of a flow mapping."""
        for before in range(position - 1, -1, -1):
            _, value = entries[before]
            removed = any(
                edit.text == "" and edit.start <= value.start_mark.index < edit.end
                for edit in self._edits
            )
            if not removed:
                return _find_end(value)
        return mapping.start_mark.index + 1

    def apply(self) -> str:
        """Return the edited text."""
        text = self._text
        for edit in _merge(self._edits)[::-1]:
            text = text[: edit.start] + edit.text + text[edit.end :]
        return text


def _merge(edits: Iterable[Edit]) -> list[Edit]:
    """Return edits in their order, overlapping removals as one."""
    merged: list[Edit] = []
    for edit in sorted(edits):
        if merged and edit.start < merged[-1].end:
            last = merged[-1]
            merged[-1] = dataclasses.replace(last, end=max(last.end, edit.end))
        else:
            merged.append(edit)
    return merged


def _find_end(node: yaml.Node) -> int:
    """Return where a value ends, without the comments and lines behind it."""
    is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
    if not is_block or not node.value:
        return node.end_mark.index
    last = node.value[-1]
    return _find_end(last[1] if isinstance(last, tuple) else last)


def _find_comments(inside: str, behind: str) -> list[str]:
    """Return the comments of a removed entry."""
    comments = [line.strip() for line in inside.splitlines() if line.lstrip().startswith("#")]
    if behind.strip().startswith("#"):
        comments.append(behind.strip())
    return comments


def _check(
    text: str,
    path: Path,
    experiments: list[tuple[str, yaml.MappingNode]],
    ledger: Ledger,
) -> None:
    """Report experiments that jaxrl cannot load; nothing is imported."""
    data = cast(Mapping[Any, Any], parse_text(text, path)[0])
    reported = {item.line for item in ledger.remaining}
    for name, node in experiments:
        start = node.start_mark.line
        if any(start <= line - 1 <= node.end_mark.line for line in reported):
            continue
        try:
            config = experiment_from_dict(name, data[name], Trust(makes_envs=False)).config
            if not is_sweep(config):
                config.validate()
                config.plan()
        except CheckpointError:  # it names code of the user's, which is not imported
            continue
        except JaxrlError as error:
            ledger.by_hand(start + 1, "setting", name, str(error))
