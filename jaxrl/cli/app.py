"""Commands with their options and help; implementations are imported when a command runs."""

import enum
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxrl.cli import terminal
from jaxrl.cli.datasets import datasets
from jaxrl.cli.errors import ErrorGroup, disable_log_propagation, get_log_level
from jaxrl.cli.estimate_command import ESTIMATE_EXAMPLES, estimate
from jaxrl.cli.examples import example
from jaxrl.cli.export_commands import EXPORT_EXAMPLES, PARITY_EXAMPLES, export, parity
from jaxrl.cli.league_command import LEAGUE_EXAMPLES, league
from jaxrl.cli.options import (
    Assignments,
    Checkpoint,
    ConfigFile,
    Name,
    ResultsDir,
    Run,
    Script,
    Seed,
    Steps,
    Stop,
    Trust,
    Verbosity,
    WithoutCallbacks,
)
from jaxrl.cli.record_command import RECORD_EXAMPLES, record
from jaxrl.cli.serve import EPILOG as SERVE_EPILOG
from jaxrl.cli.serve import serve
from jaxrl.runtime.commands import mark_as_command

app = typer.Typer(
    cls=ErrorGroup,
    name="jaxrl",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning in JAX: train, evaluate and resume runs.",
)


class ListingKind(enum.StrEnum):
    """Kinds of listings of `jaxrl list`."""

    ALGOS = "algos"
    ENVS = "envs"
    CONFIGS = "configs"


def _print_version(is_requested: bool) -> None:
    if is_requested:
        import jaxrl

        typer.echo(f"jaxrl {jaxrl.__version__}")
        raise typer.Exit


