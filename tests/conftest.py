"""Fixtures that the tests of several packages share."""

import collections
import fcntl
import importlib.util
import json
import logging
import multiprocessing
import os
import time
import uuid

import pytest

from bigbird_ja import cli
from bigbird_ja.text import articles
from testkit import ROOT, command_line, runs
from testkit.fakes.gcs_process import FakeGcs
from testkit.fakes.tpu import FakeTpu
from testkit.zygote import Zygote

logging.getLogger("bigbird_ja").setLevel(logging.INFO)  # `caplog` records from this level on


@pytest.hookimpl(trylast=True)  # runs after `-m` has selected the tests
def pytest_collection_modifyitems(config, items):
    """Skip tests of TPUEstimator if it is missing, set timeouts of slow tests, and sort files."""
    _longest_first(items)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))
    if importlib.util.find_spec("tensorflow_estimator") is None:
        skip = pytest.mark.skip(reason="of TPUEstimator, which ended with TensorFlow 2.15")
        for item in items:
            if item.get_closest_marker("estimator"):
                item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)  # runs before the fixtures, which take time
def pytest_runtest_setup():
    """Skip a test that begins after BIGBIRD_JA_UNTIL, which `.ci/run` sets in UNIX seconds."""
    if time.time() > float(os.environ.get("BIGBIRD_JA_UNTIL", "inf")):
        pytest.skip("NOT RUN: the time of this run was over")


def pytest_collectreport(report):
    """Record a skipped module.

    xdist reports only one of several modules that are skipped for the same reason.
    """
    if report.skipped:
        _note_skipped([report])


def pytest_terminal_summary(terminalreporter):
    """Record the skipped tests."""
    _note_skipped(terminalreporter.stats.get("skipped", []))


def _note_skipped(reports):
    """Append skipped tests to the file that the environment variable BIGBIRD_JA_SKIPPED names.

    `.ci/run` installs more packages and reruns these tests.
    """
    if path := os.environ.get("BIGBIRD_JA_SKIPPED"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{report.nodeid}\n" for report in reports))


def _longest_first(items):
    """Sort the test files by their timeouts, the longest first.

    Two workers share the files (`make test`). If a long file started last, one worker would be idle
    while the other one runs it.
    """
    seconds = collections.Counter()
    for item in items:
        timeout = item.get_closest_marker("timeout")
        seconds[item.path] = max(seconds[item.path], timeout.args[0] if timeout else 0)
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="session")
def fake_gcs():
    """Start a fake Google Cloud Storage server for the whole test run."""
    with FakeGcs() as fake:
        yield fake


@pytest.fixture
def bucket(fake_gcs, monkeypatch):
    """Return the gs:// path of an empty bucket on the fake server.

    This process can use the bucket. So can child processes that get `fake_gcs.environ()`. The
    server's log is cleared before the test, and its faults before and after the test.
    """
    for name, value in fake_gcs.env.items():
        if name.startswith(("STORAGE_", "BIGBIRD_")):
            monkeypatch.setenv(name, value)
    name = f"b-{uuid.uuid4().hex[:12]}"
    fake_gcs.create_bucket(name)
    fake_gcs.clear()
    fake_gcs.log(clear=True)
    yield f"gs://{name}"
    fake_gcs.clear()


@pytest.fixture(params=["disk", "bucket"])
def base(request, tmp_path):
    """Return an empty folder. The test runs once with a folder on disk and once on a bucket."""
    if request.param == "bucket":
        return request.getfixturevalue("bucket") + "/d"
    (tmp_path / "d").mkdir()
    return str(tmp_path / "d")


@pytest.fixture
def fake_tpu(tmp_path):
    """Start a fake Cloud TPU API, whose machines are processes that run their startup scripts.

    The machines share a disk, on which the package is installed only once.
    """
    with FakeTpu(f"{tmp_path}/vms", dict(os.environ), keep_disk=True) as fake:
        yield fake


