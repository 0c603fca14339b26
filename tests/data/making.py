"""Functions that build small data sets by `make_data`."""

import contextlib
import json
from pathlib import Path

import pytest

from bigbird_ja.data import blocks, build
from bigbird_ja.data.manifest import make_spec
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.settings.variants import select
from bigbird_ja.text import corpus as corpus_lib

SMALL = {"seq_length": 128, "max_predictions_per_seq": 20, "eval_fraction": 0.1, "num_shards": 4}


def write_corpus(path, texts):
    """Write documents to a .jsonl file, and return its path."""
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def request(
    corpus, tokenizer_path, output, num_workers=1, overwrite=False, input_mask=False, **changes
):
    """Build a `build.Request` for a corpus, with `changes` of the settings `SMALL`."""
    inputs = [corpus] if isinstance(corpus, str) else corpus
    opened = corpus_lib.open_corpus(inputs, takes_weights=True)
    tokenizer = read_tokenizer(tokenizer_path)
    values = {**SMALL, **changes}
    config = select("make_data", values)(**values)
    made = make_spec(config, tokenizer, opened, input_mask)
    return build.Request(opened, tokenizer, made, output, num_workers, overwrite)


@contextlib.contextmanager
def small_blocks():
    """Reduce the size of blocks, so that a small corpus fills several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "_BLOCK_CHARACTERS", 20_000)
        patch.setattr(blocks, "_CHARACTERS_PER_POSITION", 1)
        yield


def tree(directory):
    """Return the content of every file in a folder, by its relative path."""
    files = [path for path in Path(directory).rglob("*") if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
