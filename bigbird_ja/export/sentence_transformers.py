"""Files of sentence-transformers in an exported folder."""

from collections.abc import Mapping
from typing import Any

# Supported modules. They have no weights besides the encoder's.
MODULES = ("Transformer", "Pooling", "Normalize")


def make_module_files(width: int, most: int, source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of sentence-transformers' files by name.

    The files state the modules, pooling, length limit and prompts of the source. If the source has
    no files of sentence-transformers, the new files state mean pooling. sentence-transformers 2 and
    all later versions read these names of files and modules. A module with its own weights is left
    out. The source's length limit is left out if this model has more positions than the source.

    Args:
        width: number of dimensions of an embedding.
        most: maximum length of the model, in tokens.
        source: description of the Hugging Face folder that the run started from, or {}.
    """
    stated = source.get("modules", ())
    stated = stated if "Transformer" in stated else MODULES[:2]
    kinds = [kind for kind in stated if kind in MODULES]
    paths = {kind: f"{i}_{kind}" if i else "" for i, kind in enumerate(kinds)}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(paths.items())
    ]
    files: dict[str, Any] = {"modules.json": modules}
    if "Pooling" in paths:
        pooling = {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True}
        pooling |= dict.fromkeys(("pooling_mode_cls_token", "pooling_mode_max_tokens"), False)
        files[f"{paths['Pooling']}/config.json"] = source.get("Pooling", pooling)
    positions = source.get("config", {}).get("max_position_embeddings") or most
    if (limits := source.get("Transformer")) and most <= positions:
        kept = {k: limits[k] for k in ("max_seq_length", "do_lower_case") if k in limits}
        files["sentence_bert_config.json"] = kept
    if prompts := source.get("prompts"):
        files["config_sentence_transformers.json"] = prompts
    return files
