"""Flags that are common to several commands."""

from __future__ import annotations

from typing import Any

from bigbird_ja.cli.command_flags import Args, Flags

_WEIGHTS = (
    " SRC=WEIGHT: an epoch contains each document of SRC WEIGHT times, 0.0001 to 1000 (default 1);"
    " weighted corpora are packed separately."
)


def define_model_flags(flags: Flags) -> None:
    """Define the flags that specify a checkpoint."""
    flags.path("model_dir", "Folder of the run, on disk or gs://.", required=True)
    step = "Global step of the checkpoint."
    flags.integer("step", None, step, low=0, high=10**12, none="the newest")


def define_corpus_flags(flags: Flags, weights: bool = False) -> None:
    """Define the flags that specify a corpus.

    Args:
        flags: flags of the command.
        weights: whether sources may have a weight.
    """
    flags.path(
        "input",
        "Corpus: .jsonl, .txt, .csv or .tsv (also .gz, .zst), .parquet, .arrow, a .zip or folder of"
        " these or of Hugging Face's `datasets`, a glob, on disk or gs://; tfds:wiki40b/ja[:SPLIT];"
        " hf:OWNER/NAME[@REVISION][:[CONFIG/]SPLIT], streamed from the Hub by `datasets`."
        + (_WEIGHTS if weights else ""),
        many=True,
        required=True,
    )
    flags.text(
        "text_field",
        "Field or column that contains the text; not for .txt and tfds:. Repeatable: the first one"
        " that a record or table contains is read.",
        many=True,
        none="text",
    )
    flags.text(
        "encoding",
        "Encoding of .jsonl, .txt, .csv and .tsv files, as Python names it, such as cp932.",
        default="utf-8",
    )
    flags.path("tfds_data_dir", "Directory of prepared TFDS data sets, for tfds: inputs.")
    flags.choice(
        "txt_documents",
        ("auto", "file", "blank_line", "line"),
        "Document in a .txt file: the whole file, the text between blank lines, or a line. auto:"
        " the file if a folder or glob contains several files of at most 8 MB, else blank lines.",
    )


def collect_corpus_parameters(args: Args) -> dict[str, Any]:
    """Convert the flags that specify a corpus to arguments of a function of `bigbird_ja`."""
    return {
        "inputs": args.input,
        "text_fields": args.text_field,
        "encoding": args.encoding,
        "txt_documents": args.txt_documents,
        "tfds_data_dir": args.tfds_data_dir,
    }
