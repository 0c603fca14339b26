"""Build a data set from settings and inputs, as the command `make-data` does."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from bigbird_ja.data import build, ray_runner
from bigbird_ja.data.inspect import DataSetResult, summarize_data
from bigbird_ja.data.manifest import make_spec
from bigbird_ja.errors import BadInput, check_is_list
from bigbird_ja.huggingface import hub
from bigbird_ja.huggingface.tokenizer import read_tokenizer
from bigbird_ja.model.flops import check_length
from bigbird_ja.process import workers
from bigbird_ja.process.console import log
from bigbird_ja.settings.config_file import list_presets
from bigbird_ja.settings.provenance import echo_settings
from bigbird_ja.settings.resolve import ConfigSource, base_layers, given_layers, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.variants import list_used_settings
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.text.file_source import AUTO, UTF_8
from bigbird_ja.text.tokenizer import Tokenizer
from bigbird_ja.text.tokenizer_training import ModelFiles


def make_data(
    *,
    inputs: Sequence[str | os.PathLike[str]],
    tokenizer: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    config: ConfigSource | None = None,
    overrides: Mapping[str, Any] | None = None,
    seq_length: int | None = None,
    masking: str | None = None,
    dupe_factor: int | None = None,
    max_predictions_per_seq: int | None = None,
    masked_lm_prob: float | None = None,
    mask_unit: str | None = None,
    word_boundaries: str | None = None,
    nsp: bool | None = None,
    eval_fraction: float | None = None,
    num_shards: int | None = None,
    seed: int | None = None,
    text_fields: Sequence[str] = (),
    encoding: str = UTF_8,
    txt_documents: str = AUTO,
    tfds_data_dir: str | None = None,
    num_workers: int | None = None,
    runner: str = "local",
    input_mask: bool = False,
    strip_markers: bool | None = None,
    overwrite: bool = False,
) -> DataSetResult:
    """Build a data set, unless it is finished. Unfinished work is continued.

    Worker processes import the main script again, so a script must call this function below
    `if __name__ == "__main__":`.

    Args:
        inputs: paths or names of corpora, each with an optional weight, as in news.jsonl=0.5.
        tokenizer: .model file, Hugging Face folder, or name of a repository on the Hub.
        output_dir: folder of the data set, on disk or gs://.
        config: name of a preset, path of a config file, or `Config`.
        overrides: values of settings, by key.
        seq_length: length of a sequence, in tokens.
        masking: dynamic or static masks.
        dupe_factor: copies of each sequence with different masks, for static masks.
        max_predictions_per_seq: maximum number of predicted tokens.
        masked_lm_prob: share of the tokens to predict.
        mask_unit: unit that is masked as a whole.
        word_boundaries: method to find words, "script" or "mecab".
        nsp: whether records are pairs of segments, for next-sentence prediction.
        eval_fraction: share of held-out documents.
        num_shards: number of train shards.
        seed: seed for shuffling, held-out documents and static masks.
        text_fields: fields or columns of text. The first one in a record is read.
        encoding: encoding of files of lines.
        txt_documents: unit of a document in a .txt file.
        tfds_data_dir: folder of prepared TFDS data sets.
        num_workers: number of worker processes, or None for one per core.
        runner: "local" or "ray", for packing on this machine or on a Ray cluster.
        input_mask: whether static records have the feature `input_mask`.
        strip_markers: whether Wiki40b's markers are removed, or None to remove them if the
            tokenizer lacks them.
        overwrite: whether an existing data set is renamed to NAME.replaced-N.

    Raises:
        BadInput: The attention rejects this sequence length, or `build.make_data` raises BadInput.
    """
    began = time.monotonic()
    arguments = {
        "seq_length": seq_length,
        "masking": masking,
        "dupe_factor": dupe_factor,
        "max_predictions_per_seq": max_predictions_per_seq,
        "masked_lm_prob": masked_lm_prob,
        "mask_unit": mask_unit,
        "word_boundaries": word_boundaries,
        "nsp": nsp,
        "eval_fraction": eval_fraction,
        "num_shards": num_shards,
        "seed": seed,
    }
    given = {f"make_data.{name}": value for name, value in arguments.items()}
    uses = list_used_settings("make-data")
    chosen, values = resolve_config([*base_layers(config), *given_layers(overrides, given)], uses)
    length = chosen.make_data.seq_length
    if problem := _find_length_problem(chosen, length):
        raise BadInput(
            f"no model can be trained on this data, as {problem}, or use another model.block_size"
        )
    check_is_list("inputs", inputs)
    known = _load_tokenizer(hub.fetch_model(os.fspath(tokenizer), "`tokenizer`"))
    sources = [os.fspath(each) for each in inputs]
    corpus = open_corpus(
        sources, tfds_data_dir, txt_documents, text_fields, encoding, takes_weights=True
    )
    spec = make_spec(chosen.make_data, known, corpus, input_mask, strip_markers)
    notices = [f"make-data settings:\n{echo_settings(chosen, values, uses)}"]
    for name in () if config else list_presets():
        if problem := _find_length_problem(resolve_config(base_layers(name))[0], length):
            notices.append(f"warning: the preset {name} cannot be trained on this data: {problem}")
    if spec.strip_markers and strip_markers is None:
        notices.append(
            "Wiki40b's markers are removed from the text, as the tokenizer has no tokens for them"
        )
    pack = functools.partial(ray_runner.pack_blocks, num_workers=num_workers)
    request = build.Request(
        corpus=corpus,
        tokenizer=known,
        spec=spec,
        output_dir=os.fspath(output_dir),
        num_workers=num_workers or workers.count_cores(),
        overwrite=overwrite,
        settings="\n".join(notices),
        pack=pack if runner == "ray" else None,
    )
    manifest, was_there = build.make_data(request)
    if was_there:
        log(f"{request.output_dir} is finished already: nothing to do")
    return summarize_data(manifest, time.monotonic() - began)


def _load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer, and log the special tokens that were added or renamed on loading.

    A .model file is compared with the metadata that `tokenize` wrote next to it.
    """
    tokenizer = read_tokenizer(path)
    tokenizer.encode("")  # This raises an error if the tokenizer cannot encode.
    if path.endswith(".model"):
        ModelFiles(path.removesuffix(".model")).check_model(tokenizer)
    for name, change in tokenizer.changes.items():
        log(f"{tokenizer.source}: {name}: {change}")
    return tokenizer


def _find_length_problem(config: Config, seq_length: int) -> str:
    """Return the reason why a config's attention rejects sequences of this length, or ""."""
    try:
        check_length(config, seq_length)
    except BadInput as error:
        return str(error)
    return ""
