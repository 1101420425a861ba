"""Settings of every kind of value, alone and together: a config is valid or says why in a sentence.

Values come from the registry of settings: its names, types and literals. Nothing is built.
"""

import random
import signal
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Literal

import pytest

from jaxrl.config.base import get_algorithm_config
from jaxrl.config.coerce import get_choices
from jaxrl.config.fields import Setting, get_settings, is_schedule
from jaxrl.config.names import GROUP_METHODS
from jaxrl.config.registry import list_algorithms
from jaxrl.errors import JaxrlError

SECONDS = 10.0
"""Processor time that one config may take: more is a loop over what was set."""
COUNTS = (0, 1, 2, 3, 7, 8, 64, 97, 1000, 4096, 10**6, 2**31 - 1, 2**31, 2**53, 2**61 - 1, 2**63)
INTEGERS = (*COUNTS, 2**64, 10**18, 10**30, -1, -(2**31), 1e6, 1e30)
NUMBERS = (0.0, 1e-46, 1e-8, 0.1, 0.5, 0.999, 1.0, 2.5, 1e3, 1e10, 1e39, 1e300, -1.0, -1e30)
BEYOND = (float("inf"), float("-inf"), 2**64, 10**400)
WORDS = ("", "x", "auto", "ä" * 300, "a:b", "../..", "None", "\n", "adam", "CartPole-v1")
WILD: tuple[Any, ...] = (
    *(None, True, float("nan"), b"bytes", object(), object, len, lambda: None, ..., 1j, {1, 2}),
    *([], {}, (), [[]], [1, 2], {"a": 1}, {1: 2}, {None: None}, [None], [[0, 1], [1, "x"]]),
    *(
        12345.678,
        [("fcnet_hiddens", [8])],
        {"fcnet_hiddens": "x"},
        {"fcnet_hiddens": [0]},
        range(3),
    ),
    *(*WORDS, *INTEGERS, *BEYOND),
)


def extreme(annotation: Any, draw: random.Random) -> Any:
    """Draw a value of a type, mostly from the ends of what it holds."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return extreme(draw.choice(args), draw)
    if origin is Literal:
        return draw.choice(get_choices(annotation))
    if origin is Annotated:  # ids of agents, which may be numbers
        return extreme(draw.choice((int, args[0])), draw)
    if origin is list:
        return [extreme(args[0], draw) for _ in range(draw.randrange(4))]
    if origin is tuple:
        return tuple(extreme(arg, draw) for arg in args if arg is not Ellipsis)
    if origin in (dict, Mapping):
        return {extreme(args[0], draw): extreme(args[1], draw) for _ in range(draw.randrange(3))}
    plain = {bool: (True, False), int: INTEGERS, float: NUMBERS, str: WORDS}
    if annotation in plain:
        return draw.choice((*plain[annotation], *(BEYOND if draw.random() < 0.05 else ())))
    return None if annotation is type(None) else draw.choice((None, {}, len, object))


def value_of(setting: Setting, draw: random.Random) -> Any:
    if is_schedule(setting.annotation) and draw.random() < 0.3:
        return [[0, draw.choice(NUMBERS)], [draw.choice(COUNTS), draw.choice(NUMBERS)]]
    if setting.name == "model_config" and draw.random() < 0.7:
        return {
            name: draw.choice((*COUNTS, "relu", [8], [], None, True))
            for name in draw.sample(
                ("fcnet_hiddens", "use_lstm", "max_seq_len", "lstm_cell_size"), 2
            )
        }
    return extreme(setting.annotation, draw)


def settings_at_random(draw: random.Random, *, wild: bool) -> tuple[str, dict[str, Any]]:
    """The name of an algorithm, and one to six of its settings."""
    algorithm = draw.choice(list_algorithms())
    config = get_algorithm_config(algorithm)
    known = [
        setting
        for attribute in GROUP_METHODS
        for setting in get_settings(type(getattr(config, attribute))).values()
    ]
    # Sizes that have to fit together are among most of the combinations.
    sizes = [s for s in known if "size" in s.name or "num_" in s.name or "length" in s.name]
    chosen = draw.sample(known, draw.randrange(1, 4)) + draw.sample(sizes, draw.randrange(4))
    value = (
        (lambda setting: draw.choice(WILD)) if wild else (lambda setting: value_of(setting, draw))
    )
    return algorithm, {setting.name: value(setting) for setting in chosen}


@contextmanager
def limited(what: str) -> Iterator[None]:
    """Raise after so much processor time, wherever the config is then."""

    def too_long(number: int, frame: object) -> None:
        raise AssertionError(f"{what} took more than {SECONDS:g} seconds of processor time")

    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def outcome(seed: int, *, wild: bool) -> str:
    """Set, validate and explain one config.

    Raises:
        AssertionError: It took too long, or was refused in other words than one sentence.
    """
    algorithm, settings = settings_at_random(random.Random(seed), wild=wild)
    what = f"{algorithm} with {settings!r} (seed {seed})"
    with limited(what):
        try:
            config = get_algorithm_config(algorithm).environment("CartPole-v1")
            config.update_from_dict(settings).validate()
            config.explain(platform="cpu", local_device_count=8)
        except JaxrlError as error:
            sentence = str(error)
            assert "\n" not in sentence.replace("\\n", ""), f"{what}: {sentence}"
            assert sentence.rstrip()[-1] in ".?", f"{what}: {sentence}"
            return "refused"
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    return "valid"


def check(seeds: range, *, wild: bool) -> None:
    failed, counted = [], {"valid": 0, "refused": 0}
    for seed in seeds:
        try:
            counted[outcome(seed, wild=wild)] += 1
        except AssertionError as error:
            failed.append(f"{error}"[:600])
    print(f"{len(seeds)} configs: {counted}, {len(failed)} failed")
    assert not failed, "\n".join(failed)
    assert counted["refused"] > 0
    assert wild or counted["valid"] > 0


def test_extreme_combinations_are_valid_or_refused_in_one_sentence() -> None:
    check(range(150), wild=False)


def test_values_of_wild_types_are_valid_or_refused_in_one_sentence() -> None:
    check(range(60), wild=True)


@pytest.mark.slow
def test_two_thousand_extreme_combinations() -> None:
    check(range(1000, 3000), wild=False)


@pytest.mark.slow
def test_two_thousand_wild_types() -> None:
    check(range(1000, 3000), wild=True)
