"""Declare the flags that name text, of `tokenize` and `make-data`, and open the corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags

if TYPE_CHECKING:
    from bigbird_ja.text.corpus import Corpus


_WEIGHTS = (
    " SRC=WEIGHT: an epoch takes each of its documents WEIGHT times, 0.0001 to 1000 (1 where only"
    " others have one); weighted corpora are packed apart and evaluated apart."
)


def define_flags(flags: Flags, weights: bool = False) -> None:
    """Define the flags of both commands; `weights` tells whether a source can have one."""
    flags.path(
        "input",
        "Corpus: tfds:wiki40b/ja[:SPLIT], .jsonl or .txt (also .gz, .zst), .parquet, .arrow, a"
        " folder of these or of Hugging Face's `datasets`, a glob, on disk or gs://."
        + (_WEIGHTS if weights else ""),
        many=True, required=True,
    )  # fmt: skip
    flags.text(
        "text_field", "Field or column of the text in .jsonl, .parquet and .arrow files.",
        default="text",
    )  # fmt: skip
    flags.switch(
        "skip_missing_text", "Leaves out records of .jsonl files without that field, or with null"
        " in it, and counts them; otherwise the first one is refused.",
    )  # fmt: skip
    flags.path("tfds_data_dir", "Directory of prepared TFDS data sets, for tfds: inputs.")
    flags.choice(
        "txt_documents", ("auto", "file", "blank_line", "line"),
        "What a document is in a .txt file: all of it, what stands between blank lines, or a line."
        " auto: the file, where a folder or glob names several of at most 8 MB; else blank lines.",
    )  # fmt: skip


def open_input(args: absl_flags.FlagValues, weights: bool = False) -> Corpus:
    """Open the corpus that the flags name; `weights` as of `define_flags`.

    Raises:
        BadInput: see `corpus.open_corpus`.
    """
    from bigbird_ja.text.corpus import open_corpus

    return open_corpus(
        args.input, args.tfds_data_dir, args.txt_documents, args.text_field, weights,
        args.skip_missing_text,
    )  # fmt: skip
