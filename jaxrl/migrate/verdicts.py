"""Verdicts on RLlib's settings, from the tables that the configs themselves use."""

import dataclasses
import difflib
import re
from collections.abc import Mapping
from typing import Literal, TypeAlias

from jaxrl.compat.rllib.attributes import RENAMED_KEY_PREFIXES
from jaxrl.compat.rllib.models import has_default
from jaxrl.compat.rllib.settings import (
    EXPLORATION_REASON,
    SETTINGS,
    selects_machinery,
    translate_exploration,
)
from jaxrl.config.base import get_algorithm_config_class
from jaxrl.config.imports import Trust
from jaxrl.config.names import GROUP_METHODS, LEARNER_SETTINGS_IN_TRAINING, NameTable
from jaxrl.config.registry import list_algorithms
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.metrics import RENAMED_KEYS
from jaxrl.modules.model_config import DefaultModelConfig

UNKNOWN = object()
"""Value that only the program itself knows."""

Action = Literal["keep", "change", "drop", "by hand"]
Group: TypeAlias = str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Verdict on a setting with its value.

    Attributes:
        action: Fate of the setting.
        name: Name here.
        group: Config method that takes the setting, None if it is unknown.
        value: New value, or UNKNOWN if the value stays as it is written.
        advice: Reason for dropping it, or advice for rewriting it by hand.
    """

    action: Action
    name: str
    group: Group | None = None
    value: object = UNKNOWN
    advice: str = ""


class SettingsJudge:
    """Judge of settings of one algorithm, or of any algorithm if it is not known.

    Args:
        algo: Name of the algorithm, None if it is not known or has no counterpart.
    """

    def __init__(self, algo: str | None) -> None:
        known = {name.lower(): name for name in list_algorithms()}
        self.algo = known.get((algo or "").lower())
        names = list_algorithms() if self.algo is None else [self.algo]
        self._tables = [get_algorithm_config_class(name).get_name_table() for name in names]

    def judge(self, name: str, value: object = UNKNOWN, *, called: Group | None = None) -> Verdict:
        """Return the verdict on `name=value`.

        Args:
            name: Name as written in the file.
            value: Value of a literal, or UNKNOWN.
            called: Config method in whose call it stands; None in a dictionary.
        """
        if name in ("framework", "framework_str"):
            return Verdict("drop", name, advice="the framework is JAX")
        if special := self._judge_special(name, value):
            return special
        if value is not UNKNOWN and all(table.is_neutral(name, value) for table in self._tables):
            return Verdict("drop", name, advice=f"{value!r} changes nothing")
        for table in self._tables:
            current = table.find_current_name(name)
            if current is not None:
                return self._judge_known(table, name, current, value, called)
        setting = SETTINGS.get(name)
        if setting is not None and setting.new_name is None:
            action = "drop" if selects_machinery(name) else "by hand"
            return Verdict(action, name, advice=setting.reason)
        if setting is not None:
            advice = f"{setting.new_name} is no setting of {self.algo or 'any algorithm'}"
            return Verdict("by hand", name, advice=advice)
        if self.algo is None:
            return Verdict("keep", name)
        return Verdict("by hand", name, advice=self._describe_unknown(name))

    def _judge_special(self, name: str, value: object) -> Verdict | None:
        """Return the verdict on a setting whose counterpart depends on its value."""
        if name == "num_gpus":
            if value in (0, None):
                return Verdict("drop", name, advice="JAX uses the devices that it finds")
            return Verdict("change", "num_gpus_per_learner", "learners")
        return self._judge_exploration(value) if name == "exploration_config" else None

    def _judge_exploration(self, value: object) -> Verdict:
        name, table = "exploration_config", self._tables[0]
        known = table.group_by_setting if self.algo is not None else ()
        if value is not UNKNOWN:
            try:
                settings = translate_exploration(value, known)
            except ConfigError:
                settings = None
            if settings == {}:
                return Verdict("drop", name, advice="the algorithm explores in this way")
            if settings is not None and len(settings) == 1:
                ((new_name, new_value),) = settings.items()
                group = GROUP_METHODS[table.group_by_setting[new_name]]
                return Verdict("change", new_name, group, new_value)
        advice = EXPLORATION_REASON
        if "epsilon" in known:
            advice = "write training(epsilon=[[0, 1.0], [10_000, 0.05]])"
        return Verdict("by hand", name, advice=advice)

    def _judge_known(
        self, table: NameTable, name: str, current: str, value: object, called: Group | None
    ) -> Verdict:
        group = GROUP_METHODS[table.group_by_setting[current]]
        if called == "training" and current in LEARNER_SETTINGS_IN_TRAINING:
            group = "learners"
        new_value = UNKNOWN
        old = SETTINGS.get(name) if name not in table.group_by_setting else None
        if old is not None:
            if called is None and old.is_quiet:
                return Verdict("keep", name, group)
            transformed = old.transform(value)
            if value is UNKNOWN and transformed is not UNKNOWN:
                advice = f"write {group}({current}=...), which takes other values"
                return Verdict("by hand", name, advice=advice)
            if transformed is not value:
                new_value = transformed
        judged = value if new_value is UNKNOWN else new_value
        if problem := _find_problem(table, current, judged):
            return Verdict("by hand", current, group, advice=problem)
        is_same = current == name and (called is None or group == called)
        return Verdict("keep" if is_same else "change", current, group, new_value)

    def _describe_unknown(self, name: str) -> str:
        if name in _MODEL_SETTINGS:
            return f"write rl_module(model_config={{'{name}': ...}})"
        known = [setting for table in self._tables for setting in table.group_by_setting]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        hint = f"; did you mean '{close[0]}'?" if close else ""
        return f"{self.algo}Config has no such setting{hint}"


def _find_problem(table: NameTable, name: str, value: object) -> str | None:
    """Return why a literal is no value of a setting, None if it is one or may be one."""
    setting = table.get_setting(name)
    if value is UNKNOWN or (isinstance(value, str) and setting.import_path):
        return None
    if name in ("env", "model_config", "evaluation_config"):
        return None
    try:
        setting.parse(value, Trust(makes_envs=False))
    except JaxrlError as error:
        return str(error)
    return None


_MODEL_SETTINGS = {field.name for field in dataclasses.fields(DefaultModelConfig)}
_MODEL_ADVICE: Mapping[str, str] = {
    "custom_model": "pass the network itself: rl_module(network=...)",
    "custom_model_config": "pass the network itself, with its arguments: rl_module(network=...)",
    "custom_action_dist": "the action space defines the distribution",
    "dim": "Atari observations are 84 x 84; wrap other environments yourself",
    "grayscale": "wrap the environment yourself",
    "framestack": "FrameStacking is an env_to_module_connector",
    "no_final_linear": "set fcnet_hiddens, to which the output layer is always added",
    "post_fcnet_hiddens": "set head_fcnet_hiddens",
    "post_fcnet_activation": "set head_fcnet_activation",
    "lstm_use_prev_action": (
        "add PrevActionsPrevRewards as an env_to_module_connector, see the guide Connectors"
    ),
    "lstm_use_prev_reward": (
        "add PrevActionsPrevRewards as an env_to_module_connector, see the guide Connectors"
    ),
}


def judge_model_setting(name: str, value: object = UNKNOWN) -> Verdict:
    """Return the verdict on an entry of a model's settings."""
    if name in _MODEL_SETTINGS:
        return Verdict("keep", name)
    if value is not UNKNOWN and has_default(name, value):
        return Verdict("drop", name, advice=f"{value!r} changes nothing")
    close = difflib.get_close_matches(name, _MODEL_SETTINGS, n=1, cutoff=0.85)
    hint = f"the model has no such setting; did you mean '{close[0]}'?" if close else ""
    advice = _MODEL_ADVICE.get(name, hint or "the default model has no such setting")
    return Verdict("by hand", name, advice=advice)


_LEARNER_STATS = re.compile(r"^(learners/[^/]+)/learner_stats(?=/|$)")
"""Level of RLlib's results between a module and its metrics, which there is none of here."""


def judge_result_key(path: str) -> str | None:
    """Return the current path of a result key, None if it has not moved."""
    if path in RENAMED_KEYS:
        return RENAMED_KEYS[path]
    for old, new in RENAMED_KEY_PREFIXES.items():
        if path.startswith(f"{old}/"):
            moved = new + path.removeprefix(old)
            return _LEARNER_STATS.sub(r"\1", moved)
    return None
