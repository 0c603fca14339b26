"""Damages every file that a command is given, runs it as a real process, and judges its end.

Damaged are all files in the folders that a command is given, so a new file needs no line here.
"""

import contextlib
import functools
import hashlib
import json
import os
import shutil
import stat
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bigbird_ja.process.errors import STATUS_OF_REASON
from testkit.runs import SETTINGS

# A good invocation of each command that reads or writes files. {in} holds a small finished run,
# {out} is an empty folder.
GOOD = {
    "demo": "--work_dir={out}/demo",
    "sample": "--output={out}/sample.jsonl --documents=3",
    "tokenize": "--input={in}/corpus.jsonl --output_prefix={out}/ja --vocab_size=1200",
    "make-data": "--input={in}/corpus.jsonl --tokenizer={in}/ja.model --output_dir={out}/data"
    " --seq_length=256 --num_shards=4 --eval_fraction=0.1",
    "check-data": "--data_dir={in}/data",
    "config": "{in}/config.yaml",
    "plan": "--config={in}/config.yaml --data_dir={in}/data --preflight={in}/preflight.json",
    "preflight": "--config={in}/config.yaml --output={out}/figures.json --dump_hlo={out}/hlo",
    "pretrain": "--config={in}/config.yaml --data_dir={in}/data --model_dir={out}/model"
    " --num_train_steps=2",
    "evaluate": "--model_dir={in}/model --data_dir={in}/data",
    "fill-mask": "--model_dir={in}/model --text=日本の[MASK]",
    "report": "--model_dir={in}/model --output={out}/report.html",
    "export": "--model_dir={in}/model --output_dir={out}/hf",
    "launch": "--config={in}/config.yaml --dry_run",
}
LONG = frozenset({"preflight", "demo"})  # a good invocation of these is not run to its end
# Not needed; refused; a model of default size, more than a small machine has; failing storage.
STATUSES = frozenset({0, 2, 71, 74})
# What `plan` reads of a file of `preflight --output`; the numbers are of no model.
_CHIP = {
    "chip": "v3",
    "fits": True,
    "seq_length": 256,
    "batch_per_core": 1,
    "priced_cycles": 1e7,
    "tokens_per_second_per_core": 1e5,
}


# A case that takes longer hangs; far longer than any takes, even on a machine that is busy.
PATIENCE_SECONDS = 120.0
# Address space on top of what TensorFlow takes at the start: stops who reads a device to its end.
_MEMORY = 6 * 2**30
_HASHED = 1 << 20  # bytes; of larger files size and time are compared
# Keys of results that may differ between two good runs.
_VOLATILE = frozenset({"seconds", "time", "tokens_per_second", "train_seconds", "date"})


@dataclass(frozen=True)
class Case:
    """A command whose input was damaged.

    Args:
        command: the command; its good invocation is run.
        name: what is damaged and how, in a few words; unique.
        damage: called with the folder of inputs before the command runs.
        other_result: where it is taken, its results may be others than those of the good one.
    """

    command: str
    name: str
    damage: Callable[[Path], None]
    other_result: bool = False


def cases(inputs):
    """Damages each file that lies in `inputs` now and that a command is given."""
    for command in GOOD.keys() - LONG:
        for file in _files_of(command, inputs):
            name = file.relative_to(inputs)
            for how, damage in _DAMAGES.items():
                # Without its sidecar it is no checkpoint: the one before it is taken. Text with
                # another character is text.
                is_other = how == "missing" and file.match("model.ckpt-*.json")
                is_other = is_other or (how == "flipped" and file.name == "corpus.jsonl")
                act = functools.partial(_damage, damage, name)
                yield Case(command, f"{name} {how}", act, is_other)


def _damage(damage, name, inputs):
    damage(inputs / name)


def _files_of(command, inputs):
    """Lists files that the good invocation names, and those in folders that it names."""
    for word in GOOD[command].split(" "):
        place = word.split("=", 1)[-1]
        if place.startswith("{in}/"):
            path = inputs / place.removeprefix("{in}/")
            yield from sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]


