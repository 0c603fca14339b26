import dataclasses
import hashlib
import re
import shutil

import numpy as np
import pytest

from bigbird_ja.data import build, tfrecords
from bigbird_ja.data import manifest as manifest_lib
from bigbird_ja.data.check import check, fast_check
from bigbird_ja.process.errors import BadInput
from testkit import synthetic
from tests.data import making


@pytest.fixture(scope="module", params=["dynamic", "static"])
def whole(request, tmp_path_factory, sample_corpus, tokenizer_path):
    directory = str(tmp_path_factory.mktemp(request.param) / "data")
    changes = {"masking": request.param, "dupe_factor": 2, "nsp": True}
    manifest, _ = build.make_data(
        making.request(sample_corpus, tokenizer_path, directory, **changes)
    )
    return manifest, directory


@pytest.fixture
def data(whole, tmp_path):
    shutil.copytree(whole[1], tmp_path / "data")
    return whole[0], tmp_path / "data"


def problems_of(directory):
    manifest = manifest_lib.load(str(directory))
    return check(manifest, str(directory))


def test_a_whole_data_set_has_no_problems_unless_the_manifest_states_other_totals(whole):
    manifest, directory = whole
    read = []
    assert check(manifest, directory, read.append) == []
    assert sum(read) == sum(s.bytes for s in manifest.train_shards + manifest.eval_shards)
    counts = ["sequences", "used_positions"]
    if manifest.masking == "static":  # those of dynamic masks are drawn while training
        counts.append("predictions")
    for count in counts:
        other = dataclasses.replace(manifest.train, **{count: 7})
        (problem,) = check(dataclasses.replace(manifest, train=other), directory)
        assert "the manifest states 7" in problem


def test_damaged_missing_extra_and_foreign_shards_are_found(data):
    manifest, directory = data
    rng = np.random.default_rng(0)
    first, second, third, fourth = (directory / s.name for s in manifest.train_shards)
    content = bytearray(fourth.read_bytes())
    third.write_bytes(content)
    content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
    fourth.write_bytes(content)
    first.write_bytes(first.read_bytes()[:-7])
    second.unlink()
    (directory / "train-00077-of-00078.tfrecord").write_bytes(b"")
    text = "\n".join(problems_of(directory))
    assert f"{first.name}: truncated" in text
    assert f"{second.name} is missing" in text
    assert f"{third.name}: is not the file that was made" in text
    assert f"{fourth.name}: " in text
    assert "train-00077-of-00078.tfrecord is not in the manifest" in text


def test_another_tokenizer_is_found(data, tokenizer_path):
    (data[1] / "tokenizer.model").write_bytes(b"another")
    assert problems_of(data[1]) == ["tokenizer.model is not the one that the data was made with"]
    manifest, directory = data
    shutil.copy(tokenizer_path, directory / "tokenizer.model")
    more = dataclasses.replace(manifest, vocab_size=manifest.vocab_size + 1)
    synthetic.save(more, str(directory))
    assert problems_of(directory) == ["tokenizer.model has other ids than the manifest states"]
    with pytest.raises(BadInput, match="has other ids than the manifest states"):
        fast_check(str(directory))
    (data[1] / "tokenizer.model").unlink()
    assert problems_of(data[1]) == ["tokenizer.model is missing"]


@pytest.mark.parametrize(
    "spoil,what",
    [
        (lambda t: t.__setitem__((1, 5), 199_000), "are not of this data set|vocabulary"),
        (lambda t: t.__setitem__((1, 0), 9), r"does not begin with \[CLS\]"),
        (lambda t: t.__setitem__((1, 4), 0), "padding before text"),
        (lambda t: t.__setitem__((1, 5), 6), r"holds \[MASK\]"),
        (lambda t: t.__setitem__((1, slice(1, 64)), 5), "predicts nothing"),
    ],
)
def test_records_that_are_wrong_inside_are_found(tmp_path, spoil, what):
    made = synthetic.write(tmp_path, (4, 4), vocab_size=300_000)
    shard = made.train_shards[0]
    tokens, starts = synthetic.random_records(np.random.default_rng(0), 4, 64, 200)
    starts[:] = False
    spoil(tokens)
    if "vocabulary" in what:
        made = dataclasses.replace(made, vocab_size=70_000)
    encoded = tfrecords.encode_dynamic(tokens.astype("<i4"), np.packbits(starts, axis=1))
    content = tfrecords.frame(encoded)
    (tmp_path / shard.name).write_bytes(content)
    sha = hashlib.sha256(content).hexdigest()
    shard = dataclasses.replace(shard, sha256=sha, bytes=len(content))
    changed = dataclasses.replace(made, train_shards=(shard, *made.train_shards[1:]))
    synthetic.save(changed, str(tmp_path))
    problems = problems_of(tmp_path)
    assert any(re.search(f"{shard.name}: record.* {what}", p) for p in problems), problems
