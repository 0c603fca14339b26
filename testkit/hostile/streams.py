"""Standard streams that are closed, full, or not what a command expects."""

from __future__ import annotations

from collections.abc import Iterator

from testkit.hostile.case import ANY, LONG, REMOTE, Case, commands, good_arguments

_STREAMS: dict[str, dict[int, str]] = {
    "standard input closed": {0: "closed"},
    "standard output closed": {1: "closed"},
    "standard error closed": {2: "closed"},
    "all streams closed": {0: "closed", 1: "closed", 2: "closed"},
    "standard output full": {1: "/dev/full"},
    "standard error full": {2: "/dev/full"},
    "both full": {1: "/dev/full", 2: "/dev/full"},
}


def cases() -> Iterator[Case]:
    """Each command's help and good invocation under each."""
    for how, streams in _STREAMS.items():
        for command in commands():
            yield Case(f"--help, {how}", command, ("--help",), ANY, streams=streams)
            if command not in REMOTE | LONG:
                for more in ((), ("--json",)):
                    words = (*good_arguments(command), *more)
                    name = " ".join(("run", *more))
                    yield Case(f"{name}, {how}", command, words, ANY, streams=streams)
