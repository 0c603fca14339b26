"""Downloads from the Hugging Face Hub, by `huggingface_hub`."""

import importlib.util
import os
import re
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import summarize_error
from bigbird_ja.process.console import log
from bigbird_ja.text.hub_source import NAME

# Path of a model in the client's cache: NAME, REPO and the commit.
_CACHED = re.compile(r"models--(.+)--(.+)/snapshots/([^/]+)")
# Settings, tokenizer and model card.
_SMALL = ["*.json", "*.txt", "*.model", "README.md"]


def cached_name(path: str) -> tuple[str, str]:
    """Return NAME/REPO and the commit of a path in the client's cache, else two empty texts."""
    match = _CACHED.search(path)
    return (f"{match[1]}/{match[2]}", match[3]) if match else ("", "")


def download_advice(path: str) -> str:
    """Return the command that downloads a repository, "" if `path` cannot name one."""
    owner, _, name = path.partition("/")
    if not NAME.fullmatch(path) or os.path.isdir(owner):
        return ""
    return f"`hf download {path} --local-dir {name}` downloads the repository of that name"


def fetch_model(path: str, parameter: str, weights: bool = False) -> str:
    """Download the newest commit of the repository that `path` names, unless it is a local path.

    Returns:
        The folder in the client's cache, or `path`.

    Raises:
        BadInput: No client, no network, or no such repository; names the command to download it.
    """
    if not (advice := download_advice(path)) or path.endswith((".model", ".index")):
        return path
    if importlib.util.find_spec("huggingface_hub") is None:
        raise BadInput(f"{parameter} {path}: no such path, and no huggingface_hub here. {advice}")
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    log(f"{parameter} {path}: fetching it from the Hub")
    # The only folder to download is the pooling of sentence-transformers, `1_Pooling`.
    more: dict[str, Any] = {"ignore_patterns": "[!1]*/*"}
    try:
        small = [*_SMALL, "*.safetensors"] if weights else _SMALL
        folder = huggingface_hub.snapshot_download(path, allow_patterns=small, **more)
        if weights and not any(name.endswith(".safetensors") for name in os.listdir(folder)):
            more["revision"] = cached_name(folder)[1]
            huggingface_hub.snapshot_download(path, allow_patterns="pytorch_model*", **more)
    except Exception as error:  # of the client or its HTTP library
        is_lost = type(error).__name__ == "LocalEntryNotFoundError"  # its cause is the network's
        reason = summarize_error((is_lost and error.__cause__) or error)
        why = f"no such path, and not fetched ({reason})"
        raise BadInput(f"{parameter} {path}: {why}. {advice}") from error
    log(f"{parameter} {path}: commit {cached_name(folder)[1]}, in {folder}")
    return folder
