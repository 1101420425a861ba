"""Contents of a suite's file, and those that are refused before anything runs."""

from pathlib import Path

import pytest
import yaml

from benchmarks.demonstrations import TASKS
from benchmarks.outcomes import CASES
from jaxrl import JaxrlError
from jaxrl.bench.cell import get_return_key
from jaxrl.bench.suite import find_suite_file, load_suite
from jaxrl.config.registry import find_shipped_configs
from jaxrl.errors import ConfigError, UnknownNameError
from tests.helpers import need_package

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "benchmarks.md"

SMALL = """
name: small
seeds: 2
environments:
  CartPole-v1: {budget: 1_000, threshold: 20, low: 9, high: 500}
algorithms: [PPO, DQN]
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "suites" / "suite.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def with_peer(folder: Path) -> None:
    peer = folder / "peers" / "other"
    peer.mkdir(parents=True)
    (peer / "peer.yaml").write_text("algorithms: [PPO]\nmodule: other.learn\n")


def test_every_algorithm_runs_on_every_environment(tmp_path: Path) -> None:
    suite = load_suite(written(tmp_path, SMALL))
    assert [(c.entrant, c.environment, c.budget, c.threshold) for c in suite.cells] == [
        ("PPO", "CartPole-v1", 1_000, 20.0),
        ("DQN", "CartPole-v1", 1_000, 20.0),
    ]
    assert suite.seeds == (0, 1)


def test_a_config_brings_its_environment_settings_and_budget(tmp_path: Path) -> None:
    text = (
        "configs: [classic/cartpole-ppo, {file: classic/cartpole-ppo, label: short, budget: 512}]"
    )
    first, second = load_suite(written(tmp_path, text)).cells
    assert (first.environment, first.budget, first.entrant) == ("CartPole-v1", 500_000, "PPO")
    assert (second.budget, second.entrant) == (512, "short")
    assert first.settings is not None
    assert first.settings["settings"]["train_batch_size"] == 512


def test_peers_match_our_settings_or_take_their_own(tmp_path: Path) -> None:
    with_peer(tmp_path)
    text = SMALL + "peers:\n  other: {settings: [matched, recommended]}\n"
    suite = load_suite(written(tmp_path, text))
    theirs = [cell for cell in suite.cells if cell.peer == "other"]
    assert [cell.entrant for cell in theirs] == ["other PPO", "other PPO, recommended"]
    assert theirs[0].settings == suite.cells[0].settings
    assert theirs[1].settings is None


def test_the_returns_of_one_module_can_count(tmp_path: Path) -> None:
    text = """
environments:
  RockPaperScissors-v0: {module: learned}
configs:
  - multi_agent/rockpaperscissors-ppo
  - {file: multi_agent/rockpaperscissors-lstm-ppo, label: other, module: beat_last}
  - classic/cartpole-ppo
"""
    suite = load_suite(written(tmp_path, text))
    keys = [get_return_key(suite.make_job(cell, tmp_path)) for cell in suite.cells]
    assert keys == [
        "env_runners/module_episode_returns_mean/learned",
        "env_runners/module_episode_returns_mean/beat_last",
        "env_runners/episode_return_mean",
    ]


def test_rivals_on_one_environment_follow_one_another(tmp_path: Path) -> None:
    text = SMALL.replace("algorithms:", "  Acrobot-v1: {budget: 500}\nalgorithms:")
    cells = load_suite(written(tmp_path, text)).cells
    assert [cell.environment for cell in cells] == ["CartPole-v1"] * 2 + ["Acrobot-v1"] * 2


def test_a_reference_is_its_environments_or_the_configs_own(tmp_path: Path) -> None:
    text = """
environments:
  CartPole-v1: {budget: 512, reference: 500, source: the limit}
configs:
  - classic/cartpole-dqn
  - {file: classic/cartpole-ppo, reference: 490, source: somebody}
"""
    dqn, ppo = load_suite(written(tmp_path, text)).cells
    assert (dqn.file, dqn.reference, dqn.source) == ("classic/cartpole-dqn", 500.0, "the limit")
    assert (ppo.file, ppo.reference, ppo.source) == ("classic/cartpole-ppo", 490.0, "somebody")


def test_a_budget_of_recorded_data_is_rows_and_a_ceiling_is_a_limit(tmp_path: Path) -> None:
    text = """
