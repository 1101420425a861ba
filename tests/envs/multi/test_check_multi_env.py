"""check_env refuses multi-agent environments that are broken in what only runs show."""

from typing import Any

import jax.numpy as jnp
import pytest
from typer.testing import CliRunner

from jaxrl.cli.app import app
from jaxrl.core.struct import replace
from jaxrl.errors import EnvError
from jaxrl.testing import check_env
from tests.envs.multi.comers import Comers
from tests.envs.multi.test_multi_contract import Altered

pytestmark = pytest.mark.allow_key_reuse


def test_a_sound_environment_passes() -> None:
    check_env(Comers())


class TakesIdleActions(Altered):
    """Rewards what an agent does that waits."""

    def step(self, key: Any, state: Any, actions: Any, params: Any) -> Any:
        state, step = super().step(key, state, actions, params)
        reward = {**step.reward, "crowd": step.reward["crowd"] + actions["hermit"]}
        return state, replace(step, reward=reward)


class LeavesItsSpace(Altered):
    def observation_space(self, agent: str, params: Any) -> Any:
        space = super().observation_space(agent, params)
        return space if agent == "hermit" else type(space)(0.0, 2.5, (3,))


class LeavesTheSpaceOfStates(Altered):
    def state_space(self, params: Any) -> Any:
        return type(super().state_space(params))(0.0, 2.5, (2,))


class InfiniteReward(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        late = jnp.where(state.time == 2, jnp.inf, step.reward["hermit"])
        return state, replace(step, reward={**step.reward, "hermit": late})


class Waits(Altered):
    acting = "all"


class TooMany(Altered):
    max_acting = 2


class ActsOnItsLastObservation(Altered):
    def alter_step(self, state: Any, step: Any) -> Any:
        left = {**step.truncated, "hermit": state.time == 2}
        acts = {**step.acts, "hermit": step.acts["hermit"] | (state.time == 2)}
        return replace(state, acts=state.acts.at[0].set(acts["hermit"])), replace(
            step, truncated=left, acts=acts
        )


class Deserted(Altered):
    """Everybody dies at the second step, and nobody comes again."""

    def alter_step(self, state: Any, step: Any) -> Any:
        dead = state.time >= 2
        ends = {"hermit": dead, "crowd": jnp.full((3,), dead), "__all__": state.time > 9}
        acts = {name: flag & ~dead for name, flag in step.acts.items()}
        return replace(state, acts=state.acts & ~dead), replace(step, terminated=ends, acts=acts)


@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        (TakesIdleActions, r"action of an agent that does not act changes \['reward'\]\['crowd'\]"),
        (LeavesItsSpace, r"step's obs\['crowd'\] must lie in \[0.0, 2.5\]"),
        (LeavesTheSpaceOfStates, r"global_state must lie in \[0.0, 2.5\]"),
        (InfiniteReward, r"reward\['hermit'\] is inf at some step"),
        (Waits, "'hermit' is present and does not act; set acting='some', or end it"),
        (TooMany, "[34] agents act at one step, and max_acting=2"),
        (ActsOnItsLastObservation, "'hermit' was truncated and acts on its last observation"),
    ],
)
def test_a_broken_environment_is_refused(env: type[Comers], sentence: str) -> None:
    with pytest.raises(EnvError, match=sentence) as raised:
        check_env(env())
    assert "\n" not in str(raised.value)


def test_an_empty_stage_is_told_of() -> None:
    with pytest.warns(UserWarning, match="nobody is present at some steps, and the episode goes"):
        check_env(Deserted())


def test_the_command_checks_and_lists_them() -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["check-env", "MultiAgentCartPole-v0", "--steps", "9"])
    assert done.exit_code == 0, done.output
    assert "MultiAgentCartPole-v0 passed all checks." in done.output
    done = runner.invoke(app, ["list", "envs"])
    assert "from jaxrl, of several agents" in done.output
    assert "2 agents: each observes Box(4), acts Discrete(2)" in done.output
