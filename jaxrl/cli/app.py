"""Command line: options, commands with their help, and errors.

Implementations are imported when a command runs, so that help is immediate.
"""

import enum
import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup

from jaxrl.cli import terminal
from jaxrl.errors import ConfigError, JaxrlError
from jaxrl.runtime.commands import mark_as_command

_UsageError: Any = typer.BadParameter.__base__
"""Base class of usage errors in the click that typer uses, vendored or installed."""
_VERBOSITY = "jaxrl.verbosity"
_TRAIN_DEFAULT = "Pass settings as in --set lr=3e-4"
_TRAIN_ADVICE = dict.fromkeys(
    ("--framework", "--torch", "--eager", "--trace"), "JAX computes here, as always: leave it out"
)
"""Answers to unknown options of `jaxrl train`, by the option."""
_LEVELS = (logging.WARNING, logging.INFO, logging.DEBUG)


class ErrorGroup(TyperGroup):
    """Command group that reports a JaxrlError from any command in one line."""

    def invoke(self, ctx: Any) -> object:
        try:
            return super().invoke(ctx)
        except JaxrlError as error:
            if get_verbosity(ctx):
                traceback.print_exc()
            for line in (f"error: {error}", *getattr(error, "__notes__", ())):
                terminal.echo(line, err=True)
            raise typer.Exit(2) from error
        except _UsageError as error:
            context = getattr(error, "ctx", None)
            is_unknown = type(error).__name__ == "NoSuchOption"
            if is_unknown and getattr(context, "info_name", None) == "train":
                error.possibilities = None
                error.message += f". {_TRAIN_ADVICE.get(error.option_name, _TRAIN_DEFAULT)}"
            raise
        except SystemExit as error:  # raised by a user callback
            for line in getattr(error, "__notes__", ()):
                terminal.echo(line, err=True)
            raise
        except KeyboardInterrupt as error:
            terminal.echo("interrupted", err=True)
            raise typer.Exit(130) from error


def get_verbosity(ctx: typer.Context) -> int:
    """Return how often -v was given, before or after the command."""
    return ctx.find_root().meta.get(_VERBOSITY, 0)


def get_log_level(ctx: typer.Context) -> int | None:
    """Return the log level selected by -v, or None if it was not given."""
    count = get_verbosity(ctx)
    return _LEVELS[min(count, len(_LEVELS) - 1)] if count else None


def get_overrides(ctx: typer.Context) -> dict[str, Any]:
    """Return the setting selected by -v, which overrides the config."""
    level = get_log_level(ctx)
    return {} if level is None else {"log_level": logging.getLevelName(level)}


def set_verbosity(ctx: typer.Context, count: int) -> int:
    """Set verbosity and log level; the callback of every -v option."""
    level = max(count, get_verbosity(ctx))
    ctx.find_root().meta[_VERBOSITY] = level
    if not ctx.resilient_parsing:
        _log_to_stderr(get_log_level(ctx) or _LEVELS[0])
    return level


class _StderrHandler(logging.StreamHandler[Any]):
    """Handler that writes to the current standard error, which a live display replaces."""

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr

    @stream.setter
    def stream(self, value: object) -> None:
        """Ignore assignments, which only the base class makes."""


def _log_to_stderr(level: int) -> None:
    """Send jaxrl's log to standard error."""
    logger = logging.getLogger("jaxrl")
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
    logger.setLevel(level)


def _import_script(ctx: typer.Context, given: str | None) -> str | None:
    """Import a script in the place of the program that runs, as Python's multiprocessing does."""
    if given is None or ctx.resilient_parsing:
        return given
    path = Path(given).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"--script must be a Python file, got {given!r}.")
    sys.path.insert(0, str(path.parent))
    try:
        module = importlib.import_module(path.stem)
    except Exception as error:
        raise ConfigError(
            f"--script {given} cannot be imported: {type(error).__name__}: {error}."
        ) from error
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path:
        raise ConfigError(
            f"--script {given} has the name of another module, {found}: rename the script."
        )
    sys.modules["__main__"] = module
    return given


Script = Annotated[
    str | None,
    typer.Option(
        "--script",
        metavar="FILE",
        show_default=False,
        callback=_import_script,
        help="Script that the run was trained with, for the classes and functions that it defines. "
        'It is imported: its training must be under if __name__ == "__main__".',
    ),
]
WithoutCallbacks = Annotated[
    bool,
    typer.Option(
        "--without-callbacks", help="Leave out the callbacks of the run, which are not imported."
    ),
]

