"""TensorFlow is imported without its notices, and without Keras if possible."""

import os
import sys
import types
from importlib.util import find_spec

from bigbird_ja.cli import tensorflow_setup
from testkit import command_line


def test_tensorflow_is_imported_silently_and_without_keras():
    needs_keras = find_spec("tensorflow_estimator") or find_spec("tf_keras")
    program = (
        "import os, sys\nfrom bigbird_ja.cli.tensorflow_setup import prepare_tensorflow\n"
        "prepare_tensorflow(os.environ)\nimport tensorflow\n"
        "print(sorted({'keras', 'matplotlib'} & set(sys.modules)))"
    )
    ended = command_line.run(sys.executable, "-c", program)
    assert ended.stderr == "" and (needs_keras or ended.stdout == "[]\n")


def test_errors_that_a_library_prints_at_load_are_shown(monkeypatch, capfd):
    def load(loader, spec):
        notice = b"I0000 00:00:1.2 3 port.cc:153] oneDNN custom operations are on.\n"
        os.write(2, notice + b"F0000 no AVX\n")
        return spec.name

    monkeypatch.setattr("bigbird_ja.cli.tensorflow_setup._load_library", load)
    for name, shown in (("tensorflow.x", "F0000 no AVX\n"), ("other", None)):
        assert tensorflow_setup._create_module(None, types.SimpleNamespace(name=name)) == name
        printed = capfd.readouterr().err
        assert printed == shown or ("oneDNN" in printed and shown is None)
