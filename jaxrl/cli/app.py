"""The commands, their options and their help; what they do is imported when they run."""

import atexit
import enum
import os
import sys
import threading
from typing import Annotated, Any

import typer

from jaxrl.cli.errors import ErrorGroup, keep_log_to_ourselves, log_level, set_verbosity

ORBAX_GRACE_S = 2.0
"""How long each thread of a checkpoint may take to end after its command."""

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

Verbosity = Annotated[
    int,
    typer.Option(
        "-v",
        count=True,
        show_default=False,
        callback=set_verbosity,
        help="Say more; -vv says most. Shows the traceback of an error.",
    ),
]
Stop = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="When to stop: result keys and the values to reach, the first one reached counts.",
    ),
]


class Listed(enum.StrEnum):
    """What `jaxrl list` can list."""

    ALGOS = "algos"
    ENVS = "envs"
    CONFIGS = "configs"


@app.callback()
def root(verbose: Verbosity = 0) -> None:
    """Options before the command."""


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl train --algo PPO --env CartPole-v1 "
    "--stop '{\"num_env_steps_sampled_lifetime\": 100000}'\n\n"
    'jaxrl train --algo PPO --env Pendulum-v1 --config \'{"lr": 3e-4, "gamma": 0.95}\' --seed 1\n\n'
    "jaxrl train --algo PPO --env gymnasium:CartPole-v1 --num-env-runners 2\n\n"
    "jaxrl train file configs/classic/cartpole-ppo.yaml\n\n"
    "jaxrl train file classic/cartpole-ppo --stop '{\"training_iteration\": 5}'"
)
def train(
    ctx: typer.Context,
    source: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="file CONFIG",
            show_default=False,
            help="Train what a YAML file says: a path, or the id of a shipped one "
            "([bold]jaxrl list configs[/bold]). Options given beside it win.",
        ),
    ] = None,
    algo: Annotated[
        str | None, typer.Option("--algo", "--run", help="Name of the algorithm.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(help="Id of the environment, or a class path [bold]pkg.mod:Class[/bold]."),
    ] = None,
    stop: Stop = None,
    config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Settings, under RLlib's names.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw.")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Train N runs as lanes of one program, seeds from --seed on."
        ),
    ] = None,
    num_env_runners: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ray actors that step the environments; 0 steps them here."),
    ] = None,
    num_envs_per_env_runner: Annotated[
        int | None, typer.Option(metavar="N", help="Environments that each runner steps.")
    ] = None,
    num_learners: Annotated[
        int | None,
        typer.Option(metavar="N", help="Learner processes under Ray; 0 learns here."),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Write a video of an episode of each evaluation.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    results_dir: Annotated[
        str | None,
        typer.Option(help="Folder of all run folders.", show_default="~/jaxrl_results"),
    ] = None,
    checkpoint_freq: Annotated[
        int | None,
        typer.Option(metavar="N", help="Save every N iterations; 0 saves only at the end."),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """Train an algorithm on an environment, and leave a run folder behind.

    Ctrl-C (or SIGTERM) saves a checkpoint and says how to go on; a second one ends at once.
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
    experiment = experiments.assemble(
        source or [], algo=algo, env=env, stop=stop, config=config, overrides=overrides
    )
    raise typer.Exit(runs.train(experiment, log_level(ctx)))


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl evaluate ~/jaxrl_results/my_run --episodes 20\n\n"
    "jaxrl evaluate ~/jaxrl_results/my_run/checkpoints/checkpoint_000010"
)
def evaluate(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A checkpoint, or a run folder for its newest one."
        ),
    ],
    episodes: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="How many episodes; the config's evaluation by default."
        ),
    ] = None,
    video: Annotated[
        bool, typer.Option("--video", help="Write a video of an episode into the run folder.")
    ] = False,
    verbose: Verbosity = 0,
) -> None:
    """Play with a trained policy and print its returns.

    Leaves the run folder as it is, but for a video that is asked for.
    """
    from jaxrl.cli import runs

    runs.evaluate(checkpoint, episodes, log_level(ctx), video=video)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl resume ~/jaxrl_results/my_run\n\n"
    "jaxrl resume my_run --stop '{\"num_env_steps_sampled_lifetime\": 1000000}'"
)
def resume(
    ctx: typer.Context,
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run folder, or its name in ~/jaxrl_results.")
    ],
    stop: Stop = None,
    verbose: Verbosity = 0,
) -> None:
    """Go on with a run from its newest checkpoint, in the same folder.

    Without --stop it goes on to the criterion that the run had.
    """
    from jaxrl.cli import runs

    raise typer.Exit(runs.resume(run, stop, log_level(ctx)))


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl benchmark smoke\n\n"
    "jaxrl benchmark my_suite.yaml --out results/today --compare results/yesterday"
)
def benchmark(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="A suite's YAML file, or a shipped one's name.")
    ],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            show_default="~/jaxrl_results/benchmarks/NAME",
            help="Where results are written; those that are there already are not run again.",
        ),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            metavar="OLD",
            help="The folder of earlier results; exit code 1 if a return is clearly worse.",
        ),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """Run a suite of algorithms, environments and seeds, and write a report.

    A suite that was interrupted goes on where it was.
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
            help="A YAML file or the id of a shipped one, after the word [bold]file[/bold], or a run "
            "folder.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    verbose: Verbosity = 0,
) -> None:
    """Compile what a run needs, and print what each program takes: seconds, FLOPs, bytes, cache.

    Nothing is trained, but one iteration where environments are stepped on the host.
    """
    from jaxrl.cli import compiling

    compiling.compile_report(source, as_json=as_json)


@app.command(
    name="list",
    epilog="[bold]Examples[/bold]\n\njaxrl list algos\n\njaxrl list envs\n\njaxrl list configs",
)
def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")], verbose: Verbosity = 0
) -> None:
    """List the algorithms, the environments, or the configs that are shipped."""
    from jaxrl.cli import experiments

    for line in experiments.known(what):
        typer.echo(line)


@app.command(
    name="check-env",
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl check-env gymnasium:LunarLander-v3\n\n"
    "jaxrl check-env my_package.my_module:MyEnv --env-config '{\"size\": 5}'",
)
def check_env(
    env: Annotated[str, typer.Argument(metavar="ENV", help="An id, or module:Class.")],
    env_config: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments of the environment.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each copy.")] = 24,
    seed: Annotated[int, typer.Option(min=0, help="Of resets and random actions.")] = 0,
    verbose: Verbosity = 0,
) -> None:
    """Try an environment with random actions, and say what is wrong with it."""
    from jaxrl.cli import environments

    environments.check(env, env_config, steps, seed)


def give_up_waiting() -> None:
    """End the process where a checkpoint that failed would keep it for ten minutes.

    Threads of Orbax's wait so long for what a failed write never tells, and Python for them.
    """
    waiting = [t for t in threading.enumerate() if type(t).__module__.startswith("orbax.")]
    error = sys.exc_info()[1]
    for thread in waiting:
        threading.Thread.join(thread, ORBAX_GRACE_S)  # their own raises
    if any(thread.is_alive() for thread in waiting):
        code = error.code if isinstance(error, SystemExit) else 1
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage]
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """The entry point `jaxrl`."""
    keep_log_to_ourselves()
    app()
