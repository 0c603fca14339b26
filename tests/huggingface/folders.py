"""Small Hugging Face folders that transformers writes."""

import pytest

from bigbird_ja.huggingface import config as hf_config
from bigbird_ja.settings.resolve import fit_to_data
from testkit.configs import resolve_config, with_data

torch = pytest.importorskip("torch", reason="the folders are made with PyTorch")
transformers = pytest.importorskip("transformers", reason="needs the huggingface extra")

SIZES = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
COMMON = {**SIZES, "intermediate_size": 48, "pad_token_id": 0}
ENDS = {"cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}


KINDS = {
    "bert": ("Bert", {"max_position_embeddings": 64}),
    "roberta": ("Roberta", {"max_position_embeddings": 66, "type_vocab_size": 1}),
    "modernbert": ("ModernBert", {"max_position_embeddings": 64, "local_attention": 16, **ENDS}),
}


def made(kind, folder, more=None, **saving):
    """Save a model with transformers, and return it.

    Random values are added to all weights, so that no weight keeps the initial value 0 or 1.
    """
    name, sizes = KINDS[kind]
    settings = getattr(transformers, f"{name}Config")(**COMMON, **sizes, **(more or {}))
    theirs = getattr(transformers, f"{name}ForMaskedLM")(settings).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        # In trained models the embedding of the padding token is zero.
        if kind == "roberta":
            theirs.roberta.embeddings.word_embeddings.weight[0] = 0
    theirs.save_pretrained(folder, **saving)
    return theirs


def adopted(folder, length=64):
    """Return a config with the folder's settings for records of length `length`."""
    settings = hf_config.read_config(str(folder)).settings
    sets = {f"model.{key}": value for key, value in settings.items()} | {
        "tokenize.vocab_size": 60,
        "make_data.seq_length": length,
        "training.dtype": "float32",
    }
    if settings["architecture"] == "bigbird":
        sets["model.block_size"] = 8
    config, _ = resolve_config(None, [f"{key}={value}" for key, value in sets.items()])
    return fit_to_data(*with_data(config))


def save_encoder(kind, folder, head="ForMaskedLM", **sizes):
    """Save a small model with random weights to the folder, which contains a tokenizer.

    As in many published models, the embedding table has more rows than the tokenizer has tokens.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for part in ("pad", "cls", "sep", "bos", "eos"):
        sizes[f"{part}_token_id"] = getattr(tokenizer, f"{part}_token_id")
    sizes |= {"vocab_size": 3072, "hidden_size": 64, "num_hidden_layers": 4}
    sizes |= {"num_attention_heads": 2, "intermediate_size": 96}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    torch.manual_seed(3)
    model = getattr(transformers, kind + head)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
        # In trained models the embedding of the padding token is zero.
        if kind == "Roberta":
            model.roberta.embeddings.word_embeddings.weight[tokenizer.pad_token_id] = 0
    model.save_pretrained(folder)
