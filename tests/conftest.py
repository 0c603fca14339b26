"""Fixtures that several packages share."""

import collections
import fcntl
import importlib.util
import json
import logging
import multiprocessing
import os
import uuid

import pytest

from bigbird_ja import cli
from bigbird_ja.text import articles
from testkit import ROOT, command_line, runs
from testkit.fakes.gcs_process import FakeGcs
from testkit.fakes.tpu import FakeTpu
from testkit.zygote import Zygote

logging.getLogger("bigbird_ja").setLevel(logging.INFO)  # for `caplog`


@pytest.hookimpl(trylast=True)  # when `-m` has chosen
def pytest_collection_modifyitems(config, items):
    """Skip tests without their engine, give slow ones time, and start the longest files first."""
    _longest_first(items)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))
    if importlib.util.find_spec("tensorflow_estimator") is None:
        skip = pytest.mark.skip(reason="of TPUEstimator, which ended with TensorFlow 2.15")
        for item in items:
            if item.get_closest_marker("estimator"):
                item.add_marker(skip)


def pytest_collectreport(report):
    """Note a skipped module, as xdist reports only the first of several with one cause."""
    if report.skipped:
        _note_skipped([report])


def pytest_terminal_summary(terminalreporter):
    """Note the skipped tests."""
    _note_skipped(terminalreporter.stats.get("skipped", []))


def _note_skipped(reports):
    """Append skipped tests to the file BIGBIRD_JA_SKIPPED.

    `.ci/run` installs more and reruns them.
    """
    if path := os.environ.get("BIGBIRD_JA_SKIPPED"):
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(f"{report.nodeid}\n" for report in reports))


def _longest_first(items):
    """Put the files with the longest timeouts first.

    Two workers share the files (`make test`). A long file that begins last would keep one of them
    busy while the other one is idle.
    """
    seconds = collections.Counter()
    for item in items:
        timeout = item.get_closest_marker("timeout")
        seconds[item.path] = max(seconds[item.path], timeout.args[0] if timeout else 0)
    items.sort(key=lambda item: -seconds[item.path])


@pytest.fixture(scope="session")
def fake_gcs():
    """Start one fake bucket server for the whole test run.

    `bucket` is a clean bucket on it.
    """
    with FakeGcs() as fake:
        yield fake


@pytest.fixture
def bucket(fake_gcs, monkeypatch):
    """Return the gs:// path of an empty bucket, which this process can use.

    Its child processes can use it with `fake_gcs.environ()`. Faults and log are cleared at both
    ends.
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
    """Return an empty folder on disk, then one on a bucket, for guarantees of both."""
    if request.param == "bucket":
        return request.getfixturevalue("bucket") + "/d"
    (tmp_path / "d").mkdir()
    return str(tmp_path / "d")


@pytest.fixture
def fake_tpu(tmp_path):
    """Start the Cloud TPU API, whose machines run their scripts.

    The package is installed once on the disk that they share.
    """
    with FakeTpu(f"{tmp_path}/vms", dict(os.environ), keep_disk=True) as fake:
        yield fake


@pytest.fixture(scope="session")
def real_text_path():
    """Return 35 MB of real Japanese text, a .jsonl.gz: BIGBIRD_JA_REAL_TEXT or a shared file."""
    beside = ROOT.parent / "shared/data/ja_real.jsonl.gz"
    path = os.environ.get("BIGBIRD_JA_REAL_TEXT") or (str(beside) if beside.exists() else None)
    if not path:
        pytest.skip("no real Japanese text: name a .jsonl.gz by BIGBIRD_JA_REAL_TEXT")
    return path


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Return `once("name", make)`, a folder that `make(folder)` fills once for all workers."""
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
    """Write a .jsonl of 60 generated articles, about 0.5 MB."""

    def make(folder):
        with open(folder / "sample.jsonl", "w", encoding="utf-8") as file:
            for text in articles.generate(60, seed=1):
                file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")

    return str(once("corpus", make) / "sample.jsonl")


@pytest.fixture(scope="session")
def tokenizer_path(sample_corpus, once):
    """Train a .model of 1,200 tokens on `sample_corpus` by `tokenize`."""

    def make(folder):
        flags = (f"--input={sample_corpus}", f"--output_prefix={folder}/ja", "--vocab_size=1200")
        ended = command_line.run_cli("tokenize", *flags)
        assert ended.status == 0, ended.stderr

    return str(once("tokenizer", make) / "ja.model")


@pytest.fixture(scope="session")
def small_run(sample_corpus, tokenizer_path, once):
    """Train six steps on sequences of 256 tokens, a run that tests must not change."""
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
    """Return `run("plan", "--json")`, which runs a command in this process.

    Returns:
        Status, stdout, stderr and .json.
    """

    def run_here(*arguments):
        status = cli.run_command_line(list(arguments))
        return command_line.Ended(status, *capsys.readouterr())

    return run_here


@pytest.fixture(scope="session")
def run_cli():
    """Return `run_cli("sample", "--output=x.txt", env={...})`.

    Returns:
        Status, stdout, stderr and .json.
    """
    return command_line.run_cli


@pytest.fixture(scope="session")
def zygote(fake_gcs, tmp_path_factory):
    """Start `bigbird-ja` commands as real processes, in two seconds each.

    On gs:// they find the fake bucket.
    """
    # Models of two layers need no optimizing compiler.
    flags = "--xla_llvm_disable_expensive_passes=true"
    environ = fake_gcs.environ(PYTHONUNBUFFERED="1", XLA_FLAGS=flags)
    yield Zygote(tmp_path_factory.mktemp("commands"), environ)
    # pytest would wait for a process of a failed test.
    for left in multiprocessing.active_children():
        left.kill()
