"""Downloads from the Hugging Face Hub with `huggingface_hub`."""

import importlib.util
import os
import re
from typing import Any

from bigbird_ja.errors import BadInput
from bigbird_ja.process.classify import summarize_error
from bigbird_ja.process.console import log
from bigbird_ja.text.hub_source import NAME

# Path of a model in huggingface_hub's cache. The groups are owner, repository and commit.
_CACHED = re.compile(r"models--(.+)--(.+)/snapshots/([^/]+)")
# Files to fetch without weights: settings, tokenizer and model card.
_SMALL = ["*.json", "*.txt", "*.model", "README.md"]


def parse_cached_path(path: str) -> tuple[str, str]:
    """Return OWNER/REPO and the commit that a path in huggingface_hub's cache contains.

    For any other path, return two empty texts.
    """
    match = _CACHED.search(path)
    return (f"{match[1]}/{match[2]}", match[3]) if match else ("", "")


def advise_download(path: str) -> str:
    """Return advice to download the repository that `path` names, or "" if it cannot name one."""
    owner, _, name = path.partition("/")
    if not NAME.fullmatch(path) or os.path.isdir(owner):
        return ""
    return f"`hf download {path} --local-dir {name}` downloads the repository of that name"


def fetch_model(path: str, parameter: str, weights: bool = False) -> str:
    """Download the newest commit of the repository that `path` names, unless `path` is local.

    Returns:
        The folder in huggingface_hub's cache, or `path` if nothing is downloaded.

    Raises:
        BadInput: The package huggingface_hub is missing, the network fails, or there is no such
            repository. The message contains a command that downloads the repository.
    """
    if not (advice := advise_download(path)) or path.endswith((".model", ".index")):
        return path
    if importlib.util.find_spec("huggingface_hub") is None:
        raise BadInput(
            f"{parameter} {path} does not exist, and huggingface_hub is not installed. {advice}"
        )
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    log(f"{parameter} {path}: fetching it from the Hub")
    # Of all subfolders only `1_Pooling` (of sentence-transformers) is downloaded.
    more: dict[str, Any] = {"ignore_patterns": "[!1]*/*"}
    try:
        small = [*_SMALL, "*.safetensors"] if weights else _SMALL
        folder = huggingface_hub.snapshot_download(path, allow_patterns=small, **more)
        if weights and not any(name.endswith(".safetensors") for name in os.listdir(folder)):
            more["revision"] = parse_cached_path(folder)[1]
            huggingface_hub.snapshot_download(path, allow_patterns="pytorch_model*", **more)
    except Exception as error:  # huggingface_hub and its HTTP library raise their own exceptions.
        is_lost = type(error).__name__ == "LocalEntryNotFoundError"
        reason = summarize_error((is_lost and error.__cause__) or error)
        why = f"no such path, and the Hub cannot provide it ({reason})"
        raise BadInput(f"{parameter} {path}: {why}. {advice}") from error
    log(f"{parameter} {path}: commit {parse_cached_path(folder)[1]}, in {folder}")
    return folder
