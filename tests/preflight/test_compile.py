"""The child process around the compiler, and the cache. The compiler itself: test_recorded_cost."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys

import pytest

from bigbird_ja.chips import CHIPS
from bigbird_ja.errors import BadInput, CommandError
from bigbird_ja.preflight import compile as compile_lib

V3, V2 = CHIPS["v3"], CHIPS["v2"]
VERSIONS = {"jax": "1", "jaxlib": "1", "libtpu": "1"}
ANSWER = """
import json, sys
out = sys.argv[-1]
open(out + "/optimized.hlo", "w").write("HloModule made")
json.dump({"temp_bytes": 7}, open(out + "/result.json", "w"))
"""


def _child(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(compile_lib, "CHILD", (sys.executable, "-c", code))


def test_a_result_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _child(monkeypatch, ANSWER)
    found = compile_lib.compile_for(b"module", V3)
    assert (found.hlo, found.stats, found.shortage) == ("HloModule made", {"temp_bytes": 7}, None)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import os; os.abort()", "crashed (SIGABRT)"),
        ("import sys; sys.stderr.write('F0101 Check failed: x\\nstack\\n'); sys.exit(3)",
         "crashed (status 3): F0101 Check failed: x"),
        ("import json, sys; json.dump({'error': 'INTERNAL: odd\\nmore'},"
         " open(sys.argv[-1] + '/result.json', 'w'))", "refused: INTERNAL: odd"),
    ],
)  # fmt: skip
def test_a_crash_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, code: str, said: str) -> None:
    _child(monkeypatch, code)
    with pytest.raises(CommandError) as caught:
        compile_lib.compile_for(b"module", V3)
    assert (caught.value.status, caught.value.reason) == (1, "bug")
    assert said in str(caught.value)
    assert "v3" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_compiler_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    _child(monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(compile_lib.CompilerFailed, match="did not finish within 1 seconds"):
        compile_lib.compile_for(b"module", V3, timeout=1)


def test_too_little_memory_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    error = "XlaRuntimeError: RESOURCE_EXHAUSTED: ... Used 9.28G of 7.48G hbm."
    _child(monkeypatch, f"import json, sys; json.dump({{'error': {error!r}}},"
                        " open(sys.argv[-1] + '/result.json', 'w'))")  # fmt: skip
    found = compile_lib.compile_for(b"module", V2)
    assert found.shortage is not None
    assert found.shortage.used > found.shortage.available > 0


def test_the_cache_answers_without_compiling(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    cache = os.path.join(tmp_path, "cache")
    _child(monkeypatch, ANSWER)
    first = compile_lib.compile_for(b"module", V3, cache)
    _child(monkeypatch, "import os; os.abort()")
    assert compile_lib.compile_for(b"module", V3, cache) == first
    for hlo, chip in ((b"another", V3), (b"module", V2)):
        with pytest.raises(CommandError):
            compile_lib.compile_for(hlo, chip, cache)


def test_a_damaged_cache_entry_is_compiled_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]
) -> None:
    cache = os.path.join(tmp_path, "cache")
    _child(monkeypatch, ANSWER)
    first = compile_lib.compile_for(b"module", V3, cache)
    (name,) = os.listdir(cache)
    with open(os.path.join(cache, name), "r+b") as stream:
        stream.truncate(20)
    assert compile_lib.compile_for(b"module", V3, cache) == first


def test_a_key_depends_on_everything_that_a_result_depends_on() -> None:
    keys = {
        compile_lib.cache_key(b"m", V3, VERSIONS),
        compile_lib.cache_key(b"n", V3, VERSIONS),
        compile_lib.cache_key(b"m", V2, VERSIONS),
        compile_lib.cache_key(b"m", V3, VERSIONS | {"libtpu": "2"}),
    }
    assert len(keys) == 4


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        if package == "libtpu":
            raise importlib.metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(importlib.metadata, "version", version)
    with pytest.raises(BadInput, match=r"pip install 'bigbird-ja\[preflight\]'"):
        compile_lib.versions()


def test_where_the_cache_is() -> None:
    assert compile_lib.default_cache_dir({"XDG_CACHE_HOME": "/c"}) == "/c/bigbird-ja/preflight"
    json.dumps(compile_lib.ENVIRONMENT)
