"""Signals, streams, errors and child processes of this process. The lowest layer."""

from bigbird_ja.process.redact import REDACTED as REDACTED
from bigbird_ja.process.redact import redact as redact
