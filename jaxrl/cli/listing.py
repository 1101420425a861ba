"""What `jaxrl list` prints: names, and a word on each."""

import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import typer
import yaml

from jaxrl.cli.command import command
from jaxrl.cli.experiments import json_object
from jaxrl.config.registry import shipped_configs
from jaxrl.envs.registry import make
from jaxrl.errors import JaxrlError
from jaxrl.testing import check_env

_ALGORITHMS = {
    "PPO": "on-policy; discrete and continuous actions",
    "A2C": "on-policy, one step a batch; discrete and continuous actions",
    "PG": "on-policy, REINFORCE; discrete and continuous actions",
    "IMPALA": "actors overlap the learner, V-trace; discrete and continuous actions",
    "APPO": "IMPALA with PPO's clipping; discrete and continuous actions",
    "DQN": "replay; discrete actions",
    "Rainbow": "replay, DQN with all its extensions; discrete actions",
    "PQN": "on-policy, Q(lambda) without replay or target network; discrete actions",
    "SAC": "replay; continuous and discrete actions",
    "TQC": "replay, SAC with truncated quantile critics; continuous actions",
    "TD3": "replay; continuous actions",
    "DDPG": "replay; continuous actions",
}
_OTHER_ENVS = (
    "",
    "and every id of gymnasium's, stepped on the host: LunarLander-v3, ALE/Pong-v5, ...",
    "and what you register or write: a name of register_env, module:Id-v0, module:Class",
)
_IN_GRAPH = "JAX, in the compiled program"
_ON_HOST = "gymnasium environments of jaxrl's own, stepped on the host"


def listed(what: str, *, everything: bool = False) -> list[str]:
    """Lines on "algos", "envs" or "configs".

    Args:
        what: Which of them.
        everything: Whether environments that only test algorithms are among them.
    """
    if what == "algos":
        from jaxrl.config.registry import list_algorithms

        return _table((name, _ALGORITHMS.get(name, "")) for name in list_algorithms())
    if what == "envs":
        return _environments(everything)
    return _table((name, _of_config(path)) for name, path in sorted(shipped_configs().items()))


def _environments(everything: bool) -> list[str]:
    from jaxrl.envs.registry import MadeEnv, list_envs, make

    groups: dict[str, list[tuple[str, str]]] = {}
    for name in list_envs():
        if not everything and name.startswith("jaxrl:probe-"):
            continue
        try:
            made = make(name)
        except JaxrlError as error:
            groups.setdefault("cannot be made here", []).append((name, str(error)))
            continue
        group = f"{name.split(':')[0]}'s" if name.startswith("gymnax:") else "jaxrl's own"
        group = f"{_IN_GRAPH}, {group}" if isinstance(made, MadeEnv) else _ON_HOST
        groups.setdefault(group, []).append((name, _spaces(made)))
    lines: list[str] = []
    for group, entries in groups.items():
        lines += ["", f"{group}:", *_table(entries)]
    if not everything:
        lines += ["", f"and tasks that test algorithms: {command('list', 'envs', '--all')}"]
    return [*lines[1:], *_OTHER_ENVS]


def _spaces(made: Any) -> str:
    from jaxrl.assembly.assemble import spaces_of

    observation, action = spaces_of(made)
    return f"observes {_space(observation)}, acts {_space(action)}"


def _space(space: Any) -> str:
    """A space by its kind and size: `Box(4,)`, `Discrete(2)`."""
    kind = type(space).__name__
    if kind == "Box":
        return f"Box{space.shape}".replace(",)", ")")
    if kind == "Dict":
        return f"Dict({', '.join(f'{name}={_space(part)}' for name, part in space.items())})"
    if kind == "Tuple":
        return f"Tuple({', '.join(_space(part) for part in space)})"
    return str(space)


def _of_config(path: Any) -> str:
    """The algorithm, the environment and the budget of a shipped file."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    body: Mapping[str, Any] = next(iter(data.values()))
    steps = (body.get("stop") or {}).get("num_env_steps_sampled_lifetime")
    budget = "" if steps is None else f", {float(steps):,.0f} steps"
    sweep = ", a sweep" if "sweep" in body else ""
    env = body.get("env") or body["config"]["env"]
    return f"{body['run']} on {env}{budget}{sweep}"


def _table(entries: Iterable[tuple[str, str]]) -> list[str]:
    """Two columns."""
    rows = list(entries)
    width = max((len(name) for name, _ in rows), default=0)
    return list(_lines(rows, width))


def _lines(rows: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    for name, words in rows:
        yield f"{name:<{width}}  {words}".rstrip()


def check(env: str, env_config: str | None, steps: int, seed: int) -> None:
    """Hold an environment to its contract; warnings are printed, an error is one sentence."""
    made = make(env, None if env_config is None else json_object("--env-config", env_config))
    advice = _Collected()
    logger = logging.getLogger("jaxrl.envs")
    logger.addHandler(advice)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            check_env(made, num_steps=steps, seed=seed)
    finally:
        logger.removeHandler(advice)
    sentences = [*advice.sentences, *(str(warning.message) for warning in caught)]
    for sentence in dict.fromkeys((*made.notes, *sentences)):
        typer.echo(f"note: {sentence}")
    typer.echo(f"{made.id} is as it should be.")


class _Collected(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.sentences: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.sentences.append(record.getMessage())
