"""Config, the settings of a run, set and read as in RLlib.

What plans, checks and explains a config, and knows environments, is imported by the methods that use
it, so that a config can be written soon after its import.
"""

import dataclasses
import functools
import inspect
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, cast, get_origin

from jaxrl.compat import lookup
from jaxrl.compat.imports import connect_to_tune
from jaxrl.config.coerce import MismatchError, check_depth, coerce, copy_containers
from jaxrl.config.fields import fluent, format_value
from jaxrl.config.imports import ALGORITHM, OWN, Trust, load_object
from jaxrl.config.modules import find_renamed_settings, resolve_module_spec
from jaxrl.config.names import (
    GROUP_METHODS,
    NameTable,
    ResolvedSetting,
    make_unknown_attribute_error,
)
from jaxrl.config.settings.actor_critic import (
    ActorCriticTraining,
    BootstrappedTraining,
    EnsembleCritics,
    TwinCritics,
)
from jaxrl.config.settings.multi_agent import MultiAgentSettings
from jaxrl.config.settings.offline import OfflineDataSettings
from jaxrl.config.settings.replay import (
    BufferSettings,
    OffPolicyTraining,
    resolve_buffer_settings,
)
from jaxrl.config.settings.run import (
    CallbacksSettings,
    CheckpointingSettings,
    DebuggingSettings,
    EvaluationSettings,
    FaultToleranceSettings,
    ReportingSettings,
    SweepSettings,
)
from jaxrl.config.settings.runners import (
    EnvRunnersSettings,
    ExternalSettings,
    LearnersSettings,
    PythonEnvironmentSettings,
    ResourcesSettings,
)
from jaxrl.config.settings.training import EnvironmentSettings, RLModuleSettings, Training
from jaxrl.core.algorithms import load_run_class
from jaxrl.errors import (
    ConfigError,
    JaxrlError,
    UnknownNameError,
    UnknownSettingError,
    did_you_mean,
)

if TYPE_CHECKING:
    import gymnasium
    from _typeshed import DataclassInstance

    from jaxrl.config.batch_plan import BatchPlan, MultiAgentPlan
    from jaxrl.config.settings.multi_agent import PolicySpec
    from jaxrl.envs.multi.groups import GroupReward
    from jaxrl.modules.planner import Search
    from jaxrl.modules.rl_module import MultiRLModuleSpec, RLModuleSpec

logger = logging.getLogger("jaxrl.config")

G = TypeVar("G", bound="DataclassInstance")

_TRAINING = "training_settings"
"""Group of the settings that a custom config class declares."""

FRAMEWORKS = ("jax", "torch", "tf", "tf2", "tfe", None)
"""Frameworks of RLlib, and JAX."""

_OWN_ATTRIBUTES: dict[str, Any] = {
    "algo_class": None,
    "critic_space": None,
    "in_evaluation": False,
    "is_recorded": False,
    "is_trained": True,
    "live_settings": frozenset(),
    "module_agents": None,
    "module_id": None,
    "preferred_devices": None,
    "trust": OWN,
}
"""Attributes of a config that are no settings, with their values in a new one."""
EXPLICIT = "explicit_settings"
"""Key of `to_dict` for the names of explicit settings; all others are defaults, which may adapt."""


