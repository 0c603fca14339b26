"""Settings that a run adopts from the Hugging Face folder of `init_from`."""

from collections.abc import Mapping
from typing import Any

from bigbird_ja import storage
from bigbird_ja.errors import BadInput
from bigbird_ja.huggingface import hub, state_dict
from bigbird_ja.huggingface.config import STOCK, Encoder, find_stock_class, read_config
from bigbird_ja.huggingface.init_from import find_kind
from bigbird_ja.huggingface.tokenizer import read_tokens
from bigbird_ja.settings.data_facts import Data
from bigbird_ja.settings.provenance import Layer
from bigbird_ja.settings.schema import Config
from bigbird_ja.text.load import TOKENIZER_NAME, parse_tokenizer

# A data set counts as made with a folder's tokenizer if the data set's tokenizer contains at least
# this fraction of the folder's tokens, with the same ids. The remaining tokens may be special
# tokens that were renamed (`text.model_proto.adapt`).
_SAME_TOKENS = 0.99


def make_attention_notice(source: str, config: Config, data: Data) -> str | None:
    """Return a notice about attention and exported class, if a run starts from BERT or RoBERTa.

    If the run starts from another model, return None.
    """
    theirs = read_config(source) if state_dict.has_weights(source) else None
    if theirs is None or theirs.model_type not in STOCK:
        return None
    has = f"{source} has {theirs.positions:,} positions, the data {data.seq_length:,} tokens"
    if stock := find_stock_class(theirs.model_type, config.model, data.nsp):
        return (
            f"attention is full, like the source's ({has}), and `export` will write a {stock}."
            " model.attention_type=block_sparse selects BigBird's attention"
        )
    return (
        f"attention is BigBird's ({has}), and `export` will write a BigBird with its own code."
        " model.attention_type=original_full keeps the source's attention and class"
    )


def plan_settings(init_from: str | None, data: Data | None, data_dir: str) -> list[Layer]:
    """Return the settings that `init_from` fixes for a run that is only planned.

    Args:
        init_from: folder, or name of a repository of the Hub, which is fetched without weights.
        data: facts about the data set, such as its sequence length, or None if it does not exist.
        data_dir: path of the data set.

    Raises:
        BadInput: `hub.fetch_model`, `adopt_settings` or `read_stated_settings` raises it.
    """
    if not init_from:
        return []
    source = hub.fetch_model(init_from, "`init_from`")
    if data:
        return adopt_settings(source, data, data_dir)
    return read_stated_settings(source)


def adopt_settings(source: str, data: Data, data_dir: str) -> list[Layer]:
    """Return the settings that a Hugging Face folder fixes for a new run.

    A MODEL_DIR or a TensorFlow checkpoint fixes no settings.

    Args:
        source: value of the parameter `init_from`.
        data: facts about the data set, such as its sequence length. Its vocabulary may be smaller
            than the model's.
        data_dir: path of the data set.

    Raises:
        BadInput: The source does not exist or has no weights, a run cannot start from the model, or
            the data set was made with another tokenizer.
    """
    if not state_dict.has_weights(source):
        if read_stated_settings(source):
            raise BadInput(
                f"`init_from` {source} contains config.json without weights (model.safetensors or"
                " pytorch_model.bin). Copy the whole folder"
            )
        return []
    theirs = read_config(source)
    known, where = dict(theirs.settings), f"{source}/config.json"
    if storage.exists(tokenizer := storage.join(data_dir, TOKENIZER_NAME)):
        _check_tokenizer(source, theirs, tokenizer)
    # A model with rotary positions may be trained on longer sequences than its config.json states.
    if known.get("max_position_embeddings", 0) < data.seq_length:
        known.pop("max_position_embeddings", None)
    # Attention stays full if the source has enough learned positions for the data's sequences.
    if data.seq_length <= theirs.positions:
        known["max_position_embeddings"] = theirs.positions
        known["attention_type"] = "original_full"
    if theirs.vocab_size >= data.vocab_size:
        known["vocab_size"] = theirs.vocab_size
    return [_make_layer(known, where)]


def read_stated_settings(source: str) -> list[Layer]:
    """Return the settings in a Hugging Face folder's config.json, before the data set is known.

    Weights are not read, and need not exist. A MODEL_DIR or a TensorFlow checkpoint states no
    settings.

    Raises:
        BadInput: The source does not exist, or a run cannot start from the model.
    """
    if not storage.exists(storage.join(source, "config.json")):
        if not any(map(storage.exists, (source, f"{source.removesuffix('.index')}.index"))):
            raise BadInput(f"`init_from` {source}: no such folder or checkpoint. Check the path")
        find_kind(source)
        return []
    theirs = read_config(source)
    known = theirs.settings | ({"vocab_size": theirs.vocab_size} if theirs.vocab_size else {})
    known.pop("max_position_embeddings", None)  # It will be the data's length.
    return [_make_layer(known, f"{source}/config.json")]


def _make_layer(settings: Mapping[str, Any], source: str) -> Layer:
    return Layer(source, {f"model.{name}": value for name, value in settings.items()})


def _check_tokenizer(source: str, encoder: Encoder, path: str) -> None:
    """Check that the data set was made with the tokenizer of the Hugging Face folder.

    Only then do the data set's token ids select the right rows of the embeddings.

    Args:
        source: Hugging Face folder. If it contains no tokenizer, nothing is checked.
        encoder: encoder of the folder.
        path: path of the data set's tokenizer.

    Raises:
        BadInput: The data was made with another tokenizer than the folder's, or the folder contains
            fewer embeddings than tokens.
    """
    theirs = read_tokens(source)
    if not theirs:
        return
    tokenizer = parse_tokenizer(storage.read_bytes(path), path)
    ours = {name: i for i, name in enumerate(tokenizer.names)}
    same = sum(name in ours and i in (None, ours[name]) for name, i in theirs.items())
    if same < _SAME_TOKENS * len(theirs):
        raise BadInput(
            f"`init_from` {source}: the data was made with another tokenizer, so its ids mean"
            f" other tokens. Make the data again with the tokenizer {source}"
        )
    last = max((ours[name] for name in theirs if name in ours), default=0)
    if encoder.vocab_size <= last:
        raise BadInput(
            f"{source}/config.json states {encoder.vocab_size:,} embeddings (vocab_size), but the"
            f" folder's tokenizer has ids up to {last:,}. The folder's files do not belong together"
        )
