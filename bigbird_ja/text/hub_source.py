"""Rows of data sets on the Hugging Face Hub, streamed by `datasets`."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bigbird_ja.errors import BadInput, CommandError, StorageError
from bigbird_ja.process.classify import summarize_error

NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_ROWS = re.compile(
    rf"hf:(?P<name>{NAME.pattern})(?:@(?P<revision>[\w.-]+))?"
    r"(?::(?:(?P<config>[^/]+)/)?(?P<split>[^/]+))?"
)
# HTTP statuses for which a retry cannot help.
_BAD_INPUT = {400, 401, 402, 403, 404, 409}


@dataclass(frozen=True)
class HubSource:
    """Picklable split of a data set on the Hugging Face Hub, streamed by `datasets`."""

    label: str
    # Arguments of `_stream_rows`.
    place: tuple[str, str | None, str, str]
    text_fields: tuple[str, ...]

    def texts(self) -> Iterator[str]:
        """Yield the documents in order, with an empty document for a null value.

        Raises:
            BadInput: A row contains none of `text_fields`, or the field is not text.
        """
        for row in _stream_rows(*self.place):
            field = next((field for field in self.text_fields if field in row), "")
            text = row.get(field, False)
            if text is not None and not isinstance(text, str):
                fields, advice = " or ".join(self.text_fields), "Add one to `text_fields`"
                raise BadInput(
                    f"{self.label}: {fields} contains no text. The fields are {', '.join(row)}."
                    f" {advice}"
                )
            yield text or ""

    def digest(self) -> bytes:
        """Return the SHA-256 of the names of data set, commit, config, split and text fields."""
        return hashlib.sha256(f"{self.label}\0{','.join(self.text_fields)}".encode()).digest()


def open_rows(source: str, text_fields: Sequence[str]) -> HubSource:
    """Open the split `hf:OWNER/NAME[@REVISION][:[CONFIG/]SPLIT]` at a fixed commit.

    The default split is `train`.

    Raises:
        BadInput: The source is not of this form, or its commit cannot be found.
    """
    match = _ROWS.fullmatch(source)
    if not match:
        raise BadInput(f"{source!r}: write it as hf:OWNER/NAME[@REVISION][:[CONFIG/]SPLIT]")
    name, revision, config, split = match.groups(default="")
    commit, split = _find_commit(name, revision or None), split or "train"
    label = f"hf:{name}@{commit}:{f'{config}/' if config else ''}{split}"
    return HubSource(label, (name, config or None, split, commit), tuple(text_fields))


def _find_commit(name: str, revision: str | None) -> str:
    """Return the commit of a data set's revision, by default the newest.

    Raises:
        BadInput: A package is missing, the network fails, or there is no such data set. The message
            contains a command that downloads the data set.
    """
    advice = (
        f"Or run `hf download {name} --repo-type dataset --local-dir DIR` and give DIR as `inputs`"
    )
    try:
        import datasets  # noqa: F401 - huggingface_hub is one of its dependencies
        import huggingface_hub

        return str(huggingface_hub.HfApi().dataset_info(name, revision=revision).sha)
    except ImportError as error:
        why = f"{error.name} is missing (pip install {error.name})"
    except Exception as error:  # huggingface_hub and its HTTP library raise their own exceptions.
        why = summarize_error(error)
    raise BadInput(f"`inputs` hf:{name}: {why}. {advice}")


def _stream_rows(
    name: str, config: str | None, split: str, commit: str
) -> Iterator[Mapping[str, Any]]:
    """Stream the rows of a data set with `datasets`.

    Raises:
        BadInput: There is no such config or split, or `datasets` cannot read the files.
        StorageError: The Hub or the network fails.
    """
    import datasets

    datasets.disable_progress_bars()
    try:
        yield from datasets.load_dataset(name, config, split=split, revision=commit, streaming=True)
    except Exception as error:  # Many libraries may raise exceptions of their own here.
        kind = BadInput if isinstance(error, ValueError) else _classify_error(error)
        raise kind(f"`inputs` hf:{name}: {summarize_error(error)}") from error


def _classify_error(error: Exception) -> type[CommandError]:
    status = getattr(getattr(error, "response", None), "status_code", None)
    is_offline = type(error).__name__ == "OfflineModeIsEnabled"
    return BadInput if status in _BAD_INPUT or is_offline else StorageError
