"""Description of a Hugging Face folder: config.json, model card, sentence-transformers' files."""

import contextlib
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import hub
from bigbird_ja.storage import decode

T = TypeVar("T")


def describe(folder: str) -> dict[str, Any]:
    """Return a description of a folder, for the record of a run that starts from the folder.

    The model card of an export needs the description, even if the folder no longer exists. Missing
    or damaged files are ignored.

    Returns:
        A dict with these keys, except those that the folder does not state: `config` (content of
        config.json), `name` (on the Hub), `license`, `language` and `tags` (from the model card),
        `modules` (names of sentence-transformers' modules, in order), `Transformer`, `Pooling` and
        `prompts` (contents of sentence-transformers' config files).
    """
    config = _read_stated(folder, "config.json", dict[str, Any]) or {}
    card, body = _read_model_card(folder)
    modules = _read_stated(folder, "modules.json", list[dict[str, str | int]]) or []
    kinds = [str(module.get("type")).rpartition(".")[2] for module in modules]
    pooling = f"{kinds.index('Pooling') if 'Pooling' in kinds else ''}_Pooling/config.json"
    facts = {
        "config": config,
        "name": _find_hub_name(folder, config, body),
        **{key: card.get(key) for key in ("license", "language", "tags")},
        "modules": kinds,
        "Transformer": _read_stated(folder, "sentence_bert_config.json", dict[str, Any]),
        "Pooling": _read_stated(folder, pooling, dict[str, Any]),
        "prompts": _read_stated(folder, "config_sentence_transformers.json", dict[str, Any]),
    }
    return {key: value for key, value in facts.items() if value}


def _read_stated(folder: str, name: str, kind: type[T]) -> T | None:
    """Return the content of a JSON file, or None if it is missing or damaged."""
    with contextlib.suppress(BadInput, FileNotFoundError):
        return decode.read_json(storage.join(folder, name), kind)
    return None


def _read_model_card(folder: str) -> tuple[dict[str, Any], str]:
    """Return the header and the text of README.md, both empty if it is missing or damaged."""
    path = storage.join(folder, "README.md")
    with contextlib.suppress(BadInput, FileNotFoundError, UnicodeDecodeError):
        text = storage.read_text(path).replace("\r\n", "\n")
        if match := re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL):
            header = decode.read_yaml(match[1], path)
            return header if isinstance(header, dict) else {}, match[2]
        return {}, text
    return {}, ""


def _find_hub_name(folder: str, config: Mapping[str, Any], card: str) -> str | None:
    """Find a model's name on the Hub in its folder's path, model card, or config.json."""
    title = re.search(r"^# +(.+)", card, re.MULTILINE)
    titles = (title[1].strip() if title else "", storage.get_base_name(folder.rstrip("/")))
    loaded = re.findall(r"(?:from_pretrained|SentenceTransformer)\(\s*[\"']([^\"']+)", card)
    names = [name for name in loaded if name.rpartition("/")[2] in titles]
    names = [hub.parse_cached_path(folder)[0], *names, str(config.get("_name_or_path"))]
    return next((name for name in names if hub.NAME.fullmatch(name)), None)
