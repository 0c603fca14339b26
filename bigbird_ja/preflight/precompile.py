"""Compiled steps that are kept with a run, so that its first machine need not compile.

JAX finds a program by a key of all that it depends on: the step, the devices and their hosts, the
compiler's options, the versions of jaxlib and libtpu. So a program that doesn't fit is never run.
"""

import contextlib
import os
from collections.abc import Iterator

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.process.console import log
from bigbird_ja.storage import outputs
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.lease import exclusive
from bigbird_ja.storage.ownership import Owned
from bigbird_ja.train.engines.compile_cache import FOLDER, CompileCache


@contextlib.contextmanager
def keeping(run_dir: str) -> Iterator[str]:
    """Yield a local folder for programs, and copy them to the run at the end.

    Args:
        run_dir: BUCKET/NAME of a run; its MODEL_DIR, BUCKET/NAME/model, may be missing.

    Raises:
        BadInput: MODEL_DIR is another folder, or a bucket is named instead of a run.
        StorageError: The programs could not be copied.
    """
    advice = "name the folder of a run, BUCKET/NAME"
    if storage.is_remote(run_dir) and run_dir.rstrip("/").count("/") < 3:
        raise BadInput(f"`keep` {run_dir} is a bucket without a name in it: {advice}")
    model_dir = storage.join(run_dir, "model")
    outputs.check_folder(model_dir, "`keep`", "run", advice)
    with scratch_directory() as scratch:
        folder = os.path.join(scratch, FOLDER)
        yield folder
        if not os.path.isdir(folder) or not os.listdir(folder):
            return  # no step fits
        storage.make_directory(model_dir)
        cache = CompileCache(Owned.create(model_dir, "run"), scratch, "tpu", log)
        with exclusive(model_dir):
            kept = cache.keep()
        if not kept:
            raise StorageError(f"{model_dir}: rerun the same command")
        print(f"kept in {model_dir}: {', '.join(kept)}")
