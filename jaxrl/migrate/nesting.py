"""Depth of a Python source, measured before it is parsed.

LibCST's parser recurses in native code without a limit, so that a few thousand brackets end the
process. Python's own parser is no measure of it: it keeps `a or b or c` flat, which LibCST nests.
"""

import io
import keyword
import re
import tokenize
from collections.abc import Iterator

MAX_BRACKETS = 100
MAX_OPERATORS = 1000
"""Maximum number of operators, prefixes and clauses that an expression nests, or of `elif`."""
_OPENING, _CLOSING = frozenset("([{"), frozenset(")]}")
_UNSEPARATED = frozenset(("lambda", "for"))
"""Keywords that nest in spite of commas: `lambda a, b: lambda c, d: 1`."""
_FORMATTED = re.compile(r"[rR]?[fF]")
_IN_STRING = re.compile(r"[(\[{.+\-*/~^|&%<>=]|\b(?:not|lambda|or|and|if|for|await)\b")


def is_nested_too_deeply(text: str) -> bool:
    """Return whether a source may be nested too deeply for LibCST."""
    depth = _Depth()
    try:
        return any(depth.add(token) for token in _tokenize(text))
    except (SyntaxError, tokenize.TokenError):  # LibCST refuses it with the line, before it parses
        return False


def _tokenize(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text, newline="").readline)


class _Depth:
    """Depth of the expression and of the `elif` that a token is part of."""

    def __init__(self) -> None:
        self._separated, self._unseparated = [0], [0]
        self._total = 0
        self._elifs = [0]

    def add(self, token: tokenize.TokenInfo) -> bool:
        """Add a token and return whether it exceeds a limit."""
        word = token.string
        if token.type == tokenize.NEWLINE:
            self._separated, self._unseparated, self._total = [0], [0], 0
        elif token.type == tokenize.INDENT:
            self._elifs.append(0)
        elif token.type == tokenize.DEDENT:
            self._elifs.pop()
        elif token.type == tokenize.STRING:
            is_formatted = _FORMATTED.match(word) is not None
            self._count(1 + (len(_IN_STRING.findall(word)) if is_formatted else 0))
        elif token.type in (tokenize.OP, tokenize.ERRORTOKEN):
            self._add_operator(word)
        elif keyword.iskeyword(word):
            self._add_keyword(word)
        return (
            len(self._separated) > MAX_BRACKETS
            or self._total > MAX_OPERATORS
            or self._elifs[-1] > MAX_OPERATORS
        )

    def _add_operator(self, word: str) -> None:
        if word in _CLOSING:
            if len(self._separated) > 1:
                self._total -= self._separated.pop() + self._unseparated.pop()
        elif word == ",":
            self._total -= self._separated[-1]
            self._separated[-1] = 0
        else:
            self._count(1)
            if word in _OPENING:
                self._separated.append(0)
                self._unseparated.append(0)

    def _add_keyword(self, word: str) -> None:
        if word == "elif":
            self._elifs[-1] += 1
        elif word == "if" and self._total == 0 and len(self._separated) == 1:
            self._elifs[-1] = 0
        if word in _UNSEPARATED:
            self._unseparated[-1] += 1
            self._total += 1
        else:
            self._count(1)

    def _count(self, number: int) -> None:
        self._separated[-1] += number
        self._total += number
