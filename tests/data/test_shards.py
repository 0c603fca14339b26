from bigbird_ja.data import shards


def test_the_number_of_shards_follows_records_and_bytes():
    expected = {1: 1, 30: 2, 1600: 32, 80_000: 384, 10**9: 8192}
    assert {n: shards.choose_num_shards(n, 9000) for n in expected} == expected
