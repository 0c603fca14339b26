"""Every file that a command is given, damaged in every way."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from testkit.declared import GONE, changed
from testkit.hostile.case import DAMAGED, LONG, REMOTE, Case, commands, good_arguments

_WRONG: tuple[Any, ...] = (
    None, [], {}, "x", -1, 1.5, True, 2**70, float("nan"), float("inf"), "\udcff", [[[[{}]]]],
)  # fmt: skip
_DEPTH = 10_000


def file_cases(inputs: Path) -> Iterator[Case]:
    """All of them, for the files that lie in `inputs` now."""
    for command in commands(*REMOTE, *LONG):
        for file in _files_of(command, inputs):
            name = str(file.relative_to(inputs))
            # No checkpoint without its sidecar: the one before it is taken.
            is_sidecar = re.fullmatch(r"model\.ckpt-\d+\.json", file.name) is not None
            for how, damage in _damages(file):
                yield Case(
                    f"{name} {how}", command, tuple(good_arguments(command)), DAMAGED,
                    functools.partial(_apply, name, damage), obeys_permissions=how == "unreadable",
                    other_result=how == "missing" and is_sidecar,
                )  # fmt: skip


def _files_of(command: str, inputs: Path) -> Iterator[Path]:
    """Files that the good invocation names, and those in folders that it names."""
    for word in good_arguments(command):
        place = word.split("=", 1)[-1]
        if not place.startswith("{in}/"):
            continue
        path = inputs / place.removeprefix("{in}/")
        yield from sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


def _apply(name: str, damage: Callable[[Path], None], inputs: Path, outputs: Path) -> None:
    damage(inputs / name)


def _damages(file: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    yield from _GENERAL.items()
    if file.suffix in (".json", ".jsonl"):
        yield from _of_json(file)
    if file.suffix == ".yaml":
        for name, text in _YAML_TEXTS.items():
            yield f"with {name}", _replaced(text.encode())


def _replaced(data: bytes) -> Callable[[Path], None]:
    def replace(path: Path) -> None:
        path.unlink()
        path.write_bytes(data)

    return replace


def _truncated(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def _flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(to: str | None) -> Callable[[Path], None]:
    """A symbolic link; None: to itself."""

    def link(path: Path) -> None:
        path.unlink()
        path.symlink_to(to or path.name)

    return link


def _huge(path: Path) -> None:
    """A hole of 64 GB: it costs no disk, but more memory than a case has if it is read whole."""
    with path.open("r+b") as file:
        file.truncate(64 * 2**30)


_GENERAL: dict[str, Callable[[Path], None]] = {
    "missing": Path.unlink,
    "empty": _replaced(b""),
    "truncated": _truncated,
    "flipped": _flipped,
    "a folder": _folder,
    "a FIFO": _fifo,
    "a symlink loop": _link(None),
    "a dangling symlink": _link("nowhere"),
    "a device": _link("/dev/zero"),
    "unreadable": functools.partial(Path.chmod, mode=0),
    "binary": _replaced(bytes(range(256)) * 40),
    "a NUL": _replaced(b"\0"),
    "UTF-16": _replaced("日本語".encode("utf-16")),
    "deep": _replaced(b"[" * _DEPTH + b"]" * _DEPTH),
    "deep objects": _replaced(b'{"a":' * _DEPTH + b"1" + b"}" * _DEPTH),
    "null": _replaced(b"null\n"),
    "a list": _replaced(b"[]\n"),
    "a number": _replaced(b"5\n"),
    "another object": _replaced(b'{"made_by": "somebody else", "version": 1}\n'),
    "huge": _huge,
}


def _of_json(file: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """A wrong type at each key, each key missing."""
    lines = file.read_text("utf-8").splitlines() if file.suffix == ".jsonl" else []
    text = lines[0] if lines else file.read_text("utf-8")
    rest = "\n".join(lines[1:])
    try:
        whole = json.loads(text)
    except ValueError:
        return
    for path, here in _paths(whole):
        if file.name.startswith("corpus.") and path != ("text",):
            continue  # a corpus may have other keys, with anything in them
        at = ".".join(map(str, path))
        yield f"without {at}", _replaced(_encoded(changed(whole, path, GONE), rest))
        for wrong in _WRONG:
            if type(wrong) is not type(here):
                value = changed(whole, path, wrong)
                yield f"{at} is {wrong!a}", _replaced(_encoded(value, rest))


def _encoded(value: Any, rest: str) -> bytes:
    text = json.dumps(value) + ("\n" + rest if rest else "") + "\n"
    return text.encode("utf-8", "surrogateescape")


def _paths(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every key of an object and what is there; of lists only the first item."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = list(enumerate(value))[:1]
    for key, item in items:
        yield (*prefix, key), item
        yield from _paths(item, (*prefix, key))


_YAML_TEXTS = {
    "a month 13": "model: {num_layers: 2026-13-45}\n",
    "0x": "model: {num_layers: 0x}\n",
    "5,000 digits": f"model: {{num_layers: {'9' * 5000}}}\n",
    "a key twice": "model:\n  num_layers: 2\n  num_layers: 3\n",
    "an alias bomb": "a: &a [x, x, x, x, x, x, x, x, x]\n"
    + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(12)
    ),
    "an alias to itself": "model: &m\n  num_layers: *m\n",
    "a tag": "model: !!python/object/apply:os.system ['true']\n",
    "two documents": "model: {num_layers: 2}\n---\nmodel: {num_layers: 3}\n",
    "a number as a key": "5: {num_layers: 2}\n",
    "a list as a key": "? [a]\n: 5\n",
    "NaN": "model: {initializer_range: .nan}\n",
    "infinity": "training: {learning_rate: .inf}\n",
    "a tab": "model:\n\tnum_layers: 2\n",
    "null sections": "model:\ntraining: ~\n",
    "text": "hello\n",
}
