"""Takes credentials out of text before it is logged or written anywhere."""

from __future__ import annotations

import logging
import re

_MASK = "[redacted]"
_SECRETS = [
    # A key file's contents, or any PEM private key.
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.S
    ),
    re.compile(r"(?i)(\bbearer\s+)[\w.~+/=-]{3,}"),
    re.compile(r"\bya29\.[\w.-]+"),  # Google's OAuth access tokens
    re.compile(r"\b1//[\w-]{20,}"),  # refresh tokens
    re.compile(r"\bAIza[\w-]{20,}"),  # API keys
    re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"),  # signed JSON (identity tokens)
    re.compile(
        r"(?i)([\"']?\b(?:access_token|refresh_token|id_token|client_secret|private_key"
        r"|private_key_id|password|passwd|api_key|x-goog-signature|x-goog-credential"
        r"|upload_id|authorization)\b[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'|[^\s&,;}]+)"
    ),
    re.compile(r"(://[^/\s:@]+:)[^/\s@]+(?=@)"),  # user:password@host
]


def redact(text: str) -> str:
    """`text` with every credential replaced by `[redacted]`."""
    for pattern in _SECRETS:
        text = pattern.sub(lambda m: (m.group(1) if m.re.groups else "") + _MASK, text)
    return text


class RedactingFilter(logging.Filter):
    """For log handlers: no record leaves with a credential in it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Rewrites the record's message in place; keeps every record."""
        message = record.getMessage()
        cleaned = redact(message)
        if cleaned != message:
            record.msg, record.args = cleaned, None
        return True
