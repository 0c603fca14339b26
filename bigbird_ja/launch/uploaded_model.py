"""Initial model of a run. A local model is uploaded to the bucket, under its checksum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.init_from import find_kind
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.model import CONFIG, TOKENIZER
from bigbird_ja.storage import content_addressed

# Files of a Hugging Face folder that a run reads: settings, tokenizer, weights, and the model card,
# parts of which are copied to the exported model's card.
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", "README.md")
# Config file of sentence-transformers for the pooling.
_POOLING = "1_Pooling/config.json"


@dataclass(frozen=True)
class UploadedModel:
    """Path of the initial model on the bucket, and the local files to upload.

    Attributes:
        path: Value of `init_from` for `pretrain` on the machine.
        folder: Folder for the files on the bucket.
        listing: Content of SHA256SUMS.
        files: Local paths by name; empty if the model is on the bucket.
    """

    path: str
    folder: str = ""
    listing: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def upload(self) -> None:
        """Upload the files to their folder, unless the folder is complete."""
        if self.files:
            content_addressed.put(self.files, self.folder, self.listing)


def find(source: str, bucket: str) -> UploadedModel:
    """Find the initial model, without writing anything.

    Args:
        source: Hugging Face folder, MODEL_DIR, or prefix of a TensorFlow checkpoint, on this
            machine or gs://.
        bucket: bucket of the run. A local model is uploaded to the bucket's folder `encoders`.

    Raises:
        BadInput: `source` is not a model, or a rented machine cannot read its weights.
    """
    prefix = source.rstrip("/").removesuffix(".index")
    root, base = prefix, ""
    kind = find_kind(prefix)
    if kind == "folder":
        names = [n for n in storage.list_files(prefix) if n.endswith(_SUFFIXES)]
        names += [_POOLING] if storage.exists(storage.join(prefix, _POOLING)) else []
        if not any(name.endswith(".safetensors") for name in names):
            raise BadInput(
                f"`init_from` {source} contains pytorch_model.bin, which a rented machine cannot"
                " read: save the model as model.safetensors"
            )
    elif kind == "run":
        known = (CONFIG, TOKENIZER, run_log.EVENTS)
        newest = f"model.ckpt-{CheckpointStore(prefix).list_steps()[-1]}."
        names = [n for n in storage.list_files(prefix) if n in known or n.startswith(newest)]
    else:
        root, base = storage.get_directory(prefix), storage.get_base_name(prefix)
        names = [n for n in storage.list_files(root) if n.startswith(f"{base}.")]
    if storage.is_remote(prefix):
        return UploadedModel(prefix)
    files = {name: storage.join(root, name) for name in names}
    folder, listing = content_addressed.compute_address(files, storage.join(bucket, "encoders"))
    return UploadedModel(storage.join(folder, base) if base else folder, folder, listing, files)