class Flag(int):
    """Truth value that may also be called, for a method of RLlib's that became a property."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class Config:
    """Settings of a run, for all that works with them; `AlgorithmConfig` also builds the run."""

    algo_name: ClassVar[str] = ""
    learns: ClassVar[bool] = True
    requires_data: ClassVar[bool] = False
    """True if the algorithm learns from recorded data alone."""
    learns_in_epochs: ClassVar[bool] = False
    """True if recorded rows are learned from in epochs by default, as in supervised learning."""
    window_setting: ClassVar[str] = "window_length"
    """Setting that is the number of rows of `rows_per_window`."""
    is_async: ClassVar[bool] = False
    """True if runners continue to sample during updates of the learner, as in IMPALA."""
    groups_agents: ClassVar[bool] = False
    """True if the agents of an environment are learned as one agent, as in QMIX."""
    learns_member_rewards: ClassVar[bool] = False
    """True if these agents also learn from the rewards of each, as in MADDPG."""

    environment_settings: EnvironmentSettings = EnvironmentSettings()
    env_runners_settings: EnvRunnersSettings = EnvRunnersSettings()
    external_settings: ExternalSettings = ExternalSettings()
    offline_data_settings: OfflineDataSettings = OfflineDataSettings()
    training_settings: Any = Training()
    learners_settings: LearnersSettings = LearnersSettings()
    rl_module_settings: RLModuleSettings = RLModuleSettings()
    multi_agent_settings: MultiAgentSettings = MultiAgentSettings()
    evaluation_settings: EvaluationSettings = EvaluationSettings()
    fault_tolerance_settings: FaultToleranceSettings = FaultToleranceSettings()
    resources_settings: ResourcesSettings = ResourcesSettings()
    python_environment_settings: PythonEnvironmentSettings = PythonEnvironmentSettings()
    reporting_settings: ReportingSettings = ReportingSettings()
    checkpointing_settings: CheckpointingSettings = CheckpointingSettings()
    debugging_settings: DebuggingSettings = DebuggingSettings()
    callbacks_settings: CallbacksSettings = CallbacksSettings()
    sweep_settings: SweepSettings = SweepSettings()

    environment = fluent("environment_settings", EnvironmentSettings)
    env_runners = fluent("env_runners_settings", EnvRunnersSettings)
    external = fluent("external_settings", ExternalSettings)
    offline_data = fluent("offline_data_settings", OfflineDataSettings)
    training = fluent("training_settings", Training)
    learners = fluent("learners_settings", LearnersSettings)
    rl_module = fluent("rl_module_settings", RLModuleSettings)
    multi_agent = fluent("multi_agent_settings", MultiAgentSettings)
    evaluation = fluent("evaluation_settings", EvaluationSettings)
    fault_tolerance = fluent("fault_tolerance_settings", FaultToleranceSettings)
    resources = fluent("resources_settings", ResourcesSettings)
    python_environment = fluent("python_environment_settings", PythonEnvironmentSettings)
    reporting = fluent("reporting_settings", ReportingSettings)
    checkpointing = fluent("checkpointing_settings", CheckpointingSettings)
    debugging = fluent("debugging_settings", DebuggingSettings)
    callbacks = fluent("callbacks_settings", CallbacksSettings)
    sweep = fluent("sweep_settings", SweepSettings)

    old_names: dict[str, str]
    """Settings that were given under an old name, as they are written now, by that name."""
    remarks: list[str]
    """Sentences on values that were accepted without effect, or replaced."""
    critic_space: "gymnasium.Space[Any] | None"
    """Space of what the central critic of a module sees; None without one, or before assembly."""
    in_evaluation: bool
    is_trained: bool
    """False for a module of several that plays without being trained."""
    live_settings: frozenset[str]
    """Settings that may be set though the config is frozen, because a run reads them anew."""
    module_agents: tuple[str, ...] | None
    """Agents of the module that a copy describes; None for the config of a run."""
    module_id: str | None
    """Module that a copy describes in a run of several agents; None for the config of a run."""
    preferred_devices: tuple[int, str] | None
    """Number of devices for `num_devices='auto'` and the reason; a resumed run keeps its number."""
    is_recorded: bool
    """True if all that is measured on a machine was decided when the run began, as for a resume."""
    trust: Trust
    """Imports by name that this config may make, and what is made of it."""
    algo_class: type[Any] | None
    _explicit: set[str]
    _announced: set[str]
    _frozen: bool

    def __init__(self, algo_class: type[Any] | None = None, **settings: object) -> None:
        """Create a config with the defaults of its class.

        Args:
            algo_class: Subclass of Algorithm to build, e.g. with a custom training_step.
            **settings: Nothing; settings are for the methods.

        Raises:
            UnknownSettingError: If settings are given; the message names their method.
        """
        for name in settings:
            groups = self.get_name_table().group_by_setting
            method = GROUP_METHODS[groups.get(name, "training_settings")]
            raise UnknownSettingError(
                f"{type(self).__name__}() takes no settings: write "
                f"{type(self).__name__}().{method}({name}=...)."
            )
        state = self.__dict__
        state.update(_OWN_ATTRIBUTES, algo_class=_parse_algo_class(algo_class, OWN))
        state.update(old_names={}, remarks=[], _announced=set(), _explicit=set(), _frozen=False)
        for attribute in GROUP_METHODS:
            state[attribute] = _copy_group(getattr(type(self), attribute))
        connect_to_tune()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Add the settings that a subclass declares, see `jaxrl.config.measure_recommended`."""
        super().__init_subclass__(**kwargs)
        _declare_settings(cls, {method: attribute for attribute, method in GROUP_METHODS.items()})

    # --- setting ---

    @classmethod
    @functools.cache
    def get_name_table(cls) -> NameTable:
        """Return all settings of this class."""
        algo = getattr(cls, "algo_name", "")
        return NameTable({attr: type(getattr(cls, attr)) for attr in GROUP_METHODS}, algo)

    def set_group(
        self, attribute: str, args: tuple[object, ...], kwargs: dict[str, object], /
    ) -> None:
        """Change settings of a group: resolve names, check values and replace the group."""
        positional = [f.name for f in dataclasses.fields(getattr(self, attribute)) if not f.kw_only]
        if len(args) > len(positional):
            takes = f"only {positional[0]}" if positional else "no setting"
            raise ConfigError(
                f"{GROUP_METHODS[attribute]}() takes {takes} without a name, got {args!r}."
            )
        named = dict(zip(positional, args, strict=False))
        for name in named.keys() & kwargs.keys():
            raise ConfigError(f"{GROUP_METHODS[attribute]}() got {name} twice; give it once.")
        self._apply({**named, **kwargs}, group=attribute)

    def _apply(self, values: Mapping[str, object], group: str | None = None) -> None:
        """Set all values or, if one is invalid, none."""
        for name in values:
            if self._frozen and name not in self.live_settings:
                self._refuse_frozen(name)
        found, neutral = self._resolve_all(values, group)
        parsed = [(one, one.setting.parse(one.value, self.trust)) for one in found]
        for name in self._explicit & neutral:
            self._reset(name)
        for resolved, value in parsed:
            name = resolved.setting.name
            previous = self.__dict__[resolved.group]
            self.__dict__[resolved.group] = dataclasses.replace(previous, **{name: value})
            self._explicit.add(name)
            if resolved.old_name is not None:
                self.old_names[resolved.old_name] = resolved.call

    def resolve(self, values: Mapping[str, object]) -> dict[str, object]:
        """Return the values by the current names of their settings; no value is looked at.

        Raises:
            UnknownSettingError: If there is no setting of a name.
        """
        return {one.setting.name: one.value for one in self._resolve_all(values, None)[0]}

    def _resolve_all(
        self, values: Mapping[str, object], group: str | None
    ) -> tuple[list[ResolvedSetting], set[str]]:
        """Resolve all names; raise if two of them are the same setting.

        Returns:
            Settings with their values, and the names of settings that get their default again:
            those whose own value asks for nothing. Old names leave the setting as it is, since they
            are often a part of it: no schedule (`lr_schedule=None`) does not ask for another `lr`.
        """
        for name, value in values.items():
            if not isinstance(name, str):
                raise UnknownSettingError(f"A setting has a name, got {name!r} (with {value!r}).")
            check_depth(value, name)
        table = self.get_name_table()
        if not values.keys() <= table.group_by_setting.keys():
            values = lookup.load("rllib.settings").merge_settings(values)
        names: dict[str, str] = {}
        found: dict[str, ResolvedSetting] = {}
        neutral: set[str] = set()
        for name, value in values.items():
            settings = table.resolve(name, value, group=group)
            if not settings and name in table.group_by_setting:
                neutral.add(name)
            for resolved in settings:
                setting = resolved.setting.name
                chosen: ResolvedSetting | None = resolved
                if setting in found:
                    chosen = self._choose_one(found[setting], resolved) if group is None else None
                if chosen is None:
                    other = names[setting]
                    raise ConfigError(
                        f"'{other}' and '{name}' are the same setting, got {values[other]!r} "
                        f"and {value!r}; set only {setting}."
                    )
                names[setting], found[setting] = name, chosen
        return list(found.values()), neutral - found.keys()

    def _choose_one(self, one: ResolvedSetting, other: ResolvedSetting) -> ResolvedSetting | None:
        """Return which of two entries of a dict for a setting counts; None if they contradict.

        An old name in a dict of all settings, as RLlib's scripts write it, replaces the value that
        the dict had under the current name.
        """
        if repr(one.value) == repr(other.value):
            return one
        current = getattr(self.__dict__[one.group], one.setting.name)
        unchanged = [
            x for x in (one, other) if repr(x.setting.parse(x.value, self.trust)) == repr(current)
        ]
        if len(unchanged) != 1 or (one.old_name is None) == (other.old_name is None):
            return None
        return other if unchanged[0] is one else one

    def unset(self, *names: str) -> Self:
        """Give settings their defaults again, as if they had never been set."""
        for name in names:
            if self._frozen:
                self._refuse_frozen(name)
            self._reset(name)
        return self

    def _reset(self, name: str) -> None:
        group, default = self.get_name_table().group_by_setting[name], self._get_default(name)
        self.__dict__[group] = dataclasses.replace(self.__dict__[group], **{name: default})
        self._explicit.discard(name)

    def _get_default(self, name: str) -> object:
        return getattr(getattr(type(self), self.get_name_table().group_by_setting[name]), name)

    def _refuse_frozen(self, name: str) -> NoReturn:
        raise ConfigError(
            f"Cannot set attribute '{name}': the config of a built Algorithm is frozen; change a "
            "copy, config.copy(copy_frozen=False)."
        )

    def __setattr__(self, name: str, value: object) -> None:
        if self._frozen:
            self._refuse_frozen(name)
        if name in GROUP_METHODS:
            group_class: type[Any] = type(getattr(type(self), name))
            if not isinstance(value, group_class):
                raise ConfigError(f"{name} must be a {group_class.__name__}, got {value!r}.")
            changed = {f.name: getattr(value, f.name) for f in dataclasses.fields(group_class)}
            self._apply({k: v for k, v in changed.items() if v != self[k]}, group=name)
        elif name in _OWN_ATTRIBUTES:
            self.__dict__[name] = value
        else:
            self._apply({name: value})

    def framework(self, framework: str | None = "jax", **settings: object) -> Self:
        """Accept any framework of RLlib, with a remark: JAX is the only one."""
        if framework not in FRAMEWORKS:
            raise ConfigError(
                f"framework must be 'jax', got {framework!r}: everything is compiled by JAX."
                f"{did_you_mean(framework, FRAMEWORKS[1:-1])}"
            )
        self._apply(settings)
        if framework not in (None, "jax"):
            self.add_remark(f"framework={framework!r}: JAX computes here, as always.")
        return self

    def add_remark(self, remark: str) -> None:
        """Add a sentence on a value that was accepted without effect, or replaced."""
        if remark not in self.remarks:
            self.remarks.append(remark)

    def api_stack(self, **settings: object) -> Self:
        """Accept RLlib's switches for its new API stack, which is always enabled."""
        self._apply(settings)
        return self

    def experimental(self, **settings: object) -> Self:
        """Accept RLlib's switches for its old API stack if they match the behavior here."""
        self._apply(settings)
        return self

    def rollouts(self, **settings: object) -> Self:
        """Change settings by the name that `env_runners()` once had in RLlib."""
        self._apply(settings)
        return self

    def exploration(self, **settings: object) -> Self:
        """Change settings of RLlib's former group: `explore` and `exploration_config`."""
        self._apply(settings)
        return self

    # --- reading ---

    def __getitem__(self, name: str) -> Any:
        table = self.get_name_table()
        current = table.find_current_name(name)
        if current is None:
            raise make_unknown_attribute_error(name, table)
        return getattr(self.__dict__[table.group_by_setting[current]], current)

    def __setitem__(self, name: str, value: object) -> None:
        self.update_from_dict({name: value})

    if not TYPE_CHECKING:  # flat reads, which are hidden from type checkers

        def __getattr__(self, name: str) -> object:
            if name.startswith("_") or "_frozen" not in self.__dict__:
                raise AttributeError(name)
            if name in self:
                return self[name]
            rllib = lookup.load("rllib.attributes")
            if rllib.has_answer("config", name):
                return rllib.get_attribute(self, "config", name)
            algorithm = load_run_class("algorithm")
            if callable(getattr(algorithm, name, None)):
                raise AttributeError(
                    f"The config has no method '{name}': config.build() makes the Algorithm, which "
                    f"has {name}()."
                )
            methods = [known for known in dir(type(self)) if not known.startswith("_")]
            raise AttributeError(
                str(make_unknown_attribute_error(name, self.get_name_table(), methods))
            )

    def get(self, name: str, default: object = None) -> Any:
        """Return a setting's value, or the default if there is no such setting."""
        try:
            return self[name]
        except UnknownNameError:
            return default

    def pop(self, name: str, *default: object) -> Any:
        """Return a setting's value, as RLlib does: the config keeps it.

        Args:
            name: Name of the setting.
            *default: Value to return if there is no such setting.

        Raises:
            UnknownNameError: If there is no such setting, and no default.
        """
        return self.get(name, *default) if default else self[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.get_name_table().find_current_name(name) is not None

    def keys(self) -> list[str]:
        """Return the names of all settings."""
        return list(self.get_name_table().group_by_setting)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def items(self) -> list[tuple[str, Any]]:
        """Return the names and values of all settings."""
        return [(name, self[name]) for name in self.keys()]

    def values(self) -> list[Any]:
        """Return the values of all settings."""
        return [self[name] for name in self.keys()]

    @property
    def is_frozen(self) -> bool:
        """Return whether the config belongs to a built Algorithm and cannot change."""
        return self._frozen

    @property
    def explicit(self) -> frozenset[str]:
        """Names of the settings that were set explicitly, which never adapt."""
        return frozenset(self._explicit)

    def is_changed(self, name: str) -> bool:
        """Return whether a setting was set explicitly, to another value than its default."""
        return name in self._explicit and self[name] != self._get_default(name)

    def refuse_changed(
        self, reasons: Mapping[str, str], where: str, neutral: Mapping[str, object] | None = None
    ) -> None:
        """Raise ConfigError if one of several settings is changed that have no effect.

        Args:
            reasons: Why, by the name of the setting.
            where: Circumstance, such as "with placement='external'".
            neutral: Other values that ask for nothing, by the name of the setting.
        """
        for name, reason in reasons.items():
            is_neutral = neutral is not None and name in neutral and self[name] == neutral[name]
            if self.is_changed(name) and not is_neutral:
                raise ConfigError(f"'{name}' (got {self[name]!r}) has no effect {where}: {reason}.")

    def __repr__(self) -> str:
        shown = ", ".join(
            f"{name}={self[name]!r}" for name in self.keys() if name in self._explicit
        )
        return f"{type(self).__name__}({shown})"

    # --- life cycle ---

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """Return a copy that shares no containers with this config.

        Args:
            copy_frozen: Whether the copy is frozen; None keeps the state of this config.
        """
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        for attribute in GROUP_METHODS:
            new.__dict__[attribute] = _copy_group(self.__dict__[attribute])
        frozen = self._frozen if copy_frozen is None else copy_frozen
        new.__dict__.update(
            _explicit=set(self._explicit),
            old_names=dict(self.old_names),
            remarks=list(self.remarks),
            _frozen=frozen,
        )  # _announced is shared: a copy does not repeat what has been logged
        return new

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        return self.copy()

    def freeze(self) -> None:
        """Freeze the config, so that setting an attribute raises ConfigError."""
        self.__dict__["_frozen"] = True

    def copy_live(self, *names: str) -> Self:
        """Return a frozen copy, of which the named settings may still be set."""
        new = self.copy(copy_frozen=False)
        new.live_settings = frozenset(names)
        new.freeze()
        return new

    def to_dict(self) -> dict[str, Any]:
        """Return all settings, flat, and the names of the explicit ones under `explicit_settings`.

        An `algo_class`, if set, is included.
        """
        return {
            **{name: copy_containers(value) for name, value in self.items()},
            EXPLICIT: sorted(self._explicit),
            **({} if self.algo_class is None else {"algo_class": self.algo_class}),
        }

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Return a config of this class with the given settings, see `update_from_dict`."""
        return cls().update_from_dict(config_dict)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Change settings, given flat or nested under the name of their group's method.

        Old RLlib names are accepted. With the key `explicit_settings`, as written by `to_dict`,
        only the settings that it lists become explicit, and those whose values are not the
        defaults.
        """
        values = dict(config_dict)
        explicit = _parse_explicit(values.pop(EXPLICIT, None))
        if "algo_class" in values:
            self.algo_class = _parse_algo_class(values.pop("algo_class"), self.trust)
        for name in ("framework", "framework_str"):
            if name in values:
                self.framework(values.pop(name))
        previous = set(self._explicit)
        flat: dict[str, Any] = {}
        for method in set(GROUP_METHODS.values()) & values.keys():
            if isinstance(values[method], Mapping):
                self._apply(values.pop(method), group=_GROUP_ATTRIBUTES[method])
        flat.update(values)
        self._apply(flat)
        if explicit is not None:
            defaults = type(self)()
            changed = {name for name in flat if name in defaults and self[name] != defaults[name]}
            self.__dict__["_explicit"] = previous | set(explicit) | changed
        return self

    @classmethod
    def overrides(cls, **settings: object) -> dict[str, Any]:
        """Return the settings as a dictionary, after the checks of the group methods."""
        config = cls()
        config._apply(settings)
        return {name: config[name] for name in sorted(config._explicit)}

    # --- derived values and checks ---

    @property
    def notes(self) -> list[str]:
        """Notes on old names and on values without effect, as in `explain()`."""
        return [*self.remarks, *_describe_old_names(self._find_old_names())]

    def _find_old_names(self) -> dict[str, str]:
        try:
            renamed = find_renamed_settings(self)
        except JaxrlError:  # of an invalid module, which validation reports
            renamed = {}
        return {**self.old_names, **{o: f"model_config[{n!r}]" for o, n in renamed.items()}}

    def _announce_notes(self) -> None:
        """Log the notes that have not been logged yet for this config or a copy of it."""
        names = self._find_old_names()
        new = {old: call for old, call in names.items() if old not in self._announced}
        remarks = [remark for remark in self.remarks if remark not in self._announced]
        for sentence in (*remarks, *_describe_old_names(new)):
            logger.warning(sentence)
        self._announced.update(new, remarks)

    def validate(self) -> None:
        """Check the constraints between settings.

        Raises:
            ConfigError: If settings contradict each other.
        """
        from jaxrl.config.validate import validate

        validate(self)

    def prepare(self) -> None:
        """Check the constraints, draw the seed if it is None, and log the notes on the config.

        Paths of recorded data become absolute, so that a checkpoint finds them from anywhere.

        Raises:
            ConfigError: If settings contradict each other.
        """
        from jaxrl.config.multi_agent import prepare_agents
        from jaxrl.config.offline import resolve_data_paths

        if self.is_multi_agent:
            prepare_agents(self)
        self.validate()
        resolve_data_paths(self)
        self.draw_seed()
        self._announce_notes()

    def draw_seed(self) -> None:
        """Set the seed to a random number if it is None, so that the run can be repeated.

        The number is part of the config from then on, and so of `params.json` and of checkpoints.
        """
        if self.debugging_settings.seed is None:
            seed = secrets.randbits(32)
            self.debugging(seed=seed)
            self.add_remark(f"seed=None: {seed} was drawn; set seed={seed} to repeat the run.")

    @property
    def is_multi_agent(self) -> bool:
        """Return whether the config is for several agents, by its environment or its modules.

        It may also be called, as the method that it was in RLlib.
        """
        from jaxrl.config.multi_agent import has_several_agents

        several = (
            not self.groups_agents
            and self.module_id is None
            and has_several_agents(self.environment_settings.env, self.multi_agent_settings)
        )
        return cast("bool", Flag(several))

    @property
    def is_offline(self) -> bool:
        """Return whether the run learns from recorded data and steps no environment."""
        return self.offline_data_settings.sampler_share == 0.0

    @property
    def is_mixed(self) -> bool:
        """Return whether the run learns from recorded data and from what it samples."""
        data = self.offline_data_settings
        return bool(data.sources) and not self.is_offline

    @property
    def has_evaluation_env(self) -> bool:
        """True if there is an environment to evaluate in, or a function that evaluates."""
        evaluation = self.evaluation_settings
        return (
            self.environment_settings.env is not None
            or evaluation.custom_evaluation_function is not None
            or "env" in (evaluation.evaluation_config or {})
        )

    @property
    def needs_returns(self) -> bool:
        """Return whether the learner needs the returns of recorded rows."""
        return bool(getattr(self.get_learner_class(), "needs_returns", False))

    def get_buffer_settings(self) -> BufferSettings:
        """Return the complete and validated settings of the replay buffer."""
        return resolve_buffer_settings(
            self.training_settings.replay_buffer_config,
            type(self).training_settings.replay_buffer_config,
            self.learners_settings.num_learners,
        )

    @property
    def rows_per_window(self) -> int | None:
        """Number of successive recorded rows that are learned from together.

        None for single rows, and for the sequences of modules with memory.
        """
        return None

    @property
    def is_online(self) -> bool:
        """Return whether the run steps environments."""
        return not self.is_offline

    @property
    def total_train_batch_size(self) -> int:
        """Number of environment steps per training step, after defaults have adapted."""
        return self.plan().train_batch_size

    def plan(self) -> "BatchPlan":
        """Return the exact sizes of the train batch and its parts.

        Raises:
            BatchSizeError: If explicit sizes are not divisible; the message suggests others.
        """
        from jaxrl.config.batch_plan import plan_batches

        return plan_batches(self)

    def resolve_team_reward(self) -> "GroupReward":
        """Return how the rewards of agents that are learned as one become one."""
        return "sum"

    @property
    def team_reads_state(self) -> bool:
        """Return whether agents that are learned as one are valued on the global state."""
        return True

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Return the number of steps of each environment per train batch, with "auto" resolved.

        It is the same for all runners: what does not divide is rounded, and the plan's
        `train_batch_size` is what they sample together.

        Args:
            worker_index: Index of the runner, as in RLlib.
        """
        del worker_index
        return self.plan().rollout_fragment_length

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Raise BatchSizeError if the train batch is more than a tenth off what runners sample."""
        self.plan()

    def get_evaluation_config_object(self) -> "Self | None":
        """Return a copy with `evaluation_config` applied, or None if this is such a copy."""
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        config.update_from_dict(self.evaluation_settings.evaluation_config or {})
        config.evaluation(evaluation_config=None)
        config.in_evaluation = True
        return config

    def get_default_rl_module_spec(self) -> "RLModuleSpec":
        """Return the algorithm's module class, and model settings that differ from the defaults."""
        from jaxrl.modules.rl_module import RLModuleSpec

        return RLModuleSpec()

    def get_rl_module_spec(
        self,
        observation_space: "gymnasium.Space[Any] | None" = None,
        action_space: "gymnasium.Space[Any] | None" = None,
    ) -> "RLModuleSpec":
        """Return the spec of the module, custom or default, with `model_config` merged in."""
        return resolve_module_spec(self, observation_space, action_space)

    def check_time_limit(self, env_id: str, max_episode_steps: int | None) -> None:
        """Check the time limit of the environment, None for none known; any will do by default.

        Raises:
            ConfigError: If the algorithm learns from no such episodes.
        """

    def get_module_settings(self) -> dict[str, Any]:
        """Return settings that the module depends on, for its spec's `algorithm_config`."""
        training, settings = self.training_settings, dict[str, Any]()
        if isinstance(training, OffPolicyTraining):
            settings["num_envs"] = self.plan().total_envs
        if isinstance(training, ActorCriticTraining):
            settings["renorms_critics"] = training.renorms_critics
        if isinstance(training, BootstrappedTraining):
            settings["use_target_network"] = training.use_target_network
        if isinstance(training, TwinCritics):
            settings["num_critics"] = training.resolve_num_critics()
        if isinstance(training, EnsembleCritics):
            settings |= {name: vars(training)[name] for name in ("num_atoms", "v_min", "v_max")}
        return settings

    def get_planner(self) -> "Search | None":
        """Return the search by which the module acts; None if it acts by itself."""
        return None

    def get_module_config(self, module_id: str) -> "Config":
        """Return the config of one module of several: its settings, and the sizes of its rows.

        Raises:
            ConfigError: If there is no such module, or the config is for a single agent.
        """
        from jaxrl.config.batch_plan import make_planned_config

        plan = self._find_multi_agent_plan()
        if plan is None:
            raise ConfigError(
                f"There is a single module, so none is {module_id!r}: its settings are the config's."
            )
        if module_id not in plan.modules:
            raise ConfigError(
                f"There is no module {module_id!r}; there are {', '.join(plan.modules)}."
                f"{did_you_mean(module_id, plan.modules)}"
            )
        return make_planned_config(self, plan, module_id)

    def get_training_by_module(self) -> "dict[str, Any]":
        """Return the training settings of each module; those of a single one are named ''."""
        if not self.is_multi_agent:
            return {"": self.training_settings}
        from jaxrl.config.batch_plan import make_planned_config

        plan = self._find_multi_agent_plan()
        assert plan is not None
        return {m: make_planned_config(self, plan, m).training_settings for m in plan.modules}

    def _find_multi_agent_plan(self) -> "MultiAgentPlan | None":
        """Return the plan of a config for several agents, None for a single one."""
        from jaxrl.config.batch_plan import MultiAgentPlan

        plan = self.plan()
        return plan if isinstance(plan, MultiAgentPlan) else None

    def get_multi_rl_module_spec(self, **arguments: object) -> "MultiRLModuleSpec":
        """Return the specification of every module, with its model settings merged in.

        Args:
            **arguments: RLlib's (env, spaces, inference_only), which have no effect: spaces are
                those of the environment.
        """
        from jaxrl.config.multi_agent import make_module_config, resolve_agents
        from jaxrl.modules.rl_module import MultiRLModuleSpec

        del arguments
        agents = resolve_agents(self.environment_settings, self.multi_agent_settings)
        configs = {m: make_module_config(self, agents, m, {}) for m in agents.modules}
        return MultiRLModuleSpec(
            rl_module_specs={m: own.get_rl_module_spec() for m, own in configs.items()}
        )

    def get_multi_agent_setup(
        self,
        *,
        policies: object = None,
        env: object = None,
        spaces: "Mapping[str, tuple[gymnasium.Space[Any], gymnasium.Space[Any]]] | None" = None,
        default_policy_class: "type[Any] | None" = None,
    ) -> "tuple[dict[str, PolicySpec], Callable[..., bool]]":
        """Return the modules with their spaces, and a function of an id: whether it is trained.

        Args:
            policies: Modules in the place of the setting's.
            env: Environment in the place of the setting's, of which the spaces are.
            spaces: Observation and action space by module, in the place of the environment's.
            default_policy_class: Class of modules that have none of their own; None is the
                algorithm's.
        """
        from jaxrl.config.multi_agent import make_agent_setup

        config = self if env is None else self.copy(copy_frozen=False).environment(env)
        return make_agent_setup(config, policies, spaces or {}, default_policy_class)

    def get_default_learner_class(self) -> type[Any]:
        """Return the algorithm's Learner class; overridden by the config of each algorithm."""
        raise ConfigError(
            f"{type(self).__name__} belongs to no algorithm; use one that does, e.g. PPOConfig."
        )

    def get_learner_class(self) -> type[Any]:
        """Return the Learner class: the custom one, or the algorithm's default."""
        return self.learners_settings.learner_class or self.get_default_learner_class()


def _describe_old_names(old_names: Mapping[str, str]) -> list[str]:
    if not old_names:
        return []
    pairs = ", ".join(f"'{old}' is now {call}" for old, call in old_names.items())
    return [f"Old names were accepted: {pairs}."]


_GROUP_ATTRIBUTES = {method: attribute for attribute, method in GROUP_METHODS.items()}


def _parse_explicit(value: object) -> list[str] | None:
    """Return the names of explicit settings, as `to_dict` writes them.

    Raises:
        ConfigError: If the value is no list of names.
    """
    if value is None:
        return None
    try:
        return coerce(value, list[str])
    except MismatchError:
        raise ConfigError(
            f"{EXPLICIT} must be a list of names of settings, as to_dict() writes it, got "
            f"{format_value(value)}."
        ) from None


def _parse_algo_class(value: object, trust: Trust) -> type[Any] | None:
    """Return a subclass of Algorithm, which a file may name by its import path."""
    if isinstance(value, str) and ":" in value:
        value = load_object(value, "algo_class", ALGORITHM, trust=trust)
    if value is None or isinstance(value, type):
        return value
    hint = f"; get_algorithm_config({value!r}) makes the config of a named algorithm"
    raise ConfigError(
        f"algo_class must be a subclass of Algorithm, got {value!r}"
        f"{hint if isinstance(value, str) else ''}."
    )


def _copy_group(group: G) -> G:
    values = {f.name: getattr(group, f.name) for f in dataclasses.fields(group)}
    for name, value in values.items():
        check_depth(value, name)  # a container may have changed in place
    return dataclasses.replace(group, **{n: copy_containers(x) for n, x in values.items()})


def _declare_settings(cls: type[Any], methods: Mapping[str, str]) -> None:
    """Add the settings declared in the body of a config class to its groups.

    An annotated default is a setting of `training()`:

        class MyConfig(PPOConfig):
            my_coeff: float = 0.1

    A method `fluent("training_settings", MyTraining)` converts the group to MyTraining, with the
    other fields unchanged.

    Args:
        cls: Config class.
        methods: Attribute of each group, by the method that changes it.

    Raises:
        ConfigError: If a name is already in use.
    """
    for method, attribute in methods.items():
        descriptor = cls.__dict__.get(method)
        if isinstance(descriptor, fluent) and attribute not in cls.__dict__:
            setattr(cls, attribute, _convert_group(descriptor.group, getattr(cls, attribute)))
    fields = _collect_declared(cls, set(methods.values()))
    if not fields:
        return
    settings = getattr(cls, _TRAINING)
    group = dataclasses.make_dataclass(
        f"{cls.__name__}Training",
        fields,
        bases=(type(settings),),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": type(settings).__doc__, "__module__": cls.__module__},
    )
    for name, _, _ in fields:
        delattr(cls, name)
    setattr(cls, _TRAINING, _convert_group(group, settings))
    cls.training = fluent(_TRAINING, group)


def _collect_declared(cls: type[Any], groups: set[str]) -> list[tuple[str, Any, Any]]:
    """Return annotated defaults of a class body that override no attribute of a base class."""
    fields: list[tuple[str, Any, Any]] = []
    for name, annotation in inspect.get_annotations(cls, eval_str=True).items():
        is_inherited = any(name in vars(base) for base in cls.__mro__[1:])
        if name in groups or name.startswith("_") or is_inherited or name not in cls.__dict__:
            continue
        if annotation is ClassVar or get_origin(annotation) is ClassVar:
            continue
        for group in sorted(groups & set(dir(cls))):
            if name in (field.name for field in dataclasses.fields(getattr(cls, group))):
                raise ConfigError(
                    f"{cls.__name__} declares {name}, which is already a setting of {group}; to "
                    f"change its default, set {group} = dataclasses.replace(..., {name}=...)."
                )
        default = cls.__dict__[name]
        is_field = isinstance(default, dataclasses.Field)
        fields.append((name, annotation, default if is_field else _make_field(default)))
    return fields


def _make_field(default: object) -> object:
    """Make a field; dataclasses do not allow a dictionary or a list as a default."""
    if isinstance(default, dict | list):
        copied: dict[Any, Any] | list[Any] = default
        return dataclasses.field(default_factory=lambda: type(copied)(copied))
    return dataclasses.field(default=default)


def _convert_group(group: Any, settings: "DataclassInstance") -> object:
    """Convert settings to a group with additional fields; redefined fields take its defaults."""
    own_annotations = inspect.get_annotations(group)
    values = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    names = {f.name for f in dataclasses.fields(group)}
    return group(
        **{
            name: value
            for name, value in values.items()
            if name in names and name not in own_annotations
        }
    )
