"""Output for users: log lines, progress with rate and ETA, tables, units.

Log lines are records of Python's `logging`. A program that imports this package configures their
output itself. The command line prints them on standard error (`print_log`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bigbird_ja.process import streams
from bigbird_ja.process.redact import redact

# Seconds between two updates of a progress line on a terminal, and between two log lines of
# progress without a terminal.
_TERMINAL_INTERVAL = 0.2
_LOG_INTERVAL = 10.0
# Errors of a pipe without a reader, and of a closed terminal.
_CLOSED = (errno.EPIPE, errno.EIO, errno.ENXIO, errno.EBADF)

LOGGER = logging.getLogger("bigbird_ja")
LOGGER.addHandler(logging.NullHandler())


def log(message: str) -> None:
    """Log a message."""
    LOGGER.info("%s", message)


def warn(warnings: Iterable[str]) -> None:
    """Log warnings."""
    for warning in warnings:
        LOGGER.warning("%s", warning)


class ConsoleHandler(logging.Handler):
    """Handler that prints records on standard error, above a progress line.

    It masks credentials and escapes control characters.

    Attributes:
        translate: Function that replaces names of parameters in a message by names of flags.
    """

    def __init__(self) -> None:
        super().__init__()
        self.translate: Callable[[str], str] = str

    def format(self, record: logging.LogRecord) -> str:
        """Return the text of a record."""
        text = redact(self.translate(super().format(record)))
        prefix = "warning: " if record.levelno == logging.WARNING else ""
        return prefix + "\n".join(map(escape_text, text.split("\n")))

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record.

        Raises:
            OSError: Standard error cannot be written, and `outlive_reader` is not active.
        """
        try:
            with streams.name_stream(2), _print_above_progress():
                print(self.format(record), file=sys.stderr, flush=True)
        except OSError as error:
            if _on_closed is None:
                raise
            if error.errno in _CLOSED:
                streams.silence(2)
                _on_closed()
        except Exception:
            self.handleError(record)


# Callback of `outlive_reader`, or None outside of its block.
_on_closed: Callable[[], None] | None = None


@contextlib.contextmanager
def outlive_reader(on_closed: Callable[[], None]) -> Iterator[None]:
    """Context manager: continue if writing to standard error fails.

    On a full disk, lines are dropped. If the program that reads standard error has ended,
    `on_closed` is called.
    """
    global _on_closed
    _on_closed = on_closed
    try:
        yield
    finally:
        _on_closed = None


@contextlib.contextmanager
def print_log() -> Iterator[ConsoleHandler]:
    """Context manager: print this package's log and the warnings of libraries on standard error.

    Yields:
        The handler.
    """
    handler, root, level = ConsoleHandler(), logging.getLogger(), LOGGER.level
    root.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    try:
        yield handler
    finally:
        LOGGER.setLevel(level)
        root.removeHandler(handler)


# Reentrant, since a bar may log a line while it owns the lock.
_BAR_LOCK = threading.RLock()


def _import_tqdm() -> Any:
    """Import tqdm, and prevent it from starting threads and processes.

    The import is slow, so it is delayed until a progress line is shown.
    """
    from tqdm.auto import tqdm

    tqdm.monitor_interval = 0
    tqdm.set_lock(_BAR_LOCK)
    return tqdm


def _print_above_progress() -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which output is printed above a progress line."""
    loaded = sys.modules.get("tqdm.std")
    is_shown = loaded and loaded.tqdm._instances
    return _import_tqdm().external_write_mode(sys.stderr) if is_shown else contextlib.nullcontext()


def _is_live() -> bool:
    """Return whether lines can be overwritten, on a terminal or in a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


