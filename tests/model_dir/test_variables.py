"""Errors of reading and writing the variables of checkpoints."""

from pathlib import Path

import numpy as np
import pytest

from bigbird_ja.errors import StorageError
from bigbird_ja.model_dir.checkpoints import Damaged
from bigbird_ja.model_dir.variables import read_variables, write_variables


def test_variables_that_cannot_be_read_or_written_are_named(tmp_path):
    prefix = str(tmp_path / "x")
    write_variables(prefix, {"w": np.zeros(1000)})
    data = Path(f"{prefix}.data-00000-of-00001")
    for path, content in ((data, data.read_bytes()[:100]), (Path(f"{prefix}.index"), b"x" * 200)):
        path.write_bytes(content)
        with pytest.raises(Damaged, match=r"x cannot be read as a TensorFlow checkpoint \(."):
            read_variables(prefix)
    (tmp_path / "file").touch()
    with pytest.raises((StorageError, OSError), match="file/x"):
        write_variables(str(tmp_path / "file" / "x"), {"a": np.zeros(1)})
