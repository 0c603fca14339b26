"""The model that a run starts from: on the bucket, or uploaded there under its checksum."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface.init_from import kind_of
from bigbird_ja.model_dir import log as run_log
from bigbird_ja.model_dir.checkpoints import CheckpointStore
from bigbird_ja.model_dir.model import CONFIG, TOKENIZER
from bigbird_ja.storage import content_addressed

# Files of a Hugging Face folder that a run reads: settings, tokenizer, weights, and the card, parts
# of which the exported model's card repeats.
_SUFFIXES = (".json", ".txt", ".model", ".safetensors", "README.md")
_POOLING = "1_Pooling/config.json"  # file of sentence-transformers


@dataclass(frozen=True)
class UploadedModel:
    """Path of `init_from` on the bucket, and the local files to upload there, if any."""

    path: str  # `init_from` of `pretrain` on the machine
    folder: str = ""
    listing: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    def upload(self) -> None:
        """Upload the files to their folder, unless it is complete."""
        if self.files:
            content_addressed.put(self.files, self.folder, self.listing)


def find(source: str, bucket: str) -> UploadedModel:
    """Find the model that `init_from` names, without writing anything.

    Args:
        source: Hugging Face folder, MODEL_DIR, or prefix of a TensorFlow checkpoint, on this
            machine or gs://.
        bucket: bucket of the run; local models get a folder in its `encoders`.

    Raises:
        BadInput: None of the three, or weights that a rented machine cannot read.
    """
    prefix = source.rstrip("/").removesuffix(".index")
    root, base = prefix, ""
    kind = kind_of(prefix)
    if kind == "folder":
        names = [n for n in storage.list_files(prefix) if n.endswith(_SUFFIXES)]
        names += [_POOLING] if storage.exists(storage.join(prefix, _POOLING)) else []
        if not any(name.endswith(".safetensors") for name in names):
            raise BadInput(
                f"`init_from` {source}: a rented machine has no PyTorch to read pytorch_model.bin."
                " Save the model as model.safetensors"
            )
    elif kind == "run":
        known = (CONFIG, TOKENIZER, run_log.EVENTS)
        newest = f"model.ckpt-{CheckpointStore(prefix).steps()[-1]}."
        names = [n for n in storage.list_files(prefix) if n in known or n.startswith(newest)]
    else:
        root, base = storage.directory_of(prefix), storage.base_name(prefix)
        names = [n for n in storage.list_files(root) if n.startswith(f"{base}.")]
    if storage.is_remote(prefix):
        return UploadedModel(prefix)
    files = {name: storage.join(root, name) for name in names}
    folder, listing = content_addressed.address(files, storage.join(bucket, "encoders"))
    return UploadedModel(storage.join(folder, base) if base else folder, folder, listing, files)
