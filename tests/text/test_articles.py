"""The generated corpus depends only on the seed and the index of an article."""

import hashlib

from bigbird_ja.text import articles


def test_a_seed_gives_the_same_bytes_in_every_version():
    digest = hashlib.sha256()
    digest.update("".join(articles.generate(50, seed=1)).encode())
    digest.update("".join(articles.generate(20, seed=-5, mean_length=600, facts=8)).encode())
    digest.update("".join(articles.generate(5, seed=2**63, mean_length=20_000, facts=0)).encode())
    assert digest.hexdigest() == "178e76b8e8238c546f5c9fbb1c612e5ec914778f0e14f6e96e3dd44aa8f08a33"
