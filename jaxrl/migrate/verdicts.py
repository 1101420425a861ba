"""Verdicts on RLlib's settings, from the tables that the configs themselves use."""

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias, cast

from jaxrl.config.names import GROUP_METHODS, LEARNER_SETTINGS_IN_TRAINING, NameTable
from jaxrl.config.registry import get_algorithm_config_class, list_algorithms
from jaxrl.config.rllib_api import RENAMED_KEY_PREFIXES
from jaxrl.config.rllib_names import DROP, REFUSED, RENAMED, Refused, selects_machinery
from jaxrl.errors import JaxrlError
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
        if special := _judge_special(name, value, self._has_setting):
            return special
        for table in self._tables:
            current = table.find_current_name(name)
            if current is not None:
                return self._judge_known(table, name, current, value, called)
        if name in REFUSED:
            return _judge_refused(name, value, REFUSED[name])
        if name in RENAMED:
            advice = f"{RENAMED[name].new_name} is no setting of {self.algo or 'any algorithm'}"
            return Verdict("by hand", name, advice=advice)
        if self.algo is None:
            return Verdict("keep", name)
        return Verdict("by hand", name, advice=self._describe_unknown(name))

    def _has_setting(self, name: str) -> bool:
        return any(name in table.group_by_setting for table in self._tables)

    def _judge_known(
        self, table: NameTable, name: str, current: str, value: object, called: Group | None
    ) -> Verdict:
        group = GROUP_METHODS[table.group_by_setting[current]]
        if called == "training" and current in LEARNER_SETTINGS_IN_TRAINING:
            group = "learners"
        new_value = UNKNOWN
        old = RENAMED.get(name) if name not in table.group_by_setting else None
        if old is not None:
            if called is None and old.is_quiet:
                return Verdict("keep", name, group)
            transformed = old.transform(value)
            if transformed is DROP:
                return Verdict("drop", name, advice=f"{name}=None changes nothing")
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


def _judge_refused(name: str, value: object, refused: Refused) -> Verdict:
    if selects_machinery(name):
        return Verdict("drop", name, advice=refused.reason)
    if any(type(value) is type(ok) and value == ok for ok in refused.accepted_values):
        return Verdict("drop", name, advice=f"{value!r} changes nothing: {refused.reason}")
    return Verdict("by hand", name, advice=refused.reason)


def _find_problem(table: NameTable, name: str, value: object) -> str | None:
    """Return why a literal is no value of a setting, None if it is one or may be one."""
    setting = table.get_setting(name)
    if value is UNKNOWN or (isinstance(value, str) and setting.import_path):
        return None
    if name in ("env", "model_config", "evaluation_config"):
        return None
    try:
        setting.parse(value)
    except JaxrlError as error:
        return str(error)
    return None


def _judge_special(name: str, value: object, has_setting: Callable[[str], bool]) -> Verdict | None:
    """Return the verdict on a setting whose counterpart depends on its value."""
    if name == "num_gpus":
        if value in (0, None):
            return Verdict("drop", name, advice="JAX uses the devices that it finds")
        return Verdict("change", "num_gpus_per_learner", "learners")
    if name == "exploration_config":
        return _judge_exploration(value, has_setting)
    return None


_SAMPLING = (None, "", "StochasticSampling")
"""Types of exploration that sample from the policy, as every policy here does."""
_EPSILON_KEYS = {"type", "initial_epsilon", "final_epsilon", "epsilon_timesteps"}


def _judge_exploration(value: object, has_setting: Callable[[str], bool]) -> Verdict:
    name = "exploration_config"
    if value is None or value == {}:
        return Verdict("drop", name, advice="it is empty")
    if isinstance(value, Mapping):
        settings = cast(Mapping[str, object], value)
        kind = settings.get("type")
        if kind in _SAMPLING and not settings.keys() - {"type"}:
            return Verdict("drop", name, advice="actions are sampled from the policy")
        is_greedy = kind in ("EpsilonGreedy", None) and settings.keys() <= _EPSILON_KEYS
        if is_greedy and has_setting("epsilon"):
            start = settings.get("initial_epsilon", 1.0)
            end = settings.get("final_epsilon", 0.05)
            steps = settings.get("epsilon_timesteps", 100_000)
            schedule = [[0, start], [steps, end]] if steps else end
            return Verdict("change", "epsilon", "training", schedule)
    advice = REFUSED[name].reason
    if has_setting("epsilon"):
        advice = "write training(epsilon=[[0, 1.0], [10_000, 0.05]])"
    return Verdict("by hand", name, advice=advice)


_MODEL_SETTINGS = {field.name for field in dataclasses.fields(DefaultModelConfig)}
_NEUTRAL_MODEL_VALUES: Mapping[str, tuple[object, ...]] = {
    "custom_model": (None,),
    "custom_model_config": ({},),
    "custom_action_dist": (None,),
    "custom_preprocessor": (None,),
    "_disable_preprocessor_api": (True, False),
    "_disable_action_flattening": (True, False),
    "_time_major": (False,),
    "zero_mean": (True,),
    "no_final_linear": (False,),
    "framestack": (True,),
    "always_check_shapes": (True, False),
}
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
    if any(value is not UNKNOWN and value == ok for ok in _NEUTRAL_MODEL_VALUES.get(name, ())):
        return Verdict("drop", name, advice=f"{value!r} changes nothing")
    if name.startswith("lstm_use_prev") and value is False:
        return Verdict("drop", name, advice="False changes nothing")
    close = difflib.get_close_matches(name, _MODEL_SETTINGS, n=1, cutoff=0.85)
    hint = f"the model has no such setting; did you mean '{close[0]}'?" if close else ""
    advice = _MODEL_ADVICE.get(name, hint or "the default model has no such setting")
    return Verdict("by hand", name, advice=advice)


def judge_result_key(path: str) -> str | None:
    """Return the current path of a result key, None if it has not moved."""
    if path in RENAMED_KEYS:
        return RENAMED_KEYS[path]
    for old, new in RENAMED_KEY_PREFIXES.items():
        if path.startswith(f"{old}/"):
            return new + path.removeprefix(old)
    return None
