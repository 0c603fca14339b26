"""Masking of credentials in text before it is logged or written.

The rules recognize only common forms of credentials. That suffices, since masking is an additional
protection: messages consist of known values, and environment variables are never printed.
"""

import re

REDACTED = "[redacted]"

# Patterns of credentials. Group 1 is kept, and the credential after it is replaced. Each repetition
# is bounded, or ends at a delimiter before which no other match starts. So the time of a search is
# linear in the length of the text.
_RULES = (
    r"(://[^\s/?#@:]{0,200}:)[^\s/?#]+(?=@)",
    r"(?i)(\bauthorization[\"']?[ \t]{0,9}[:=][ \t]{0,9}[\"']?(?:bearer|basic) )[^\s\"',]+",
    r"(?i)(\bbearer )(?=\S{0,60}\d)[\w.~+/=-]{8,}",
    r"(?i)([?&](?:upload_id|access_token|x-goog-signature)=)[^\s&\"'<>]+",
    r"()-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]{0,40}-----|\Z)",
    r"()\b(?:ya29\.|1//0|AIza|GOCSPX-|A[KS]IA|eyJ|hf_|gh[opsur]_|github_pat_|glpat-|npm_|pypi-|sk-"
    r"|xox[abprs]-|wandb_v1_)(?=[\w.-]{0,60}\d)[\w.=-]{12,}",
)


def redact(text: str) -> str:
    """Replace the credentials in `text` by `[redacted]`."""
    # The rules are compiled in the first call and not at import, so that `--help` is fast.
    for rule in _RULES:
        text = re.sub(rule, rf"\1{REDACTED}", text)
    return text
