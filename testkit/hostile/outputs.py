"""Every path that a command writes to, with everything that can be in the way there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from testkit.hostile.case import ANY, LONG, REMOTE, Case, commands, good_arguments

_READ_ONLY = "in a read-only folder"
_FOLDERS = frozenset({"--work_dir", "--dump_hlo"})


def cases() -> Iterator[Case]:
    """All of them, for what each command's good invocation writes."""
    for command in commands(*REMOTE):
        for word in good_arguments(command):
            flag, _, place = word.partition("=")
            if not place.startswith("{out}/"):
                continue
            name = place.removeprefix("{out}/")
            for how, prepare in _obstacles(name):
                if command in LONG and how == "an empty folder" and flag in _FOLDERS:
                    continue  # nothing is wrong with that, and it would run for minutes
                words = tuple(good_arguments(command))
                obeys = how == _READ_ONLY
                yield Case(f"{flag} {how}", command, words, ANY, prepare, obeys_permissions=obeys)
            yield from _named(command, flag, word)


def _named(command: str, flag: str, word: str) -> Iterator[Case]:
    """Paths that cannot be made."""
    others = [w for w in good_arguments(command) if w != word]
    for how, place in (
        ("name too long", "{out}/" + "x" * 300),
        ("path too long", "{out}" + "/xxxxxxxx" * 600),
        ("not UTF-8", "{out}/\udcff\udcfe"),
        ("below a file", "{in}/corpus.jsonl/below"),
        ("below a device", "/dev/null/below"),
        ("in /proc", "/proc/no-such-folder/x"),
        ("an input", "{in}/corpus.jsonl"),
        ("an input folder", "{in}/data"),
        ("an unknown scheme", "s3://bucket/x"),
        ("a bucket without a name", "gs://"),
    ):
        yield Case(f"{flag} {how}", command, (*others, f"{flag}={place}"), ANY)


def _obstacles(name: str) -> Iterator[tuple[str, Callable[[Path, Path], None]]]:
    for how, put in _IN_THE_WAY.items():
        yield how, functools.partial(_put, name, put)
    yield _READ_ONLY, _read_only


def _put(name: str, put: Callable[[Path], None], inputs: Path, outputs: Path) -> None:
    put(outputs / name)


def _read_only(inputs: Path, outputs: Path) -> None:
    outputs.chmod(0o555)


def _foreign_folder(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("the only copy")


_IN_THE_WAY: dict[str, Callable[[Path], None]] = {
    "a foreign file": lambda path: _text(path, "the only copy"),
    "an empty folder": lambda path: path.mkdir(),
    "a foreign folder": _foreign_folder,
    "a FIFO": lambda path: os.mkfifo(path),
    "a symlink loop": lambda path: path.symlink_to(path.name),
    "a dangling symlink": lambda path: path.symlink_to("nowhere"),
    "a symlink to a file": lambda path: _linked(path),
    "a symlink to a device": lambda path: path.symlink_to("/dev/null"),
    "a full device": lambda path: path.symlink_to("/dev/full"),
}


def _text(path: Path, text: str) -> None:
    path.write_text(text)


def _linked(path: Path) -> None:
    target = path.parent / "thesis.txt"
    target.write_text("the only copy")
    path.symlink_to(target.name)
