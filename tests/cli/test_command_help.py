"""The help of a command lists required flags first, and shows range, unit and default of flags."""

import types

from bigbird_ja import cli
from bigbird_ja.cli import command_help
from bigbird_ja.settings.variants import OPTIONS


def test_help_shows_required_flags_first():
    text = " ".join(command_help.format_help(cli.load_command("pretrain"), "pretrain").split())
    headings = ["Required:", "Flags:", "Settings:", "In most commands:"]
    places = [text.index(heading) for heading in headings]
    assert places == sorted(places)


def test_help_shows_range_unit_and_default():
    def define(flags):
        flags.integer("count", 3, "How many.", unit="items", low=1, high=9)
        flags.number("share", None, "Which share.", low=0.1, high=1, none="by machine")
        flags.setting("training.num_train_steps")
        flags.path("many", "Paths.", many=True)

    tpu = tuple(key for key in OPTIONS if key.startswith("tpu."))
    command = types.SimpleNamespace(define_flags=define, EXAMPLE="x", SETTINGS=tpu)
    text = " ".join(command_help.format_help(command, "fake").split())
    assert "--count INT How many. [items, 1 to 9] (default: 3)" in text
    assert "--share FLOAT Which share. [0.1 to 1] (default: by machine)" in text
    assert "sets training.num_train_steps] (default: 1400000)" in text
    assert "--many PATH Paths. [repeatable] (default: none)" in text
    assert "Used here: tpu.*." in text
