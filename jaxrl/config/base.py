"""AlgorithmConfig: RLlib's builder. A call changes it and returns it; values live in groups."""

import dataclasses
import functools
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

from typing_extensions import Self

from jaxrl.config import groups as g
from jaxrl.config.coerce import copy_containers
from jaxrl.config.explain import explain
from jaxrl.config.fluent import fluent
from jaxrl.config.names import (
    GROUP_METHODS,
    Meant,
    NameTable,
    refuse_group,
    unknown_attribute,
)
from jaxrl.config.plan import BatchPlan, BatchRequest, make_plan
from jaxrl.config.validate import validate
from jaxrl.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from jaxrl.algorithm import Algorithm

logger = logging.getLogger("jaxrl.config")

EXPLICIT = "explicit_settings"
"""The key of `to_dict` that tells explicit values from defaults, which may adapt."""


class AlgorithmConfig:
    """All settings of a run.

    Every group is a frozen dataclass in `<group>_settings`, changed by the method `<group>()`. A
    setting can also be read and set flat: `config.lr`, `config["lr"]`, `config.lr = 3e-4`.
    """

    algo_name: ClassVar[str] = ""

    environment_settings: g.Environment = g.Environment()
    env_runners_settings: g.EnvRunners = g.EnvRunners()
    training_settings: Any = g.Training()
    learners_settings: g.Learners = g.Learners()
    rl_module_settings: g.RLModules = g.RLModules()
    evaluation_settings: g.Evaluation = g.Evaluation()
    fault_tolerance_settings: g.FaultTolerance = g.FaultTolerance()
    reporting_settings: g.Reporting = g.Reporting()
    checkpointing_settings: g.Checkpointing = g.Checkpointing()
    debugging_settings: g.Debugging = g.Debugging()
    callbacks_settings: g.Callbacks = g.Callbacks()

    environment = fluent("environment_settings", g.Environment)
    env_runners = fluent("env_runners_settings", g.EnvRunners)
    training = fluent("training_settings", g.Training)
    learners = fluent("learners_settings", g.Learners)
    rl_module = fluent("rl_module_settings", g.RLModules)
    evaluation = fluent("evaluation_settings", g.Evaluation)
    fault_tolerance = fluent("fault_tolerance_settings", g.FaultTolerance)
    reporting = fluent("reporting_settings", g.Reporting)
    checkpointing = fluent("checkpointing_settings", g.Checkpointing)
    debugging = fluent("debugging_settings", g.Debugging)
    callbacks = fluent("callbacks_settings", g.Callbacks)

    notes: list[str]
    """What was accepted under an old name, a sentence each."""
    in_evaluation: bool

    def __init__(self, algo_class: "type[Algorithm] | None" = None) -> None:
        """A config with the defaults of its class.

        Args:
            algo_class: A subclass of Algorithm that `build` makes, for a training_step of its own.
        """
        if isinstance(algo_class, str):
            raise ConfigError(
                f"algo_class must be a subclass of Algorithm, got {algo_class!r}; "
                f"get_algorithm_config({algo_class!r}) makes the config of a named algorithm."
            )
        state = self.__dict__
        state.update(
            algo_class=algo_class, notes=[], in_evaluation=False, _frozen=False, _explicit=set()
        )
        for attribute in GROUP_METHODS:
            state[attribute] = _copy_group(getattr(type(self), attribute))

    # --- setting ---

    @classmethod
    @functools.cache
    def name_table(cls) -> NameTable:
        """All settings of this class."""
        return NameTable({attr: type(getattr(cls, attr)) for attr in GROUP_METHODS})

    def set_group(self, attribute: str, args: tuple[Any, ...], kwargs: dict[str, Any], /) -> None:
        """What the group's method does: resolve names, check values, change the group."""
        positional = [
            f.name
            for f in dataclasses.fields(getattr(self, attribute))
            if not f.kw_only
        ]
        if len(args) > len(positional):
            takes = f"only {positional[0]}" if positional else "no setting"
            raise ConfigError(
                f"{GROUP_METHODS[attribute]}() takes {takes} without a name, got {args!r}."
            )
        named = dict(zip(positional, args, strict=False))
        for name in named.keys() & kwargs.keys():
            raise ConfigError(f"{GROUP_METHODS[attribute]}() got {name} twice; give it once.")
        self._apply({**named, **kwargs}, group=attribute)

    def _apply(self, values: Mapping[str, Any], group: str | None = None) -> None:
        """Sets all of the values or, if one is wrong, none."""
        table = self.name_table()
        new: dict[str, Any] = {}
        written: dict[str, str] = {}
        meanings: list[Meant] = []
        for name, value in values.items():
            if self._frozen:
                self._refuse_frozen(name)
            meant = table.resolve(name, value, group=group)
            if meant is None:
                continue
            setting = meant.setting.name
            if setting in written:
                raise ConfigError(
                    f"'{written[setting]}' and '{name}' are the same setting, got "
                    f"{values[written[setting]]!r} and {value!r}; give only {setting}."
                )
            written[setting] = name
            new[setting] = meant.setting.parse(value if meant.value is value else meant.value)
            meanings.append(meant)
        for meant in meanings:
            name = meant.setting.name
            settings = dataclasses.replace(getattr(self, meant.group), **{name: new[name]})
            self.__dict__[meant.group] = settings
            self._explicit.add(name)
            if meant.note is not None and meant.note not in self.notes:
                self.notes.append(meant.note)
                logger.warning(meant.note)

    def _refuse_frozen(self, name: str) -> NoReturn:
        raise ConfigError(
            f"Cannot set attribute '{name}': the config of a built Algorithm is frozen; change a "
            "copy, config.copy(copy_frozen=False)."
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if self._frozen:
            self._refuse_frozen(name)
        if name in GROUP_METHODS:
            wanted = type(getattr(type(self), name))
            if not isinstance(value, wanted):
                raise ConfigError(f"{name} must be a {wanted.__name__}, got {value!r}.")
            changed = {f.name: getattr(value, f.name) for f in dataclasses.fields(wanted)}
            self._apply({k: v for k, v in changed.items() if v != self[k]}, group=name)
        elif name in ("algo_class", "in_evaluation"):
            self.__dict__[name] = value
        else:
            self._apply({name: value})

    def framework(self, framework: Literal["jax"] = "jax", **settings: Any) -> Self:
        """Accepts 'jax'; there is no other framework."""
        if framework != "jax":
            raise ConfigError(
                f"framework must be 'jax', got {framework!r}: everything is compiled by JAX."
            )
        self._apply(settings)
        return self

    def api_stack(self, **settings: Any) -> Self:
        """Accepts RLlib's switches of its new stack, which is the only one here."""
        self._apply(settings)
        return self

    def resources(self, **settings: Any) -> NoReturn:
        """Refused: devices are chosen by learners(num_devices=...)."""
        refuse_group("resources", settings)

    def python_environment(self, **settings: Any) -> NoReturn:
        """Refused: there are no actor processes."""
        refuse_group("python_environment", settings)

    def multi_agent(self, **settings: Any) -> NoReturn:
        """Refused: there is one module."""
        refuse_group("multi_agent", settings)

    def offline_data(self, **settings: Any) -> NoReturn:
        """Refused: experience comes from an environment."""
        refuse_group("offline_data", settings)

    def experimental(self, **settings: Any) -> NoReturn:
        """Refused: nothing experimental is switched here."""
        refuse_group("experimental", settings)

    # --- reading ---

    def __getitem__(self, name: str) -> Any:
        table = self.name_table()
        meant = table.current_name(name)
        if meant is None:
            raise unknown_attribute(name, table)
        return getattr(self.__dict__[table.group_of[meant]], meant)

    if not TYPE_CHECKING:  # flat reads, which the type checker shall not promise

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_") or "_frozen" not in self.__dict__:
                raise AttributeError(name)
            try:
                return self[name]
            except UnknownNameError as error:
                raise AttributeError(str(error)) from None

    def get(self, name: str, default: Any = None) -> Any:
        """A setting's value, or the default if there is no such setting."""
        return self[name] if name in self else default

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.name_table().current_name(name) is not None

    def keys(self) -> list[str]:
        """The names of all settings."""
        return list(self.name_table().group_of)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def items(self) -> list[tuple[str, Any]]:
        """All settings and their values."""
        return [(name, self[name]) for name in self.keys()]

    def values(self) -> list[Any]:
        """The values of all settings."""
        return [self[name] for name in self.keys()]

    @property
    def is_frozen(self) -> bool:
        """Whether the config belongs to a built Algorithm and cannot change."""
        return self._frozen

    @property
    def explicit(self) -> frozenset[str]:
        """The settings that were set, which never adapt."""
        return frozenset(self._explicit)

    @property
    def is_multi_agent(self) -> bool:
        """Always False in this version."""
        return False

    @property
    def total_train_batch_size(self) -> int:
        """Environment steps of one training step, after the defaults have adapted."""
        return self.plan().train_batch_size

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={self[name]!r}" for name in self.keys() if name in self._explicit)
        return f"{type(self).__name__}({shown})"

    # --- life cycle ---

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """A copy that shares no container with this config.

        Args:
            copy_frozen: Whether the copy is frozen; None leaves it as this config is.
        """
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        for attribute in GROUP_METHODS:
            new.__dict__[attribute] = _copy_group(self.__dict__[attribute])
        frozen = self._frozen if copy_frozen is None else copy_frozen
        new.__dict__.update(_explicit=set(self._explicit), notes=list(self.notes), _frozen=frozen)
        return new

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def freeze(self) -> None:
        """Setting anything from now on is an error that names the attribute."""
        self.__dict__["_frozen"] = True

    def validate(self) -> None:
        """Checks what depends on several settings; changes nothing.

        Raises:
            ConfigError: Two settings do not fit together.
        """
        validate(self)

    def to_dict(self) -> dict[str, Any]:
        """All settings, flat, and the names of the explicit ones under `explicit_settings`."""
        return {
            **{name: copy_containers(value) for name, value in self.items()},
            EXPLICIT: sorted(self._explicit),
        }

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """A config of this class with the given settings, see `update_from_dict`."""
        return cls().update_from_dict(config_dict)

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Changes the settings named, flat or under the name of their group's method.

        Old RLlib names are understood. With the key `explicit_settings`, as written by `to_dict`,
        only the settings it lists count as explicit.
        """
        values = dict(config_dict)
        explicit = values.pop(EXPLICIT, None)
        framework = values.pop("framework", None) or values.pop("framework_str", None) or "jax"
        self.framework(framework)
        before = set(self._explicit)
        flat: dict[str, Any] = {}
        for method in set(GROUP_METHODS.values()) & values.keys():
            if isinstance(values[method], Mapping):
                self._apply(values.pop(method), group=_ATTRIBUTE_OF[method])
        flat.update(values)
        self._apply(flat)
        if explicit is not None:
            self.__dict__["_explicit"] = before | set(explicit)
        return self

    @classmethod
    def overrides(cls, **settings: Any) -> dict[str, Any]:
        """The settings as a dictionary, checked as the group methods would."""
        config = cls()
        config._apply(settings)
        return {name: config[name] for name in sorted(config._explicit)}

    # --- what the settings mean together ---

    def plan(self) -> BatchPlan:
        """The exact arithmetic of the train batch.

        Raises:
            BatchSizeError: Explicit values do not divide; names the values that would.
        """
        return make_plan(_batch_request(self))

    def explain(self, **facts: Any) -> str:
        """The effective settings, the batch arithmetic, the placement and why, as text.

        Args:
            **facts: What only a built Algorithm knows, see `jaxrl.config.explain.explain`.
        """
        return explain(self, **facts)

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps of each environment per train batch, "auto" resolved."""
        del worker_index  # all workers are alike here
        return self.plan().rollout_fragment_length

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Raises unless environments times steps is exactly the train batch."""
        self.plan()

    def get_evaluation_config_object(self) -> "Self | None":
        """This config with `evaluation_config` applied; None if this already is one."""
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        config.update_from_dict(self.evaluation_settings.evaluation_config or {})
        config.evaluation(evaluation_config=None)
        config.in_evaluation = True
        return config

    def get_default_learner_class(self) -> type[Any]:
        """The algorithm's Learner; subclasses say which."""
        raise ConfigError(
            f"{type(self).__name__} belongs to no algorithm; use one that does, e.g. PPOConfig."
        )

    def get_learner_class(self) -> type[Any]:
        """The Learner to use."""
        return self.learners_settings.learner_class or self.get_default_learner_class()

    def build(self, env: Any = None, use_copy: bool = True) -> "Algorithm":
        """The Algorithm of this config.

        Args:
            env: In place of `environment(env=...)`.
            use_copy: Whether this config stays as it is; else it is the one that gets frozen.
        """
        from jaxrl.algorithm import Algorithm

        config = self.copy(copy_frozen=False) if use_copy else self
        if env is not None:
            config.environment(env)
        return (config.algo_class or Algorithm)(config)

    build_algo = build
    """RLlib's newer name."""


_ATTRIBUTE_OF = {method: attribute for attribute, method in GROUP_METHODS.items()}


def _copy_group(group: Any) -> Any:
    fields = dataclasses.fields(group)
    return dataclasses.replace(
        group, **{f.name: copy_containers(getattr(group, f.name)) for f in fields}
    )


def _batch_request(config: AlgorithmConfig) -> BatchRequest:
    training, runners = config.training_settings, config.env_runners_settings
    explicit = config.explicit
    on_policy = isinstance(training, g.OnPolicyTraining)
    size = training.minibatch_size if on_policy else None
    shards = config.learners_settings.num_shards
    envs, steps = runners.num_envs_per_env_runner, runners.rollout_fragment_length
    return BatchRequest(
        train_batch_size=training.train_batch_size if "train_batch_size" in explicit else None,
        num_envs=None if envs == "auto" else envs,
        rollout_fragment_length=None if steps == "auto" else steps,
        minibatch_size=size if "minibatch_size" in explicit else None,
        num_shards=None if shards == "auto" else shards,
        num_epochs=training.num_epochs if on_policy else 1,
        whole_batch=size is None,
        default_train_batch_size=training.train_batch_size,
        default_minibatch_size=size or training.train_batch_size,
    )
