"""Command line: `app` runs a command, `command_flags` declares and parses its flags."""

from bigbird_ja.cli.app import COMMANDS, load_command, main, run_command_line

__all__ = ["COMMANDS", "load_command", "main", "run_command_line"]
