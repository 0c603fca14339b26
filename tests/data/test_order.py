import hashlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import order
from bigbird_ja.data.hashing import Purpose
from bigbird_ja.errors import BadInput


@st.composite
def layouts(draw):
    readers = draw(st.sampled_from([1, 2, 4, 8]))
    num_shards = readers * draw(st.integers(1, 4))
    records = draw(st.integers(num_shards, num_shards * 6))
    counts = [
        records * (i + 1) // num_shards - records * i // num_shards for i in range(num_shards)
    ]
    counts = draw(st.permutations(counts))
    # Several readers need shards of almost equal lengths. A single reader accepts any lengths.
    if readers == 1:
        counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    window = draw(st.integers(1, 5))
    return order.Layout(tuple(counts), readers, draw(st.integers(0, 2**63)), window)


def batches(layout, size, step=0, hosts=1, host=0):
    """Yield the records of a host in each global batch, as pairs (epoch, record id)."""

    def read(start):
        skip = start.skip
        for window in itertools.count(start.window):
            epoch = window // layout.windows_per_epoch
            shards = order.list_window_shards(layout, window, start.reader)
            ids = np.concatenate([layout.starts[s] + np.arange(layout.counts[s]) for s in shards])
            mixed = ids[order.permute(layout, Purpose.RECORD_ORDER, epoch, ids)].tolist()
            yield from ((epoch, record) for record in mixed[skip:])
            skip = 0

    starts = order.find_host_starts(layout, size, step, hosts, host)
    turns = itertools.cycle([read(start) for start in starts])
    while True:
        yield [next(next(turns)) for _ in range(size // hosts)]


def flat(layout, batch_size, num_batches):
    taken = itertools.islice(batches(layout, batch_size), num_batches)
    return list(itertools.chain.from_iterable(taken))


@settings(max_examples=60, deadline=None)
@given(layouts(), st.integers(1, 9))
def test_each_epoch_has_each_record_once(layout, batch_size):
    n = layout.num_records
    epochs = 3
    seen = flat(layout, batch_size, -(-epochs * n // batch_size))[: epochs * n]
    for epoch in range(epochs):
        part = seen[epoch * n : (epoch + 1) * n]
        assert sorted(part) == [(epoch, record) for record in range(n)]


@settings(max_examples=80, deadline=None)
@given(layouts(), st.integers(1, 16), st.integers(0, 40))
def test_any_number_of_hosts_resumes_at_any_step_with_the_same_global_batches(layout, size, step):
    whole = list(itertools.islice(batches(layout, size), step + 5))
    for hosts in (h for h in (1, 2, 4, 8) if layout.num_readers % h == size % h == 0):
        for host in range(hosts):
            parts = list(itertools.islice(batches(layout, size, step, hosts, host), 5))
            assert parts == [batch[host::hosts] for batch in whole[step:]]


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 2**31 - 1))
def test_each_shard_has_one_reader_and_each_reader_its_quota(layout, epoch):
    dealt = [order.list_reader_shards(layout, epoch, r).tolist() for r in range(layout.num_readers)]
    assert sorted(itertools.chain.from_iterable(dealt)) == list(range(len(layout.counts)))
    for reader, shards in enumerate(dealt):
        assert sum(layout.counts[s] for s in shards) == order.count_records(layout, epoch, reader)


def test_the_order_is_the_same_in_every_version():
    layouts = [((4, 3, 4, 3, 3, 4, 3, 3), 8, 2), ((9, 2, 5), 1, 2), ((6,) * 24, 4, 3)]
    drawn = [flat(order.Layout(counts, r, 2**40 + 3, w), 6, 30) for counts, r, w in layouts]
    digest = hashlib.sha256(str(drawn).encode()).hexdigest()
    assert digest == "8eab8537454877295165833849e9239ae519a0e67b5198a9bb5e2ff134f092b3"


@pytest.mark.parametrize("num_shards,readers,window", [(256, 32, 8), (64, 8, 4)])
def test_the_order_is_nearly_a_full_shuffle(num_shards, readers, window):
    layout = order.Layout((40,) * num_shards, readers, seed=3, window=window)
    n = layout.num_records
    result = np.array([r for _, r in flat(layout, 16, n // 16)])
    shuffled = np.random.default_rng(0).permutation(n)
    distance = np.abs(np.diff(result)).mean() / np.abs(np.diff(shuffled)).mean()
    assert distance > 0.9, distance


@pytest.mark.parametrize("step", [0, 1_000_000])
def test_resuming_takes_the_same_work_at_any_step(step, monkeypatch):
    calls = []
    whole = order.list_reader_shards
    monkeypatch.setattr(order, "list_reader_shards", lambda *a: (calls.append(a), whole(*a))[1])
    order.find_host_starts(order.Layout((170,) * 512, 32, seed=3, window=8), 16, step)
    assert len(calls) == 32  # There is one call for each reader.


def test_the_number_of_readers_divides_that_of_equal_shards():
    assert order.choose_num_readers((9, 2, 5)) == 1
    assert order.choose_num_readers((5, 5, 4, 4)) == 4
    assert order.choose_num_readers((5,) * 96) == 32
    assert order.choose_num_readers((5,) * 10) == 2


def test_hosts_that_do_not_divide_readers_and_batch_are_refused():
    layout = order.Layout((5,) * 8, 8, seed=1, window=2)
    with pytest.raises(BadInput, match="readers"):
        order.find_host_starts(layout, 12, 0, 3, 0)
    with pytest.raises(BadInput, match="batch"):
        order.find_host_starts(layout, 6, 0, 4, 0)
