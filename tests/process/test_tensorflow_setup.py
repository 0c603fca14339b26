"""TensorFlow is imported without Keras."""

import sys
from importlib.util import find_spec

from testkit import command_line


def test_tensorflow_is_imported_without_keras():
    needs_keras = find_spec("tensorflow_estimator") or find_spec("tf_keras")
    program = (
        "import os, sys\nfrom bigbird_ja.process.tensorflow_setup import prepare_tensorflow\n"
        "prepare_tensorflow(os.environ)\nimport tensorflow\n"
        "print(sorted({'keras', 'matplotlib'} & set(sys.modules)))"
    )
    ended = command_line.run(sys.executable, "-c", program)
    assert needs_keras or ended.stdout == "[]\n", ended.stderr
