"""Resolution of names written by the user to settings, or to an error that explains the problem."""

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from jaxrl.compat import lookup
from jaxrl.config.fields import Setting, format_value, get_settings
from jaxrl.config.registry import find_config_class
from jaxrl.core.algorithms import ALGORITHMS
from jaxrl.errors import JaxrlError, UnknownNameError, UnknownSettingError, did_you_mean

GROUP_METHODS = {
    "environment_settings": "environment",
    "env_runners_settings": "env_runners",
    "external_settings": "external",
    "offline_data_settings": "offline_data",
    "training_settings": "training",
    "learners_settings": "learners",
    "rl_module_settings": "rl_module",
    "multi_agent_settings": "multi_agent",
    "evaluation_settings": "evaluation",
    "fault_tolerance_settings": "fault_tolerance",
    "resources_settings": "resources",
    "python_environment_settings": "python_environment",
    "reporting_settings": "reporting",
    "checkpointing_settings": "checkpointing",
    "debugging_settings": "debugging",
    "callbacks_settings": "callbacks",
    "sweep_settings": "sweep",
}
"""Attribute of each group, mapped to the method that changes it."""

LEARNER_SETTINGS_IN_TRAINING = (
    "learner_class",
    "learner_connector",
    "add_default_connectors_to_learner_pipeline",
)
"""Settings of learners() that RLlib takes in training()."""

WITH_NEUTRAL_VALUES = frozenset(
    (
        "actions_in_input_normalized",
        "algorithm_config_overrides_per_module",
        "always_attach_evaluation_results",
        "callbacks_class",
        "env_runner_cls",
        "env_task_fn",
        "input_",
        "input_read_schema",
        "learner_class",
        "off_policy_estimation_methods",
        "offline_evaluation_type",
        "ope_split_batch_by_episode",
        "optimizer",
        "policies",
        "policies_to_train",
        "policy_mapping_fn",
        "rl_module_spec",
        "shuffle_buffer_size",
        "use_critic",
        # of algorithms whose further settings have some
        *("BC", "CQL", "DreamerV3", "IQL", "MARWIL"),
    )
)
"""Settings, and algorithms, with values of RLlib's that ask for nothing, see `compat.rllib.values`."""


@dataclasses.dataclass(frozen=True)
class ResolvedSetting:
    """Setting that a name resolves to, with its group and the value."""

    group: str
    setting: Setting
    value: object
    old_name: str | None = None
    """Name that it was given by, if that is an old one."""

    @property
    def call(self) -> str:
        """The setting as it is written now."""
        return f"{GROUP_METHODS[self.group]}({self.setting.name}=...)"