def sample_of(cases, share, seed):
    """Draws one in `share` of the cases, rounded up, by their names hashed with the seed."""

    def place(case):
        return hashlib.blake2b(f"{seed} {case.command} {case.name}".encode()).digest()

    drawn = sorted(cases, key=place)
    return drawn[: -(-len(drawn) // share)]


def make_inputs(place, run):
    """Copies a small run to `place`, with a config and preflight figures beside it."""
    place.mkdir(parents=True)
    shutil.copytree(run.data_dir, place / "data")
    shutil.copytree(run.model_dir, place / "model")
    shutil.copy(run.corpus, place / "corpus.jsonl")
    for suffix in (".model", ".vocab", ".json"):
        shutil.copy(Path(run.tokenizer).with_suffix(suffix), place / f"ja{suffix}")
    sections = {}
    for item in SETTINGS:
        key, _, value = item.removeprefix("--set=").partition("=")
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    lines = (f"{name}: {{{_flow(values)}}}\n" for name, values in sections.items())
    (place / "config.yaml").write_text("".join(lines), "utf-8")
    (place / "preflight.json").write_text(json.dumps({"chips": [_CHIP]}), "utf-8")
    return place


def _flow(values):
    return ", ".join(f"{name}: {value}" for name, value in values.items())


def _replaced(data):
    def replace(path):
        path.unlink()
        path.write_bytes(data)

    return replace


def _truncated(path):
    os.truncate(path, path.stat().st_size * 2 // 3)


def _flipped(path):
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def _folder(path):
    path.unlink()
    path.mkdir()


def _fifo(path):
    path.unlink()
    os.mkfifo(path)


def _link(to):
    """Puts a symbolic link in its place; None: to itself."""

    def link(path):
        path.unlink()
        path.symlink_to(to or path.name)

    return link


_DAMAGES = {
    "missing": Path.unlink,
    "empty": _replaced(b""),
    "truncated": _truncated,
    "flipped": _flipped,
    "a folder": _folder,
    "a FIFO": _fifo,
    "a symlink loop": _link(None),
    "a device": _link("/dev/zero"),
    "unreadable": functools.partial(Path.chmod, mode=0),
    "binary": _replaced(bytes(range(256)) * 40),
    "UTF-16": _replaced("日本語".encode("utf-16")),
    "deep": _replaced(b'{"a":' * 10_000 + b"1" + b"}" * 10_000),
    "another object": _replaced(b'{"made_by": "somebody else", "version": 1}\n'),
    # A hole costs no disk, but more memory than a case has if it is read whole.
    "huge": lambda path: os.truncate(path, 64 * 2**30),
}


class Judge:
    """Runs cases, each in a fresh folder with `in` and `out` in it.

    Args:
        zygote: starts the processes.
        inputs: the good ones.
        scratch: a folder to make, for the cases.
    """

    def __init__(self, zygote, inputs, scratch):
        self._zygote, self._inputs, self._scratch = zygote, inputs, scratch
        self._count = 0
        self._good = {}
        self._environ = {"HOME": str(scratch / "home")}
        (scratch / "home").mkdir(parents=True)

    def try_case(self, case):
        """Runs one case and returns what was wrong, or None.

        One that is taken has to give the good invocation's results: what was damaged was not
        needed.
        """
        with self._place() as place:
            case.damage(place / "in")
            before = _listing(place)
            ended = self._run(case.command, place)
            problem = _problem(ended, place, before)
            if problem is None and ended.status == 0 and not case.other_result:
                good, result = self._good_result(case.command), _steady(ended.result)
                if keys := [key for key in {**good, **result} if good.get(key) != result.get(key)]:
                    problem = f"taken as if it were good, with another {', '.join(keys[:3])}"
        return problem

    def _good_result(self, command):
        """Returns the results of the good invocation, without what differs from run to run."""
        if command not in self._good:
            with self._place() as place:
                ended = self._run(command, place)
            assert ended.status == 0, f"the good {command} fails: {ended.err[-2000:]}"
            self._good[command] = _steady(ended.result)
        return self._good[command]

    @contextlib.contextmanager
    def _place(self):
        self._count += 1
        place = self._scratch / str(self._count)
        place.mkdir()
        shutil.copytree(self._inputs, place / "in", symlinks=True)
        (place / "out").mkdir()
        try:
            yield place
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def _run(self, command, place):
        words = GOOD[command].replace("{in}", "in").replace("{out}", "out").split(" ")
        how = {"cwd": str(place), "environ": self._environ, "limits": {"AS": _MEMORY}}
        return self._zygote.start(command, *words, "--json", **how).wait(PATIENCE_SECONDS)


def _problem(ended, place, before):
    last = (ended.err.rstrip().splitlines() or [""])[-1]
    if ended.status is None:
        return f"hangs: {last}"
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return f"traceback: {last[:300]}"
    if ended.status not in STATUSES:
        return f"status {ended.status}: {last[:300]}"
    return _badly_reported(ended, last) or _touched(before, _listing(place), ended.status)


def _badly_reported(ended, last):
    """Returns what is wrong with the lines that a command which failed has printed, or None."""
    if ended.status == 0:
        return None
    lines = [line for line in ended.err.splitlines() if line.startswith("bigbird-ja: ")]
    if not last.startswith("bigbird-ja: ") or len(lines) != 1 or len(last) > 1500:
        return f"not one clear line: {ended.err[-400:]!r}"
    try:
        (line,) = ended.out.splitlines()
        reason = json.loads(line)["reason"]
    except (ValueError, KeyError, TypeError):
        return f"no JSON object: {ended.out[-300:]!r}"
    if STATUS_OF_REASON.get(reason) != ended.status:
        return f"status {ended.status} with reason {reason}"
    return None


def _listing(place):
    """Lists every path below: what it is, size, time, and of small files a checksum."""
    listing = {}
    for folder, names, files in os.walk(place):
        for path in (Path(folder, name) for name in [*names, *files]):
            about = path.lstat()
            content = ()
            if stat.S_ISREG(about.st_mode):
                content = (about.st_size, about.st_mtime_ns)
                if about.st_size < _HASHED and os.access(path, os.R_OK):
                    content += (zlib.crc32(path.read_bytes()),)
            listing[str(path.relative_to(place))] = (stat.S_IFMT(about.st_mode), *content)
    return listing


def _touched(before, after, status):
    """Returns what was changed that must not be, or None.

    A command that was refused may change nothing; any other may only add, but for what `evaluate`
    appends in a MODEL_DIR.
    """
    own = ("in/model/eval", "in/model/events.jsonl")
    for name in before:
        if before[name] != after.get(name) and not (status == 0 and name.startswith(own)):
            return f"touched what was there: {name}"
    new = sorted(set(after) - set(before)) if status in (2, 71) else ()
    return f"left behind: {', '.join(new[:4])}" if new else None


def _steady(value):
    """Removes what differs between two good runs, such as `plan`'s row of this machine."""
    if isinstance(value, dict):
        return {key: _steady(item) for key, item in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        kept = [item for item in value if "this machine" not in str(item)]
        return [_steady(item) for item in kept]
    return value
