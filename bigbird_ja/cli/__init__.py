"""Command line: entry point, declaration and parsing of flags, `--help`."""

from bigbird_ja.cli.app import COMMANDS, load_command, main, run_command_line

__all__ = ["COMMANDS", "load_command", "main", "run_command_line"]
