import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigbird_ja.data import order
from bigbird_ja.process.errors import BadInput
from tests.data import order_oracle


@st.composite
def layouts(draw):
    readers = draw(st.sampled_from([1, 2, 4, 8]))
    num_shards = readers * draw(st.integers(1, 4))
    records = draw(st.integers(num_shards, num_shards * 6))
    counts = [
        records * (i + 1) // num_shards - records * i // num_shards for i in range(num_shards)
    ]
    counts = draw(st.permutations(counts))
    if readers == 1:  # takes shards of any lengths
        counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    window = draw(st.integers(1, 5))
    return order.Layout(tuple(counts), readers, draw(st.integers(0, 2**63)), window)


def flat(layout, batch_size, num_batches):
    batches = itertools.islice(order_oracle.batches(layout, batch_size), num_batches)
    return list(itertools.chain.from_iterable(batches))


def from_starts(layout, size, step, hosts, host):
    """A host's part of the batches, by the places at which its readers begin."""

    def read(start):
        skip = start.skip
        for epoch in itertools.count(start.window // layout.windows_per_epoch):
            shards = order.reader_shards(layout, epoch, start.reader).tolist()
            windows = order_oracle.window_records(layout, epoch, shards)
            for j, records in enumerate(windows, epoch * layout.windows_per_epoch):
                if j >= start.window:
                    yield from ((epoch, record) for record in records[skip:])
                    skip = 0

    starts = order.starts_of_host(layout, size, step, hosts, host)
    turns = itertools.cycle([read(start) for start in starts])
    while True:
        yield [next(next(turns)) for _ in range(size // hosts)]


@settings(max_examples=60, deadline=None)
@given(layouts(), st.integers(1, 9))
def test_each_record_comes_once_per_epoch_in_its_epoch(layout, batch_size):
    n = layout.num_records
    epochs = 3
    seen = flat(layout, batch_size, -(-epochs * n // batch_size))[: epochs * n]
    for epoch in range(epochs):
        part = seen[epoch * n : (epoch + 1) * n]
        assert sorted(part) == [(epoch, record) for record in range(n)]


@settings(max_examples=80, deadline=None)
@given(layouts(), st.integers(1, 16), st.integers(0, 40))
def test_any_number_of_hosts_resumes_at_any_step_with_the_same_global_batches(layout, size, step):
    whole = list(itertools.islice(order_oracle.batches(layout, size), step + 5))
    for hosts in (h for h in (1, 2, 4, 8) if layout.num_readers % h == size % h == 0):
        for host in range(hosts):
            resumed = from_starts(layout, size, step, hosts, host)
            parts = list(itertools.islice(resumed, 5))
            assert parts == [batch[host::hosts] for batch in whole[step:]]


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 2**31 - 1))
def test_shards_are_dealt_as_documented(layout, epoch):
    dealt = [order.reader_shards(layout, epoch, r).tolist() for r in range(layout.num_readers)]
    assert dealt == order_oracle.reader_shards(layout, epoch)


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
    whole = order.reader_shards
    monkeypatch.setattr(order, "reader_shards", lambda *a: (calls.append(a), whole(*a))[1])
    order.starts_of_host(order.Layout((170,) * 512, 32, seed=3, window=8), 16, step)
    assert len(calls) == 32  # once for each reader


def test_the_number_of_readers_divides_that_of_equal_shards():
    assert order.choose_num_readers((9, 2, 5)) == 1
    assert order.choose_num_readers((5, 5, 4, 4)) == 4
    assert order.choose_num_readers((5,) * 96) == 32
    assert order.choose_num_readers((5,) * 10) == 2


def test_hosts_that_do_not_divide_readers_and_batch_are_refused():
    layout = order.Layout((5,) * 8, 8, seed=1, window=2)
    with pytest.raises(BadInput, match="readers"):
        order.starts_of_host(layout, 12, 0, 3, 0)
    with pytest.raises(BadInput, match="batch"):
        order.starts_of_host(layout, 6, 0, 4, 0)
