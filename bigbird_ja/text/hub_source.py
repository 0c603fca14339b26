"""Rows of data sets on the Hugging Face Hub, streamed by `datasets`."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.errors import BadInput, CommandError, StorageError
from bigbird_ja.process.classify import summarize_error

NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # NAME/REPO
_ROWS = re.compile(
    rf"hf:(?P<name>{NAME.pattern})(?:@(?P<revision>[\w.-]+))?"
    r"(?::(?:(?P<config>[^/]+)/)?(?P<split>[^/]+))?"
)
_BAD_INPUT = {400, 401, 402, 403, 404, 409}  # HTTP statuses; a retry may help with others


@dataclass(frozen=True)
class HubSource:
    """Picklable split of a data set on the Hugging Face Hub, streamed by `datasets`."""

    label: str
    # Arguments of `_rows`.
    place: tuple[str, str | None, str, str]
    text_fields: tuple[str, ...]

    def texts(self) -> Iterator[str]:
        """Yield the documents in order, an empty one for null.

        Raises:
            BadInput: A row has no such field, or no text in it.
        """
        for row in _rows(*self.place):
            field = next((field for field in self.text_fields if field in row), "")
            text = row.get(field, False)
            if text is not None and not isinstance(text, str):
                fields, advice = " or ".join(self.text_fields), "Add one to `text_fields`"
                raise BadInput(
                    f"{self.label}: no text in {fields}, of the fields {', '.join(row)}. {advice}"
                )
            yield text or ""

    def digest(self) -> bytes:
        """Hash the commit's name, the split and the fields."""
        return hashlib.sha256(f"{self.label}\0{','.join(self.text_fields)}".encode()).digest()


def open_rows(source: str, text_fields: Sequence[str]) -> HubSource:
    """Open a split of `hf:OWNER/NAME[@REVISION][:[CONFIG/]SPLIT]` at a commit, by default `train`.

    Raises:
        BadInput: Another form; or as in `_pinned`.
    """
    match = _ROWS.fullmatch(source)
    if not match:
        raise BadInput(f"{source!r}: write it as hf:OWNER/NAME[@REVISION][:[CONFIG/]SPLIT]")
    name, revision, config, split = match.groups(default="")
    commit, split = _pinned(name, revision or None), split or "train"
    label = f"hf:{name}@{commit}:{f'{config}/' if config else ''}{split}"
    return HubSource(label, (name, config or None, split, commit), tuple(text_fields))


def _pinned(name: str, revision: str | None) -> str:
    """Return the commit of a data set's revision, by default the newest.

    Raises:
        BadInput: No client, no `datasets`, no network, or no such data set; names the command to
            download it.
    """
    advice = (
        f"`hf download {name} --repo-type dataset --local-dir DIR` fetches it, for DIR as `inputs`"
    )
    try:
        import datasets  # noqa: F401 - it brings the client
        import huggingface_hub

        return str(huggingface_hub.HfApi().dataset_info(name, revision=revision).sha)
    except ImportError as error:
        why = f"{error.name} is missing (pip install {error.name})"
    except Exception as error:  # of the client or its HTTP library
        why = summarize_error(error)
    raise BadInput(f"`inputs` hf:{name}: {why}. {advice}")


def _rows(name: str, config: str | None, split: str, commit: str) -> Iterator[Mapping[str, Any]]:
    """Stream the rows of a data set by `datasets`.

    Raises:
        BadInput: No such config or split, or files that it cannot read.
        StorageError: The Hub fails, or the network does.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(name, config, split=split, revision=commit, streaming=True)
    except Exception as error:  # of `datasets`, the client, its HTTP library or a parser
        kind = BadInput if isinstance(error, ValueError) else _kind(error)
        raise kind(f"`inputs` hf:{name}: {summarize_error(error)}") from error


def _kind(error: Exception) -> type[CommandError]:
    status = getattr(getattr(error, "response", None), "status_code", None)
    is_offline = type(error).__name__ == "OfflineModeIsEnabled"  # by HF_HUB_OFFLINE
    return BadInput if status in _BAD_INPUT or is_offline else StorageError
