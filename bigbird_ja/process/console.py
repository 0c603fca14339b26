"""What people read while they wait: progress with rate and ETA, tables, units."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

from bigbird_ja.process.redaction import redact

# Seconds between two lines: often on a terminal, where they overwrite each other; rarely in a log.
_TERMINAL_INTERVAL = 0.2
_LOG_INTERVAL = 10.0


class LiveLine:
    """The line at the bottom of a terminal that is written over and over, cut to its width.

    `log` puts its messages above the line that was shown last. Elsewhere (a file, a pipe) each text
    becomes a line of its own.

    Args:
        stream: standard error by default.
    """

    _shown: LiveLine | None = None  # the one that is on the terminal now
    _lock = threading.RLock()

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self.is_terminal = self._stream.isatty()
        self._text = ""

    def columns(self) -> int | None:
        """What fits in one line; None where it is no terminal."""
        if not self.is_terminal:
            return None
        columns = os.get_terminal_size(self._stream.fileno()).columns
        columns = columns or shutil.get_terminal_size().columns  # 0: it does not know its size
        return max(columns - 1, 1)

    def show(self, text: str) -> None:
        """Writes the text in place of the one before."""
        if not self.is_terminal:
            print(text, file=self._stream, flush=True)
            return
        with LiveLine._lock:
            LiveLine._shown, self._text = self, text[: self.columns()]
            print(f"\r\x1b[K{self._text}", end="", file=self._stream, flush=True)

    def above(self, message: str) -> None:
        """Prints a message and the line again below it."""
        print(f"\r\x1b[K{message}\n{self._text}", end="", file=self._stream, flush=True)

    @classmethod
    def newline(cls) -> bytes:
        """What a message that is written from elsewhere must begin with, to stand below it."""
        return b"\n" if cls._shown is not None else b""

    def close(self) -> None:
        """Ends the line: what comes next stands below it."""
        with LiveLine._lock:
            if LiveLine._shown is self:
                LiveLine._shown = None
                print(file=self._stream, flush=True)


def fit(parts: Sequence[tuple[int, str]], columns: int | None) -> str:
    """The parts of a line in their order, two blanks apart, as many as fit.

    Args:
        parts: (importance, text); the lowest number is the last to be left out.
        columns: None: all fit.
    """
    kept = list(parts)
    while (text := "  ".join(part for _, part in kept)) and columns is not None:
        if len(text) <= columns or len(kept) == 1:
            break
        kept.remove(max(kept, key=lambda pair: pair[0]))
    return text


class Progress:
    """A progress line on `stream`: done, share, rate and ETA.

    Args:
        total: units to do; 0 where unknown.
        unit: what is counted: "documents", "shards"; "B" prints human sizes.
        stream: standard error by default.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        total: int,
        unit: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total, self._unit, self._clock = total, unit, clock
        self._live = LiveLine(stream)
        self._start = self._last = clock()
        self._done = 0
        self._has_written = False

    def update(self, n: int = 1) -> None:
        """Counts `n` more units and writes a line when one is due."""
        self._done += n
        now = self._clock()
        interval = _TERMINAL_INTERVAL if self._live.is_terminal else _LOG_INTERVAL
        if now - self._last >= interval:
            self._last = now
            self._write(now)

    def close(self) -> None:
        """Writes the last line, if any was written before."""
        if self._has_written:
            self._write(self._clock())
            self._live.close()

    def line(self, now: float, columns: int | None = None) -> str:
        """The line at `now` seconds of the clock.

        Args:
            columns: room for it; what matters least is left out. None: all of it.
        """
        rate = self._done / max(now - self._start, 1e-9)
        of_total = f" of {self._count(self._total)}" if self._total else ""
        unit = f" {self._unit}" if self._unit != "B" else ""
        parts = [(2, f"{self._count(self._done)}{of_total}{unit}")]
        if self._total:
            parts.append((0, f"{min(self._done / self._total, 1):4.0%}"))
        parts.append((3, f"{self._count(rate)}/s"))
        if self._total and rate > 0:
            left = max(self._total - self._done, 0) / rate
            parts.append((1, f"ETA {human_time(left)}"))
        return fit(parts, columns)

    def _count(self, n: float) -> str:
        return human_bytes(n) if self._unit == "B" else human_count(n)

    def _write(self, now: float) -> None:
        self._has_written = True
        self._live.show(self.line(now, self._live.columns()))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:  # totals may be estimates; the work is done all the same
            self._done = max(self._done, self._total)
        self.close()


def log(message: str, stream: TextIO | None = None) -> None:
    """One line for people, on standard error, above a progress line that is shown there; without
    credentials."""
    message = "\n".join(map(printable, redact(message).split("\n")))
    if message.startswith("warning: ") and (stream or sys.stderr).isatty():
        message = f"\x1b[33m{message}\x1b[0m"  # yellow, to be seen among other lines
    with LiveLine._lock:
        if stream is None and LiveLine._shown is not None:
            LiveLine._shown.above(message)
        else:
            print(message, file=stream or sys.stderr, flush=True)


@contextlib.contextmanager
def waiting(what: str, log: Callable[[str], None] = log, seconds: float = 10.0) -> Iterator[None]:
    """Logs what the block does, and again after every so many seconds how long it has taken."""
    start, done = time.monotonic(), threading.Event()

    def remind() -> None:
        while not done.wait(seconds):
            log(f"{what}: {human_time(time.monotonic() - start)} so far")

    log(f"{what} ...")
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def printable(text: str) -> str:
    """Text of a file or a service as one line that no terminal obeys: control characters (ESC, BEL,
    C1, line breaks), invisible ones that reorder text, and lone surrogates become escapes."""
    if text.isprintable():
        return text
    import unicodedata

    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in hidden else c for c in text)


def shortened(text: str, most: int) -> str:
    """Another program's words on one line of at most `most` characters, cut between words."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most - 4]
    return f"{head[: head.rfind(' ', most // 2)] if ' ' in head[most // 2 :] else head} ..."


def table(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> str:
    """Columns aligned: numbers to the right, text to the left; full-width characters count two, and
    what a terminal would obey is escaped."""
    texts = [list(header), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(display_width(row[i]) for row in texts) for i in range(len(header))]
    right = [
        len(texts) > 1 and all(_is_number(row[i]) for row in texts[1:]) for i in range(len(header))
    ]
    lines = [
        "  ".join(_pad(row[i], widths[i], right[i]) for i in range(len(header))).rstrip()
        for row in texts
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def display_width(text: str) -> int:
    """Columns that a terminal gives `text`: wide and full-width characters take two."""
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else printable(str(value))


def _is_number(text: str) -> bool:
    return text.strip("-+%$x ").replace(",", "").replace(".", "").replace("e", "").isdigit() or (
        text == "-"
    )


def human_bytes(n: float) -> str:
    """`1.2 MB`; powers of ten, as storage is sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1000
    return f"{n:.2f} TB"


def human_count(n: float) -> str:
    """`12,345` below a million, `3.40 M` and `2.10 G` above."""
    if abs(n) >= 1e9:
        return f"{n / 1e9:.2f} G"
    if abs(n) >= 1e6:
        return f"{n / 1e6:.2f} M"
    return f"{n:,.0f}" if abs(n) >= 100 or n == int(n) else f"{n:.2f}"


def human_time(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `5 h 12 min`, `3 d 4 h`, `1,200 d`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    days = int(seconds // 86400)
    return f"{days} d {int(seconds % 86400 // 3600)} h" if days < 100 else f"{days:,} d"