Verbosity = Annotated[
    int,
    typer.Option(
        "-v",
        count=True,
        show_default=False,
        callback=set_verbosity,
        help="Increase verbosity, -vv further. Also shows the traceback of an error.",
    ),
]
Stop = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Stop criterion: result keys and values; the run stops when the first is reached.",
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
        help="Train a YAML file, given by its path or the id of a shipped one "
        "([bold]jaxrl list configs[/bold]). Options override its settings.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        show_default=False,
        help="A setting, [bold]--set lr=3e-4[/bold], or one entry of it, "
        "[bold]--set model_config.fcnet_hiddens=\\[64,64][/bold]. The value is YAML; may be "
        "repeated.",
    ),
]
Seed = Annotated[int | None, typer.Option(help="Seed of all random numbers.")]
Name = Annotated[str | None, typer.Option(help="Name of the run folder.")]
ResultsDir = Annotated[
    str | None, typer.Option(help="Folder of all run folders.", show_default="~/jaxrl_results")
]
Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run folder, or its name in ~/jaxrl_results.")
]
Checkpoint = Annotated[
    str,
    typer.Argument(metavar="CHECKPOINT", help="A checkpoint, or a run folder for its newest one."),
]
PolicyId = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE",
        show_default=False,
        help="Module of a run of several agents, by its id.",
    ),
]
Simulations = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        show_default=False,
        help="Act by a search of N steps for each action, in the model of an environment in JAX; 0 acts "
        "by the network alone.",
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PACKAGE",
        show_default=False,
        help="Package that a checkpoint from another user may import; may be repeated. 'all' also "
        "accepts its folders and environment variables.",
    ),
]


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
    from jaxrl.cli import experiments, training

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
        stop=stop,
        steps=steps,
        settings=config,
        assignments=set_ or (),
        overrides=overrides,
    )
    raise typer.Exit(training.train(experiment, get_overrides(ctx)))


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
    simulations: Simulations = None,
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
        get_overrides(ctx),
        episodes=episodes,
        algo=algo,
        env=env,
        steps=steps,
        out=out,
        video=video,
        simulations=simulations,
        trust=trust,
        without_callbacks=without_callbacks,
    )


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl record my_run --output data/cartpole\n\n"
    "jaxrl record my_run --output data/expert --num-steps 100000 --no-explore --seed 1"
)
def record(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    output: Annotated[
        str,
        typer.Option(
            metavar="FOLDER",
            help="Folder of recorded data; one with data of the same spaces is appended to.",
        ),
    ],
    num_steps: Annotated[
        int, typer.Option(metavar="N", help="Least number of environment steps.")
    ] = 10_000,
    num_envs: Annotated[
        int, typer.Option(metavar="N", help="Environments that are stepped side by side.")
    ] = 8,
    explore: Annotated[
        bool | None,
        typer.Option(
            "--explore/--no-explore",
            help="Explore, or take the most likely actions; by default as the run does.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="Seed; by default that of the run.", show_default=False),
    ] = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Record the policy of a checkpoint as data to learn from, without training it."""
    from jaxrl.cli import evaluation

    options = {"num_steps": num_steps, "num_envs": num_envs, "explore": explore, "seed": seed}
    evaluation.record(checkpoint, output, get_overrides(ctx), options, trust=trust)


@app.command(
    epilog="[bold]Examples[/bold]\n\njaxrl league my_run\n\njaxrl league my_run --picture league.png"
)
def league(
    checkpoint: Checkpoint,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", show_default=False, help="Image to draw the table to."
        ),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """Print who won how often against whom in a run with multi_agent(league=...), and Elo ratings.

    Each row has the share of games that a player won, draws counting half, when it was the learner.
    """
    from jaxrl.cli import comparison

    comparison.show_league(checkpoint, picture)


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl estimate my_run --input recorded\n\n"
    "jaxrl estimate my_run --input 'recorded/*.parquet' --methods wis,dr --gamma 0.99 --json"
)
def estimate(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="DATA",
            help="Folder, file or pattern of recorded data; by default those of the run.",
            show_default=False,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="[bold]is[/bold], [bold]pdis[/bold], [bold]wis[/bold], [bold]wpdis[/bold], "
            "[bold]dm[/bold] and [bold]dr[/bold], separated by commas; by default wis and dr, or "
            "dm where probabilities are missing.",
            show_default=False,
        ),
    ] = None,
    gamma: Annotated[
        float | None,
        typer.Option(help="Discount factor; by default that of the run.", show_default=False),
    ] = None,
    explore: Annotated[
        bool | None,
        typer.Option(
            "--explore/--no-explore",
            help="Estimate the policy that samples its actions, or the one that takes the most "
            "likely ones.",
            show_default=False,
        ),
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="Probability that the intervals contain the value.")
    ] = 0.95,
    fqe_updates: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Gradient steps of the value function of dm and dr.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of resampling, actions and fits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Estimate the return of a policy from recorded data, without an environment."""
    from jaxrl.cli import evaluation

    options = {"gamma": gamma, "explore": explore, "confidence": confidence, "seed": seed}
    evaluation.estimate(
        checkpoint,
        source,
        get_overrides(ctx),
        options,
        methods=methods,
        fqe_updates=fqe_updates,
        as_json=as_json,
        trust=trust,
    )


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl export my_run --out policy\n\n"
    "jaxrl export ~/jaxrl_results/my_run/checkpoints/checkpoint_000010 --out policy "
    "--formats numpy,stablehlo --no-explore\n\n"
    "jaxrl export my_run --policy-id p0 --out policy"
)
def export(
    ctx: typer.Context,
    checkpoint: Checkpoint,
    out: Annotated[
        str,
        typer.Option(metavar="FOLDER", help="Folder to write, new or empty.", show_default=False),
    ],
    formats: Annotated[
        str,
        typer.Option(
            "--formats",
            "--format",
            metavar="NAMES",
            help="[bold]numpy[/bold] runs anywhere, [bold]stablehlo[/bold] under JAX, "
            "[bold]onnx[/bold] in runtimes of ONNX; several are separated by commas.",
        ),
    ] = "numpy",
    explore: Annotated[
        bool | None,
        typer.Option(
            "--explore/--no-explore",
            show_default=False,
            help="Export only sampled actions, or only the most likely ones; by default both.",
        ),
    ] = None,
    policy_id: PolicyId = None,
    simulations: Simulations = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Export the policy of a checkpoint as files that run without jaxrl.

    Filters, masks, memory and the conversion of actions are inside.
    """
    from jaxrl.cli import exporting

    exporting.export(
        checkpoint,
        out,
        get_overrides(ctx),
        formats=formats,
        explore=explore,
        policy_id=policy_id,
        simulations=simulations,
        trust=trust,
    )


@app.command(epilog="[bold]Examples[/bold]\n\njaxrl parity policy\n\njaxrl parity policy my_run")
def parity(
    ctx: typer.Context,
    folder: Annotated[
        str, typer.Argument(metavar="EXPORT", help="A folder that jaxrl export wrote.")
    ],
    checkpoint: Annotated[
        str | None,
        typer.Argument(
            metavar="CHECKPOINT",
            show_default=False,
            help="The checkpoint that was exported, or its run: its actions are computed anew.",
        ),
    ] = None,
    policy_id: PolicyId = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Compare an exported policy with the original: observations, episodes, and corner cases.

    Without a checkpoint, the outputs recorded at the export are compared.

    Exit code: 0 equal, 1 different, 2 bad input.
    """
    from jaxrl.cli import exporting

    code = exporting.parity(
        folder, checkpoint, get_overrides(ctx), policy_id=policy_id, trust=trust
    )
    raise typer.Exit(code)


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
    from jaxrl.cli import training

    code = training.resume(
        run,
        get_overrides(ctx),
        stop=stop,
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

    code = replays.replay(run, get_overrides(ctx), out=out, iterations=iterations, trust=trust)
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
    from jaxrl.cli import comparison

    raise typer.Exit(comparison.diff(first, second))


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


example = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="List, copy and train the shipped configs."
)
app.add_typer(example, name="example")

ExampleId = Annotated[
    str,
    typer.Argument(
        metavar="ID", show_default=False, help="As listed by [bold]jaxrl example list[/bold]."
    ),
]


@example.command(
    name="list",
    epilog="[bold]Examples[/bold]\n\njaxrl example list\n\njaxrl example list --filter pendulum",
)
def list_examples(
    filter_: Annotated[
        str | None,
        typer.Option("--filter", "-f", metavar="TEXT", help="Show only lines with this text."),
    ] = None,
    verbose: Verbosity = 0,
) -> None:
    """List the examples: id, algorithm, environment, and number of steps."""
    from jaxrl.cli import listing

    for line in listing.format_listing("configs"):
        if filter_ is None or filter_.lower() in line.lower():
            terminal.echo(line)


@example.command(
    name="get", epilog="[bold]Examples[/bold]\n\njaxrl example get classic/cartpole-ppo"
)
def get_example(example_id: ExampleId, verbose: Verbosity = 0) -> None:
    """Copy an example to the current folder, as a start for a config of your own."""
    from jaxrl.cli import listing

    listing.copy_config(example_id)


@example.command(
    name="run",
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl example run classic/cartpole-ppo\n\n"
    "jaxrl example run classic/cartpole-ppo --steps 100000 --seed 1 --set lr=3e-4",
)
def run_example(
    ctx: typer.Context,
    example_id: ExampleId,
    stop: Stop = None,
    steps: Steps = None,
    set_: Assignments = None,
    seed: Seed = None,
    name: Name = None,
    results_dir: ResultsDir = None,
    verbose: Verbosity = 0,
) -> None:
    """Train an example; [bold]jaxrl train file ID[/bold] has further options."""
    from jaxrl.cli import experiments, training
    from jaxrl.config.registry import find_shipped_config

    experiment = experiments.build_experiment(
        ["file", str(find_shipped_config(example_id))],
        stop=stop,
        steps=steps,
        assignments=set_ or (),
        overrides={"seed": seed, "run_name": name, "results_dir": results_dir},
    )
    raise typer.Exit(training.train(experiment, get_overrides(ctx)))


datasets = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="List and make the data sets that the shipped configs for recorded data learn from.",
)
app.add_typer(datasets, name="datasets")

Folder = Annotated[
    str | None,
    typer.Option(
        "--out",
        metavar="FOLDER",
        show_default="$JAXRL_DATASETS_DIR, or ~/.cache/jaxrl/datasets",
        help="Folder of all data sets.",
    ),
]


@datasets.command(name="list", epilog="[bold]Examples[/bold]\n\njaxrl datasets list")
def list_datasets(out: Folder = None, verbose: Verbosity = 0) -> None:
    """List the data sets: name, number of steps, mean return, and folder, if they are made."""
    from jaxrl.cli import listing

    listing.list_datasets(out)


@datasets.command(
    name="make",
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl datasets make cartpole-mixed\n\n"
    "jaxrl datasets make pendulum-expert --rows 20000 --out data",
)
def make_dataset(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            show_default=False,
            help="As listed by [bold]jaxrl datasets list[/bold].",
        ),
    ],
    out: Folder = None,
    rows: Annotated[
        int, typer.Option(min=1, metavar="N", help="Steps of each data set but replay.")
    ] = 100_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the run and of the recordings.")] = 0,
    verbose: Verbosity = 0,
) -> None:
    """Make a data set, and the others of its task, by training a shipped config and recording it.

    Nothing is downloaded. Data that are complete are kept.
    """
    from jaxrl.cli import listing

    listing.make_dataset(name, out, rows, seed)


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


