"""Puts folders on the Hugging Face Hub by its own client, `huggingface_hub`, if that is there."""

import re

from bigbird_ja.process.errors import BadInput, CommandError, StorageError, require, summary_line

NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")  # NAME/REPO
_BAD_INPUT = {400, 401, 402, 403, 404, 409}  # others than these may be gone when it is run again


def check_push(repo: str) -> None:
    """Refuse, before any work, a push that cannot succeed.

    Raises:
        BadInput: no client, no such name, or no token.
    """
    if not NAME.fullmatch(repo):
        raise BadInput(f"--push_to_hub {repo}: a repository of the Hub, as NAME/REPO")
    require("huggingface_hub")
    import huggingface_hub

    if not huggingface_hub.get_token():
        raise BadInput(
            f"--push_to_hub {repo}: no token of the Hub here: run `hf auth login`, or set HF_TOKEN"
        )


def push(folder: str, names: list[str], repo: str) -> str:
    """Put files of a folder into a repository in one commit; a new repository is private.

    Returns:
        The commit's address.

    Raises:
        BadInput: the Hub refuses.
        StorageError: the Hub fails, or the network does.
    """
    import huggingface_hub
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    try:
        huggingface_hub.create_repo(repo, private=True, exist_ok=True)
        commit = huggingface_hub.upload_folder(
            repo_id=repo, folder_path=folder, allow_patterns=names, commit_message="bigbird-ja"
        )
    except Exception as error:  # of the client, its HTTP library or its uploader
        advice = f"{folder} holds the export: run the same command again for the push alone"
        raise _kind(error)(f"--push_to_hub {repo}: {summary_line(error)}: {advice}") from error
    return str(commit.commit_url)


def _kind(error: Exception) -> type[CommandError]:
    status = getattr(getattr(error, "response", None), "status_code", None)
    is_offline = type(error).__name__ == "OfflineModeIsEnabled"  # by HF_HUB_OFFLINE
    return BadInput if status in _BAD_INPUT or is_offline else StorageError