@app.callback()
def root(
    verbose: Verbosity = 0,
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version."
        ),
    ] = False,
) -> None:
    """Process the options before the command."""


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl train file classic/cartpole-ppo\n\n"
    "jaxrl train --algo PPO --env CartPole-v1 --steps 100000\n\n"
    "jaxrl train --algo PPO --env Pendulum-v1 --set lr=3e-4 --set gamma=0.95 --seed 1\n\n"
    'jaxrl train --algo PPO --env my_module:MyEnv --config \'{"env_config": {"size": 5}}\'\n\n'
    "jaxrl train --algo PPO --env gymnasium:CartPole-v1 --num-env-runners 2\n\n"
    "jaxrl train file classic/cartpole-ppo --stop '{\"training_iteration\": 5}'"
)
def train(
    ctx: typer.Context,
    source: ConfigFile = None,
    algo: Annotated[
        str | None, typer.Option("--algo", "--run", help="Name of the algorithm.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Id of the environment, or a class path [bold]pkg.mod:Class[/bold]."),
    ] = None,
    stop: Stop = None,
    steps: Steps = None,
    config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Settings, under RLlib's names.")
    ] = None,
    set_: Assignments = None,
    seed: Seed = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Train N runs as lanes of one program, with seeds counting up from --seed.",
        ),
    ] = None,
    num_env_runners: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Ray actors that step the environments; 0 steps them in this process."
        ),
    ] = None,
    num_envs_per_env_runner: Annotated[
        int | None, typer.Option(metavar="N", help="Environments stepped by each runner.")
    ] = None,
    num_learners: Annotated[
        int | None,
        typer.Option(metavar="N", help="Learner processes under Ray; 0 learns in this process."),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Record a video of one episode per evaluation.")
    ] = False,
    name: Name = None,
    results_dir: ResultsDir = None,
    checkpoint_freq: Annotated[
        int | None,
        typer.Option(metavar="N", help="Save every N iterations; 0 saves only at the end."),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """Train an algorithm on an environment and write a run folder.

    Ctrl-C (or SIGTERM) saves a checkpoint and prints how to resume; a second one exits at once.
    """
    from jaxrl.cli import experiments, runs

    overrides: dict[str, Any] = {
        "seed": seed,
        "seeds": seeds,
        "num_env_runners": num_env_runners,
        "num_envs_per_env_runner": num_envs_per_env_runner,
        "num_learners": num_learners,
        "record_video": video or None,
        "run_name": name,
        "results_dir": results_dir,
        "checkpoint_frequency": checkpoint_freq,
    }
    experiment = experiments.build_experiment(
        source or [],
        algo=algo,
        env=env,
        stop=experiments.parse_stop_options(stop, steps),
        settings=experiments.parse_settings(config),
        assignments=set_ or (),
        overrides=overrides,
    )
    experiments.check_steps_option(steps, is_offline=experiment.config.is_offline)
    raise typer.Exit(runs.train(experiment, get_log_level(ctx)))


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl evaluate ~/jaxrl_results/my_run --episodes 20\n\n"
    "jaxrl evaluate my_run --env gymnasium:CartPole-v1 --steps 10000 --out result.json\n\n"
    "jaxrl evaluate ~/jaxrl_results/my_run/checkpoints/checkpoint_000010"
)
def evaluate(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    episodes: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Number of episodes; by default as in the config."),
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(metavar="N", help="Number of environment steps, instead of episodes."),
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option("--algo", "--run", help="Algorithm that must have written the checkpoint."),
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Environment with the same spaces, instead of the config's."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the result to FILE.json, or every transition to FILE.npz.",
        ),
    ] = None,
    video: Annotated[
        bool,
        typer.Option("--video", "--render", help="Record a video of an episode in the run folder."),
    ] = False,
    script: Script = None,
    without_callbacks: WithoutCallbacks = False,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Evaluate a trained policy and print its returns.

    The run folder is not changed, except for a requested video.
    """
    from jaxrl.cli import evaluation

    evaluation.evaluate(
        checkpoint,
        episodes,
        get_log_level(ctx),
        algo=algo,
        env=env,
        steps=steps,
        out=out,
        video=video,
        trust=trust,
        without_callbacks=without_callbacks,
    )


app.command(epilog=RECORD_EXAMPLES)(record)
app.command(epilog=LEAGUE_EXAMPLES)(league)
app.command(epilog=ESTIMATE_EXAMPLES)(estimate)
app.command(epilog=EXPORT_EXAMPLES)(export)
app.command(epilog=PARITY_EXAMPLES)(parity)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl resume ~/jaxrl_results/my_run\n\n"
    "jaxrl resume my_run --steps 1000000\n\n"
    "jaxrl resume ~/jaxrl_results/my_run/checkpoints/checkpoint_000010"
)
def resume(
    ctx: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            help="A run folder, its name in ~/jaxrl_results, or one of its checkpoints.",
        ),
    ],
    stop: Stop = None,
    steps: Steps = None,
    script: Script = None,
    without_callbacks: WithoutCallbacks = False,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Resume a run from its newest checkpoint, or from the given one, in the same folder.

    Without --stop or --steps, the stop criterion of the run applies. Checkpoints later than the
    given one are renamed, and later rows of results are dropped.
    """
    from jaxrl.cli import experiments, runs

    criterion = experiments.parse_stop_options(stop, steps)
    code = runs.resume(
        run,
        criterion,
        get_log_level(ctx),
        steps=steps,
        trust=trust,
        without_callbacks=without_callbacks,
    )
    raise typer.Exit(code)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl replay my_run\n\n"
    "jaxrl replay ~/jaxrl_results/my_run --iterations 20 --out replayed"
)
def replay(
    ctx: typer.Context,
    run: Run,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of the new run, which must not exist; else it is removed.",
        ),
    ] = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default=False, help="Iterations to train; by default all."
        ),
    ] = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Train a run again from its record and compare the results and the last checkpoint to the bit.

    Number of devices and measured choices are those of the record. Times and paths are not
    compared. The first difference ends the replay, with what the manifests say on its cause.

    Refused are sweeps and their lanes, runs in which the clock decides (asynchronous runners,
    min_time_s_per_iteration), and the part of a run after a resume that changed it (other settings,
    versions or devices, environments on the host, a replay buffer that was not saved). Environments
    on the host are replayed; equal they are only if they are deterministic given their seed.

    Exit code: 0 equal, 1 different, 2 bad input.
    """
    from jaxrl.cli import replay as replays

    code = replays.replay(
        run, out=out, iterations=iterations, log_level=get_log_level(ctx), trust=trust
    )
    raise typer.Exit(code)


@app.command(epilog="[bold]Examples[/bold]\n\njaxrl diff my_run my_run_2")
def diff(
    first: Annotated[str, typer.Argument(metavar="RUN", help="A run folder, or its name.")],
    second: Annotated[str, typer.Argument(metavar="RUN", help="Another one.")],
    verbose: Verbosity = 0,
) -> None:
    """Compare two runs: settings, versions, flags, devices, git, and results to the bit.

    Of the results, the first iteration with a difference is shown. Times and paths are not
    compared, nor are settings of where and how a run is recorded.

    Exit code: 0 equal, 1 different, 2 bad input.
    """
    from jaxrl.cli import diff as diffs

    raise typer.Exit(diffs.diff(first, second))


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl benchmark smoke\n\n"
    "jaxrl benchmark my_suite.yaml --out results/today --compare results/yesterday"
)
def benchmark(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="YAML file of a suite, or name of a shipped one.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            show_default="~/jaxrl_results/benchmarks/NAME",
            help="Folder for results; runs with results there are not repeated.",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="OLD",
            help="Folder of earlier results; exit code 1 if a return is clearly worse.",
        ),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """Run a suite of algorithms, environments and seeds, and write a report.

    An interrupted suite continues where it stopped.
    """
    from jaxrl.cli import benchmarks

    raise typer.Exit(benchmarks.run(suite, out, compare))


@app.command(
    name="compile-report",
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl compile-report file configs/classic/cartpole-ppo.yaml\n\n"
    "jaxrl compile-report ~/jaxrl_results/my_run --json",
)
def compile_report(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="file CONFIG | RUN",
            show_default=False,
            help="The word [bold]file[/bold] and a YAML file or the id of a shipped one, or a run "
            "folder.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Compile the programs of a run and print the cost of each: seconds, FLOPs, bytes, cache.

    Nothing is trained, except for one iteration if environments are stepped on the host.
    """
    from jaxrl.cli import compiling

    compiling.compile_report(source, as_json=as_json, trust=trust)


