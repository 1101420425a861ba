"""The command line: help, lists, and every way to get it wrong."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxrl.cli import runs
from jaxrl.cli.app import app
from jaxrl.cli.experiments import assemble, config_file, shipped_configs
from jaxrl.errors import JaxrlError, UnknownNameError

NOTHING = dict.fromkeys(("algo", "env", "stop", "config"))


def run(*args: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `jaxrl args`, in this process."""
    result = CliRunner().invoke(app, args, prog_name="jaxrl", catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def jaxrl(*args: str) -> subprocess.CompletedProcess[str]:
    """`jaxrl args` in a process of its own."""
    command = [sys.executable, "-m", "jaxrl.cli", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


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
    "command", ["train", "evaluate", "resume", "list", "check-env", "compile-report"]
)
def test_every_command_helps_with_examples(command: str) -> None:
    code, out, _ = run(command, "--help")
    assert code == 0
    assert "Examples" in out
    assert f"jaxrl {command} " in out


def test_run_is_an_alias_of_algo() -> None:
    code, out, _ = run("train", "--help")
    assert code == 0
    assert "--run" in out


def test_without_a_command_there_is_help() -> None:
    done = jaxrl()
    assert "Usage" in done.stdout + done.stderr
    assert "train" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("algos", "PPO"),
        ("envs", "CartPole-v1"),
        ("envs", "gymnax:Breakout-MinAtar"),
        ("configs", "classic/cartpole-ppo"),
    ],
)
def test_list_names_what_there_is(what: str, some: str) -> None:
    code, out, _ = run("list", what)
    assert code == 0
    assert some in out.split()


def test_check_env_prints_notes_and_a_verdict() -> None:
    config = '{"p_crash_reset": 0.0}'
    code, out, _ = run("check-env", "jaxrl:crashing-cartpole-v0", "--env-config", config)
    assert (code, out) == (0, "jaxrl:crashing-cartpole-v0 is as it should be.\n")
    code, out, _ = run("check-env", "FrozenLake-v1", "--steps", "3", "--seed", "1")
    assert code == 0
    assert out.startswith("note: FrozenLake-v1: gymnasium's implementation")


def test_every_listed_config_is_found_by_its_id_and_its_path() -> None:
    for name, path in shipped_configs().items():
        assert config_file(name) == path
        assert config_file(str(path)) == path
        assert config_file(f"configs/{name}.yaml").samefile(path)


PPO = ("train", "--algo", "PPO", "--env", "CartPole-v1")

WRONG: list[tuple[tuple[str, ...], str]] = [
    (("train",), "--algo is missing"),
    (("train", "--algo", "PPO"), "--env is missing"),
    (("train", "--algo", "PPPO", "--env", "CartPole-v1"), "Did you mean 'PPO'"),
    (("train", "--algo", "PPO", "--env", "CartPol-v1"), "CartPole-v1"),
    (("train", "classic/cartpole-ppo"), "say 'jaxrl train file CONFIG'"),
    (("train", "file"), "say 'jaxrl train file CONFIG'"),
    (("train", "file", "classic/cartpol-ppo"), "Did you mean 'classic/cartpole-ppo'"),
    (("train", "--algo", "PPO", "file", "classic/cartpole-ppo"), "contradicts"),
    ((*PPO, "--stop", "{training_iteration: 3}"), "--stop is not valid JSON"),
    ((*PPO, "--stop", "[3]"), "--stop must be a JSON object"),
    ((*PPO, "--stop", '{"training_iteratio": 3}'), "Did you mean 'training_iteration'"),
    ((*PPO, "--stop", '{"training_iteration": "x"}'), "must give a finite number"),
    ((*PPO, "--config", '{"lr": }'), "--config is not valid JSON"),
    ((*PPO, "--config", '{"lrr": 1}'), "Did you mean 'lr'"),
    ((*PPO, "--config", '{"gamma": 2}'), "gamma must be between 0 and 1"),
    ((*PPO, "--seed", "-1"), "seed must be at least 0"),
    ((*PPO, "--checkpoint-freq", "-2"), "checkpoint_frequency must be at least 0"),
    ((*PPO, "--name", "a/b"), "cannot be a folder's name"),
    ((*PPO, "--results-dir", "/proc/nowhere"), "/proc"),
    (("evaluate", "/nowhere/at/all"), "/nowhere/at/all"),
    (("resume", "no_such_run"), "no run"),
    (("check-env", "gymnasium:CartPole-v9"), "Did you mean 'CartPole-v1'"),
    (("check-env", "gymnasium:CartPole-v1", "--env-config", "{"), "--env-config is not valid JSON"),
]


