"""Trains a SentencePiece model: streamed text in, model bytes and statistics out.

SentencePiece trains in a child process, which is this module run as a program. Its C++ code does
not see signals, so in this process Ctrl-C would wait for hours; a child can be stopped at once, and
its log shows the progress.
"""

import contextlib
import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bigbird_ja.process import children
from bigbird_ja.process.console import Progress
from bigbird_ja.process.errors import BadInput, classify
from bigbird_ja.settings import TokenizeConfig
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.text import model_proto, sentences
from bigbird_ja.text.corpus import Corpus
from bigbird_ja.text.tokenizer import (
    CONTROL_PIECES,
    SPECIAL_PIECES,
    USER_PIECES,
    SentencePieceTokenizer,
)

# Lines that the statistics are taken over, drawn from those that are trained on.
_STATISTICS_LINES = 5000
_SAMPLING_SEED = 12345
# SentencePiece leaves out lines that hold these; as a space the rest of the line counts.
_REFUSED = str.maketrans({"\0": " ", "\u2585": " "})

_CHILD = "bigbird_ja.text.tokenizer_training"
_REFUSED_STATUS = 3  # of a child that has written SentencePiece's refusal to its path + ".error"

# SentencePiece's log: a step of unigram's expectation maximisation, and the size that BPE has.
_EM = re.compile(r"EM sub_iter=")
_MERGES = re.compile(r"Added: .* size=(\d+)")


@dataclass(frozen=True)
class Trained:
    """A model, and the lines for its statistics."""

    tokenizer: SentencePieceTokenizer
    lines: int  # trained on
    statistics_lines: list[str]


def trainer_arguments(settings: TokenizeConfig) -> dict[str, object]:
    """Return the arguments of SentencePiece's trainer; ids follow the order of SPECIAL_PIECES."""
    pad, bos, eos, unk, *control = CONTROL_PIECES
    return {
        "vocab_size": settings.vocab_size,
        "model_type": settings.model_type,
        "character_coverage": settings.character_coverage,
        "max_sentence_length": settings.max_sentence_length,
        "control_symbols": control,
        "user_defined_symbols": list(USER_PIECES),
        **{f"{name}_id": i for i, name in enumerate(("pad", "bos", "eos", "unk"))},
        **{"pad_piece": pad, "bos_piece": bos, "eos_piece": eos, "unk_piece": unk},
    }


def train(corpus: Corpus, settings: TokenizeConfig) -> Trained:
    """Trains on `corpus`, read twice: to count its lines, and to feed a sample of them.

    Raises:
        BadInput: a vocabulary that the text is too small or too varied for.
    """
    total = 0
    with Progress(0, "lines counted") as progress:
        for _ in lines(corpus, settings):
            total += 1
            progress.update()
    wanted = min(total, settings.max_sentences or total)
    kept: list[str] = []

    def fed() -> Iterator[str]:
        draw = random.Random(_SAMPLING_SEED + 1).random
        with Progress(wanted, "lines read") as progress:
            for line in sampled(lines(corpus, settings), total, wanted):
                if draw() * wanted < _STATISTICS_LINES:
                    kept.append(line)
                progress.update()
                yield line

    model = model_proto.round_scores(_train_in_child(fed(), settings))
    tokenizer = SentencePieceTokenizer(model, "the trained model")
    if tokenizer.vocab_size != settings.vocab_size:
        raise _too_large(settings, tokenizer.vocab_size)
    return Trained(tokenizer, wanted, kept)


def lines(corpus: Corpus, settings: TokenizeConfig) -> Iterator[str]:
    """Yield what SentencePiece calls sentences: the lines of all documents, long ones in parts.

    Lines that are a marker alone teach nothing: the markers are pieces already.
    """
    for text in corpus.texts():
        for line in text.split("\n"):
            if line and not line.isspace() and line not in USER_PIECES:
                yield from cut(line, settings.max_sentence_length)


def cut(line: str, max_bytes: int) -> Iterator[str]:
    """Cut a line into parts of at most `max_bytes` of UTF-8, where possible at ends of sentences.

    Joined they are the line. SentencePiece would leave a longer one out altogether.
    """
    if len(line) * 4 <= max_bytes or len(line.encode()) <= max_bytes:
        yield line
        return
    pending: list[str] = []
    size = 0
    for sentence in sentences.split(line):
        for part in _cut_characters(sentence, max_bytes):
            length = len(part.encode())
            if pending and size + length > max_bytes:
                yield "".join(pending)
                pending, size = [], 0
            pending.append(part)
            size += length
    yield "".join(pending)


