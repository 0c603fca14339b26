"""Write Hugging Face folders with tokenizers of every common kind.

The tokenizers are trained on a text within seconds, and saved by transformers.
"""

import json
import re

import numpy as np
import tokenizers
import transformers
from safetensors.numpy import save_file
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

_BERT = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "cls", "sep", "mask")}
_ROBERTA = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>"}
_ROBERTA |= {"unk_token": "<unk>", "mask_token": "<mask>"}
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_VOCABULARY = 3000


def _template(backend, first, last):
    """Build a post-processor that adds a token before and a token after each text."""
    return processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, backend.token_to_id(token)) for token in (first, last)],
    )


def _save(backend, folder, kind="PreTrainedTokenizerFast", **parts):
    getattr(transformers, kind)(tokenizer_object=backend, **parts).save_pretrained(folder)


def _train_unigram(backend, texts, special):
    """Train a Unigram model on sentences."""
    trainer = trainers.UnigramTrainer(
        vocab_size=_VOCABULARY, unk_token="<unk>", special_tokens=special
    )
    split = [line for text in texts for line in re.split("(?<=[。\n])", text) if line]
    backend.train_from_iterator(split, trainer)


def byte_level_bpe(folder, texts):
    """Save a tokenizer like ModernBERT's, whose special tokens have the last ids."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens(["   ", "|||IP_ADDRESS|||"])
    backend.add_special_tokens([*_BERT.values(), "[unused0]", "[unused1]"])
    backend.post_processor = _template(backend, "[CLS]", "[SEP]")
    _save(backend, folder, **_BERT)


def roberta_bpe(folder, texts):
    """Save a tokenizer like RoBERTa's, with <s> and </s> for [CLS] and [SEP], and padding id 1."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=list(_ROBERTA.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    backend.train_from_iterator(texts, trainer)
    ends = [(token, backend.token_to_id(token)) for token in ("</s>", "<s>")]
    backend.post_processor = processors.RobertaProcessing(*ends, add_prefix_space=True)
    # Without this `add_prefix_space`, transformers 4 turns off the option of the pre-tokenizer.
    _save(backend, folder, add_prefix_space=True, **_ROBERTA)


def wordpiece(folder, texts):
    """Save a tokenizer like multilingual BERT's.

    Each kanji is a word, and `##` marks the tokens after the first token of a word.
    """
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    special = ["[unused1]", *_BERT.values()]
    trainer = trainers.WordPieceTrainer(vocab_size=_VOCABULARY, special_tokens=special)
    backend.train_from_iterator(texts, trainer)
    # transformers 5 adds this template itself, but transformers 4 does not.
    backend.post_processor = _template(backend, "[CLS]", "[SEP]")
    _save(backend, folder, "BertTokenizerFast", do_lower_case=False, **_BERT)


def gemma_bpe(folder, texts):
    """Save a tokenizer like mmBERT's (Gemma 2's): BPE with "▁" for spaces and byte fallback.

    It adds <bos> and <eos> to a text, and defines no `cls_token` and no `sep_token`.
    """
    parts = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk", "mask")}
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=[*parts.values(), *_BYTES])
    backend.train_from_iterator(texts, trainer)
    backend = _without_added_bytes(backend)
    backend.post_processor = _template(backend, "<bos>", "<eos>")
    _save(backend, folder, **parts)


def _without_added_bytes(backend):
    """Remove the byte tokens from the added tokens.

    Published tokenizers contain the byte tokens only in the vocabulary.
    """
    definition = json.loads(backend.to_str())
    definition["model"]["byte_fallback"] = True
    definition["added_tokens"] = [
        token for token in definition["added_tokens"] if not token["content"].startswith("<0x")
    ]
    return tokenizers.Tokenizer.from_str(json.dumps(definition))


def unigram_with_bytes(folder, texts):
    """Save a tokenizer like llm-jp's and ModernBERT-Ja's: Unigram with byte fallback.

    It adds <s> and </s> to a text, although its `cls_token` is <cls> and its `sep_token` is <sep>.
    """
    parts = {**_ROBERTA, "cls_token": "<cls>", "sep_token": "<sep>"}
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    _train_unigram(backend, texts, [*parts.values(), *_BYTES])
    backend = _without_added_bytes(backend)
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    backend.post_processor = _template(backend, "<s>", "</s>")
    _save(backend, folder, **parts)


def xlm_roberta(folder, texts):
    """Save a tokenizer like those of XLM-R and E5.

    When transformers 5 loads this tokenizer, it replaces the normalizer and the pre-tokenizer of
    `tokenizer.json` by its own. transformers 4 keeps them.
    """
    parts = {**_ROBERTA, "cls_token": "<s>", "sep_token": "</s>"}
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    _train_unigram(backend, texts, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    backend.post_processor = _template(backend, "<s>", "</s>")
    _save(backend, folder, **parts)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text()) | {"tokenizer_class": "XLMRobertaTokenizer"}
    path.write_text(json.dumps(config))


def mecab_wordpiece(folder, texts):
    """Save a tokenizer like tohoku-nlp's.

    MeCab with unidic-lite splits a text into words, and WordPiece splits the words into tokens.
    """
    import fugashi

    words = [" ".join(word.surface for word in fugashi.Tagger()(text)) for text in texts]
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.NFKC()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [_BERT["pad_token"], "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]"]
    trainer = trainers.WordPieceTrainer(vocab_size=_VOCABULARY, special_tokens=special)
    backend.train_from_iterator(words, trainer)
    tokens = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    folder.mkdir(exist_ok=True)
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("".join(f"{token}\n" for token, _ in tokens), encoding="utf-8")
    kinds = {"word_tokenizer_type": "mecab", "subword_tokenizer_type": "wordpiece"}
    kinds["mecab_kwargs"] = {"mecab_dic": "unidic_lite"}
    transformers.BertJapaneseTokenizer(str(vocabulary), **kinds).save_pretrained(folder)


KINDS = {
    "byte-level BPE": byte_level_bpe,
    "RoBERTa's BPE": roberta_bpe,
    "WordPiece": wordpiece,
    "Gemma's BPE with bytes": gemma_bpe,
    "Unigram with bytes": unigram_with_bytes,
    "XLM-R's unigram": xlm_roberta,
    "MeCab with WordPiece": mecab_wordpiece,
}


# Names of two arrays for each model type: the word embeddings, and a weight of the masked-LM head.
# Both arrays have one row for each token.
WORDS = {
    "modernbert": ("model.embeddings.tok_embeddings.weight", "decoder.bias"),
    "roberta": ("roberta.embeddings.word_embeddings.weight", "lm_head.bias"),
    "xlm-roberta": ("embeddings.word_embeddings.weight", "lm_head.decoder.weight"),
    "bert": ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"),
}


def add_weights(folder, model_type, width=8):
    """Add a config.json and three weights to a tokenizer's folder, and return the weights.

    Two of the weights have one row for each token.
    """
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    rows = max(tokenizer.get_vocab().values()) + 1
    draw = np.random.default_rng(1).standard_normal
    embeddings, head = WORDS[model_type]
    shapes = {embeddings: (rows, width), head: (rows, width) if "weight" in head else (rows,)}
    shapes["encoder.layer.0.attention.output.dense.weight"] = (width, width)
    weights = {name: draw(shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": model_type, "vocab_size": rows, "hidden_size": width}
    config["pad_token_id"] = tokenizer.pad_token_id
    (folder / "config.json").write_text(json.dumps(config))
    return weights
