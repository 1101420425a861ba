"""Resolution of names written by the user to settings, or to an error that explains the problem."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NoReturn

from jaxrl.config.fields import Setting, get_settings
from jaxrl.config.rllib_names import DROP, REFUSED, REFUSED_METHODS, RENAMED, Refused
from jaxrl.config.synonyms import describe_counterpart
from jaxrl.errors import ConfigError, UnknownNameError, UnknownSettingError, did_you_mean

GROUP_METHODS = {
    "environment_settings": "environment",
    "env_runners_settings": "env_runners",
    "training_settings": "training",
    "learners_settings": "learners",
    "rl_module_settings": "rl_module",
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


@dataclasses.dataclass(frozen=True)
class ResolvedSetting:
    """Setting that a name resolves to, with its group, the value, and a note about an old name."""

    group: str
    setting: Setting
    value: object
    note: str | None = None


class NameTable:
    """Settings of a config class by name."""

    def __init__(self, groups: Mapping[str, type]) -> None:
        self.groups = {attribute: get_settings(group) for attribute, group in groups.items()}
        self.group_by_setting = {
            name: attribute for attribute, settings in self.groups.items() for name in settings
        }

    def get_setting(self, name: str) -> Setting:
        return self.groups[self.group_by_setting[name]][name]

    def find_current_name(self, name: str) -> str | None:
        """Return the setting's current name by its old or current name, or None if unknown."""
        if name not in self.group_by_setting and name in RENAMED:
            name = RENAMED[name].new_name
        return name if name in self.group_by_setting else None

    def resolve(
        self, name: str, value: object, *, group: str | None = None
    ) -> ResolvedSetting | None:
        """Resolve `name=value` to a setting.

        Args:
            name: Name as written by the user, possibly an old one.
            value: Value, which is not checked here.
            group: Attribute of the group whose method was called, if any.

        Returns:
            The setting and its value, or None if there is nothing to set.

        Raises:
            UnknownSettingError: If there is no such setting, or not in this group.
            ConfigError: If the setting exists in RLlib but has no effect here.
        """
        if name in self.group_by_setting:
            return self._resolve_known(name, value, group)
        old = RENAMED.get(name)
        if old is not None and old.new_name in self.group_by_setting:
            new_value = old.transform(value)
            if new_value is DROP:
                return None
            return self._resolve_renamed(name, old.new_name, new_value, quiet=old.is_quiet)
        refused = REFUSED.get(name)
        if refused is not None:
            return self._refuse(name, value, refused)
        where = f"{GROUP_METHODS[group]}()" if group else "The config"
        raise UnknownSettingError(
            f"{where} has no setting {name!r} (got {value!r}).{self._hint(name, group)}"
        )

    def _resolve_known(self, name: str, value: object, group: str | None) -> ResolvedSetting:
        actual_group = self.group_by_setting[name]
        if group is not None and actual_group != group:
            if name in LEARNER_SETTINGS_IN_TRAINING:
                return self._resolve_renamed(f"training({name})", name, value, quiet=False)
            raise UnknownSettingError(
                f"'{name}' (got {value!r}) is a setting of {GROUP_METHODS[actual_group]}(), "
                f"not {GROUP_METHODS[group]}()."
            )
        return ResolvedSetting(actual_group, self.get_setting(name), value)

    def _resolve_renamed(
        self, old: str, new: str, value: object, *, quiet: bool
    ) -> ResolvedSetting:
        group = self.group_by_setting[new]
        note = f"'{old}' is the old name of {GROUP_METHODS[group]}({new}=...); it was accepted."
        return ResolvedSetting(group, self.get_setting(new), value, None if quiet else note)

    @staticmethod
    def _refuse(name: str, value: object, refused: Refused) -> None:
        if any(type(value) is type(ok) and value == ok for ok in refused.accepted_values):
            return
        raise ConfigError(f"'{name}' (got {value!r}) has no effect here: {refused.reason}.")

    def describe_counterpart(self, name: str) -> str:
        """Return a sentence on the counterpart of another library's name, or an empty string."""
        methods_of = {name: GROUP_METHODS[group] for name, group in self.group_by_setting.items()}
        counterpart = describe_counterpart(name, methods_of)
        return f" {counterpart}" if counterpart else ""

    def _hint(self, name: str, group: str | None) -> str:
        if counterpart := self.describe_counterpart(name):
            return counterpart
        hint = did_you_mean(name.lower(), self.group_by_setting)
        if not hint:
            return hint
        suggestion = hint.split("'")[1]
        if group is None or self.group_by_setting[suggestion] == group:
            return hint
        return (
            f" Did you mean '{suggestion}' of {GROUP_METHODS[self.group_by_setting[suggestion]]}()?"
        )


def refuse_method(name: str, settings: Mapping[str, object]) -> NoReturn:
    """Raise ConfigError for a method of RLlib's config that is not supported."""
    got = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    raise ConfigError(f"{name}({got}) has no effect here: {REFUSED_METHODS[name]}.")


def make_unknown_attribute_error(
    name: str, table: NameTable, methods: Iterable[str] = ()
) -> UnknownNameError:
    """Return the error for an unknown setting or method, with a suggestion.

    Args:
        name: Name as written by the user.
        table: Settings of the config.
        methods: Names of the config's methods to suggest from, if an attribute was read.
    """
    known = [*table.group_by_setting, *methods]
    hint = table.describe_counterpart(name) or did_you_mean(name, known)
    kind = "setting or method" if methods else "setting"
    return UnknownNameError(f"The config has no {kind} '{name}'.{hint}")
