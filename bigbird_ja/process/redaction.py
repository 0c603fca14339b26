"""Takes credentials out of text before it is logged or written anywhere.

A credential is told by its own form (a GitHub token starts with `ghp_`), by the name in front of it
(`password=`, `Authorization:`), or by its place in a URL. What is masked is the value; the name
stays, so that a message still says what was wrong.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import functools
import logging
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from typing import Any

MASK = "[redacted]"

# Forms that are credentials wherever they stand.
_FORMS = "|".join(
    (
        # A PEM or PGP private key, whole or cut off.
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
        r"(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
        r"\bAGE-SECRET-KEY-1[0-9A-Z]{20,}",
        # Google: access tokens, refresh tokens, authorisation codes, API keys, client secrets.
        r"\bya29\.[\w.-]+",
        r"\b1//[\w-]{20,}",
        r"\b4/0[\w-]{20,}",
        r"\bAIza[\w-]{20,}",
        r"\bGOCSPX-[\w-]{10,}",
        # Signed JSON, such as identity tokens.
        r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?",
        # Hugging Face, Kaggle, W&B, NVIDIA, Replicate, Groq.
        r"\b(?:hf|api_org)_[A-Za-z0-9]{16,}",
        r"\bKGAT_[A-Za-z0-9]{16,}",
        r"\bwandb_v\d_\w{16,}",
        r"\bnvapi-[\w-]{16,}",
        r"\br8_[A-Za-z0-9]{20,}",
        r"\bgsk_[A-Za-z0-9]{20,}",
        # GitHub, GitLab.
        r"\bgh[pousr]_[A-Za-z0-9]{16,}",
        r"\bgithub_pat_\w{20,}",
        r"\bgl(?:pat|dt|rt|cbt|ptt|ft|imt|agent|oas|soat)-[\w-]{16,}",
        # AWS.
        r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}",
        # Slack: tokens and the addresses of incoming webhooks.
        r"\bxox[a-z]-[\w-]{10,}",
        r"\bxapp-[\w-]{10,}",
        r"(?<=hooks\.slack\.com/services/)[\w/-]+",
        # OpenAI, Anthropic and others; Stripe; SendGrid; npm, PyPI, Docker, Vault, Grafana.
        r"\bsk-(?=[\w-]*\d)[\w-]{16,}",
        r"\b[rs]k_(?:live|test)_\w{10,}",
        r"\bSG\.[\w-]{16,}\.[\w-]{16,}",
        r"\bnpm_[A-Za-z0-9]{20,}",
        r"\bpypi-[\w-]{20,}",
        r"\bdckr_pat_[\w-]{16,}",
        r"\bdop_v1_[0-9a-f]{32,}",
        r"\bhv[sb]\.[\w-]{20,}",
        r"\bgls[ac]_\w{20,}",
        r"\btskey-[\w-]{16,}",
    )
)

# A value, quoted (perhaps within JSON within JSON) or up to the next separator. What a program or a
# manual shows in its place stays: `$TOKEN`, `<your token>`, `%s`, `{token}`, None.
_PLACEHOLDER = r"""(?!\[redacted\]|\\*["']?(?:\$[\w({]|<|%s|\{|\*\*|(?:none|null|true|false)\b))"""
_QUOTED = r"""(?:b?(?P<quote>\\*["'])(?:(?!(?P=quote)).)+(?P=quote))"""
_VALUE = rf"""{_PLACEHOLDER}(?:{_QUOTED}|[^\s&,;"'<>(){{}}\[\]\\]+)"""
_SEPARATOR = r"""\\*["']?\s*(?:[=:]|%3[dD]|=>|,(?=\s*b?\\*["']))\s*"""

# Names whose value is a credential after `=` or `:`, with anything before: AWS_SECRET_ACCESS_KEY.
_NAMES = (
    r"(?:hf|hub|access|refresh|id|auth|_auth|bearer|oauth2?|session|security|api|github|gitlab|gh"
    r"|slack|bot|secret|private|wandb|kaggle|vault|npm|pypi|csrf|xsrf|sas|deploy|user|service|jwt"
    r"|upload|iam-authorization|personal[_-]access|registration)[_-]?token"
    r"|password|passphrase|pass_?phrase"
    r"|client[_-]?secret|app[_-]?secret|consumer[_-]?secret|shared[_-]?secret|webhook[_-]?secret"
    r"|signing[_-]?secret|secret[_-]?(?:access[_-]?)?key"
    r"|api[_-]?key|access[_-]?key(?:[_-]?id)?|account[_-]?key|subscription[_-]?key"
    r"|signing[_-]?key|encryption[_-]?key|private[_-]?key(?:[_-]?id)?|master[_-]?key"
    r"|x-goog-(?:signature|credential)|x-amz-(?:signature|credential)|upload_id"
)
# Names that are words of prose too: a value must be quoted, or follow `=` at once.
_WEAK_NAMES = r"passwd|pwd|passcode|secret|auth"
# What may stand before a name; not a part of a path.
_BEFORE = r"(?<![\w/-])-{0,2}(?:\w[\w-]{0,60}?)?"

_HEADER = (
    rf"(?i)(\b(?:proxy-)?authorization\b{_SEPARATOR}\\*[\"']?)"
    r"(?!\[redacted\]|(?:\w+\s+)?[$<%{])"
    r"((?:digest|aws4-hmac-sha256)\s[^\r\n]+|(?:(?:basic|bearer|token|negotiate|ntlm|oauth|apikey)"
    r"(?:\s+|%20))?[^\s,;\"'\\]+)"
)
_COOKIE = (
    rf"(?i)(\b(?:set-)?cookie2?{_SEPARATOR}\\*[\"']?)(?!\[redacted\])"
    r"([^\s=;\"'\\]+=[^;\r\n\"'\\]*(?:;\s*[^;\r\n\"'\\]+)*)"
)
_NAMED = rf"(?i)({_BEFORE}(?:{_NAMES}){_SEPARATOR})({_VALUE})"
_WEAK = rf"(?i)({_BEFORE}(?<![a-z])(?:{_WEAK_NAMES})(?:=|{_SEPARATOR}(?=b?\\*[\"'])))({_VALUE})"
_SHELL = rf"(?<![\w/])(\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSWD)=)({_VALUE})"
_OPTION = rf"(?i)(?<![\w-])(--?(?:password|passwd|passphrase|token|{_NAMES})\s+)(?!-)({_VALUE})"
_CURL_USER = r"((?<![\w-])(?:-u|--user)[\s=]+[\"']?[^\s:\"']+:)([^\s\"']+)"
_NETRC = r"(\blogin\s+\S+\s+password\s+)(\S+)"
_QUERY = (
    r"(?i)([?&](?:sig|signature|token|auth|code|key|password|pw)=)(?!\[redacted\])([^\s&\"'<>]+)"
)
_USER_INFO = r"(://[^/\s:@\"']*:)([^/\s?#\"']+)(?=@)"
_BEARER = r"(?i)(\bbearer(?:\s+|%20))([\w.~+/=-]+)"
_BASIC = r"(?i)(\bbasic\s+)([A-Za-z0-9+/]{6,}={0,2})"
_TOKEN = rf"(?i)(?<![\w/])(token{_SEPARATOR}[\"']?)([\w.~+/=-]{{16,}})"
_WANDB = r"(?i)(\bwandb\b[^\n]{0,80}?)(?<![\w-])((?:local-)?[0-9a-f]{40})\b"
_KAGGLE = r"(\"key\\*\":\s*\\*\")([0-9a-f]{32})(?=\\*\")"


def _looks_random(text: str) -> bool:
    """Whether a word is no word: a digit, a sign, or more letters than words have."""
    return bool(re.search(r"[0-9._~+/=]", text)) or len(text) >= 24


def _is_user_and_password(text: str) -> bool:
    """Whether a word is base64 of `user:password`, and not one of prose."""
    try:
        return b":" in base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False


# A pattern (group 1 stays, group 2 is the credential), and what else must hold for group 2.
_RULES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    (_HEADER, bool),
    (_COOKIE, bool),
    (_NAMED, bool),
    (_WEAK, bool),
    (_SHELL, bool),
    (_OPTION, bool),
    (_CURL_USER, bool),
    (_NETRC, bool),
    (_QUERY, bool),
    (_USER_INFO, bool),
    (_BEARER, _looks_random),
    (_BASIC, _is_user_and_password),
    (_TOKEN, _looks_random),
    (_WANDB, bool),
    (_KAGGLE, bool),
)


@functools.cache
def _compiled() -> tuple[re.Pattern[str], list[tuple[re.Pattern[str], Callable[[str], bool]]]]:
    """At the first text, not at import: `--help` needs none of it."""
    return re.compile(_FORMS), [(re.compile(pattern), holds) for pattern, holds in _RULES]


def redact(text: str) -> str:
    """`text` with every credential replaced by `[redacted]`; twice is as once."""
    forms, rules = _compiled()
    text = forms.sub(MASK, text)
    for pattern, holds in rules:

        def masked(found: re.Match[str], holds: Callable[[str], bool] = holds) -> str:
            return found[1] + MASK if holds(found[2]) else found[0]

        text = pattern.sub(masked, text)
    return text


def install() -> None:
    """No log record, warning or traceback of this process leaves with a credential in it: not of a
    library's logger, not of a thread, not of a destructor."""
    make = logging.getLogRecordFactory()

    def record(*arguments: Any, **keywords: Any) -> logging.LogRecord:
        made = make(*arguments, **keywords)
        with contextlib.suppress(Exception):  # arguments that do not fit: the handler tells so
            message = made.getMessage()
            cleaned = redact(message)
            if cleaned != message:
                made.msg, made.args = cleaned, None
        if made.exc_info and made.exc_info[1] is not None:
            made.exc_text = formatted(made.exc_info[1]).rstrip("\n")
        return made

    logging.setLogRecordFactory(record)
    warning = warnings.formatwarning
    warnings.formatwarning = lambda *about, **more: redact(warning(*about, **more))

    def uncaught(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        _tell(formatted(error))

    def in_thread(found: threading.ExceptHookArgs) -> None:
        if found.exc_value is not None and not isinstance(found.exc_value, SystemExit):
            _tell(f"in thread {getattr(found.thread, 'name', '?')}: {formatted(found.exc_value)}")

    def ignored(found: Any) -> None:
        if found.exc_value is not None:
            what = redact(f"{found.err_msg or 'Exception ignored in'}: {found.object!r}")
            _tell(f"{what}\n{formatted(found.exc_value)}")

    sys.excepthook, threading.excepthook, sys.unraisablehook = uncaught, in_thread, ignored


def formatted(error: BaseException) -> str:
    """An exception with its traceback, as Python prints it, without credentials."""
    return redact("".join(traceback.format_exception(error)))


def _tell(text: str) -> None:
    try:
        sys.stderr.write(text if text.endswith("\n") else f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # no standard error: nobody to tell
        pass
