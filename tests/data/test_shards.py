from bigbird_ja.data import shards


def test_more_shards_than_records_are_fewer():
    expected = {1: 1, 30: 2, 1600: 32, 80_000: 384, 10**9: 8192}
    assert {n: shards.choose_num_shards(n, 9000) for n in expected} == expected
