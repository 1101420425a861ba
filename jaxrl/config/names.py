"""From the name that a user wrote to the setting that is meant, or the sentence why not."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from jaxrl.config.fields import Setting, settings_of
from jaxrl.config.rllib_names import DROP, GROUPS_REFUSED, REFUSED, RENAMED, Refused
from jaxrl.config.synonyms import called_here
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
"""The attribute that holds a group, and the method that changes it."""

OF_TRAINING = (
    "learner_class",
    "learner_connector",
    "add_default_connectors_to_learner_pipeline",
)
"""Settings of the learners that RLlib takes in training()."""


@dataclasses.dataclass(frozen=True)
class Meant:
    """A setting, the group that holds it, the value, and what to tell about an old name."""

    group: str
    setting: Setting
    value: Any
    note: str | None = None


class NameTable:
    """All settings of one config class."""

    def __init__(self, groups: Mapping[str, Any]) -> None:
        self.groups = {attribute: settings_of(group) for attribute, group in groups.items()}
        self.group_of = {
            name: attribute for attribute, settings in self.groups.items() for name in settings
        }

    def setting(self, name: str) -> Setting:
        return self.groups[self.group_of[name]][name]

    def current_name(self, name: str) -> str | None:
        """The setting that a name, old or new, reads; None if there is none."""
        if name not in self.group_of and name in RENAMED:
            name = RENAMED[name].new
        return name if name in self.group_of else None

    def resolve(self, name: str, value: Any, *, group: str | None = None) -> Meant | None:
        """What `name=value` means, None for nothing to do.

        Args:
            name: As the user wrote it; old names are understood.
            value: Not checked here.
            group: The attribute of the group whose method was called, if one was.

        Raises:
            UnknownSettingError: No such setting, or not in this group.
            ConfigError: A setting of RLlib's without a meaning here.
        """
        if name in self.group_of:
            return self._known(name, value, group)
        old = RENAMED.get(name)
        if old is not None and old.new in self.group_of:
            new_value = old.transform(value)
            if new_value is DROP:
                return None
            return self._renamed(name, old.new, new_value, quiet=old.quiet)
        refused = REFUSED.get(name)
        if refused is not None:
            return self._refuse(name, value, refused)
        where = f"{GROUP_METHODS[group]}()" if group else "The config"
        raise UnknownSettingError(
            f"{where} has no setting {name!r} (got {value!r}).{self._hint(name, group)}"
        )

    def _known(self, name: str, value: Any, group: str | None) -> Meant:
        actual = self.group_of[name]
        if group is not None and actual != group:
            if name in OF_TRAINING:
                return self._renamed(f"training({name})", name, value, quiet=False)
            raise UnknownSettingError(
                f"'{name}' (got {value!r}) is a setting of {GROUP_METHODS[actual]}(), "
                f"not {GROUP_METHODS[group]}()."
            )
        return Meant(actual, self.setting(name), value)

    def _renamed(self, old: str, new: str, value: Any, *, quiet: bool) -> Meant:
        actual = self.group_of[new]
        note = f"'{old}' is the old name of {GROUP_METHODS[actual]}({new}=...); it was accepted."
        return Meant(actual, self.setting(new), value, None if quiet else note)

    @staticmethod
    def _refuse(name: str, value: Any, refused: Refused) -> None:
        if any(type(value) is type(ok) and value == ok for ok in refused.accepts):
            return
        raise ConfigError(f"'{name}' (got {value!r}) has no effect here: {refused.reason}.")

    def called_here(self, name: str) -> str:
        """A sentence on another library's name; empty if the name is none."""
        methods_of = {name: GROUP_METHODS[group] for name, group in self.group_of.items()}
        answer = called_here(name, methods_of)
        return f" {answer}" if answer else ""

    def _hint(self, name: str, group: str | None) -> str:
        if answer := self.called_here(name):
            return answer
        hint = did_you_mean(name.lower(), self.group_of)
        if not hint:
            return hint
        meant = hint.split("'")[1]
        if group is None or self.group_of[meant] == group:
            return hint
        return f" Did you mean '{meant}' of {GROUP_METHODS[self.group_of[meant]]}()?"


def refuse_group(name: str, settings: Mapping[str, Any]) -> NoReturn:
    """Raises the sentence for a whole group of RLlib's that this version does not have."""
    got = ", ".join(f"{key}={value!r}" for key, value in settings.items())
    raise ConfigError(f"{name}({got}) has no effect here: {GROUPS_REFUSED[name]}.")


def unknown_attribute(name: str, table: NameTable, methods: Iterable[str] = ()) -> UnknownNameError:
    """The error for reading a setting that does not exist, or for calling a method that does not.

    Args:
        name: As the user wrote it.
        table: Of the config.
        methods: What else may have been meant, where an attribute was read.
    """
    known = [*table.group_of, *methods]
    hint = table.called_here(name) or did_you_mean(name, known)
    what = "setting or method" if methods else "setting"
    return UnknownNameError(f"The config has no {what} '{name}'.{hint}")
