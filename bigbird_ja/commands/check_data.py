"""Verifies a data set and shows what is in it.

Reads every record of --data_dir (about 200 MB a second, changing nothing): checksums, counts,
lengths, ids against the tokenizer, and that every record predicts something. Prints density,
lengths, documents per sequence, tokens per epoch and a masked example. Exit status 2 if anything
is wrong, with one line for each problem. With --adopt it first writes a manifest for classic static
TFRecords that were made elsewhere, so that `pretrain` can read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from absl import flags as absl_flags

from bigbird_ja.cli.command_flags import Flags
from bigbird_ja.settings.schema import OPTIONS

if TYPE_CHECKING:
    from bigbird_ja.data.adopt import Ids
    from bigbird_ja.data.full_check import Found
    from bigbird_ja.data.manifest import Manifest

EXAMPLE = "bigbird-ja check-data --data_dir=data --plot=data.png"


def define_flags(flags: Flags) -> None:
    """This command's flags."""
    flags.path("data_dir", "Directory that `make-data` wrote, on disk or gs://.", required=True)
    flags.path("plot", "PNG file for a picture of lengths, documents per sequence and density.")
    flags.integer("examples", 1, "Masked examples to show.", low=0, high=1000)
    flags.choice("color", ("auto", "always", "never"), "Colours; auto: on a terminal.")
    flags.switch("adopt", "First writes a manifest for static TFRecords that were made elsewhere.")
    flags.text(
        "adopt_files", "Which files in --data_dir to adopt for training.",
        default="*.tfrecord*", needs="adopt",
    )  # fmt: skip
    flags.text("adopt_eval_files", "Which of them are for evaluation instead.", needs="adopt")
    flags.path("tokenizer", "SentencePiece .model that the records were made with.", needs="adopt")
    most = OPTIONS["model.vocab_size"].high
    flags.integer("vocab_size", None, "Number of ids.", low=1, high=most, needs="adopt",
                  none="the tokenizer's")  # fmt: skip
    for name in ("pad", "cls", "sep", "mask"):
        text = f"Id of the {name} token."
        flags.integer(f"{name}_id", None, text, low=0, high=most, needs="adopt",
                      none="the tokenizer's")  # fmt: skip
    flags.switch(
        "nsp", "Learns the next-sentence labels.", default=None,
        none="if any record has a segment B", needs="adopt",
    )  # fmt: skip


def run(args: absl_flags.FlagValues) -> dict[str, Any]:
    """Checks, prints, and fails with the list of problems if there are any."""
    import sys
    import time

    began = time.monotonic()
    from bigbird_ja.commands.make_data import summary
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import show
    from bigbird_ja.process.console import Progress
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.storage import plotting

    plotting.check(args.plot, "--plot")
    if args.adopt:
        _adopt(args)
    manifest = manifest_lib.load(args.data_dir)
    from bigbird_ja.data import full_check  # takes TensorFlow along: only where there is data

    total = sum(shard.bytes for shard in manifest.train_shards + manifest.eval_shards)
    with Progress(total, "B") as progress:
        problems, found = full_check.full_check(manifest, args.data_dir, progress.update)
    results = {
        **summary(manifest, time.monotonic() - began),
        "tokens_per_epoch": manifest.train.tokens * manifest.dupe_factor,
        "problems": problems,
    }
    print(_report(manifest, found, args.data_dir, results))
    if problems:
        for problem in problems:
            print(f"problem: {problem}", file=sys.stderr)
        raise BadInput(
            f"{args.data_dir}: {len(problems)} problems, the first: {problems[0]}: make the data"
            " again with --overwrite, or copy the shard again",
            results=results,
        )
    if args.plot:
        show.draw(args.plot, manifest, found["train"])
        print(f"picture: {args.plot}")
    _show_examples(args, manifest)
    return results


def _report(
    manifest: Manifest, found: dict[str, Found], where: str, results: dict[str, Any]
) -> str:
    import numpy as np

    from bigbird_ja.commands.make_data import corpora_table, rows_of
    from bigbird_ja.process.console import human_bytes, human_count, table

    train = found["train"]
    fragments = np.arange(len(train.fragments))
    mean_fragments = float((train.fragments * fragments).sum() / max(1, train.fragments.sum()))
    rows = [
        ["masks", f"{manifest.masking}, {manifest.mask_unit}, words by {manifest.word_boundaries}"],
        ["documents", f"{manifest.train.documents:,} train, {manifest.eval.documents:,} eval"],
        ["tokens per epoch", human_count(results["tokens_per_epoch"])],
        *rows_of(manifest),
        ["documents per sequence", f"{mean_fragments:.2f} on average"],
        ["next sentence", "yes" if manifest.nsp else "no"],
        ["readers", f"{manifest.num_readers} (hosts must divide them)"],
        ["size", human_bytes(results["bytes"])],
    ]
    lengths = manifest.statistics.get("document_tokens") or train.fragment_tokens.tolist()
    what = "documents" if manifest.statistics else "packed fragments"
    bars = [
        [f"{2**i:,} to {2 ** (i + 1) - 1:,} tokens", count, _bar(count, max(lengths))]
        for i, count in enumerate(lengths)
        if count
    ]
    return (
        f"{where}\n{table(rows, ['what', 'value'])}{corpora_table(manifest)}\n\n"
        f"{table(bars, [f'length of {what}', 'number', ''])}\n"
    )


