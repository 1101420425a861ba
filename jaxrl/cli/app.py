"""The commands, their options and their help; what they do is imported when they run."""

import enum
import os
import sys
from typing import Annotated, Any

import typer

from jaxrl.cli.errors import ErrorGroup, keep_log_to_ourselves, log_level, set_verbosity
from jaxrl.runtime.commands import begin_command

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

Steps = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Stop after N environment steps: --stop '{\"num_env_steps_sampled_lifetime\": N}'.",
    ),
]

ConfigFile = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="file CONFIG",
        show_default=False,
        help="Train what a YAML file says: a path, or the id of a shipped one "
        "([bold]jaxrl list configs[/bold]). Options given beside it win.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        show_default=False,
        help="One setting, as often as you like: [bold]--set lr=3e-4[/bold], or a part of one, "
        "[bold]--set model_config.fcnet_hiddens=\\[64,64][/bold]. The value is YAML.",
    ),
]


Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        show_default=False,
        help="A package that a checkpoint of somebody else's may import; may be repeated. 'all' also "
        "takes its folders and environment variables.",
    ),
]


class Listed(enum.StrEnum):
    """What `jaxrl list` can list."""

    ALGOS = "algos"
    ENVS = "envs"
    CONFIGS = "configs"


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Options before the command."""


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
        source or [],
        algo=algo,
        env=env,
        stop=experiments.stop_of(stop, steps),
        settings=experiments.settings_of(config),
        assignments=set_ or (),
        overrides=overrides,
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
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Play with a trained policy and print its returns.

    Leaves the run folder as it is, but for a video that is asked for.
    """
    from jaxrl.cli import runs

    runs.evaluate(checkpoint, episodes, log_level(ctx), video=video, trust=trust)


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
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Go on with a run from its newest checkpoint, or the one named, in the same folder.

    Without --stop or --steps it goes on to the criterion that the run had. Checkpoints after the one
    named are renamed, and rows of results after it are cut.
    """
    from jaxrl.cli import experiments, runs

    criterion = experiments.stop_of(stop, steps)
    raise typer.Exit(runs.resume(run, criterion, log_level(ctx), trust=trust))


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
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Compile what a run needs, and print what each program takes: seconds, FLOPs, bytes, cache.

    Nothing is trained, but one iteration where environments are stepped on the host.
    """
    from jaxrl.cli import compiling

    compiling.compile_report(source, as_json=as_json, trust=trust)


@app.command(
    name="list",
    epilog="[bold]Examples[/bold]\n\njaxrl list algos\n\njaxrl list envs\n\njaxrl list configs",
)
def list_(
    what: Annotated[Listed, typer.Argument(help="What to list.")],
    everything: Annotated[
        bool, typer.Option("--all", help="Also environments that only test algorithms.")
    ] = False,
    verbose: Verbosity = 0,
) -> None:
    """List the algorithms, the environments, or the configs that are shipped."""
    from jaxrl.cli import listing

    for line in listing.listed(what, everything=everything):
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
    from jaxrl.cli import listing

    listing.check(env, env_config, steps, seed)


def main() -> None:
    """The entry point `jaxrl`; modules of the folder it is called in can be imported."""
    here = os.getcwd()
    if not {"", here} & set(sys.path):  # as `python -m jaxrl` has it
        sys.path.insert(0, here)
    keep_log_to_ourselves()
    begin_command()
    app()