class LiveLine:
    """Line at the bottom of a terminal, in which each text replaces the previous one.

    A text is cut to the terminal's width. If standard error is neither a terminal nor the output of
    a notebook, each text is a log line.
    """

    def __init__(self) -> None:
        self.is_live = _is_live()
        self._bar: Any = None

    def show(self, text: str) -> None:
        """Replace the line's text."""
        if not self.is_live:
            log(text)
            return
        if self._bar is None:
            # tqdm cuts the description only if the format contains a bar.
            how = {"bar_format": "{desc}{bar}", "dynamic_ncols": True}
            self._bar = _import_tqdm()(file=sys.stderr, **how)
        self._bar.set_description_str(text)

    def close(self) -> None:
        """End the line, so that later output is printed below it."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


class Progress:
    """Progress bar of tqdm with rate and ETA, or a log line every ten seconds without a terminal.

    Args:
        total: number of units; 0 if it is unknown.
        unit: unit in the plural, such as "documents", or "B" for bytes.
    """

    def __init__(self, total: int, unit: str) -> None:
        is_live = _is_live()
        interval = _TERMINAL_INTERVAL if is_live else _LOG_INTERVAL
        self._total = total
        self._bar = _import_tqdm()(
            total=total or None,
            unit=unit if unit == "B" else f" {unit}",
            unit_scale=unit == "B",
            file=sys.stderr if is_live else _LogLines(),
            ncols=None if is_live else 0,
            dynamic_ncols=is_live,
            mininterval=interval,
            delay=interval,
            miniters=1,
            smoothing=0,
        )

    def update(self, n: int = 1) -> None:
        """Count `n` more units."""
        self._bar.update(n)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # Show 100 % at the end, even if the total was an estimate.
        if error is None:
            self._bar.n = max(self._bar.n, self._total)
        self._bar.close()


class _LogLines:
    """Stream for tqdm that logs each state of a bar as a line."""

    def write(self, text: str) -> None:
        if text.strip():
            log(text.strip())

    def flush(self) -> None:
        pass


@contextlib.contextmanager
def show_waiting(
    task: str, log: Callable[[str], None] = log, seconds: float = 10.0
) -> Iterator[None]:
    """Context manager: log a task at its start, and its duration so far every `seconds` seconds."""
    start, done = time.monotonic(), threading.Event()

    def remind() -> None:
        while not done.wait(seconds):
            log(f"{task}: {format_time(time.monotonic() - start)} so far")

    log(f"{task} ...")
    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def escape_text(text: str) -> str:
    """Escape control characters, invisible characters and lone surrogates.

    So text from a file or a service cannot control the terminal.
    """
    if text.isprintable():
        return text
    import unicodedata

    hidden = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return "".join(ascii(c)[1:-1] if unicodedata.category(c) in hidden else c for c in text)


def shorten(text: str, most: int) -> str:
    """Join the lines of a text, and cut it between words to at most `most` characters."""
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    head = text[: most - 4]
    return f"{head[: head.rfind(' ', most // 2)] if ' ' in head[most // 2 :] else head} ..."


def table(rows: Iterable[Sequence[Any]], header: Sequence[str]) -> str:
    """Format a table, in which numbers are aligned to the right and text to the left.

    A full-width character counts as two columns.
    """
    texts = [list(header), *[[_format_cell(value) for value in row] for row in rows]]
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
    """Count the columns of `text` on a terminal, two for wide and full-width characters."""
    import unicodedata

    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - display_width(text))
    return space + text if right else text + space


def _format_cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.4g}" if isinstance(value, float) else escape_text(str(value))


def _is_number(text: str) -> bool:
    return text.strip("-+%$x ").replace(",", "").replace(".", "").replace("e", "").isdigit() or (
        text == "-"
    )


def format_bytes(n: float) -> str:
    """Format bytes as `1.20 MB`, with powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.2f} {unit}"
        n /= 1000
    return f"{n:.2f} TB"


def format_count(n: float) -> str:
    """Format a count as `12,345`, `3.40 M` or `2.10 G`."""
    if abs(n) >= 1e9:
        return f"{n / 1e9:.2f} G"
    if abs(n) >= 1e6:
        return f"{n / 1e6:.2f} M"
    return f"{n:,.0f}" if abs(n) >= 100 or n == int(n) else f"{n:.2f}"


def format_time(seconds: float) -> str:
    """Format a duration as `45 s`, `3 min 20 s`, `5 h 12 min`, `3 d 4 h` or `1,200 d`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    days = int(seconds // 86400)
    return f"{days} d {int(seconds % 86400 // 3600)} h" if days < 100 else f"{days:,} d"