@pytest.mark.parametrize(("args", "words"), WRONG, ids=[" ".join(args[-2:]) for args, _ in WRONG])
def test_a_mistake_is_one_sentence_and_exit_code_2(args: tuple[str, ...], words: str) -> None:
    code, out, err = run(*args)
    assert code == 2, out + err
    assert words in err
    assert err.startswith("error: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err


def test_a_mistake_in_an_option_is_exit_code_2_as_well() -> None:
    for args in (("list", "alogs"), ("train", "--sed", "3"), ("evaluate", "x", "--episodes", "0")):
        code, _, err = run(*args)
        assert code == 2
        assert "Traceback" not in err


def test_verbose_shows_the_traceback_and_still_ends_with_the_sentence() -> None:
    for args in (("-v", "train"), ("train", "-v")):
        code, _, err = run(*args)
        assert code == 2
        assert "Traceback" in err
        assert err.splitlines()[-1].startswith("error: --algo is missing")


def test_exit_codes_of_a_real_process(tmp_path: Path) -> None:
    wrong = jaxrl("train", "--algo", "PPPO", "--env", "CartPole-v1")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: ")
    assert wrong.stderr.count("\n") == 1
    broken = tmp_path / "broken.py"
    broken.write_text("raise ZeroDivisionError('a mistake of the program')")
    unexpected = jaxrl("train", "file", str(broken))
    assert unexpected.returncode == 1
    assert "Traceback" in unexpected.stderr
    assert "a mistake of the program" in unexpected.stderr


def test_a_run_is_suggested_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_folder = tmp_path / "cartpole"
    run_folder.mkdir()
    for name in ("params.json", "run.json"):
        (run_folder / name).write_text("{}")
    monkeypatch.setenv("JAXRL_RESULTS_DIR", str(tmp_path))
    code, _, err = run("resume", "cartpol")
    assert code == 2
    assert "Did you mean 'cartpole'" in err


def test_options_of_processes_reach_the_config(monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    monkeypatch.setattr(runs, "train", lambda experiment, level: trained.append(experiment) or 0)
    options = ("--num-env-runners", "2", "--num-envs-per-env-runner", "4", "--num-learners", "3")
    assert run("train", "--algo", "PPO", "--env", "x", *options, "--video")[0] == 0
    assert run("train", "--algo", "PPO", "--env", "x", "--num-env-runners", "0")[0] == 0
    names = ("num_env_runners", "num_envs_per_env_runner", "num_learners", "record_video")
    values = [[experiment.config[name] for name in names] for experiment in trained]
    assert values == [[2, 4, 3, True], [0, None, 0, False]]
    assert trained[1].config.explicit == {"env", "num_env_runners"}


class TestAssemble:
    """Options win over the file, which wins over defaults."""

    def test_options_win_over_the_file(self) -> None:
        experiment = assemble(
            ["file", "classic/cartpole-ppo"],
            **{**NOTHING, "env": "Acrobot-v1", "config": '{"gamma": 0.5, "seed": 7}'},
            overrides={"seed": 8, "run_name": None},
        )
        config = experiment.config
        assert config.environment_settings.env == "Acrobot-v1"
        assert config.training_settings.gamma == 0.5
        assert config.debugging_settings.seed == 8
        assert config.debugging_settings.run_name == "cartpole-ppo"
        assert config.training_settings.num_epochs == 4  # the file's
        assert experiment.stop == {"num_env_steps_sampled_lifetime": 500000}

    def test_stop_replaces_the_files(self) -> None:
        experiment = assemble(
            ["file", "classic/cartpole-ppo"],
            **{**NOTHING, "stop": '{"episode_reward_mean": 5, "training_iteration": 2}'},
            overrides={},
        )
        assert experiment.stop == {
            "env_runners/episode_return_mean": 5.0,
            "training_iteration": 2.0,
        }

    def test_the_environment_may_be_in_the_config(self) -> None:
        experiment = assemble(
            [], **{**NOTHING, "algo": "ppo", "config": '{"env": "Pendulum-v1"}'}, overrides={}
        )
        assert experiment.config.environment_settings.env == "Pendulum-v1"

    def test_an_unknown_file_is_no_jax_error(self) -> None:
        with pytest.raises(UnknownNameError) as caught:
            assemble(["file", "nowhere.yaml"], **NOTHING, overrides={})
        assert isinstance(caught.value, JaxrlError)
