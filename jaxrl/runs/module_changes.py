"""State of a run of several agents whose modules have changed."""

from functools import partial

import jax

from jaxrl.core.struct import has_same_form, replace
from jaxrl.core.types import Counter, Key
from jaxrl.runs.weights import set_parameters
from jaxrl.training.agent_rows import AgentRows
from jaxrl.training.multi_learning import MultiLearning
from jaxrl.training.train_state import TrainState

_KEPT = ("learner", "connectors", "ring", "guard", "progress", "key", "buffer")
"""Parts of a module's state that go on wherever they have the same form."""


def continue_run(
    before: TrainState, rows: AgentRows, learning: MultiLearning, key: Key, total_envs: int
) -> TrainState:
    """Return the state of a run that goes on with other modules.

    A module that was there has all that it had. One that is trained from now on, or no longer, has its
    parameters, statistics and counts, and a new optimizer.

    Args:
        before: State of the run.
        rows: Agents in rows, as they were before.
        learning: Training of the changed run.
        key: Key of the run. Not consumed.
        total_envs: Number of environments of the run.
    """
    after = jax.eval_shape(lambda: learning.init_without_envs(jax.random.clone(key), total_envs))
    modules: dict[str, TrainState] = {}
    for name, form in after.modules.items():
        old = before.modules.get(name)
        if old is not None and has_same_form(old, form):
            modules[name] = old
            continue
        init = jax.jit(partial(learning.init_module, name, total_envs=total_envs))
        new = init(jax.random.clone(key))  # each module derives its own
        modules[name] = new if old is None else _continue_module(old, new)
    steps = before.agents.module_steps
    if not steps and after.agents.module_steps:
        steps = _count_steps(before, rows)
    kept = {m: steps.get(m, Counter.zeros()) for m in after.agents.module_steps}
    agents = replace(before.agents, module_steps=kept)
    return replace(before, modules=modules, agents=agents)


def _count_steps(state: TrainState, rows: AgentRows) -> dict[str, Counter]:
    """Return the rows of every module so far, where each agent had its own."""
    totals = dict.fromkeys(rows.modules, 0)
    for i, agent in enumerate(rows.agents):
        counter: Counter = jax.tree.map(lambda x, i=i: x[i], state.agents.steps)
        totals[rows.mapping[agent]] += int(counter)
    return {module: Counter.from_number(total) for module, total in totals.items()}


def _continue_module(before: TrainState, after: TrainState) -> TrainState:
    parts = {name: getattr(before, name) for name in _KEPT}
    kept = {name: x for name, x in parts.items() if has_same_form(x, getattr(after, name))}
    continued = replace(after, **kept)
    if "learner" in kept:
        return continued
    return set_parameters(continued, before.learner.sgd.params, strict=True)[0]
