"""Masks credentials in text before it is logged or written anywhere.

`streams` applies it to all that Python writes to standard error, `streams.json_line` to records. It
is the last net, and short: what leaves this machine is composed from values that the program knows,
and environment variables are never printed. URLs lose passwords and queries; what follows a name
such as `password` is masked; and so are a few well-known forms. What is masked is the value; the
name stays, so that a message still tells what was wrong.
"""

import functools
import re

MASK = "[redacted]"

# Credentials wherever they stand: private keys, whole or cut off; words of small letters, capitals
# and digits, as no prose or checksum has them; words with a known beginning; encoded addresses.
_FORMS = (
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
    r"|(?<![\w+/])(?=[A-Za-z]*\d)(?=[a-z\d]*[A-Z])(?=[A-Z\d]*[a-z])(?=\w*\d\w*\d)[A-Za-z0-9]{20,}"
    r"[\w+/=-]*"
    r"|\b(?:ya29\.|eyJ|ewog)[\w+/=.-]{12,}"
    r"|\b(?:1//|4/0|AIza|GOCSPX-|GOOG|AGE-SECRET-KEY-|SG\.|sk-|pypi-|nvapi-|tskey-|dapi|SK)"
    r"(?=[\w.-]*\d)[\w.-]{16,}"
    r"|\b(?:hf|gh[pousr]|github_pat|npm|glpat|xox[a-z]|whsec|KGAT|wandb_v\d|dckr_pat|dop_v\d|[rs]k_live)"
    r"[-_](?=[\w-]*\d)[\w-]{16,}|\bA[KS]IA[A-Z0-9]{12,}"
    r"|(?<=/bot)\d+:[\w-]+|\b\w+%3[aA]%2[fF]%2[fF][^\s\"'<>]+"
)
_SEPARATOR = r"""\\*["']?\]?\s*(?:[=:：]|%3[dD]|=>|>(?=[^<\s]+</)|,(?=\s*b?\\*["']))\s*"""
# Placeholders that programs and manuals show for a credential stay: `$TOKEN`, `<your token>`, None;
# and where a file of them lies.
_PLACEHOLDER = (
    r"""(?!\[redacted\]|\\*["']?(?:\$[\w({]|<|%s|\{|\*\*|[/~.]|(?:none|null|true|false)\b))"""
)
_QUOTED = r"""b?(?P<quote>\\*["'])(?:(?!(?P=quote)).)+(?P=quote)"""
_VALUE = rf"""{_PLACEHOLDER}(?:{_QUOTED}|[^\s&,;"'<>(){{}}\[\]\\]+)"""
# Letters, digits and signs, as no word of prose has them.
_RANDOM = r"""b?\\*["']?(?=[^\s"'&,;]*\d)[\w~+/=%-]{16,}"""
_BEFORE = r"(?<![\w/-])-{0,2}(?:\w[\w-]{0,60}?)?"

# Group 1 stays, what comes after it is the credential.
_RULES = (
    rf"""(?i)(\b(?:proxy-)?authorization{_SEPARATOR})"""
    r"""(?!\s*(?:\[redacted\]|\\*["']?(?:\w+\s+)?[$<%{]))[^\r\n]+""",
    rf"(?i)(\b(?:set-)?cookie{_SEPARATOR})(?=\S*=)[^\r\n]+",
    r"(?i)(\bbearer(?:\s+|%20))(?=[\w.~+/=-]*\d|\w{16})[\w.~+/=-]+",
    # Any value of a variable with such a name; what looks random behind other names.
    rf"(\b(?:[A-Z0-9]+_){{0,9}}(?:KEY|TOKEN|SECRET|PASS|PWD|CREDENTIALS?|AUTH|WEBHOOK|DSN)(?:_[A-Z0-9]+){{0,3}}"
    rf"{_SEPARATOR}){_VALUE}",
    rf"(?i)({_BEFORE}(?:passw(?:or[dt]|d)|passphrase|passcode|pwd|secret|(?<=_)pass|パスワード"
    r"|(?:access|api|auth|bearer|client|encryption|id|private|refresh|session)[_-]?(?:key|token))"
    rf"(?:[_-]?\w*key)?{_SEPARATOR}){_VALUE}",
    rf"(?i)({_BEFORE}(?:token|key(?:[_-]?(?:id|base))?|pass|auth|credential|signature|sig|sas"
    rf"|session_?id|sid|upload_id){_SEPARATOR}){_RANDOM}",
    rf"(?i)((?<![\w-])--?(?:pass\w*|token|api[_-]key|secret)\s+)(?!-){_VALUE}",
    rf"(\blogin\s+\S+\s+password\s+){_VALUE}",
    r"""((?<![\w-])(?:-[uU]\s*|--(?:proxy-)?user[\s=]+)["']?[^\s:"']+:)[^\s"']+""",
    # Addresses: user and password, or a token in place of a user; query; and all that follows the
    # host of a webhook.
    r"""(://)(?:[^/\s?#"'<>@]*:[^/\s?#"'<>]+|(?=[^/@\s]*\d)[^/\s?#"'<>:@]{16,})(?=@)""",
    r"""((?<![\w/:.-])[\w.-]{1,99}:)[^\s/@:"']+(?=@[\w-])""",
    r"""(?i)((?:://[^\s"'<>]{0,200}?hook[^\s"'<>/]*|\bhooks\.[\w.]+)/)(?!\[redacted\])[^\s"'<>)]+""",
    r"(?i)(\bwandb\b[^\n]{0,80}?)(?<![\w-])[0-9a-f]{40}\b",
    r"""(://[^\s?"'<>]{0,500}\?)(?!\[redacted\])[^\s"'<>)]+""",
    # Of a path, too, if it names what follows: libraries print addresses without the host.
    r"""((?:://|(?<![^\s"'(=])/)[^\s?#"'<>]{0,500}[?#][\w.~-]+=)(?!\[redacted\])[^\s"'<>)]+""",
)


@functools.cache
def _compiled() -> tuple[re.Pattern[str], list[re.Pattern[str]]]:
    """Compiles the rules at the first text, not at import: `--help` needs none of it."""
    return re.compile(_FORMS), [re.compile(rule) for rule in _RULES]


def redact(text: str) -> str:
    """Replaces every credential in `text` by `[redacted]`; twice is as once."""
    forms, rules = _compiled()
    text = forms.sub(MASK, text)
    for rule in rules:
        text = rule.sub(rf"\1{MASK}", text)
    return text