@app.command(
    epilog="[bold]Examples[/bold]\n\n"
    "jaxrl serve my_run --follow\n\n"
    "jaxrl serve exported/ --port 9000\n\n"
    "JAXRL_SERVE_TOKEN=... jaxrl serve my_run --host 0.0.0.0 --certfile cert.pem --keyfile key.pem"
)
def serve(
    ctx: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT | EXPORT",
            help="A checkpoint, a run folder for its newest one, or an exported policy, which is "
            "served without JAX.",
        ),
    ],
    host: Annotated[str, typer.Option(help="Address to bind.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to bind; 0 takes a free one.")] = 8000,
    explore: Annotated[
        bool,
        typer.Option(
            "--explore/--no-explore", help="Sample actions if a request does not say otherwise."
        ),
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Serve newer checkpoints of the run as they are saved.")
    ] = False,
    max_batch: Annotated[
        int, typer.Option(metavar="N", help="Rows of a batch at most, a power of two.")
    ] = 64,
    max_wait_ms: Annotated[
        float, typer.Option(metavar="MS", help="Time to hold a batch back for more rows.")
    ] = 1.0,
    max_sessions: Annotated[
        int, typer.Option(metavar="N", help="Episodes whose memory is kept.")
    ] = 10_000,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="File (chmod 600) with the token; or set JAXRL_SERVE_TOKEN."
        ),
    ] = None,
    certfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate, for TLS.")
    ] = None,
    keyfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="Key of the certificate.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Allow other machines without TLS, behind a proxy of it."),
    ] = False,
    policy_id: PolicyId = None,
    simulations: Simulations = None,
    script: Script = None,
    trust: Trust = None,
    verbose: Verbosity = 0,
) -> None:
    """Serve a trained policy over HTTP: actions for observations, one by one or in batches.

    SIGHUP loads the newest checkpoint of a run, or the export again. Without a token only this machine can connect.
    """
    from jaxrl.cli import exporting

    exporting.serve(
        checkpoint,
        token_file=token_file,
        follow=follow,
        policy_id=policy_id,
        simulations=simulations,
        trust=trust,
        log_level=get_log_level(ctx),
        host=host,
        port=port,
        explore=explore,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        max_sessions=max_sessions,
        certfile=certfile,
        keyfile=keyfile,
        insecure=insecure,
    )


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
    logging.getLogger("jaxrl").propagate = False  # packages imported later configure logging too
    mark_as_command()
    app()