environments:
  CartPole-v1: {ceiling: 300}
configs:
  - offline/cartpole-bc
  - {file: offline/cartpole-iql, ceiling: 200}
  - {file: classic/cartpole-ppo, budget: 512}
"""
    bc, iql, ppo = load_suite(written(tmp_path, text)).cells
    assert (bc.budget, bc.is_offline, bc.data) == (1_024_000, True, ("cartpole-expert",))
    assert (iql.ceiling, iql.data) == (200.0, ("cartpole-mixed",))
    assert (ppo.ceiling, ppo.is_offline, ppo.data) == (300.0, False, ())


def test_runs_may_be_evaluated_for_episodes_of_their_own(tmp_path: Path) -> None:
    text = """
episodes: 20
environments:
  CartPole-v1: {episodes: 300}
configs:
  - classic/cartpole-ppo
  - {file: classic/cartpole-dqn, episodes: 7}
  - classic/acrobot-ppo
"""
    suite = load_suite(written(tmp_path, text))
    jobs = [suite.make_job(cell, tmp_path) for cell in suite.cells]
    assert [job.episodes for job in jobs] == [300, 7, 20]
    with pytest.raises(ConfigError, match="episodes must be a number of episodes, got 0"):
        load_suite(written(tmp_path, text.replace("7", "0")))


SHIPPED = [path.stem for path in find_suite_file("smoke").parent.glob("*.yaml")]
NEVER_RUN_BY_A_SUITE = {
    *(case.file for case in CASES.values()),  # not judged by returns
    *(task.demonstrated for task in TASKS.values()),
}


def test_every_shipped_config_is_in_a_suite() -> None:
    files: set[str] = set()
    for name in SHIPPED:
        for row in yaml.safe_load(find_suite_file(name).read_text()).get("configs", []):
            files.add(row if isinstance(row, str) else row["file"])
    assert set(find_shipped_configs()) - files == NEVER_RUN_BY_A_SUITE


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Brax System")
def test_shipped_suites_load(name: str) -> None:
    for env in yaml.safe_load(find_suite_file(name).read_text()).get("environments", {}):
        need_package(env)
    suite = load_suite(find_suite_file(name))
    assert suite.name == name
    assert suite.about
    assert f"`{name}`" in GUIDE.read_text()
    for cell in suite.cells:
        task = suite.tasks[cell.environment]
        marked = (task.low, task.high) != (0.0, 1.0) or task.reference == 1.0
        assert marked, f"{cell.environment} has no marks for scores"


WRONG = [
    ("algorithms: [PPOO]\n" + SMALL.replace("algorithms: [PPO, DQN]", ""), "Did you mean 'PPO'"),
    (SMALL.replace("CartPole-v1", "CartPol-v1"), "Did you mean 'CartPole-v1'"),
    ("configs: [{file: classic/cartpole-ppo, threshold: high}]", "threshold must be a return"),
    ("configs: [{file: classic/cartpole-ppo, ceiling: low}]", "ceiling must be a return"),
    ("configs: [{file: classic/cartpole-ppo, reference: 3}]", "source is its origin"),
    (
        "configs: [{file: classic/cartpole-ppo, reference: 3, source: 4}]",
        "source must be the origin of the reference, as text, got 4",
    ),
    (SMALL.replace("low: 9", "reference: 9"), "environments: CartPole-v1: reference is a return"),
    (SMALL + "metrics: [returns]\n", "Did you mean 'return'"),
    (SMALL + "budget: 3\n", "the file has 'budget'"),
    (
        SMALL.replace("budget: 1_000", "budget: many"),
        "budget must be a number of environment steps",
    ),
    (SMALL.replace("budget: 1_000, ", ""), "budget must be a whole number above 0, got None"),
    (SMALL.replace("low: 9", "low: 900"), "low=900 and high=500"),
    (SMALL.replace("seeds: 2", "seeds: [1, 1]"), "a list of distinct seeds, got [1, 1]"),
    (SMALL.replace("seeds: 2", "seeds: 0"), "a number above 0"),
    (SMALL + "episodes: 0\n", "episodes must be a whole number above 0, got 0"),
    (SMALL.replace("[PPO, DQN]", "{PPO: {settings: {lrr: 1}}}"), "Did you mean 'lr'"),
    (SMALL.replace("[PPO, DQN]", "{PPO: {settings: {gamma: 3}}}"), "gamma"),
    (SMALL.replace("[PPO, DQN]", "{PPO: {environments: [Acrobot-v1]}}"), "'Acrobot-v1'"),
    (SMALL.replace("[PPO, DQN]", "{PPO: {}, P: {algorithm: PPO}, PPO: {}}"), "given twice"),
    ("configs: [classic/cartpole-ppo, classic/cartpole-ppo]", "PPO runs twice on CartPole-v1"),
    ("configs: [classic/cartpole-pp]", "Did you mean 'classic/cartpole-ppo'"),
    (
        SMALL.replace("[PPO, DQN]", "{PPO: {settings: {lr: {grid_search: [1, 2]}}}}"),
        "cannot be a sweep",
    ),
    ("seeds: 3", "names nothing to run"),
    (SMALL + "peers: {sb3: {}}\n", "no such folder"),
    (
        SMALL.replace("low: 9", "module: p0"),
        "module='p0' counts the returns of a module of several",
    ),
    (
        "configs: [{file: multi_agent/rockpaperscissors-ppo, module: learnt}]",
        "Did you mean 'learned'",
    ),
    ("[1, 2]", "must map names"),
    ("configs: 5", "configs must be a list, such as [5], got 5"),
    ("configs: classic/cartpole-dqn", "configs must be a list, such as ['classic/cartpole-dqn']"),
    ("configs: [{label: PPO}]", "each entry names a file, got {'label': 'PPO'}"),
    ("configs: [{file: classic/cartpole-ppo, budget: .inf}]", "a number of environment steps"),
    ("configs: [{file: classic/cartpole-ppo, settings: [1]}]", "settings must map names"),
    (SMALL + "metrics: return\n", "metrics must be a list, such as ['return']"),
    (SMALL + "episodes: .nan\n", "episodes must be a whole number above 0, got nan"),
    (SMALL.replace("[PPO, DQN]", "[[PPO]]"), "There is no algorithm"),
    (SMALL.replace("[PPO, DQN]", "{PPO: {settings: 5}}"), "settings must map names"),
    (SMALL.replace("[PPO, DQN]", "{PPO: {environments: 5}}"), "environments must be a list"),
    (SMALL.replace("seeds: 2", "seeds: [[1]]"), "seeds must be a number above 0"),
    (SMALL.replace("name: small", "name: ../small"), "name must be a valid name of a folder"),
    (SMALL.replace("name: small", "name: ''"), "name must be a valid name of a folder, got ''"),
]


@pytest.mark.parametrize(("text", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(JaxrlError) as caught:
        load_suite(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("peers", "sentence"),
    [
        ("{othr: {}}", "Did you mean 'other'"),
        ("{other: {algorithms: [DQN]}}", "'DQN', which is not one of PPO"),
        ("{other: {settings: best}}", "'best', which is not one of matched, recommended"),
    ],
)
def test_wrong_peers_are_refused(tmp_path: Path, peers: str, sentence: str) -> None:
    with_peer(tmp_path)
    with pytest.raises(UnknownNameError, match=sentence):
        load_suite(written(tmp_path, f"{SMALL}peers: {peers}\n"))


def test_a_peer_runs_what_both_have(tmp_path: Path) -> None:
    with_peer(tmp_path)
    (tmp_path / "peers" / "other" / "peer.yaml").write_text("algorithms: [PPO, SAC]\nmodule: x\n")
    cells = load_suite(written(tmp_path, SMALL + "peers: {other: {}}\n")).cells
    assert [cell.entrant for cell in cells] == ["PPO", "DQN", "other PPO"]


def test_a_peer_needs_a_run_of_ours_to_match(tmp_path: Path) -> None:
    with_peer(tmp_path)
    text = SMALL.replace("[PPO, DQN]", "[DQN]") + "peers: {other: {algorithms: [PPO]}}\n"
    with pytest.raises(ConfigError, match="no run of jaxrl matches"):
        load_suite(written(tmp_path, text))


def test_a_suite_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'smoke'"):
        find_suite_file("smok")