@pytest.fixture(scope="session")
def real_text_path():
    """Return the path of a .jsonl.gz with real Japanese text.

    The environment variable BIGBIRD_JA_REAL_TEXT may name the file. The default is a shared file of
    35 MB. If there is neither, the test is skipped.
    """
    shared = ROOT.parent / "shared/data/ja_real.jsonl.gz"
    path = os.environ.get("BIGBIRD_JA_REAL_TEXT") or (str(shared) if shared.exists() else None)
    if not path:
        pytest.skip("no real Japanese text: name a .jsonl.gz by BIGBIRD_JA_REAL_TEXT")
    return path


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return a function that fills a folder only once for all workers of pytest.

    The call `once("name", make)` returns the folder `name`, which `make(folder)` has filled.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def made(name, make):
        folder = shared / name
        with open(shared / f"{name}.lock", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".made").exists():
                folder.mkdir(exist_ok=True)
                make(folder)
                (folder / ".made").touch()
        return folder

    return made


@pytest.fixture(scope="session")
def sample_corpus(once):
    """Return the path of a .jsonl with 60 generated articles (0.5 MB)."""

    def make(folder):
        with open(folder / "sample.jsonl", "w", encoding="utf-8") as file:
            for text in articles.generate(60, seed=1):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")

    return str(once("corpus", make) / "sample.jsonl")


@pytest.fixture(scope="session")
def tokenizer_path(sample_corpus, once):
    """Return the path of a tokenizer with 1,200 entries, trained on `sample_corpus`."""

    def make(folder):
        flags = (f"--input={sample_corpus}", f"--output_prefix={folder}/ja", "--vocab_size=1200")
        ended = command_line.run_cli("tokenize", *flags)
        assert ended.status == 0, ended.stderr

    return str(once("tokenizer", make) / "ja.model")


@pytest.fixture(scope="session")
def small_run(sample_corpus, tokenizer_path, once):
    """Return a run of six steps on sequences of 256 tokens. Tests must not change its files."""
    made = once("small-run", lambda folder: runs.make(folder, sample_corpus, tokenizer_path))
    return runs.SmallRun.of(made, sample_corpus, tokenizer_path)


@pytest.fixture(scope="session")
def trained(small_run):
    """Load the model of the small run, with its tokenizer."""
    from bigbird_ja.model_dir.model import load_run

    return load_run(small_run.model_dir)


@pytest.fixture(scope="session")
def manifest(small_run):
    """Load the manifest of the small run's data set."""
    from bigbird_ja.data.manifest import load

    return load(small_run.data_dir)


@pytest.fixture
def run(capsys):
    """Return a function that runs a command in this process, e.g. `run("plan", "--json")`.

    The function returns an `Ended`, which contains the exit status, standard output, standard
    error, and the parsed JSON of standard output.
    """

    def run_here(*arguments):
        status = cli.run_command_line(list(arguments))
        return command_line.Ended(status, *capsys.readouterr())

    return run_here


@pytest.fixture(scope="session")
def run_cli():
    """Return a function that runs a command in a new process.

    The call `run_cli("sample", "--output=x.txt", env={...})` returns an `Ended`.
    """
    return command_line.run_cli


@pytest.fixture(scope="session")
def zygote(fake_gcs, tmp_path_factory):
    """Return an object that starts a `bigbird-ja` command as a real process within two seconds.

    The processes use the fake Google Cloud Storage.
    """
    # For models of two layers, XLA's expensive optimizations take longer than they save.
    flags = "--xla_llvm_disable_expensive_passes=true"
    environ = fake_gcs.environ(PYTHONUNBUFFERED="1", XLA_FLAGS=flags)
    yield Zygote(tmp_path_factory.mktemp("commands"), environ)
    # Kill the processes of failed tests, since pytest would wait for them at its exit.
    for left in multiprocessing.active_children():
        left.kill()