@app.command(
    name="list",
    epilog="[bold]Examples[/bold]\n\njaxrl list algos\n\njaxrl list envs\n\njaxrl list configs",
)
def list_(
    what: Annotated[ListingKind, typer.Argument(help="What to list.")],
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Include environments that only test algorithms, and all ids of packages."
        ),
    ] = False,
    verbose: Verbosity = 0,
) -> None:
    """List the available algorithms, environments or configs."""
    from jaxrl.cli import listing

    for line in listing.format_listing(what, everything=everything):
        terminal.echo(line)


app.add_typer(example, name="example")
app.add_typer(datasets, name="datasets")


@app.command(
    name="check-env",
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl check-env gymnasium:LunarLander-v3\n\n"
    "jaxrl check-env my_package.my_module:MyEnv --env-config '{\"size\": 5}'",
)
def check_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="Id, or module:Class.")],
    env_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Settings of the environment.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps per copy of the environment.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Seed of resets and random actions.")] = 0,
    verbose: Verbosity = 0,
) -> None:
    """Check an environment by stepping it with random actions."""
    from jaxrl.cli import listing

    listing.check_environment(env, env_config, steps, seed)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl migrate train.py tuned/cartpole-ppo.yaml\n\n"
    "jaxrl migrate my_project --write\n\n"
    "jaxrl migrate my_project > changes.diff"
)
def migrate(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            show_default=False,
            help="Python files, YAML and JSON files of experiments, or folders of them.",
        ),
    ],
    write: Annotated[
        bool, typer.Option("--write", help="Replace the files instead of printing a diff.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the changes and what remains as JSON.")
    ] = False,
    verbose: Verbosity = 0,
) -> None:
    """Rewrite code and experiments for RLlib as those for jaxrl, and list what remains.

    Files are read, never run. The exit code is 0 if nothing remains to be written by hand, 1 if
    something does, and 2 if a path does not exist or a file cannot be read, parsed or written.
    """
    from jaxrl.cli import migrating

    raise typer.Exit(migrating.migrate(paths, write=write, as_json=as_json))


app.command(epilog=SERVE_EPILOG)(serve)


@app.command(epilog="[bold]Examples[/bold]\n\njaxrl client --write my_simulator/jaxrl_client")
def client(
    write: Annotated[
        Path, typer.Option("--write", metavar="DIR", help="Folder of the simulator to copy into.")
    ],
    verbose: Verbosity = 0,
) -> None:
    """Copy the files of PolicyClient into a simulator's tree, where jaxrl need not be installed.

    They need Python 3.9 or newer and NumPy.
    """
    from jaxrl.external.files import write_client

    for path in write_client(write):
        typer.echo(str(path))
    terminal.echo(f"In the simulator: from {write.name} import PolicyClient")


@app.command(epilog="[bold]Examples[/bold]\n\njaxrl doctor")
def doctor(verbose: Verbosity = 0) -> None:
    """Examine this machine: versions, devices, caches, folders, Ray, extras, and problems.

    Nothing is trained or started. Exit code: 0 if nothing is wrong, 1 otherwise.
    """
    from jaxrl.cli import doctor as examination

    raise typer.Exit(examination.doctor())


def main() -> None:
    """Run the command line, with modules of the current folder importable."""
    cwd = os.getcwd()
    if not {"", cwd} & set(sys.path):  # as with `python -m jaxrl`
        sys.path.insert(0, cwd)
    disable_log_propagation()
    mark_as_command()
    app()
