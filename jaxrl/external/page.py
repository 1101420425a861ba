"""Generator of the protocol's page of the documentation, from its messages."""

from collections.abc import Mapping

from jaxrl.external.frames import DTYPES, HEADER, MAGIC, MAJOR, MESSAGES, MINOR, Kind, Limits

_HEAD = f"""# jaxrl-link

Protocol between a run and the simulators that connect to it, version {MAJOR}.{MINOR}. The guide is
[External simulators](external_simulators.md). This page is generated from the definitions of the
messages: `python -m jaxrl.external.page > docs/guides/jaxrl_link.md`.

A client has one TCP connection, or one by TLS, and any number of episodes. Both sides send frames:

| bytes | content |
| --- | --- |
| 4 | `{MAGIC.decode()}` |
| 1 | major version, {MAJOR} |
| 1 | kind of the message |
| 2 | flags, 0 |
| 4 | number of bytes that follow the header of {HEADER.size} bytes |
| 4 | number of bytes of the head |
| ... | head, a JSON object in UTF-8 without NaN and infinities |
| ... | arrays, each at the next multiple of 8 bytes from the end of the header |

Integers are little-endian. The entry `arrays` of the head lists `[name, dtype, shape]` for each
array, in order. The dtypes are {", ".join(f"`{name}`" for name in DTYPES)}. Nothing in a frame is
code, in either direction. A version with another major number is refused; of the minor numbers, the
smaller one is spoken.

## Order of messages

1. The client sends HELLO, the server answers CHALLENGE, the client AUTH, the server WELCOME. The
   proofs are the HMAC-SHA256, with the token as its key (empty for none), of the JSON list
   `["jaxrl-link", major, minor, role, client_id, client's nonce, server's nonce]`, where the role is
   `"client"` or `"server"`. The text of the list has one space after each comma and no other, and
   characters that are not ASCII as `\\uXXXX`. The token is never sent.
2. From then on, the client asks for actions (ACT) and sends parts of episodes (EPISODES), which it
   numbers from 0 on. The server acknowledges the number of messages that it has received. What is not
   acknowledged is kept and, after a reconnection, sent again; what comes twice is ignored.
3. A client may record as many steps as the latest `max_steps` says, and waits when it has.
4. A client that lost its connection returns with the `secret` of its WELCOME. After
   `resume_window_s`, its open episodes are cut: their last step bootstraps, and none is terminated.
"""


def render_protocol_page() -> str:
    """Return the page as Markdown, with a trailing newline."""
    return "\n".join([_HEAD, *map(_render_message, Kind), _render_limits()])


def _render_message(kind: Kind) -> str:
    message = MESSAGES[kind]
    sections = [
        f"## {kind.name} ({kind.value})",
        "",
        f"From the {message.sender}. {message.text}",
        "",
    ]
    for title, entries in (("head", message.head), ("array", message.arrays)):
        sections += _render_entries(title, entries)
    return "\n".join(sections)


def _render_entries(title: str, entries: Mapping[str, str]) -> list[str]:
    if not entries:
        return []
    rows = [f"| `{name}` | {text} |" for name, text in entries.items()]
    return [f"| {title} | |", "| --- | --- |", *rows, ""]


def _render_limits() -> str:
    rows = [f"| `{name}` | {value:,} |" for name, value in Limits()._asdict().items()]
    lines = [
        "## Limits",
        "",
        "They hold before anything is allocated. WELCOME has those of the run.",
        "",
        "| limit | default |",
        "| --- | --- |",
        *rows,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    import sys

    sys.stdout.write(render_protocol_page())
