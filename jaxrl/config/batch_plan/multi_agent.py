"""Arithmetic of train batches of several agents: common steps, and the rows of each module."""

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxrl.config.agent_mapping import AgentMapping
from jaxrl.config.batch_plan.arithmetic import (
    MAX_SHARDS,
    BatchPlan,
    BatchRequest,
    divisors,
    find_nearest,
)
from jaxrl.config.batch_plan.on_policy import BatchSizeError, make_plan
from jaxrl.config.batch_plan.replay import ReplayPlan
from jaxrl.config.batch_plan.request import make_batch_request
from jaxrl.config.modules import get_rows_per_sample
from jaxrl.config.multi_agent import (
    make_agents_env,
    make_module_config,
    resolve_agents,
)
from jaxrl.config.settings.replay import OffPolicyTraining
from jaxrl.envs.multi.contract import find_acting
from jaxrl.envs.multi.host_made import MadeMultiHostEnv
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.errors import ConfigError

if TYPE_CHECKING:
    from jaxrl.config.base import AlgorithmConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MultiAgentPlan(BatchPlan):
    """Sizes of one training step of several agents.

    `train_batch_size` counts environment steps, and the plan of each module its rows, of which every
    environment has one for each of the module's agents. All plans have the same `num_shards`.
    `minibatch_size` is the smallest of a module's that is trained.
    """

    agents: AgentMapping
    modules: Mapping[str, BatchPlan]

    @property
    def updates_per_iteration(self) -> int:
        """Number of gradient steps of all modules in one training step."""
        return sum(self.modules[m].updates_per_iteration for m in self.agents.trained)

    def describe(self) -> str:
        """Return the arithmetic in one line."""
        sizes = f"{self.num_envs} envs x {self.rollout_fragment_length} steps"
        modules = "; ".join(self._describe_module(m) for m in self.modules)
        return f"{sizes} = {self.train_batch_size}; {modules}"

    def _describe_module(self, module: str) -> str:
        count, plan = self.agents.count_agents(module), self.modules[module]
        rows = plan.num_envs * plan.rollout_fragment_length
        head = f"{module}: {count:g} agent{'s' * (count != 1)}, {rows} rows"
        if module not in self.agents.trained:
            return f"{head}, not trained"
        updates = f"{plan.updates_per_iteration} updates of {plan.minibatch_size}"
        if isinstance(plan, ReplayPlan):
            return f"{head} into a buffer of {plan.buffer_length * plan.num_envs}, {updates}"
        return f"{head}, {updates}"


def make_multi_agent_plan(config: "AlgorithmConfig") -> MultiAgentPlan:
    """Return the plan of a config for several agents.

    Raises:
        ConfigError: If explicit sizes are not divisible; the message names the module.
    """
    agents = resolve_agents(config)
    replays = isinstance(config.training_settings, OffPolicyTraining)
    make_common = _make_common_replay_plan if replays else _make_common_plan
    common = make_common(config, agents)
    if config.learners_settings.num_learners:
        _check_learners(config, common.num_envs, len(agents.patterns))
    if config.env_runners_settings.num_env_runners == 0:
        common = dataclasses.replace(common, envs_per_runner=common.num_envs)
    shards = _choose_num_shards(config, common, agents)
    modules = {m: _make_module_plan(config, agents, common, m, shards) for m in agents.modules}
    notes = [f"{m}: {note}" for m in sorted(agents.trained) for note in modules[m].notes]
    return MultiAgentPlan(
        num_envs=common.num_envs,
        num_env_runners=common.num_env_runners,
        envs_per_runner=common.envs_per_runner,
        rollout_fragment_length=common.rollout_fragment_length,
        train_batch_size=common.train_batch_size,
        minibatch_size=min(modules[m].minibatch_size for m in agents.trained),
        num_minibatches=max(modules[m].num_minibatches for m in agents.trained),
        num_epochs=common.num_epochs,
        num_shards=shards,
        iterations_per_batch=common.iterations_per_batch,
        notes=(*common.notes, *notes),
        rounding=common.rounding,
        agents=agents,
        modules=modules,
    )


def _make_common_plan(config: "AlgorithmConfig", agents: AgentMapping) -> BatchPlan:
    """Return the plan of environment steps, in which minibatches have no part."""
    request = make_batch_request(config)
    if config.multi_agent_settings.count_steps_by == "agent_steps":
        request = _count_environment_steps(config, request, agents)
    request = dataclasses.replace(request, minibatch_size=None, is_whole_batch=True)
    configs = (make_module_config(config, agents, m, {}) for m in agents.modules)
    return make_plan(request, math.lcm(*map(get_rows_per_sample, configs)))


def _make_common_replay_plan(config: "AlgorithmConfig", agents: AgentMapping) -> BatchPlan:
    """Return the plan of environment steps between the updates of modules with replay buffers.

    With "auto", a rollout is the shortest after which every module has whole updates.
    """
    runners = config.env_runners_settings
    given, steps = runners.num_envs_per_env_runner, runners.rollout_fragment_length
    num_runners = max(1, runners.num_env_runners)
    envs_per_runner = given if isinstance(given, int) else 1
    num_envs = num_runners * envs_per_runner
    num_shards = _parse_num_shards(config, num_envs)
    notes = () if given else ("num_envs_per_env_runner: 1.",)
    if config.multi_agent_settings.count_steps_by != "env_steps":
        raise ConfigError(
            "count_steps_by='agent_steps' has no effect with a replay buffer, whose train_batch_size "
            "is the rows of each module in an update: leave it out."
        )
    if steps == "auto":
        steps = 1
        for m in sorted(agents.trained):
            sizes = {"num_envs_per_env_runner": agents.count_rows(m, envs_per_runner)}
            plan = make_module_config(
                config, agents, m, sizes | _scale_intensity(config, agents, m)
            )
            steps = math.lcm(steps, plan.plan().rollout_fragment_length)
    return BatchPlan(
        num_envs=num_envs,
        num_env_runners=num_runners,
        envs_per_runner=envs_per_runner,
        rollout_fragment_length=steps,
        train_batch_size=num_envs * steps,
        minibatch_size=num_envs * steps,
        num_minibatches=1,
        num_epochs=1,
        num_shards=num_shards,
        notes=notes,
    )


