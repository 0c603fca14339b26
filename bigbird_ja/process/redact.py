"""Masking of credentials in text before it is logged or written.

`streams` applies it to everything that Python writes to standard error, `streams.json_line` to
records. It is the last line of defense: text that leaves this machine is composed of values that
the program knows, and environment variables are never printed. Addresses lose passwords and
queries. The value after a name such as `password` is masked; after `token` or `key`, and anywhere
else, values that look like a credential are. The name stays, so that a message remains useful.
"""

import re

REDACTED = "[redacted]"

# Credentials wherever they stand: private keys, whole or cut off; words with a known beginning;
# words of small letters, capitals and digits, as no prose or checksum has them; encoded addresses.
_PRIVATE_KEYS = (
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)"
)
_FORMS = (
    r"\b(?:ya29\.|eyJ|ewog)[\w+/=.-]{12,}"
    r"|\b(?:1//|4/0|AIza|GOCSPX-|GOOG|AGE-SECRET-KEY-|SG\.|sk-|pypi-|nvapi-|tskey-|dapi|SK|A[KS]IA"
    r"|(?:hf|gh[pousr]|github_pat|npm|glp[a-z]{1,2}|x(?:ox[a-z]|app)|whsec|KGAT|wandb_v\d|dckr_pat"
    r"|dop_v\d|[rs]k_\w{4}|shp\w\w|key)[-_])(?=[\w.-]*(?:\d|[a-z][A-Z]))[\w.-]{12,}"
    r"|(?<![A-Za-z0-9+/])(?=[A-Za-z]*\d)(?=[a-z\d]*[A-Z])(?=[A-Z\d]*[a-z])(?=\w*\d\w*\d)"
    r"[A-Za-z0-9]{18,}[\w+/=-]*"
    r"|(?<=/bot)\d+:[\w-]+|\b\w+%3[aA]%2[fF]%2[fF][^\s\"'<>]+"
)
# Between a name and its value: in code, JSON, headers, lists of words, XML and pairs.
_IS = (
    r"""\\*["']?\]?(?:,?\s*["']?value["']?\s*[=:]"""
    r"""|\s*(?:[=:：＝]|%3[dD]|[=-]>|>(?=[^<\s]+</)|,(?=\s*b?\\*["'](?!value))))\s*(?:\[(?!redac))?"""
)
# Placeholders that programs and manuals show for a credential stay: `$TOKEN`, `<your token>`, None;
# and so do paths of credential files.
_PLACEHOLDER = (
    r"""(?!\[redacted\]|\\*["']?(?:\$[\w({]|<|%s|\{|\*\*|[/~.]|(?:none|null|true|false)\b))"""
)
_QUOTED = r"""b?(?P<quote>\\*["'])(?:(?!(?P=quote)).)+(?P=quote)"""
_VALUE = rf"""{_PLACEHOLDER}(?:{_QUOTED}|\w*\(["'][^)\n]*\)|[^\s&,;"'<>(){{}}\[\]\\]+)"""
# Values that look like a credential: letters and digits mixed, as in few words; or long.
_MIXED = r"""b?\\*["']?(?=[a-z]*\d|\d+[a-z])(?=[\w.-]*[a-z])\w[\w.-]{5,}"""
_LONG = r"""b?\\*["']?(?![a-z_]+/)(?=[^\s"'&,;]*\d)[\w~+/=%-]{16,}"""
_BEFORE = r"(?:(?<![\w/-])|(?<=\\[nrt]))-{0,2}(?:\w[\w.-]{0,60}?)?"
_LINE = r"(?!\s*(?:\[{1,2}redacted\]|\\*[\"']?(?:\w+\s+)?[$<%{]))(?:(?!\\r|\\n)[^\r\n])+"

# Names whose every value is a credential; variables may have other words before these.
_STRONG = (
    r"(?:(?:passw(?:or[dt]|d)|pass ?phrase|passcode|pwd|bind_?pw|secret|(?<=_)pass|requirepass"
    r"|パスワード|暗証番号|秘密鍵|認証キー|アクセスキー|(?:access|account|api|auth|bearer|client|encryption|id|private"
    r"|refresh|session|subscription)[_. -]?(?:key|token))(?:s|[._-]?\w*(?:key|id|hash)|_\w{1,30})?"
    r"|(?-i:(?:KEY|TOKEN|SECRET|PASS|PWD|CREDENTIALS?|AUTH|WEBHOOK|DSN)(?:_[A-Z0-9]+){0,3}))"
)