class NameTable:
    """Settings of a config class by name.

    Args:
        groups: Classes of the groups, by the attribute of the config.
        algo: Name of the algorithm, whose defaults in RLlib are neutral.
    """

    def __init__(self, groups: Mapping[str, type], algo: str = "") -> None:
        self.algo = algo
        self.groups = {attribute: get_settings(group) for attribute, group in groups.items()}
        self.group_by_setting = {
            name: attribute for attribute, settings in self.groups.items() for name in settings
        }

    def get_setting(self, name: str) -> Setting:
        return self.groups[self.group_by_setting[name]][name]

    def find_current_name(self, name: str) -> str | None:
        """Return the setting's current name by its old or current name, or None if unknown."""
        if name not in self.group_by_setting:
            setting = lookup.load("rllib.settings").SETTINGS.get(name)
            name = "" if setting is None else setting.new_name or ""
        return name if name in self.group_by_setting else None

    def resolve(
        self, name: str, value: object, *, group: str | None = None
    ) -> list[ResolvedSetting]:
        """Resolve `name=value` to settings.

        Args:
            name: Name as written by the user, possibly an old one.
            value: Value, which is not checked here.
            group: Attribute of the group whose method was called, if any.

        Returns:
            The setting and its value; none for a value that asks for nothing, and several for
            a setting of RLlib's that stands for them.

        Raises:
            UnknownSettingError: If there is no such setting, or not in this group.
            ConfigError: If the setting exists in RLlib but has no effect here.
        """
        is_setting = name in self.group_by_setting
        if is_setting and {name, self.algo} & WITH_NEUTRAL_VALUES and self.is_neutral(name, value):
            return []
        if is_setting:
            return [self._resolve_known(name, value, group)]
        rllib = lookup.load("rllib.settings")
        found = rllib.translate_setting(name, value, self.group_by_setting, self.algo)
        if found is not None:
            return [
                self._resolve_renamed(name, new, item, quiet=found.is_quiet)
                for new, item in found.settings.items()
            ]
        where = f"{GROUP_METHODS[group]}()" if group else "The config"
        raise UnknownSettingError(
            f"{where} has no setting {name!r} (got {format_value(value)}).{self._hint(name, group)}"
        )

    def is_neutral(self, name: str, value: object) -> bool:
        """Return whether a value asks for nothing in RLlib, or for what is done anyway."""
        asks_for_nothing = lookup.load("rllib.settings").asks_for_nothing
        is_setting = name in self.group_by_setting
        return asks_for_nothing(name, value, self.algo, is_setting=is_setting)

    def _resolve_known(self, name: str, value: object, group: str | None) -> ResolvedSetting:
        actual_group = self.group_by_setting[name]
        if group is not None and actual_group != group:
            if name in LEARNER_SETTINGS_IN_TRAINING:
                return self._resolve_renamed(f"training({name})", name, value)
            raise UnknownSettingError(
                f"'{name}' (got {format_value(value)}) is a setting of {GROUP_METHODS[actual_group]}(), "
                f"not {GROUP_METHODS[group]}()."
            )
        return ResolvedSetting(actual_group, self.get_setting(name), value)

    def _resolve_renamed(
        self, old: str, new: str, value: object, *, quiet: bool = False
    ) -> ResolvedSetting:
        group = self.group_by_setting[new]
        return ResolvedSetting(group, self.get_setting(new), value, None if quiet else old)

    def describe_counterpart(self, name: str) -> str:
        """Return a sentence on the counterpart of another library's name, or an empty string."""
        methods_of = {name: GROUP_METHODS[group] for name, group in self.group_by_setting.items()}
        counterpart = lookup.load("libraries").describe_counterpart(name, methods_of)
        return f" {counterpart}" if counterpart else ""

    def _hint(self, name: str, group: str | None) -> str:
        if counterpart := self.describe_counterpart(name):
            return counterpart
        hint = did_you_mean(name.lower(), self.group_by_setting)
        if owners := _find_other_algorithms(name):
            return f" It is a setting of {owners}, not of {self.algo or 'this algorithm'}."
        if not hint:
            return hint
        suggestion = hint.split("'")[1]
        if group is None or self.group_by_setting[suggestion] == group:
            return hint
        return (
            f" Did you mean '{suggestion}' of {GROUP_METHODS[self.group_by_setting[suggestion]]}()?"
        )


_MOST_OWNERS = 4
"""Maximum number of algorithms named as those that have a setting."""


def _find_other_algorithms(name: str) -> str:
    """Return the algorithms that have a setting, those with most presets first; "" if none has."""
    owners: dict[str, type[Any]] = {}
    presets: dict[str, int] = {}
    for algorithm in ALGORITHMS:
        with contextlib.suppress(JaxrlError):  # a registered one that cannot be imported here
            config = find_config_class(algorithm)
            if name not in config.get_name_table().group_by_setting:
                continue
            base = next((each for each, owner in owners.items() if issubclass(config, owner)), None)
            if base is None:
                owners[algorithm] = config
            presets[base or algorithm] = presets.get(base or algorithm, 0) + 1
    ranked = sorted(owners, key=lambda owner: -presets[owner])
    named = [*ranked[:_MOST_OWNERS], *(["others"] if len(ranked) > _MOST_OWNERS else [])]
    return " and ".join(filter(None, (", ".join(named[:-1]), *named[-1:])))


def make_unknown_attribute_error(
    name: str, table: NameTable, methods: Iterable[str] = ()
) -> UnknownNameError:
    """Return the error for an unknown setting or method, with a suggestion.

    Args:
        name: Name as written by the user.
        table: Settings of the config.
        methods: Names of the config's methods to suggest from, if an attribute was read.
    """
    setting = lookup.load("rllib.settings").SETTINGS.get(name)
    if setting is not None and setting.new_name is None:
        return UnknownNameError(f"The config has no setting '{name}': {setting.reason}.")
    known = [*table.group_by_setting, *methods]
    hint = table.describe_counterpart(name) or did_you_mean(name, known)
    kind = "setting or method" if methods else "setting"
    return UnknownNameError(f"The config has no {kind} '{name}'.{hint}")