def _cut_characters(text: str, max_bytes: int) -> Iterator[str]:
    if len(text.encode()) <= max_bytes:
        yield text
        return
    characters = max(1, max_bytes // 4)
    for start in range(0, len(text), characters):
        yield text[start : start + characters]


def sampled(items: Iterable[str], total: int, wanted: int) -> Iterator[str]:
    """Draw `wanted` of `total` items in their order, at random but the same ones every time.

    Selection sampling (Knuth, The Art of Computer Programming 2, algorithm 3.4.2 S): one pass, and
    nothing kept. Not every n-th item, since the lines of an article alternate in kind.
    """
    draw = random.Random(_SAMPLING_SEED).random
    left = wanted
    for seen, item in enumerate(items):
        if draw() * (total - seen) < left:
            left -= 1
            yield item


def statistics(trained: Trained) -> dict[str, object]:
    """Compute statistics of the model on a sample of the lines it was trained on."""
    tokenizer = trained.tokenizer
    ids = tokenizer.encode_arrays(trained.statistics_lines, num_threads=os.cpu_count() or 1)
    tokens = sum(map(len, ids))
    unknown = sum(int((x == tokenizer.special.unk).sum()) for x in ids)
    characters = sum(map(len, trained.statistics_lines))
    longest = max((p for p in tokenizer.pieces if p not in SPECIAL_PIECES), key=len)
    return {
        "characters_per_token": round(characters / max(1, tokens), 4),
        "unknown_rate": round(unknown / max(1, tokens), 6),
        "longest_piece": longest,
    }


def _train_in_child(text: Iterable[str], settings: TokenizeConfig) -> bytes:
    with scratch_directory() as scratch:
        path = os.path.join(scratch, "model")
        header = {"path": path, "arguments": trainer_arguments(settings)}
        child = subprocess.Popen(
            [sys.executable, "-m", _CHILD],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        last: deque[str] = deque(maxlen=20)
        log_errors: list[OSError] = []
        follower = threading.Thread(
            target=_follow, args=(child, settings, last, log_errors), daemon=True
        )
        follower.start()
        assert child.stdin is not None
        with children.kill_on_exit(child):
            with contextlib.suppress(BrokenPipeError), child.stdin as stdin:  # its status says why
                stdin.write(json.dumps(header).encode() + b"\n")
                for line in text:
                    stdin.write(line.translate(_REFUSED).encode() + b"\n")
            status = child.wait()
        follower.join()
        if log_errors:
            raise log_errors[0]
        if status:
            _fail(status, path, settings, last)
        with open(path, "rb") as file:
            return file.read()


def _follow(
    child: subprocess.Popen[bytes],
    settings: TokenizeConfig,
    last: deque[str],
    log_errors: list[OSError],
) -> None:
    """Turn SentencePiece's log into a progress line, in a thread.

    If that cannot be written, the child is ended and the error noted.
    """
    assert child.stderr is not None
    progress: Progress | None = None
    done = 0
    try:
        for raw in child.stderr:
            line = raw.decode(errors="replace").rstrip()
            last.append(line)
            if _EM.search(line):
                progress = progress or Progress(0, "EM steps")
                progress.update()
            elif match := _MERGES.search(line):
                progress = progress or Progress(settings.vocab_size, "pieces")
                progress.update(int(match[1]) - done)
                done = int(match[1])
        if progress:
            progress.close()
    except OSError as error:
        log_errors.append(error)
        child.kill()


def _train_as_child() -> int:
    """Trains on standard input, a line of JSON with `path` and `arguments`, then the text.

    Writes the model to `path`, or SentencePiece's refusal to `path` + ".error".
    """
    import sentencepiece

    children.be_a_child()
    header = json.loads(sys.stdin.buffer.readline())
    text = (line[:-1].decode() for line in sys.stdin.buffer)
    try:
        with open(header["path"], "wb") as model:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=text, model_writer=model, **header["arguments"]
            )
    except RuntimeError as error:
        with open(f"{header['path']}.error", "w", encoding="utf-8") as file:
            file.write(str(error))
        return _REFUSED_STATUS
    return 0


def _fail(status: int, path: str, settings: TokenizeConfig, last: Iterable[str]) -> None:
    """Raises the error of the child's status, its refusal or the last lines of its log."""
    if status != _REFUSED_STATUS:
        to_do = (
            "train on less text with a smaller --max_sentences"
            f" (now {settings.max_sentences or 'all'})"
        )
        raise children.error_from_exit(status, last, "SentencePiece", to_do)
    with open(f"{path}.error", encoding="utf-8") as file:
        message = file.read()
    raise classify(RuntimeError(message)) or _refusal(message, settings)


def _refusal(message: str, settings: TokenizeConfig) -> BadInput:
    """Turn SentencePiece's refusal into advice that a person can act on."""
    if match := re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message):
        return _too_large(settings, match[1])
    if match := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return BadInput(
            f"--vocab_size {settings.vocab_size} is too small: the corpus's characters and the"
            f" special pieces alone need {match[1]}: use more, or a lower --character_coverage"
        )
    return BadInput(
        f"SentencePiece cannot train on this corpus with --vocab_size {settings.vocab_size}:"
        f" {' '.join(message.split())}"
    )


def _too_large(settings: TokenizeConfig, most: object) -> BadInput:
    return BadInput(
        f"--vocab_size {settings.vocab_size} is too large for this corpus: use"
        f" --vocab_size {most} or less, or give more text"
    )


if __name__ == "__main__":
    sys.exit(_train_as_child())