# Group 1 stays, what comes after it is the credential.
_RULES = (
    rf"(?i)({_BEFORE}(?:authorization{_IS}|cookie{_IS}(?=\S*=))){_LINE}",
    r"(\b(?:(?i:bearer)(?:\s+|%20)|[Bb]asic (?=\w*=|\w*[A-Z]\w*[a-z])))"
    r"(?=[\w.~+/=-]*\d|\w{16})[\w.~+/=-]+",
    # A block below its name, as YAML and TOML have it.
    rf"(?i)({_BEFORE}{_STRONG}\s{{0,9}}(?::\s{{0,9}}[|>][-+]?|=\s{{0,9}}(?:\"\"\"|'''))[ \t]*\n"
    r"(?:[ \t]*\n)?)(?![ \t]*\[redacted\])[^\n]+(?:\n[ \t]+[^\n]+)*",
    rf"(?i)({_BEFORE}{_STRONG}{_IS}|(?<![\w-])auth=){_VALUE}",
    rf"(?i)({_BEFORE}(?:token|トークン|pass|pw|credentials?){_IS}){_MIXED}",
    rf"(?i)({_BEFORE}(?:token|トークン|key(?:[_-]?base)?|pass|auth|signature|sig|sas|sid|verifier|code"
    rf"|session_?id|upload_id){_IS}){_LONG}",
    rf"(?i)((?<![\w-])--?[\w-]{{0,40}}?(?:pass\w*|token|key|secret)\s+)(?!-)(?=\S*\d|[\"']){_VALUE}",
    rf"(?i)({_STRONG}(?:{_IS}|は)\s*[「『“])[^」』”\n]{{1,200}}",
    rf"(?i)(\b{_STRONG}(?: is|は| for key \S+:)?\s+)['\"]?{_MIXED}",
    r"""((?<![\w-])(?:-[uU][\s"',]*|--(?:proxy-)?user[\s=]+)["']?[^\s:"']+:)[^\s"']+""",
    # Addresses: user and password, or a token in place of a user; query; and all that follows the
    # host of a webhook.
    r"""(://)(?:[^/\s?#"'<>@]*:[^/\s?#"'<>]+|(?=[^/@\s]*\d)[^/\s?#"'<>:@]{16,})(?=@)""",
    r"""((?<![\w/:.-])[\w.-]{1,99}:)[^\s/@:"']+(?=@[\w-])""",
    r"""(?i)((?:://[^\s"'<>]{0,200}?hook[^\s"'<>/]*|\bhooks\.[\w.]+)/)(?!\[redacted\])[^\s"'<>)]+""",
    r"(?i)(\b(?:wandb|api.key)\b[^\n]{0,80}?)(?<![\w-])(?:[0-9a-f]{40}|[0-9a-f]{32})\b",
    r"""(://[^\s?;"'<>]{0,500}[?;])(?!\[redacted\])[^\s"'<>)]+""",
    # The query of a path as well, as libraries print addresses without the host.
    r"""((?:://|(?<![^\s"'(=])/)[^\s?#"'<>]{0,500}[?#][\w.~-]+=)(?!\[redacted\])[^\s"'<>)]+""",
)


# Rules see this many characters at once, so that the time is linear in the length of the text,
# whatever it is. Parts end before a line, or else between words.
_PARTS = r"(?s).{1,1000}(?=\n(?!\s)|\Z)|.{1,1000}(?=\s)|.{1,1000}"
_REST_OF_WORD = r"[^\s&\"'<>,;]*"
_COLORS = r"\x1b\[[\d;]{0,20}m"


def redact(text: str) -> str:
    """Replace every credential in `text` by `[redacted]`; idempotent."""
    if "\x1b" in text:  # without colors, if these would hide a credential
        plain = re.sub(_COLORS, "", text)
        if (cleaned := redact(plain)) != plain:
            return cleaned
    parts, goes_on = [], False
    for part in re.findall(_PARTS, re.sub(_PRIVATE_KEYS, REDACTED, text)):
        cleaned = re.sub(_REST_OF_WORD, "", part, count=1) if goes_on else part
        cleaned = re.sub(_FORMS, REDACTED, cleaned)  # compiled here: `--help` needs none of it
        for rule in _RULES:
            cleaned = re.sub(rule, rf"\1{REDACTED}", cleaned)
        parts.append(cleaned)
        goes_on = cleaned.endswith(REDACTED)  # perhaps in the middle of a word
    return "".join(parts)
