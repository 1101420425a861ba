"""Search with the policies of a run, for evaluation, servers and exports."""

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from jaxrl.assembly.assemble import Assembly, add_search, search_latents
from jaxrl.assembly.multi_agent import MultiAgentAssembly, make_ids_error
from jaxrl.config.multi_agent import make_state_error
from jaxrl.envs.model import EnvModel, with_state
from jaxrl.envs.multi.made import MadeMultiEnv
from jaxrl.envs.registry import MadeEnv
from jaxrl.modules.latent_planner import LatentPlanner
from jaxrl.modules.planner import Planner, Search, make_search
from jaxrl.training.multi_rollout import MultiPolicyStep
from jaxrl.training.rollout import PolicyStep


def add_planner(assembly: Assembly, planner: Mapping[str, Any] | None) -> Assembly:
    """Return a run whose environment shows its state, and whose trained policies search from it.

    Parameters and connectors' statistics are the run's own. Opponents that are drawn act as in the run.

    Args:
        assembly: Functions of the run.
        planner: `{"num_simulations": 64}`, with `"search"` as in AlphaZero if it is not as in training;
            0 simulations act by the network alone. None leaves policies as they are.

    Raises:
        JaxrlError: If the environment is no model, or a policy cannot search.
    """
    is_multi_agent = isinstance(assembly, MultiAgentAssembly)
    if not is_multi_agent and isinstance(assembly.policy_step.module, LatentPlanner):
        step = assembly.policy_step
        if planner is not None:
            step = search_latents(step, make_search(planner, step.module))
        return dataclasses.replace(assembly, policy_step=step, program_cache=None)
    made, model = show_state(assembly.made)
    if is_multi_agent:
        assert isinstance(made, MadeMultiEnv)
        steps: MultiPolicyStep = cast("Any", assembly.policy_step)
        if any(view.ids is not None for view in assembly.views.values()):
            raise make_ids_error()
        trained = cast("Any", assembly.plan).agents.trained
        space = made.observation_spaces[made.possible_agents[0]]
        policies = {
            m: add_search(step, model, space, _choose(step, planner, is_trained=m in trained))
            for m, step in steps.policies.items()
        }
        pool = steps.pool and steps.pool.with_policies(
            lambda own: add_search(own, model, space, _choose(own, None))
        )
        step = cast("PolicyStep", dataclasses.replace(steps, policies=policies, pool=pool))
    else:
        assert isinstance(made, MadeEnv)
        own = assembly.policy_step
        step = add_search(own, model, made.spaces[0], _choose(own, planner))
    # Programs are kept by the config, which knows nothing of this search.
    return dataclasses.replace(
        assembly, made=cast("Any", made), policy_step=step, program_cache=None
    )


def _choose(
    step: PolicyStep, planner: Mapping[str, Any] | None, *, is_trained: bool = True
) -> Search | None:
    """Return the search of a policy: its own without a planner, which is for those that are trained."""
    if planner is not None:
        return make_search(planner, step.module) if is_trained else None
    return step.module.search if isinstance(step.module, Planner) else None


def show_state(made: object) -> tuple[MadeEnv | MadeMultiEnv, EnvModel]:
    """Return an environment whose observations have the state, and its model.

    Raises:
        JaxrlError: If it is stepped in Python, or is no model.
    """
    if not isinstance(made, MadeEnv | MadeMultiEnv):
        raise make_state_error(cast("Any", made).id)
    if made.model is not None:
        return made, made.model
    shown = with_state(cast("MadeEnv", made))
    assert shown.model is not None
    return shown, shown.model


def get_policy_step(assembly: Assembly, module_id: str) -> PolicyStep:
    """Return the policy of a module of a run."""
    if isinstance(assembly, MultiAgentAssembly):
        return cast("MultiPolicyStep", assembly.policy_step).policies[module_id]
    return assembly.policy_step
