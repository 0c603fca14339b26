"""Publishing an export on the Hugging Face Hub: checks before any work, and the upload."""

from __future__ import annotations

import difflib
import re

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.process.console import waiting
from bigbird_ja.storage import hub
from bigbird_ja.storage.ownership import Owned

_CODES = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*")


def check_card(license: str | None, language: str | None) -> None:
    """Refuse a license or languages that the Hub doesn't know.

    Raises:
        BadInput: one of them; the message names the nearest license.
    """
    known = hub.licenses()
    if license is not None and license not in known:
        near = difflib.get_close_matches(license, known, 1) or ["other"]
        raise BadInput(
            f"--license {license}: not an identifier of the Hub; use {near[0]}, or another of"
            " https://huggingface.co/docs/hub/repositories-licenses"
        )
    for code in (language or "ja").split(","):
        if not _CODES.fullmatch(code):
            raise BadInput(f"--language {language}: use language codes, such as ja, or ja,en")


def check_push(repo: str, license: str | None, output_dir: str) -> None:
    """Refuse, before any work, an upload that cannot succeed.

    Raises:
        BadInput: no license, a folder on a bucket, or as of `hub.check_push`.
    """
    if license in (None, "other"):
        raise BadInput(f"--push_to_hub {repo}: state the weights' license by --license")
    if storage.is_remote(output_dir):
        raise BadInput(f"--push_to_hub reads files on disk: --output_dir {output_dir} is not")
    hub.check_push(repo)


def push(repo: str, output_dir: str) -> dict[str, str]:
    """Upload what the export made, as it is now; return the `--json` results."""
    if (owned := Owned.load(output_dir)) is None:
        return {}
    with waiting(f"uploading to {repo}"):
        url = hub.push(owned.path, sorted(owned.files), repo)
    print(f"uploaded to {repo}: {url}")
    return {"pushed": url}
