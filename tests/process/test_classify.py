"""Exit statuses of exceptions."""

import errno
import os
import signal
import socket

import pytest

from bigbird_ja.errors import StorageError
from bigbird_ja.process.classify import classify, convert_refusals, join_lines

PATH = "/data/東京.txt"


def system_error(number, path=PATH):
    return OSError(number, os.strerror(number), path)


def library_error(name, message):
    return type(name, (Exception,), {})(message)


@pytest.mark.parametrize(
    "name", "NOENT EXIST NOTEMPTY ACCES ROFS LOOP NAMETOOLONG INVAL ILSEQ BUSY MFILE".split()
)
def test_an_error_of_a_path_is_bad_input(name):
    end = classify(system_error(getattr(errno, f"E{name}")))
    assert end is not None and end.status == 2
    assert PATH in str(end) and str(end).count(": ") >= 1  # Advice follows a colon.


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ECONNRESET])
@pytest.mark.parametrize("path", [PATH, None])
def test_an_error_of_a_disk_or_a_connection_is_74(number, path):
    end = classify(system_error(number, path))
    assert end is not None and end.status == 74
    assert ": :" not in str(end) and os.strerror(number) in str(end)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (system_error(errno.ENOMEM), 71),
        (system_error(errno.EINVAL, None), None),  # An error without a path is a bug.
        (system_error(errno.EBADF), None),
        (system_error(errno.EISDIR, "standard output"), 74),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), 74),
        (RuntimeError("std::bad_alloc"), 71),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), 2),
        (SystemExit(2), 2),
        (SystemExit(signal.SIGTERM), 75),
        (KeyboardInterrupt("SIGHUP"), 75),
        (library_error("ResourceExhaustedError", "/d/f; No space left on device"), 74),
        (library_error("ResourceExhaustedError", "OOM when allocating tensor"), 71),
        (library_error("XlaRuntimeError", "RESOURCE_EXHAUSTED: Out of memory"), 71),
        (library_error("DataLossError", "corrupted record at 0"), 74),
        (library_error("PermissionDeniedError", "/d; Permission denied"), 2),
        (library_error("DefaultCredentialsError", "No credentials. See https://x"), 2),
        (ZeroDivisionError("division by zero"), None),
    ],
    ids=repr,
)
def test_exceptions_of_libraries_have_a_status(error, status):
    end = classify(error)
    assert (end.status if end else None) == status
    assert "\n" not in str(end) and "https://x" not in str(end)


def test_a_path_of_any_length_and_bytes_fits_in_a_line():
    end = classify(system_error(errno.ENAMETOOLONG, "x/" * 5_000))
    assert join_lines(f"{end}\nchoose another").endswith("check the path choose another")
    end = classify(OSError(errno.ENOENT, "No such file", b"\xff.txt"))
    assert join_lines(str(end)).isprintable() and "udcff.txt" in join_lines(str(end))


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "x"), PermissionError(13, "x")])
def test_a_file_refused_or_missing_in_mid_run_is_a_storage_error(error):
    with pytest.raises(StorageError, match="access failed during the run"), convert_refusals():
        raise error
