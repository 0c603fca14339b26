"""`make-data`: settings and inputs become a data set, and a report about it."""

import functools
import time
from typing import Any

from absl import flags

from bigbird_ja.data import build, ray_runner
from bigbird_ja.data.inspect import data_report, data_summary
from bigbird_ja.data.manifest import spec_of
from bigbird_ja.errors import BadInput
from bigbird_ja.model.flops import check_length
from bigbird_ja.process import workers
from bigbird_ja.process.console import log
from bigbird_ja.settings.config_file import preset_names
from bigbird_ja.settings.provenance import Override, echo_settings
from bigbird_ja.settings.resolve import base_layers, resolve_config
from bigbird_ja.settings.schema import Config
from bigbird_ja.settings.variants import used_by
from bigbird_ja.storage import hub
from bigbird_ja.text.corpus import open_corpus
from bigbird_ja.text.load import read_tokenizer
from bigbird_ja.text.tokenizer import Tokenizer
from bigbird_ja.text.tokenizer_training import ModelFiles


def make_data(args: flags.FlagValues, config: Config, overrides: list[Override]) -> dict[str, Any]:
    """Make a data set, print a report, and return the `--json` results.

    Args:
        args: flags of the command.
        config: settings that they specify.
        overrides: values that were set, in order.

    Raises:
        BadInput: settings that no model can be trained with; or as in `build.make_data`.
    """
    began = time.monotonic()
    seq_length = config.make_data.seq_length
    if problem := _length_problem(config, seq_length):
        raise BadInput(
            f"no model can be trained on this data: {problem}, or another model.block_size"
        )
    tokenizer = _load_tokenizer(hub.fetched(args.tokenizer, "--tokenizer"))
    corpus = open_corpus(
        args.input,
        args.tfds_data_dir,
        args.txt_documents,
        args.text_field,
        args.encoding,
        takes_weights=True,
    )
    spec = spec_of(config.make_data, tokenizer, corpus, args.input_mask, args.strip_markers)
    settings = [f"make-data settings:\n{echo_settings(config, overrides, used_by('make-data'))}"]
    for name in () if args.config else preset_names():
        if problem := _length_problem(resolve_config(base_layers(name))[0], seq_length):
            settings.append(f"warning: the preset {name} cannot be trained on this data: {problem}")
    if spec.strip_markers and args.strip_markers is None:
        settings.append(
            "the tokenizer has no tokens for Wiki40b's markers: they are removed from the text"
        )
    pack = functools.partial(ray_runner.pack_blocks, num_workers=args.num_workers)
    request = build.Request(
        corpus=corpus,
        tokenizer=tokenizer,
        spec=spec,
        output_dir=args.output_dir,
        num_workers=args.num_workers or workers.available_cores(),
        overwrite=args.overwrite,
        settings="\n".join(settings),
        pack=pack if args.runner == "ray" else None,
    )
    manifest, was_there = build.make_data(request)
    if was_there:
        log(f"{args.output_dir} is finished already: nothing to do")
    results = data_summary(manifest, time.monotonic() - began)
    print(data_report(manifest, results, args.output_dir))
    return results


def _load_tokenizer(path: str) -> Tokenizer:
    """Load a tokenizer, check it against its record, and log how it was changed."""
    tokenizer = read_tokenizer(path)
    tokenizer.encode("")  # refuses what cannot encode
    if path.endswith(".model"):
        ModelFiles(path.removesuffix(".model")).check_model(tokenizer)
    for name, change in tokenizer.changes.items():
        log(f"{tokenizer.source}: {name}: {change}")
    return tokenizer


def _length_problem(config: Config, seq_length: int) -> str:
    """Describe why a config's attention cannot take sequences of this length; "" if it can."""
    try:
        check_length(config, seq_length)
    except BadInput as error:
        return str(error)
    return ""
