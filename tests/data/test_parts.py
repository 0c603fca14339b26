"""Parts of a data set, made by machines that share its folder, are joined to what one makes."""

import pytest

from bigbird_ja import storage
from bigbird_ja.data import blocks, build, shards, work
from bigbird_ja.process.errors import BadInput
from tests.data import making


@pytest.fixture
def request_of(sample_corpus, tokenizer_path, monkeypatch, tmp_path):
    """`request_of(output, **changes)`, of a mixture; blocks are small."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with making.small_blocks():
        yield lambda output, **changes: making.request(
            f"{sample_corpus}=1.5", tokenizer_path, str(output), **changes
        )


@pytest.fixture
def written(monkeypatch):
    """The names of the files that are written, in order."""
    names = []
    for module, function in ((blocks, "write_block"), (shards, "write_shard")):
        write = getattr(module, function)

        def noted(*arguments, write=write):
            path = next(each for each in arguments if isinstance(each, str))
            names.append(storage.base_name(path))
            return write(*arguments)

        monkeypatch.setattr(module, function, noted)
    return names


@pytest.fixture
def whole(request_of, tmp_path, written):
    """The files of the data set that one machine makes, and the names of what it writes."""
    build.make_data(request_of(tmp_path / "whole"))
    names = sorted(written)
    written.clear()
    return making.tree(tmp_path / "whole"), names


@pytest.mark.parametrize("place", ["disk", "bucket"])
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 1)])
def test_parts_in_any_order_make_the_bytes_of_one_machine_and_nothing_twice(
    request, request_of, tmp_path, whole, written, monkeypatch, place, order
):
    output = str(tmp_path / "data")
    if place == "bucket":
        output = f"{request.getfixturevalue('bucket')}/data"
    for number in (*order, "last"):  # machines share nothing but the output
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache-{number}"))
        if number == "last":
            assert build.make_data(request_of(output))[1] is False
        else:
            assert build.make_part(request_of(output), (number, 3))
    names = storage.list_tree(output)
    assert {name: storage.read_bytes(f"{output}/{name}") for name in names} == whole[0]
    assert sorted(written) == whole[1]
    assert build.make_part(request_of(output), (0, 3)) is None
    assert not list(tmp_path.rglob("*.block"))


def test_a_shard_that_was_damaged_before_the_join_is_made_again(request_of, tmp_path, whole):
    made = build.make_part(request_of(tmp_path / "data"), (0, 1))
    path = tmp_path / "data" / work.NAME / "ready" / made[0].shard.name
    path.write_bytes(path.read_bytes()[::-1])
    build.make_data(request_of(tmp_path / "data"))
    assert making.tree(tmp_path / "data") == whole[0]


def test_parts_of_other_settings_or_text_are_refused(request_of, tmp_path, tokenizer_path):
    build.make_part(request_of(tmp_path / "data"), (0, 2))
    before = making.tree(tmp_path / "data")
    text = making.write_corpus(tmp_path / "other.jsonl", ["別の文書。"] * 9)
    other = making.request(f"{text}=1.5", tokenizer_path, str(tmp_path / "data"))
    for refused, why in ((request_of(tmp_path / "data", seed=2), "--seed"), (other, "--input")):
        with pytest.raises(BadInput, match=f"unfinished work of other settings: {why}"):
            build.make_part(refused, (1, 2))
    assert making.tree(tmp_path / "data") == before
    build.make_data(request_of(tmp_path / "data"))
    with pytest.raises(BadInput, match=r"choose another --output_dir, or remove that one$"):
        build.make_part(request_of(tmp_path / "data", seed=2), (1, 2))


def test_one_process_for_a_part_and_none_beside_the_join(request_of, tmp_path):
    output = tmp_path / "data"
    build.make_part(request_of(output), (0, 2))
    with work.Work(str(output), (0, 2)).exclusive_part():
        with pytest.raises(BadInput, match="is making part-1-of-2 there: wait"):
            build.make_part(request_of(output), (0, 2))
        with pytest.raises(BadInput, match="is making part-1-of-2 there: wait"):
            build.make_data(request_of(output))
        build.make_part(request_of(output), (1, 2))
    with work.exclusive(str(output)):
        for make in (build.make_data, lambda request: build.make_part(request, (1, 2))):
            with pytest.raises(BadInput, match="is making data there: wait"):
                make(request_of(output))
