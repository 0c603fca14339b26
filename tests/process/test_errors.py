"""Which end an exception stands for."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest

from bigbird_ja.process.errors import STATUS_OF_REASON, classify, of_reason, one_line, telling_line

PATH = "/data/東京.txt"

OF_A_PATH = [
    errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENOTEMPTY, errno.EACCES,
    errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO,
    errno.ENODEV, errno.ESPIPE, errno.EILSEQ, errno.EBUSY, errno.ETXTBSY, errno.EXDEV,
    errno.ENOTSUP, errno.EMFILE, errno.ENFILE,
]  # fmt: skip
OF_A_DISK = [
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE, errno.ENOTCONN,
    errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNREFUSED, errno.EHOSTUNREACH,
]  # fmt: skip


def system_error(number: int, path: str | None = PATH) -> OSError:
    return OSError(number, os.strerror(number), path)


@pytest.mark.parametrize("number", OF_A_PATH, ids=errno.errorcode.get)
def test_what_is_wrong_with_a_path_is_bad_input(number: int) -> None:
    end = classify(system_error(number))
    assert end is not None and end.status == 2
    assert PATH in str(end) and str(end).count(": ") >= 2  # what, where, what to do


@pytest.mark.parametrize("number", OF_A_DISK, ids=errno.errorcode.get)
@pytest.mark.parametrize("path", [PATH, None])
def test_what_is_wrong_with_a_disk_or_a_connection_is_74(number: int, path: str | None) -> None:
    end = classify(system_error(number, path))
    assert end is not None and end.status == 74
    assert ": :" not in str(end) and os.strerror(number) in str(end)


def test_memory_and_unknown_numbers() -> None:
    assert classify(system_error(errno.ENOMEM)).status == 71  # type: ignore[union-attr]
    assert classify(system_error(errno.EINVAL, None)) is None  # of no path: a bug of ours
    assert classify(system_error(errno.EBADF)) is None


@pytest.mark.parametrize("stream", ["standard input", "standard output", "standard error"])
def test_a_standard_stream_is_74(stream: str) -> None:
    for number in (errno.EPIPE, errno.ENOSPC, errno.EBADF, errno.EIO, errno.EISDIR):
        end = classify(system_error(number, stream))
        assert end is not None and end.status == 74 and str(end).startswith(f"{stream}: ")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 74),
        (ssl.SSLError(1, "certificate verify failed"), 74),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), 74),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), 74),
        (RuntimeError("std::bad_alloc"), 71),
        (RuntimeError("can't start new thread"), 71),
        (ImportError("x.so: failed to map segment from shared object"), 71),
        (ImportError("x.so: cannot allocate memory in static TLS block"), 71),
        (RuntimeError("write failed: File too large"), 74),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), 2),
        (ValueError("embedded null byte"), 2),
        (SystemExit(2), 2),
        (KeyboardInterrupt("SIGHUP"), 75),
    ],
    ids=repr,
)
def test_what_libraries_raise(error: BaseException, status: int) -> None:
    end = classify(error)
    assert end is not None and end.status == status and "\n" not in str(end)


@pytest.mark.parametrize(
    ("name", "message", "status"),
    [
        ("OutOfRangeError", "/m/model.ckpt-5.data; File too large", 74),
        ("ResourceExhaustedError", "/d/f; No space left on device", 74),
        ("ResourceExhaustedError", "OOM when allocating tensor", 71),
        ("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes", 71),
        ("DataLossError", "corrupted record at 0", 74),
        ("PermissionDeniedError", "/d; Permission denied", 2),
        ("SafetensorError", "Error while serializing: I/O error: File too large (os error 27)", 74),
        ("DefaultCredentialsError", "Could not determine credentials", 2),
        ("OutOfRangeError", "End of sequence", None),
        ("InvalidArgumentError", "shapes", None),
        ("ZeroDivisionError", "division by zero", None),
    ],
)
def test_by_name_without_the_library(name: str, message: str, status: int | None) -> None:
    end = classify(type(name, (Exception,), {})(message))
    assert (end.status if end else None) == status


def test_a_message_of_tensorflow_is_one_readable_line() -> None:
    text = (
        "{{function_node __wrapped__SaveV2_dtypes_2_device_/job:localhost/device:CPU:0}} /m/x;"
        " File too large [Op:SaveV2]\n\t [[{{node save/SaveV2}}]]"
    )
    assert telling_line(RuntimeError(text)) == "/m/x; File too large [Op:SaveV2]"


def test_a_reason_names_its_end() -> None:
    for reason, status in STATUS_OF_REASON.items():
        if reason != "finished":
            end = of_reason(reason, "x")
            assert (end.reason, end.status) == (reason, status)
    assert of_reason("something else", "x").status == 1


def test_words_of_any_length_are_shortened_in_the_line_that_is_shown() -> None:
    end = classify(system_error(errno.ENAMETOOLONG, "x/" * 5_000))
    line = one_line(f"{end}\nchoose another")
    assert len(line) < 500 and "(10,0" in line and line.endswith("shorter name choose another")


def test_a_path_of_any_bytes_can_be_told() -> None:
    end = classify(OSError(errno.ENOENT, "No such file", b"\xff.txt"))
    assert end is not None and str(end).isprintable()
