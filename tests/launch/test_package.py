"""A rented machine installs the package that `launch` runs from, stored under its hash."""

import hashlib
from pathlib import Path

from bigbird_ja import storage
from bigbird_ja.launch import package, session
from bigbird_ja.launch.files import RunFiles, read_run
from bigbird_ja.launch.launched_run import LaunchedRun
from bigbird_ja.settings.data_facts import derive_data
from bigbird_ja.settings.schema import Config


def test_every_launch_sends_the_installed_code_never_that_on_the_bucket(
    bucket, monkeypatch, caplog
):
    caplog.set_level("INFO", logger="bigbird_ja")
    run, settings = LaunchedRun(bucket, "run-1", "id-1"), (Config(), derive_data(Config()))
    assert package.build() == package.build()
    first = session.store(run, *settings)
    assert first == read_run(bucket, "run-1") and not caplog.messages
    foreign = package.note(first, b"malicious")
    storage.write_bytes(foreign.package, b"malicious")
    RunFiles(foreign).save_run()
    assert session.store(run, *settings) == first
    assert "the next machine uses the installed version" in caplog.text


def test_a_damaged_package_is_replaced(tmp_path):
    """Replace a damaged package on the bucket, since rented machines would fail to install it."""
    stored = package.store(LaunchedRun(str(tmp_path), "run-1", "id-1"))
    path = Path(stored.package)
    path.write_bytes(path.read_bytes()[:-9])
    assert package.store(stored) == stored
    assert hashlib.sha256(path.read_bytes()).hexdigest() == stored.package_sha256