def _bar(count: int, most: int) -> str:
    return "#" * max(1, round(40 * count / max(1, most)))


def _show_examples(args: absl_flags.FlagValues, manifest: Manifest) -> None:
    import sys

    import numpy as np

    from bigbird_ja import storage
    from bigbird_ja.data import manifest as manifest_lib
    from bigbird_ja.data import masking, pipeline, records_tf, show
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.text import tokenizer as tokenizer_lib

    if args.examples < 1 or not manifest.tokenizer_sha256:
        return
    try:
        path = storage.join(args.data_dir, manifest_lib.TOKENIZER_NAME)
        tokenizer = tokenizer_lib.load(path)
    except BadInput:
        return  # records made elsewhere, with a tokenizer of another make
    colour = args.color == "always" or (args.color == "auto" and sys.stdout.isatty())
    rule = manifest.rule()
    number = min(args.examples, manifest.train.sequences)
    batch = pipeline.record_batches(
        manifest, args.data_dir, seed=0, global_batch_size=number, shuffle_window=1, num_steps=1
    )
    serialized, epoch, record = next(iter(batch))
    if manifest.masking == "dynamic":
        parsed = records_tf.parse_dynamic(manifest, serialized)
        tokens, starts = parsed["tokens"].numpy(), parsed["word_starts"].numpy()
        masked = masking.mask(tokens, starts, epoch.numpy(), record.numpy(), 0, rule)
    else:
        masked = {k: v.numpy() for k, v in records_tf.parse_static(manifest, serialized).items()}
        tokens = masked["input_ids"].copy()
        row, slot = np.nonzero(masked["masked_lm_weights"] > 0)
        tokens[row, masked["masked_lm_positions"][row, slot]] = masked["masked_lm_ids"][row, slot]
        starts = np.zeros(tokens.shape, bool)
    print(f"masked examples: {show.legend(colour)}")
    for i in range(number):
        one = {name: value[i] for name, value in masked.items()}
        print(show.masked_text(tokens[i], starts[i], one, tokenizer, rule, colour))


def _adopt(args: absl_flags.FlagValues) -> None:
    from bigbird_ja import storage
    from bigbird_ja.data import adopt
    from bigbird_ja.process.console import Progress, log

    def names(pattern: str | None) -> list[str]:
        found = storage.glob(storage.join(args.data_dir, pattern)) if pattern else []
        return [storage.base_name(path) for path in found]

    evaluation = names(args.adopt_eval_files)
    train = [name for name in names(args.adopt_files) if name not in evaluation]
    with Progress(0, "B") as progress:
        made = adopt.adopt(args.data_dir, train, evaluation, _ids(args), args.nsp, progress.update)
    log(f"{args.data_dir}: adopted {made.sequences} records in {len(train + evaluation)} files")


def _ids(args: absl_flags.FlagValues) -> Ids:
    import dataclasses

    from bigbird_ja import storage
    from bigbird_ja.data import adopt
    from bigbird_ja.process.errors import BadInput
    from bigbird_ja.text import tokenizer as tokenizer_lib

    given = {name: getattr(args, f"{name}_id") for name in ("pad", "cls", "sep", "mask")}
    if all(value is None for value in (*given.values(), args.vocab_size)) and args.tokenizer:
        tokenizer = tokenizer_lib.load(args.tokenizer)
        special = dataclasses.asdict(tokenizer.special)
        return adopt.Ids(tokenizer.vocab_size, special, tokenizer.model_bytes)
    lacking = [f"--{name}_id" for name, value in given.items() if value is None]
    lacking += ["--vocab_size"] if not args.vocab_size else []
    if lacking:
        raise BadInput(f"--adopt needs {', '.join(lacking)} (or a --tokenizer of `tokenize`)")
    if given["pad"] != 0:
        raise BadInput(f"--pad_id={given['pad']}: the model takes 0 for padding, nothing else")
    model = storage.read_bytes(args.tokenizer) if args.tokenizer else None
    return adopt.Ids(args.vocab_size, given, model)