def _parse_num_shards(config: "AlgorithmConfig", num_envs: int) -> int:
    """Return the number of shards of the environments, 1 if it is not set.

    Raises:
        ConfigError: If it does not divide the environments.
    """
    wanted = config.learners_settings.num_shards
    if wanted in (None, "auto"):
        return 1
    if num_envs % wanted:
        raise ConfigError(
            f"num_shards={wanted} must divide {num_envs} environments; set it to "
            f"{find_nearest(divisors(num_envs), wanted)}."
        )
    return wanted


def _check_learners(config: "AlgorithmConfig", num_envs: int, period: int) -> None:
    """Raise ConfigError if learners do not have equally many environments of each pattern."""
    learners = max(1, config.learners_settings.num_learners)
    if num_envs % (learners * period):
        raise ConfigError(
            f"{num_envs} environments cannot be divided over num_learners={learners}; set "
            f"num_envs_per_env_runner to a multiple of {learners * period}."
        )


def _scale_intensity(
    config: "AlgorithmConfig", agents: AgentMapping, module: str
) -> dict[str, object]:
    """Return the training intensity per row where not all of a module's agents act at a step."""
    training, number = config.training_settings, agents.count_agents(module)
    if not isinstance(training, OffPolicyTraining) or training.training_intensity is None:
        return {}
    made = make_agents_env(config)
    if isinstance(made, MadeMultiHostEnv):
        return {}
    most = made.env.max_acting
    if most is None or most >= number:
        return {}
    return {"training_intensity": training.training_intensity * most / number}


def _count_environment_steps(
    config: "AlgorithmConfig", request: BatchRequest, agents: AgentMapping
) -> BatchRequest:
    """Return a request in environment steps, given one in rows of agents.

    Raises:
        ConfigError: If the number of agents that act at a step is not declared, or does not divide
            the train batch.
    """
    made = make_agents_env(config)
    number = None
    if isinstance(made, MadeMultiEnv):
        acts_at_once = find_acting(made) == "all"
        number = len(agents.agents) if acts_at_once else made.env.max_acting
    if number is None:
        raise ConfigError(
            f"count_steps_by='agent_steps' needs the number of agents that act at a step, and "
            f"{made.id} does not declare max_acting: count by 'env_steps'."
        )
    size = request.train_batch_size
    if size is not None and size % number:
        raise ConfigError(
            f"train_batch_size={size} agent steps are not a multiple of the {number} agents that act "
            f"at a step: set {max(1, round(size / number)) * number}."
        )
    return dataclasses.replace(
        request,
        train_batch_size=None if size is None else size // number,
        default_train_batch_size=max(1, request.default_train_batch_size // number),
    )


def _choose_num_shards(config: "AlgorithmConfig", common: BatchPlan, agents: AgentMapping) -> int:
    """Return the largest number of shards that divides what every module has."""
    period = len(agents.patterns)
    if config.learners_settings.num_shards not in (None, "auto"):
        if common.num_envs // common.num_shards % period:
            raise ConfigError(
                f"num_shards={common.num_shards} leaves shards of "
                f"{common.num_envs // common.num_shards} environments, which have the {period} "
                f"patterns of the mapping in turn: set a number that divides "
                f"{common.num_envs // period}."
            )
        return common.num_shards
    own = [_make_module_plan(config, agents, common, m, None).num_shards for m in agents.trained]
    return min(MAX_SHARDS, math.gcd(common.num_envs // period, *own))


def _make_module_plan(
    config: "AlgorithmConfig",
    agents: AgentMapping,
    common: BatchPlan,
    module: str,
    num_shards: int | None,
) -> BatchPlan:
    sizes = compute_module_sizes(config, agents, common, module, num_shards)
    try:
        return make_module_config(config, agents, module, sizes).plan()
    except BatchSizeError as error:
        raise ConfigError(
            f"The module {module!r} with {agents.count_agents(module):g} agents in each of "
            f"{common.num_envs} environments: {error}"
        ) from error


def make_planned_config(
    config: "AlgorithmConfig", plan: MultiAgentPlan, module: str
) -> "AlgorithmConfig":
    """Return the config of a module, with the sizes of its rows, given the plan of the run."""
    sizes = compute_module_sizes(config, plan.agents, plan, module, plan.num_shards)
    return make_module_config(config, plan.agents, module, sizes)


def compute_module_sizes(
    config: "AlgorithmConfig",
    agents: AgentMapping,
    common: BatchPlan,
    module: str,
    num_shards: int | None,
) -> dict[str, object]:
    """Return the settings that give a module's config the rows of its agents."""
    columns = agents.count_rows(module, common.num_envs)
    steps = common.rollout_fragment_length
    sizes: dict[str, object] = {} if num_shards is None else {"num_shards": num_shards}
    sizes |= {
        "num_envs_per_env_runner": agents.count_rows(module, common.envs_per_runner),
        "rollout_fragment_length": steps,
    }
    if isinstance(config.training_settings, OffPolicyTraining):
        return sizes | _scale_intensity(config, agents, module)
    return sizes | {"train_batch_size": columns * steps, "train_batch_size_per_learner": None}
