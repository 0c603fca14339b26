"""Decoding of JSON and YAML files to objects of declared types.

A reader declares the content of its file as a dataclass or `msgspec.Struct`, with ranges as
`Annotated[int, Meta(ge=0)]`. `BadInput` is raised for other types, missing keys, numbers out of
range, NaN and infinity, and for files that are truncated, too large or nested too deeply. The
error's message is one line with the file, the key and the expected value. Unknown keys are ignored,
so that files of a newer version can be read.
"""

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
import yaml
from msgspec import Meta

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.process.console import escape_text, shorten
from bigbird_ja.storage import paths

T = TypeVar("T")

# PyYAML reads about 100 kB per second. The largest preset has 3 kB.
MAX_YAML_BYTES = 256 << 10

# Types for the fields of files.
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Amount = Annotated[float, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]


# Value of `format_version` in files that a later version of this program may read.
FORMAT_VERSION = "0.2.0"
_UNRELEASED = "0.1.0"

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


def check_format(version: str, where: str, advice: str) -> None:
    """Check that this version of the program can read a file's format.

    Args:
        version: `format_version` of the file, or "" if it is missing.
        where: name of the file, for the message.
        advice: advice to the user, for the message.

    Raises:
        BadInput: The version is missing, or is not `FORMAT_VERSION`.
    """
    if version == _UNRELEASED:
        raise BadInput(f"{where} was created by an unreleased version: create it again")
    if version != FORMAT_VERSION:
        raise BadInput(
            f"{where} has format {version or None!r}, but this version reads {FORMAT_VERSION}:"
            f" {advice}"
        )


def decode_json(data: bytes, kind: type[T], where: str, advice: str = "") -> T:
    """Decode a JSON file.

    Args:
        data: content of the file.
        kind: type of the content, such as a dataclass or `dict[str, float]`.
        where: name of the file, for the message.
        advice: advice to the user, at the end of the message.

    Raises:
        BadInput: The content is not JSON of type `kind`.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        problem = "lists or objects nested too deeply"
    except _UNREADABLE as error:
        problem = _describe(error)
    raise BadInput(_format_message(where, problem, advice))


@contextlib.contextmanager
def convert_errors(path: str, kind: str, advice: str) -> Iterator[None]:
    """Context manager: raise `BadInput` if a library fails to read a file.

    A panic of a library in Rust is also converted, although it is not an `Exception`.

    Args:
        path: name of the file, for the message.
        kind: expected kind of file, such as "a safetensors file".
        advice: advice to the user, for the message.

    Raises:
        BadInput: The file is missing, or the library raised an exception that is not listed below.
        ImportError, MemoryError: A package is missing, or memory is insufficient.
        OSError: The operating system failed to read the file.
    """
    try:
        yield
    except (CommandError, ImportError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except FileNotFoundError as error:
        raise BadInput(f"{path} is missing: {advice}") from error
    except BaseException as error:
        # Only errors of the operating system, such as a failing disk, have an `errno`.
        if getattr(error, "errno", None) is not None:
            raise
        why = escape_text(shorten(str(error) or type(error).__name__, 200))
        raise BadInput(f"{path} is not {kind} ({why}): {advice}") from error


class _FormatVersion(msgspec.Struct):
    format_version: str = ""


def decode_versioned(data: bytes, kind: type[T], where: str, advice: str) -> T:
    """Decode a JSON file with a `format_version`, which is checked first.

    Raises:
        BadInput: The `format_version` is not supported, or the content is not JSON of type `kind`.
    """
    check_format(decode_json(data, _FormatVersion, where, advice).format_version, where, advice)
    return decode_json(data, kind, where, advice)


def decode_lines(
    data: bytes, kind: type[T], where: str, advice: str = ""
) -> Iterator[tuple[bytes, T]]:
    """Decode a file of JSON lines, and yield each line with its object.

    Remains of a killed writer or a power failure are skipped: a truncated object (on the last line,
    or before the next writer's first line), blank lines, and zero bytes.

    Raises:
        BadInput: Any other line is not JSON of type `kind`. The message contains the line's number.
    """
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        line = line.strip(b"\0 \t\r")
        if not line:
            continue
        try:
            value = decode_json(line, kind, f"{where}: line {number}", advice)
        except BadInput:
            if not _is_cut(line, is_last=number == len(lines)):
                raise
            continue
        yield line, value


def convert(value: Any, kind: type[T], where: str, advice: str = "") -> T:
    """Convert decoded JSON or YAML to a declared type.

    Raises:
        BadInput: The value is not of type `kind`.
    """
    try:
        return msgspec.convert(value, kind)
    except _UNREADABLE as error:
        raise BadInput(_format_message(where, _describe(error), advice)) from error


def read_json(path: str, kind: type[T], advice: str = "") -> T:
    """Read and decode a JSON file on disk or gs://.

    Raises:
        FileNotFoundError: The file does not exist.
        BadInput: The content is not JSON of type `kind`.
    """
    return decode_json(storage.read_bytes(path), kind, path, advice)


def _describe(error: Exception) -> str:
    """Return msgspec's error message, with the key at the beginning of the message."""
    text, _, key = str(error).partition(" - at `$")
    key = key.removeprefix(".").removesuffix("`")
    text = text if isinstance(error, msgspec.ValidationError) else f"not JSON: {text}"
    return f"{key}: {text}" if key else text


def _format_message(where: str, problem: str, advice: str) -> str:
    problem = problem[:300]
    return f"{where} is not valid ({problem}): {advice}" if advice else f"{where}: {problem}"


def _is_cut(line: bytes, is_last: bool) -> bool:
    """Return whether a line is a truncated JSON object.

    If it is the last line, any invalid JSON that begins with "{" counts as truncated.
    """
    try:
        msgspec.json.decode(line)
    except Exception as error:
        is_truncated = is_last or str(error) == "Input data was truncated"
        return is_truncated and line.startswith(b"{")
    return False


def read_yaml(text: str, where: str) -> Any:
    """Decode YAML 1.1 to mappings, lists, text, numbers, booleans, dates and None.

    In YAML 1.1, `1e-4` is text. `Option.read` converts it to a number.

    Raises:
        BadInput: The text is not YAML or is too large, or a key occurs twice. The message contains
            the number of the line, if PyYAML states it.
    """
    paths.check_size(where, len(text), MAX_YAML_BYTES)
    try:
        return _Loader(text).get_single_data()
    except RecursionError as error:
        raise BadInput(f"{where} contains lists or mappings nested too deeply") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        parts = (getattr(error, name, None) for name in ("context", "problem"))
        text = ", ".join(filter(None, parts)) or " ".join(str(error).split())
        text = text.replace(' in "<unicode string>"', "")
        raise BadInput(f"{where}{line} is not YAML: {text[:300]}") from error
    # PyYAML raises a ValueError for a date such as 2001-13-01.
    except Exception as error:
        raise BadInput(f"{where} is not YAML: a value is invalid ({error})") from error


class _Loader(yaml.SafeLoader):
    """Safe loader of PyYAML that does not accept duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen = set()
        for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key.value in seen and isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} occurs twice (keep one)", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep=deep)
