"""Take a copied run as ours again whose mark was left behind, where its files prove whose it is.

`cp run/*` and `gsutil cp run/*` leave out `.bigbird-ja.json`. What proves a run: events that begin
with a start, and checkpoints whole by their sidecars' checksums and trained by `config.yaml`.
"""

from collections.abc import Collection

from bigbird_ja import storage
from bigbird_ja.process.errors import BadInput
from bigbird_ja.run import log as run_log
from bigbird_ja.run.checkpoints import CheckpointStore
from bigbird_ja.run.model import CONFIG, TOKENIZER, check_config, check_tokenizer, earlier_configs
from bigbird_ja.settings.resolve import read_config
from bigbird_ja.storage.disk import scratch_directory
from bigbird_ja.storage.ownership import MARK, Owned


def lost_its_mark(names: Collection[str]) -> bool:
    """Tell whether a folder looks like a run of ours that was copied without its mark."""
    return MARK not in names and {CONFIG, run_log.EVENTS} <= set(names)


def how_to_mark(folder: str) -> BadInput:
    """Word the refusal of such a folder."""
    return BadInput(
        f"--model_dir {folder}: a run without its {MARK}, which `cp RUN/*` leaves out: copy that"
        f" file too (`cp -r RUN/. {folder}`), or add --adopt to take the run as it is, if its files"
        " prove whose it is"
    )


def adopt(folder: str, names: Collection[str], kind: str, logs: Collection[str]) -> None:
    """Mark a folder as a run of ours.

    Args:
        folder: MODEL_DIR, on disk or on a bucket.
        names: of the files in it.
        kind: of the mark.
        logs: names of files that change all the time.

    Raises:
        BadInput: its files do not prove that it is one.
    """
    where, events = storage.join(folder, CONFIG), run_log.EventLog(folder).records
    config, data = read_config(where)
    with scratch_directory() as scratch:
        store = CheckpointStore(folder, scratch)
        steps = store.steps()
        if not steps or not any(event["event"] == "started" for event in events):
            raise BadInput(
                f"--adopt: {folder} has no checkpoint with a sidecar, or no start among its events:"
                " copy the whole run"
            )
        for step in steps:
            meta = store.fetch(step).meta
            check_config(config, data, meta, where, earlier_configs(events))
            check_tokenizer(folder, meta.tokenizer_sha256)
    kept = [CONFIG, TOKENIZER, *(f"model.ckpt-{step}.json" for step in steps)]
    Owned.create(folder, kind).adopt([n for n in kept if n in names], logs)
