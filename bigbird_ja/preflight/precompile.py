"""Compiled steps that are stored with a run, so that the run's first machine need not compile.

JAX's compilation cache finds a program by a hash of the step, the devices and hosts, the compiler's
options and the versions of jaxlib and libtpu. So a machine never runs a program that was compiled
for a machine of another kind.
"""

import contextlib
import os
from collections.abc import Iterator

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.process.console import log
from bigbird_ja.storage import outputs
from bigbird_ja.storage.disk import create_scratch_directory
from bigbird_ja.storage.lease import lease_folder
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train.engines.compile_cache import FOLDER, CompileCache


@contextlib.contextmanager
def keep_programs(run_dir: str) -> Iterator[str]:
    """Context manager: yield a folder for compiled programs, and copy them to a run on exit.

    Args:
        run_dir: BUCKET/NAME of a run; its MODEL_DIR, BUCKET/NAME/model, may be missing.

    Raises:
        BadInput: MODEL_DIR contains files that are not of a run, or `run_dir` is a whole bucket.
        StorageError: The programs could not be copied.
    """
    advice = "name the folder of a run, BUCKET/NAME"
    if storage.is_remote(run_dir) and run_dir.rstrip("/").count("/") < 3:
        raise BadInput(f"`keep` {run_dir} is a bucket: {advice}")
    model_dir = storage.join(run_dir, "model")
    outputs.check_folder(model_dir, "`keep`", "run", advice)
    with create_scratch_directory() as scratch:
        folder = os.path.join(scratch, FOLDER)
        yield folder
        # There are no programs if no step fits in HBM.
        if not os.path.isdir(folder) or not os.listdir(folder):
            return
        storage.make_directory(model_dir)
        cache = CompileCache(Owned.create(model_dir, "run"), scratch, "tpu", log)
        with lease_folder(model_dir):
            kept = cache.keep()
        if not kept:
            raise StorageError(
                f"{model_dir}: the compiled steps could not be stored, so rerun the same command"
            )
        print(f"stored in {model_dir}: {', '.join(kept)}")
