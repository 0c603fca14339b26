"""The flags by which `tokenize` and `make-data` are given text, and the corpus that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags

if TYPE_CHECKING:
    from bigbird_ja.text.corpus import Corpus


_WEIGHTS = (
    " SRC=WEIGHT: an epoch takes each of its documents WEIGHT times, 0.0001 to 1000 (1 where only"
    " others have one); weighted corpora are packed apart and evaluated apart."
)


def define_flags(flags: Flags, weights: bool = False) -> None:
    """Flags of both commands; `weights` says whether a source can have one."""
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
    flags.path("tfds_data_dir", "Directory of prepared TFDS data sets, for tfds: inputs.")
    define_txt_documents(flags)


def define_txt_documents(flags: Flags, **about: Any) -> None:
    """How .txt files are cut into documents."""
    flags.choice(
        "txt_documents", ("blank_line", "line"),
        "What ends a document in a .txt file: a blank line, or every line break.", **about,
    )  # fmt: skip


def open_input(args: absl_flags.FlagValues, weights: bool = False) -> Corpus:
    """The corpus; says what is likely not meant. `weights` as of `define_flags`.

    Raises:
        BadInput: see `corpus.open_corpus`.
    """
    from bigbird_ja.process.console import log
    from bigbird_ja.text.corpus import open_corpus

    corpus = open_corpus(
        args.input, args.tfds_data_dir, args.txt_documents, args.text_field, weights
    )
    for warning in corpus.warnings():
        log(f"warning: {warning}")
    return corpus
