"""Completion for bash and zsh, from the flags as they are declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bigbird_ja.cli import command_flags
from bigbird_ja.process.errors import BadInput
from bigbird_ja.settings.resolve import preset_names

# Words of a flag's value where there are some, else flags; files where neither fits.
_SCRIPT = """\
_bigbird_ja() {
  local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" words
  case "${COMP_WORDS[1]} $before" in
%s
    *) case "${COMP_WORDS[1]}" in
%s
    esac
  esac
  [ "$COMP_CWORD" -gt 1 ] || words="%s"
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _bigbird_ja bigbird-ja
"""
# A new user's zsh has not started its completion yet.
_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""


def script(words: Sequence[str], commands: Mapping[str, object]) -> str:
    """What a shell reads to complete `bigbird-ja`.

    Args:
        words: of the command line: the shell.
        commands: name to module, in the order of use.

    Raises:
        BadInput: no such shell.
    """
    if list(words) not in (["bash"], ["zsh"]):
        raise BadInput("--completion takes bash or zsh")
    values, flags = [], []
    for name, command in commands.items():
        listed = command_flags.own_flags(command_flags.flags_of(command))
        for flag in listed:
            option = command_flags.declared(flag)
            choices = preset_names() if flag.name == "config" else option.choices
            if option.kind is not bool:
                values.append(f'    "{name} --{flag.name}") words="{" ".join(choices)}";;')
        flags.append(f'      {name}) words="{" ".join(f"--{flag.name}" for flag in listed)}";;')
    text = _SCRIPT % ("\n".join(values), "\n".join(flags), " ".join(commands))
    return _ZSH * (words[0] == "zsh") + text
