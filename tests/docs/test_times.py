"""Every page that says how long something takes says what docs/times.yaml and `plan` say."""

import re

from scripts import times
from testkit import ROOT

# How long something takes, as a comment behind a command of the README's road.
DURATION = re.compile(r"# .*\b(hours?|days?|weeks?|half|日|時間)")


def test_the_documents_quote_the_figures_as_they_are():
    assert times.missing() == []


def test_the_roads_hold_no_other_long_times():
    quoted = " ".join(text for _, text in times.sentences())
    for page in ("README.md", "README.ja.md", "docs/guide.md", "docs/guide.ja.md"):
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
            if result := DURATION.search(line):
                assert result[0].removeprefix("# ") in quoted, f"{page}: {line}"
