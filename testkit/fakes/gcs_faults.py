"""What the fake bucket is told to do wrong: rules that match requests, each for a while."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass
from typing import Any

_AT_A_BYTE = frozenset({"reset", "stall", "truncate", "short", "corrupt"})
KINDS = _AT_A_BYTE | {"status", "lost_reply"}


@dataclass
class Rule:
    """One fault.

    match: regular expression on "METHOD host/path?query", names unquoted.
    do: status(code) answers so; reset(bytes), stall(bytes, seconds), truncate(bytes) strike when
      that many bytes of the object (not of the request) have passed; lost_reply does the work and
      drops the connection; short(bytes) is a complete reply with too little in it; corrupt(bytes)
      flips the byte there.
    times: -1 for ever; skip: matching requests that pass first; p: chance of striking.
    """

    match: str
    do: str
    times: int = 1
    skip: int = 0
    p: float = 1.0
    code: int = 503
    bytes: int = 0
    seconds: float = 0.0


class Rules:
    """The rules in force; the first that strikes is the one."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._random = random.Random(seed)
        self.cleared = threading.Event()  # ends every pause at once

    def add(self, values: dict[str, Any]) -> None:
        """A rule from JSON."""
        rule = Rule(**values)
        if rule.do not in KINDS:
            raise ValueError(f"unknown fault {rule.do!r}")
        re.compile(rule.match)
        with self._lock:
            self._rules.append(rule)

    def clear(self) -> None:
        """Forgets all rules and releases requests that are being delayed."""
        with self._lock:
            self._rules.clear()
            self.cleared.set()
            self.cleared = threading.Event()

    def strike(self, request: str, first: int, last: float) -> Rule | None:
        """The rule that this request meets, counted down.

        Args:
            first, last: the object's bytes that the request moves; a fault at a byte waits for
              the request that moves it.
        """
        with self._lock:
            for rule in self._rules:
                if rule.times == 0 or not re.search(rule.match, request):
                    continue
                if rule.do in _AT_A_BYTE and not first <= rule.bytes <= last:
                    continue
                if rule.skip > 0:
                    rule.skip -= 1
                    continue
                if rule.p < 1 and self._random.random() >= rule.p:
                    continue
                rule.times -= rule.times > 0
                return rule
        return None
