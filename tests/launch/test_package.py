"""The package that a machine installs: stored under its hash, and only from this machine."""

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.launch import package, session
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.settings.data_facts import requested_data
from bigbird_ja.settings.schema import Config


def test_who_writes_to_the_bucket_does_not_choose_the_code_of_the_machine(
    bucket, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, settings = LaunchedRun(bucket, "run-1", "id-1"), (Config(), requested_data(Config()))
    assert package.build() == package.build()  # byte for byte
    first = session.store(run, *settings, False)
    monkeypatch.setattr(package, "build", lambda: b"a later version")
    assert session.store(run, *settings, False) == first  # it was launched from here
    foreign = package.noted(first, b"malicious")
    storage.write_bytes(foreign.package, b"malicious")
    RunFiles(foreign).save_run()
    with pytest.raises(BadInput, match="never launched from this machine"):
        session.store(run, *settings, False)
    later = package.noted(run, b"a later version")
    assert session.store(run, *settings, True) == later == read_run(bucket, "run-1")


def test_a_package_that_todays_script_cannot_install_is_refused(bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run, settings = LaunchedRun(bucket, "run-1", "id-1"), (Config(), requested_data(Config()))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("bigbird_ja/launch/locks/needed.lock", "")
    with monkeypatch.context() as earlier:
        earlier.setattr(package, "build", packed.getvalue)
        old = session.store(run, *settings, False)
    with pytest.raises(BadInput, match="of an earlier version"):
        session.store(run, *settings, False)
    assert read_run(bucket, "run-1") == old
    storage.write_bytes(old.package, b"cut off")
    with pytest.raises(BadInput, match="is damaged: --update_package"):
        session.store(run, *settings, False)
    assert session.store(run, *settings, True) != old


def test_a_damaged_package_is_mended(tmp_path, monkeypatch):
    """Replace it: a machine would fail at each start, and be paid."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    stored = package.store(LaunchedRun(str(tmp_path), "run-1", "id-1"), None)
    path = Path(stored.package)
    path.write_bytes(path.read_bytes()[:-9])
    assert package.store(stored, stored) == stored
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stored.package_sha256
