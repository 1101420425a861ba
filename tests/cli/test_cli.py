"""The command line: help, lists, and every way to get it wrong."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from jaxrl import __version__, load_config
from jaxrl.cli import training
from jaxrl.cli.app import app
from jaxrl.config import list_algorithms
from jaxrl.config.load import Experiment
from jaxrl.config.registry import find_shipped_configs, resolve_config_path
from jaxrl.envs.adapters.table import ADAPTERS
from jaxrl.errors import ConfigError
from tests.cli.command import jaxrl


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Experiment]:
    """Return a function of the arguments of `jaxrl` to the experiment that would be trained."""

    def build(*args: str) -> Experiment:
        built: list[Experiment] = []
        monkeypatch.setattr(training, "train", lambda experiment, _: built.append(experiment) or 7)
        code, _, err = jaxrl(*args)
        assert code == 7, err  # that of the training
        return built[0]

    return build


def test_help_answers_without_importing_jax() -> None:
    code = (
        "import sys; sys.argv = ['jaxrl', 'train', '--help']; from jaxrl.cli import main\n"
        "try:\n    main()\nfinally:\n    print([m for m in ('jax', 'flax') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize(
    "command",
    [
        *("train", "evaluate", "resume", "replay", "diff"),
        *("list", "check-env", "compile-report", "doctor", "serve", "migrate"),
        *("example list", "example get", "example run"),
    ],
)
def test_every_command_helps_with_examples(command: str) -> None:
    code, out, _ = jaxrl(*command.split(), "--help")
    assert code == 0
    assert "Examples" in out
    assert f"jaxrl {command}" in out.partition("Examples")[2]


def test_without_a_command_there_is_help_or_the_version() -> None:
    _, out, err = jaxrl()
    assert "Usage" in out + err
    assert "train" in out + err
    assert jaxrl("--version") == (0, f"jaxrl {__version__}\n", "")


def test_an_unknown_option_says_how_settings_are_given() -> None:
    code, _, err = jaxrl("train", "--lr", "3e-4")
    assert code == 2
    assert "--set lr=3e-4" in err
    assert "--set" not in jaxrl("resume", "x", "--lr", "3e-4")[2]


@pytest.mark.representatives("command0")
@pytest.mark.parametrize("command", [["-m", "jaxrl"], ["-c", "from jaxrl.cli import main; main()"]])
def test_modules_of_the_current_folder_can_be_imported(command: list[str], tmp_path: Path) -> None:
    """The second command is what the console script is: Python puts no folder of its on the path."""
    (tmp_path / "my_task.py").write_text("from jaxrl.envs.classic.cartpole import CartPole as Mine")
    done = subprocess.run(
        [sys.executable, "-P", *command, "check-env", "my_task:Mine", "--steps", "2"],
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.stdout == "my_task:Mine passed all checks.\n", done.stderr


def test_lists_have_a_word_on_each() -> None:
    _, out, _ = jaxrl("list", "envs")
    lines = {line.split("  ")[0]: line for line in out.splitlines() if line}
    assert "observes Box(4), acts Discrete(2)" in lines["CartPole-v1"]
    assert "probe" not in out
    assert "LunarLander-v3" in out
    assert "gymnax:Breakout-MinAtar" in out.split()
    assert all(f"{prefix}:" in out for prefix in ADAPTERS), out
    algos = jaxrl("list", "algos")[1].splitlines()
    assert [line.split()[0] for line in algos] == list_algorithms()
    assert all(len(line.split()) > 2 for line in algos)
    configs = jaxrl("list", "configs")[1]
    assert [line.split()[0] for line in configs.splitlines()] == sorted(find_shipped_configs())
    assert "PPO on CartPole-v1, 500,000 steps" in configs


@pytest.mark.slow
def test_all_environments_are_listed() -> None:
    assert "jaxrl:probe-value-v0" in jaxrl("list", "envs", "--all")[1]


def test_check_env_prints_notes_and_a_verdict() -> None:
    config = '{"p_crash_reset": 0.0}'
    code, out, _ = jaxrl("check-env", "jaxrl:crashing-cartpole-v0", "--env-config", config)
    assert (code, out) == (0, "jaxrl:crashing-cartpole-v0 passed all checks.\n")
    code, out, _ = jaxrl("check-env", "FrozenLake-v1", "--steps", "3", "--seed", "1")
    assert code == 0
    assert out.startswith("note: FrozenLake-v1: gymnasium's implementation")


def test_every_listed_config_is_found_by_its_id_and_its_path() -> None:
    for name, path in find_shipped_configs().items():
        assert resolve_config_path(name) == path
        assert resolve_config_path(str(path)) == path
        assert resolve_config_path(f"configs/{name}.yaml").samefile(path)


PPO = ("train", "--algo", "PPO", "--env", "CartPole-v1")

WRONG: list[tuple[tuple[str, ...], str]] = [
    (("train",), "--algo is missing"),
    (("train", "--algo", "PPO"), "--env is missing"),
    (("train", "--algo", "PPPO", "--env", "CartPole-v1"), "Did you mean 'PPO'"),
    (("train", "--algo", "PPO", "--env", "CartPol-v1"), "CartPole-v1"),
    (("train", "classic/cartpole-ppo"), "use 'jaxrl train file classic/cartpole-ppo'"),
    (("train", "classic/cartpole"), "use 'jaxrl train file CONFIG'"),
    (("train", "file"), "use 'jaxrl train file CONFIG'"),
    (("train", "file", "classic/cartpol-ppo"), "Did you mean 'classic/cartpole-ppo'"),
    (("train", "file", "nowhere.yaml"), "nowhere.yaml"),
    (("train", "--algo", "PPO", "file", "classic/cartpole-ppo"), "contradicts"),
    (("train", "file", "https://a.b/c/my.yaml"), "use 'jaxrl train file my.yaml'"),
    (("train", "file", "s3://bucket/my.json"), "s3://bucket/my.json is an address"),
    (("compile-report", "file", "https://a.b/my.yaml"), "is an address"),
    (("example", "get", "classic/cartpol-ppo"), "Did you mean 'classic/cartpole-ppo'"),
    (("example", "run", "nowhere"), "There is no shipped config 'nowhere'"),
    (("example", "run", "classic/cartpole-ppo", "--set", "lrr=1"), "Did you mean 'lr'"),
    ((*PPO, "--stop", "{training_iteration: 3}"), "--stop is not valid JSON"),
    ((*PPO, "--stop", "[3]"), "--stop must be a JSON object"),
    ((*PPO, "--stop", '{"training_iteratio": 3}'), "Did you mean 'training_iteration'"),
    ((*PPO, "--stop", '{"training_iteration": "x"}'), "must give a finite number"),
    (
        ("train", "file", "offline/cartpole-bc", "--steps", "1e5"),
        "takes none: --stop '{\"num_env_steps_trained_lifetime\": 100000}' ends it",
    ),
    (
        ("example", "run", "offline/cartpole-bc", "--steps", "50"),
        "--steps 50 counts environment steps",
    ),
    ((*PPO, "--steps", "1.5"), "--steps must be a whole number"),
    ((*PPO, "--steps", "many"), "--steps must be a whole number"),
    (
        (*PPO, "--steps", "5", "--stop", '{"timesteps_total": 5}'),
        "both give num_env_steps_sampled_lifetime",
    ),
    ((*PPO, "--set", "lr"), "--set takes name=value"),
    ((*PPO, "--set", "lrr=1"), "Did you mean 'lr'"),
    ((*PPO, "--set", "learning_rate=1"), "Here it is training(lr=...)"),
    ((*PPO, "--set", "lr=[1"), "'[1' is not valid YAML"),
    ((*PPO, "--set", "lr.first=1"), "lr is 5e-05"),
    ((*PPO, "--set", "env_config.=1"), "--set takes name=value"),
    (
        (*PPO, "--set", "env_config.a=1", "--set", "env_config.a.b=1"),
        "--set env_config.a.b=1: 'b' needs a dictionary to be in, but there is 1",
    ),
    (
        (*PPO, "--config", '{"env_config": {"a": [1]}}', "--set", "env_config.a.1=2"),
        "'1' is not an index of a list of 1",
    ),
    ((*PPO, "--config", '{"algo_class": "x"}'), "algo_class must be a subclass of Algorithm"),
    ((*PPO, "--set", "no_such.part=1"), "no setting 'no_such'"),
    ((*PPO, "--config", '{"lr": }'), "write it like '{\"lr\": 3e-4}', in single"),
    ((*PPO, "--config", '{"lrr": 1}'), "Did you mean 'lr'"),
    ((*PPO, "--config", '{"gamma": 2}'), "gamma must be between 0 and 1"),
    ((*PPO, "--seed", "-1"), "seed must be a whole number of at least 0"),
    ((*PPO, "--checkpoint-freq", "-2"), "checkpoint_frequency must be at least 0"),
    ((*PPO, "--name", "a/b"), "is not a valid folder name"),
    ((*PPO, "--results-dir", "/proc/nowhere"), "/proc"),
    (("evaluate", "/nowhere/at/all"), "/nowhere/at/all"),
    (("resume", "no_such_run"), "There is no run 'no_such_run'"),
    (("check-env", "gymnasium:CartPole-v9"), "Did you mean 'CartPole-v1'"),
    (
        ("check-env", "gymnasium:CartPole-v1", "--env-config", "{"),
        "write it like '{\"size\": 5}', in single",
    ),
]


@pytest.mark.parametrize(("args", "words"), WRONG, ids=[" ".join(args[-2:]) for args, _ in WRONG])
def test_a_mistake_is_one_sentence_and_exit_code_2(args: tuple[str, ...], words: str) -> None:
    code, out, err = jaxrl(*args)
    assert code == 2, out + err
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err


def test_a_mistake_in_an_option_is_exit_code_2_as_well() -> None:
    for args in (("list", "alogs"), ("train", "--sed", "3"), ("evaluate", "x", "--episodes", "0")):
        code, _, err = jaxrl(*args)
        assert code == 2
        assert "Traceback" not in err


def test_verbose_shows_the_traceback_and_still_ends_with_the_sentence() -> None:
    for args in (("-v", "train"), ("train", "-v")):
        code, _, err = jaxrl(*args)
        assert code == 2
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("error: --algo is missing")


def test_an_unexpected_error_is_not_caught_and_exit_code_1(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise ZeroDivisionError('a mistake of the program')")
    done = CliRunner().invoke(app, ["train", "file", str(broken)])
    assert done.exit_code == 1
    assert isinstance(done.exception, ZeroDivisionError)


def test_a_run_is_suggested_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder = tmp_path / "cartpole"
    run_folder.mkdir()
    for name in ("params.json", "run.json"):
        (run_folder / name).write_text("{}")
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(tmp_path))
    code, _, err = jaxrl("resume", "cartpol")
    assert code == 2
    assert "Did you mean 'cartpole'" in err
    for command in ("resume", "evaluate"):
        code, _, err = jaxrl(command, "cartpole/checkpoints/checkpoint_000009")
        assert code == 2
        assert f"{run_folder}/checkpoints/checkpoint_000009: no such file" in err


def test_options_of_processes_reach_the_config(build: Callable[..., Experiment]) -> None:
    train = ("train", "--run", "PPO", "--env", "x")
    options = ("--num-env-runners", "2", "--num-envs-per-env-runner", "4", "--num-learners", "3")
    names = ("num_env_runners", "num_envs_per_env_runner", "num_learners", "record_video")
    config = build(*train, *options, "--video").config
    assert [config[name] for name in names] == [2, 4, 3, True]
    config = build(*train, "--num-env-runners", "0").config
    assert [config[name] for name in names] == [0, None, 0, False]
    assert config.explicit == {"env", "num_env_runners"}


class TestExamples:
    def test_each_is_listed_with_a_word_on_it_and_found_by_a_part_of_it(self) -> None:
        code, out, _ = jaxrl("example", "list")
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()] == sorted(find_shipped_configs())
        assert all(len(line.split()) > 3 for line in out.splitlines())
        found = jaxrl("example", "list", "--filter", "PENDULUM-v1")[1].splitlines()
        assert "classic/pendulum-sac" in {line.split()[0] for line in found}
        assert all("Pendulum-v1" in line for line in found)

    def test_a_copy_is_the_file_and_replaces_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        code, out, _ = jaxrl("example", "get", "classic/cartpole-ppo")
        assert code == 0
        assert out.splitlines()[0] == "copied to     cartpole-ppo.yaml"
        assert out.rstrip().endswith("jaxrl train file cartpole-ppo.yaml")
        copied = tmp_path / "cartpole-ppo.yaml"
        shipped = find_shipped_configs()["classic/cartpole-ppo"]
        assert copied.read_bytes() == shipped.read_bytes()
        copied.write_text("mine")
        code, _, err = jaxrl("example", "get", "gymnasium/cartpole-ppo")  # of the same name
        assert code == 2
        assert "cartpole-ppo.yaml exists in this folder" in err
        assert err.count("\n") == 1
        assert copied.read_text() == "mine"

    def test_a_folder_that_cannot_be_written_is_named(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir("/proc")
        code, _, err = jaxrl("example", "get", "classic/cartpole-ppo")
        assert code == 2
        assert err.startswith("error: Cannot write cartpole-ppo.yaml in /proc: ")

    def test_one_is_trained_with_the_options_of_train(
        self, build: Callable[..., Experiment]
    ) -> None:
        options = ("--steps", "5e3", "--seed", "3", "--set", "lr=0.5", "--name", "mine")
        experiment = build("example", "run", "classic/cartpole-pqn", *options)
        assert experiment.config.algo_name == "PQN"
        assert experiment.stop == {"num_env_steps_sampled_lifetime": 5000.0}
        names = ("seed", "lr", "run_name", "env")
        assert [experiment.config[name] for name in names] == [3, 0.5, "mine", "CartPole-v1"]


FILE = ("train", "file", "classic/cartpole-ppo")
SETTINGS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    (
        (*FILE, "--env", "Acrobot-v1", "--config", '{"gamma": 0.5, "seed": 7}', "--seed", "8"),
        {"env": "Acrobot-v1", "gamma": 0.5, "seed": 8, "run_name": "cartpole-ppo", "num_epochs": 4},
    ),
    (
        ("train", "--algo", "ppo", "--config", '{"env": "Pendulum-v1"}'),
        {"env": "Pendulum-v1", "algo_name": "PPO"},
    ),
    (
        (
            *(*FILE, "--config", '{"num_epochs": 3}'),
            *("--set", "lr=3e-4", "--set", "num_epochs=2", "--set", "explore=false"),
        ),
        {"lr": 3e-4, "num_epochs": 2, "explore": False},
    ),
]


class TestAssemble:
    """Options win over the file, which wins over defaults."""

    @pytest.mark.parametrize(("args", "expected"), SETTINGS)
    def test_settings(
        self, args: tuple[str, ...], expected: dict[str, Any], build: Callable[..., Experiment]
    ) -> None:
        config = build(*args).config
        assert {name: getattr(config, name, None) for name in expected} == expected

    def test_one_entry_of_a_setting_leaves_the_files_others(
        self, build: Callable[..., Experiment]
    ) -> None:
        changed = {"fcnet_hiddens": [8, 8], "fcnet_activation": "relu"}
        words = [f"--set=model_config.{name}={json.dumps(x)}" for name, x in changed.items()]
        model = build(*FILE, *words).config.rl_module_settings.model_config
        assert model.items() >= changed.items()
        assert len(model) > 2

    @pytest.mark.parametrize(
        ("args", "stop"),
        [
            ((), {"num_env_steps_sampled_lifetime": 500000}),
            (("--steps", "1e6"), {"num_env_steps_sampled_lifetime": 1e6}),
            (
                ("--stop", '{"episode_reward_mean": 5, "training_iteration": 2}'),
                {"env_runners/episode_return_mean": 5.0, "training_iteration": 2.0},
            ),
            (
                ("--stop", '{"training_iteration": 3}', "--steps", "500_000"),
                {"num_env_steps_sampled_lifetime": 5e5, "training_iteration": 3.0},
            ),
        ],
    )
    def test_stop_criterion(
        self, args: tuple[str, ...], stop: dict[str, float], build: Callable[..., Experiment]
    ) -> None:
        assert build(*FILE, *args).stop == stop

    def test_no_file_is_fetched_from_python_either(self) -> None:
        with pytest.raises(ConfigError, match="is an address"):
            load_config("https://a.b/my.yaml")
