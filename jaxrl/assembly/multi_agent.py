"""Assembly of a run of several agents: a module, its connectors and its learner for each id."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

import gymnasium
import numpy as np

from jaxrl.assembly.assemble import (
    Assembly,
    compute_ring_size,
    format_space,
    get_buffer_limits,
    get_compiled_step,
    make_policy_step,
    make_train_step_fields,
    with_sequences,
)
from jaxrl.assembly.offline import count_recorded_batches
from jaxrl.assembly.opponents import check_drawn_spaces, make_opponent_pool
from jaxrl.buffers.on_policy import OnPolicyMinibatches
from jaxrl.config.agent_mapping import DRAWN, describe_suggestion, merge_patterns
from jaxrl.config.batch_plan import MultiAgentPlan
from jaxrl.config.multi_agent import AnyMadeMulti, make_agents_env
from jaxrl.config.settings.multi_agent import MultiAgentSettings, PolicySpec
from jaxrl.config.settings.training import EnvironmentSettings
from jaxrl.connectors.agent_ids import AgentIds
from jaxrl.connectors.pipelines import CentralPipeline
from jaxrl.core.spaces import is_same_space
from jaxrl.core.types import PyTree
from jaxrl.envs.base import JaxEnv
from jaxrl.envs.context import EnvContext
from jaxrl.envs.contract import check_signatures, find_acting
from jaxrl.envs.multi.base import Entry, get_entries
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.multi.vector import MultiVectorEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.learners.fixed import FixedLearner
from jaxrl.modules.actor_critic import CentralCriticModule
from jaxrl.training.agent_rows import AgentRows, AgentView, CriticInputs, make_sharing_matrix
from jaxrl.training.in_graph import CompiledEnvs
from jaxrl.training.multi_learning import MultiLearning
from jaxrl.training.multi_rollout import MultiPolicyStep
from jaxrl.training.opponents import OpponentPool
from jaxrl.training.rollout import PolicyStep
from jaxrl.training.train_step import TrainStep

if TYPE_CHECKING:
    from jaxrl.config.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class MultiAgentAssembly(Assembly):
    """Everything static of a run of several agents.

    Attributes:
        modules: Assembly of each module, that of a run whose environments are elsewhere.
        agent_rows: Agents in the rows of modules.
        views: What the agents of each module observe.
        drawn_env: Environment as opponents that are drawn see it; None without any.
    """

    modules: Mapping[str, Assembly]
    agent_rows: AgentRows
    views: Mapping[str, AgentView]
    drawn_env: MadeEnv | None = None

    @property
    def pool(self) -> OpponentPool | None:
        """Opponents that are drawn; None without."""
        return cast("MultiLearning", self.train_step).pool

    @property
    def is_offline(self) -> bool:
        return False

    @property
    def jax_env(self) -> Any:
        assert self.made.is_jax
        return self.made

    @property
    def patterns(self) -> tuple[Mapping[str, str], ...]:
        agents = self.agent_rows.agents
        return tuple({agent: own[agent] for agent in agents} for own in self.agent_rows.patterns)

    @property
    def agents_env(self) -> AnyMadeMulti:
        """Environment of the agents."""
        return cast("Any", self.made)

    @property
    def choices(self) -> Mapping[str, tuple[str, ...]]:
        """Modules that may play an agent, for agents whose module is chosen in every episode."""
        plan = self.plan
        assert isinstance(plan, MultiAgentPlan)
        return plan.agents.choices

    @property
    def mapping(self) -> Mapping[str, str]:
        """Module of each agent; DRAWN where it is drawn, VARIES where it depends on the copy."""
        return merge_patterns(self.agent_rows.patterns)

    @functools.cached_property
    def batch_bytes(self) -> int:
        """Lower bound in bytes of what one train batch needs beside the state of the run."""
        return sum(own.state_bytes + own.batch_bytes for own in self.modules.values())

    @property
    def replay(self) -> None:
        """None: each module has a buffer of its own, if any."""

    @property
    def row_source(self) -> None:
        """None: each module has a source of its own."""

    @property
    def parts(self) -> Mapping[str, Assembly]:
        """Assembly of each module."""
        return self.modules

    def with_train_step(self, train_step: TrainStep | MultiLearning) -> "MultiAgentAssembly":
        """Return the assembly with another runner, whose steps are those of the modules."""
        assert isinstance(train_step, MultiLearning)
        modules = {m: own.with_train_step(train_step.steps[m]) for m, own in self.modules.items()}
        return dataclasses.replace(self, train_step=train_step, modules=modules)

    def make_abstract_params(self) -> PyTree:
        """Return shapes and types of the parameters of every module."""
        return {name: own.make_abstract_params() for name, own in self.modules.items()}

    @property
    def module(self) -> NoReturn:
        """Raise: there are several modules."""
        raise ConfigError(
            f"There are several modules, {', '.join(self.modules)}: name one of them."
        )


class _AgentEnv(JaxEnv[Any, Any]):
    """Spaces of an agent, as connectors read them from an environment; it cannot be stepped.

    Args:
        made: Environment of all agents.
        agent: The agent.
        ids: Ids that its observations are joined with, or None.
    """

    def __init__(self, made: AnyMadeMulti, agent: str, ids: AgentIds | None) -> None:
        self._made, self._agent, self.name, self._ids = made, agent, made.id, ids

    def observation_space(self, params: PyTree) -> gymnasium.Space[Any]:
        del params
        return self._made.observation_spaces[self._agent] if self._ids is None else self._ids.space

    def action_space(self, params: PyTree) -> gymnasium.Space[Any]:
        del params
        return self._made.action_spaces[self._agent]


def make_module_env(
    made: AnyMadeMulti, agents: list[str], module: str, ids: AgentIds | None = None
) -> MadeEnv:
    """Return the environment as a module sees it.

    Args:
        made: Environment of all agents.
        agents: Agents of the module.
        module: Id of the module.
        ids: Ids that observations are joined with, or None.

    Raises:
        ConfigError: If agents of the module have different spaces.
    """
    first = agents[0]
    for agent in agents[1:]:
        for name, spaces in (
            ("observation", made.observation_spaces),
            ("action", made.action_spaces),
        ):
            one, other = spaces[first], spaces[agent]
            if not is_same_space(one, other):
                raise ConfigError(
                    f"The module {module!r} plays {first!r} and {agent!r}, whose {name} spaces differ "
                    f"({format_space(one)} and {format_space(other)}): map them to different modules, "
                    f"such as {describe_suggestion(made.observation_spaces, made.action_spaces)}."
                )
    params = made.params if isinstance(made, MadeMultiEnv) else None
    model = made.model if isinstance(made, MadeMultiEnv) else None
    if model is not None and ids is not None:
        raise make_ids_error()
    return MadeEnv(env=_AgentEnv(made, first, ids), params=params, id=made.id, model=model)


def make_ids_error() -> ConfigError:
    """Return the error of agents that observe their ids and search."""
    return ConfigError(
        "observe_agent_id=True joins observations with the id of who sees them, which search does not "
        "know of the steps that it imagines: leave it out."
    )


def assemble_multi_agent(config: "Config") -> MultiAgentAssembly:
    """Build and check the functions of a run of several agents, without compiling anything.

    Raises:
        JaxrlError: If anything in the config is invalid.
    """
    plan = config.plan()
    made = make_multi_agent_env(config.environment_settings, config.multi_agent_settings)
    assert isinstance(plan, MultiAgentPlan)
    rows = _make_rows(plan, made)
    assembled = {m: _assemble_or_explain(config, made, rows, m) for m in plan.modules}
    number = len(plan.agents.trained)
    modules = {m: dataclasses.replace(own, num_buffers=number) for m, (own, _) in assembled.items()}
    views = {m: view for m, (_, view) in assembled.items()}
    has_learners = config.multi_agent_settings.learners_league is not None
    drawn_env = (
        _make_drawn_env(made, rows, everywhere=has_learners)
        if isinstance(made, MadeMultiEnv)
        else None
    )
    policy_step = MultiPolicyStep(
        policies={m: own.policy_step for m, own in modules.items()},
        rows=rows,
        views=views,
        sharing=_make_sharing(config.multi_agent_settings.share_rewards, made, rows),
        pool=_make_pool(config, drawn_env, rows, plan, modules, views),
    )
    learning = MultiLearning(
        steps={m: own.train_step for m, own in modules.items()},
        rows=rows,
        trained=plan.agents.trained,
        num_envs=plan.num_envs,
        num_steps=plan.rollout_fragment_length,
        num_shards=plan.num_shards,
        ring_size=compute_ring_size(config),
        pool=policy_step.pool,
    )
    source, max_recorded_batches = None, 0
    if isinstance(made, MadeMultiEnv):
        vector = make_multi_vector_env(config.environment_settings, made)
        source = CompiledEnvs(
            worker=policy_step.with_envs(vector, for_training=True),
            num_envs=plan.num_envs,
            num_steps=plan.rollout_fragment_length,
            explore=config.env_runners_settings.explore,
        )
        sizes = [(own.policy_step, rows.count_rows(m, plan.num_envs)) for m, own in modules.items()]
        max_recorded_batches = count_recorded_batches(config, sizes)
    return MultiAgentAssembly(
        made=cast("Any", made),
        policy_step=cast("Any", policy_step),
        plan=plan,
        train_step=cast("Any", learning),
        source=source,
        weights_interval=config.training_settings.weights_interval,
        max_recorded_batches=max_recorded_batches,
        compiled_step=get_compiled_step(config),
        modules=modules,
        agent_rows=rows,
        views=views,
        drawn_env=drawn_env,
    )


def _make_drawn_env(made: MadeMultiEnv, rows: AgentRows, *, everywhere: bool) -> MadeEnv | None:
    """Return the environment as opponents that are drawn see it; None without any.

    Args:
        made: Environment of all agents.
        rows: Agents in rows.
        everywhere: Whether learners play each agent, and each other.
    """
    positions = range(len(rows.agents)) if everywhere else rows.get_positions(DRAWN)
    agents = [rows.agents[i] for i in positions]
    if not agents:
        return None
    check_drawn_spaces(made, agents)
    return make_module_env(made, agents, DRAWN)


def _make_pool(
    config: "Config",
    env: MadeEnv | None,
    rows: AgentRows,
    plan: MultiAgentPlan,
    modules: Mapping[str, Assembly],
    views: Mapping[str, AgentView],
) -> OpponentPool | None:
    """Make the opponents that a run draws from; None if it draws none."""
    if env is None:
        return None
    critic = views[min(plan.agents.trained)].critic
    critic_space = None if critic is None else critic.space
    return make_opponent_pool(config, env, rows, plan, modules, critic_space)


def _make_rows(plan: MultiAgentPlan, made: AnyMadeMulti) -> AgentRows:
    """Return the layout of agents in the rows of modules."""
    agents = plan.agents
    if isinstance(made, MadeMultiEnv):
        return AgentRows(entries=get_entries(made.env), patterns=agents.players)
    entries = tuple(Entry(key=agent, agents=(agent,)) for agent in made.possible_agents)
    slots = {m: agents.get_agents(m) for m in agents.modules} if agents.choices else None
    return AgentRows(entries=entries, patterns=agents.players, slots=slots)


def make_multi_policy_step(config: "Config", made: AnyMadeMulti) -> MultiPolicyStep:
    """Make the modules of a run with their connectors, as runners on the host act with them.

    Raises:
        JaxrlError: If a module does not fit its agents.
    """
    plan = config.plan()
    assert isinstance(plan, MultiAgentPlan)
    rows = _make_rows(plan, made)
    views: dict[str, AgentView] = {}
    policies: dict[str, PolicyStep] = {}
    for m in plan.modules:
        own = config.get_module_config(m)
        views[m] = _make_view(own, made, rows, m)
        critic = views[m].critic
        own.critic_space = None if critic is None else critic.space
        agents = [rows.agents[i] for i in rows.get_positions(m)]
        policies[m] = make_policy_step(own, make_module_env(made, agents, m, views[m].ids))
        views[m] = views[m] if own.is_trained else views[m].without_critic()
    sharing = _make_sharing(config.multi_agent_settings.share_rewards, made, rows)
    return MultiPolicyStep(policies=policies, rows=rows, views=views, sharing=sharing)


def make_multi_vector_env(settings: EnvironmentSettings, made: MadeMultiEnv) -> MultiVectorEnv:
    """Make the vector of JAX environments of several agents."""
    mode = made.env.reset_mode if settings.reset_mode == "auto" else settings.reset_mode
    spaces = {e.key: made.observation_spaces[e.agents[0]] for e in get_entries(made.env)}
    if settings.disable_env_checking:
        spaces = {}
    return MultiVectorEnv(
        made.env,
        mode,
        acting=find_acting(made),
        obs_spaces=spaces,
        is_zero_sum=made.model is not None and len(made.possible_agents) == 2,
    )


def make_multi_agent_env(settings: EnvironmentSettings, agents: MultiAgentSettings) -> AnyMadeMulti:
    """Make the environment of several agents, and check it unless it is in Python, as runners do."""
    made = make_agents_env(settings, agents)
    if not isinstance(made, MadeMultiEnv):
        return made
    if not settings.disable_env_checking:
        check_signatures(made)
    if settings.validate_env is not None:
        settings.validate_env(made.env, EnvContext(settings.env_config))
    return made


def _assemble_or_explain(
    config: "Config", made: AnyMadeMulti, rows: AgentRows, module: str
) -> tuple[Assembly, AgentView]:
    """Assemble a module; an error begins with its name if there are several."""
    try:
        return _assemble_module(config, made, rows, module)
    except JaxrlError as error:
        if len(rows.modules) == 1 or repr(module) in str(error):
            raise
        raise type(error)(f"The module {module!r}: {error}") from error


def _assemble_module(
    config: "Config", made: AnyMadeMulti, rows: AgentRows, module: str
) -> tuple[Assembly, AgentView]:
    """Assemble a module, with what its agents observe."""
    own = config.get_module_config(module)
    agents = [rows.agents[i] for i in rows.get_positions(module)]
    view = _make_view(own, made, rows, module)
    env = make_module_env(made, agents, module, view.ids)
    _check_policy_spaces(config.multi_agent_settings.policies, env, module)
    own.critic_space = None if view.critic is None else view.critic.space
    policy_step = with_sequences(own, make_policy_step(own, env))
    fields = make_train_step_fields(own, env, policy_step, in_graph=isinstance(made, MadeMultiEnv))
    if not own.is_trained:
        settings = own.training_settings
        fields["learner"] = FixedLearner(module=policy_step.module, settings=settings)
        fields["experience"] = OnPolicyMinibatches(
            num_epochs=1, num_minibatches=1, num_shards=own.plan().num_shards, reshuffle=False
        )
        view = view.without_critic()
    elif view.critic is not None and not isinstance(policy_step.module, CentralCriticModule):
        raise ConfigError(
            f"{config.algo_name} trains a CentralCriticModule, whose critic sees "
            f"critic_input={view.critic.kind!r}, got a {type(policy_step.module).__name__}: subclass "
            "it, or leave the module out of policies_to_train."
        )
    step = TrainStep(policy_step=_make_learner_step(policy_step, view), **fields)
    acts_at_times = not isinstance(made, MadeMultiEnv) or find_acting(made) == "some"
    if step.replay is not None and acts_at_times and policy_step.module.is_stateful:
        raise ConfigError(
            f"{config.algo_name} with memory draws sequences of consecutive steps, but agents of "
            f"{made.id} do not act at every step: take a module without memory, use PPO, IMPALA or APPO, "
            "or declare acting='all' in an environment in JAX whose agents act while "
            "they are present."
        )
    assembly = Assembly(
        made=env,
        policy_step=policy_step,
        plan=own.plan(),
        train_step=step,
        **get_buffer_limits(own),
    )
    return assembly, view


def _make_view(config: "Config", made: AnyMadeMulti, rows: AgentRows, module: str) -> AgentView:
    """Return what the agents of a module observe, and what its critic sees.

    Raises:
        ConfigError: If the environment lacks what the critic is to see.
    """
    spaces, mask_key = made.observation_spaces, config.environment_settings.action_mask_key
    agents = tuple(rows.agents[i] for i in rows.get_positions(module))
    ids = None
    if config.multi_agent_settings.observe_agent_id and len(agents) > 1:
        ids = AgentIds(agents=agents, observed=spaces[agents[0]], mask_key=mask_key)
    kind = config.training_settings.central_critic
    if kind is None:
        return AgentView(ids=ids)
    critic = CriticInputs(
        kind=kind,
        rows=rows,
        module=module,
        state_space=made.state_space,
        observed=spaces,
        mask_key=mask_key,
    )
    if critic.reads_state and made.state_space is None:
        method = "global_state" if isinstance(made, MadeMultiEnv) else "state()"
        raise ConfigError(
            f"critic_input={kind!r} needs a global state, and {made.id} has none: set "
            f"critic_input='joint', or define its state_space and {method}."
        )
    return AgentView(ids=ids, critic=critic)


def _make_learner_step(policy_step: PolicyStep, view: AgentView) -> PolicyStep:
    """Return the policy step for rollouts, which have what a critic sees, too."""
    if view.critic is None:
        return policy_step
    own = policy_step.obs_pipeline
    return dataclasses.replace(policy_step, obs_pipeline=CentralPipeline(own.connectors, own.space))


def _check_policy_spaces(policies: object, view: MadeEnv, module: str) -> None:
    """Raise if a PolicySpec declares spaces that the module's agents do not have."""
    spec = policies.get(module) if isinstance(policies, Mapping) else None
    if isinstance(spec, tuple | list):
        spec = PolicySpec(*spec)
    if not isinstance(spec, PolicySpec):
        return
    for name, declared, own in zip(
        ("observation_space", "action_space"),
        (spec.observation_space, spec.action_space),
        view.spaces,
        strict=True,
    ):
        if declared is not None and not is_same_space(declared, own):
            raise ConfigError(
                f"policies[{module!r}] declares {name}={format_space(declared)}, but its agents have "
                f"{format_space(own)}: leave it out."
            )


def _make_sharing(setting: str | None, made: AnyMadeMulti, rows: AgentRows) -> np.ndarray | None:
    """Return the matrix that shares rewards; None without.

    Raises:
        ConfigError: If teams share, and there are none.
    """
    if setting is None:
        return None
    if setting == "all":
        return make_sharing_matrix(rows.agents, {"all": rows.agents})
    teams = made.env.teams if isinstance(made, MadeMultiEnv) else {}
    if all(len(members) < 2 for members in teams.values()):
        raise ConfigError(
            f"share_rewards='team' shares within teams, and {made.id} has none of several agents: set "
            "'all', or give the environment teams."
        )
    return make_sharing_matrix(rows.agents, teams)
