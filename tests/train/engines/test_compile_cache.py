"""The cache of compiled programs. It loads only programs that the run has stored."""

import os

import pytest

from bigbird_ja import storage
from bigbird_ja.storage.ownership import FileVersion, Owned
from bigbird_ja.train.engines.compile_cache import CompileCache

jax = pytest.importorskip("jax")


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_program_that_the_manifest_does_not_state_is_not_loaded(tmp_path, bucket, place):
    if jax.__version_info__ < (0, 7):
        pytest.skip("keeps no cache of a CPU")
    model = str(tmp_path / "model") if place == "disk" else f"{bucket}/model"
    storage.make_directory(model)
    owned = Owned.create(model, "run")
    logged = []

    def begun(name):
        cache = CompileCache(owned, str(tmp_path / name), "cpu", logged.append)
        cache.begin()
        return cache, jax.config.jax_compilation_cache_dir

    before = jax.config.jax_compilation_cache_dir
    try:
        cache, local = begun("first")
        for name in ("kept-cache", "changed-cache"):
            storage.write_bytes(f"{local}/{name}", b"native code")
        cache.keep()
        kept = storage.list_tree(f"{model}/compiled")[0]
        folder = f"{model}/compiled/{os.path.dirname(kept)}"
        storage.write_bytes(f"{folder}/changed-cache", b"another code")
        storage.write_bytes(f"{folder}/brought-cache", b"native code")
        cache, local = begun("second")
        assert os.listdir(local) == ["kept-cache"] and not logged
        storage.write_bytes(f"{local}/brought-cache", b"compiled here")
        cache.keep()  # `keep` does not replace a file that the manifest does not list.
        assert "no program in MODEL_DIR suits" in logged[0] and "cannot be read" in logged[1]
        assert storage.read_bytes(f"{folder}/brought-cache") == b"native code"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_log_says_whether_a_kept_program_was_loaded(tmp_path):
    if jax.__version_info__ < (0, 7):
        pytest.skip("keeps no cache of a CPU")
    from jax.experimental.compilation_cache import compilation_cache as jax_cache

    (tmp_path / "model").mkdir()
    owned, logged = Owned.create(str(tmp_path / "model"), "run"), []
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}

    def start(number):
        cache = CompileCache(owned, str(tmp_path / str(number)), "cpu", logged.append)
        cache.begin()
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.clear_caches()
        assert jax.jit(lambda x: 3 * x)(2.0) == 6.0
        return cache.keep()

    try:
        kept = start(1)
        start(2)
        for name in kept:
            path = tmp_path / "model" / name
            path.write_bytes(b"damaged")
            owned.note({name: FileVersion.from_file(str(path))})
        with pytest.warns(UserWarning, match="persistent compilation cache"):
            start(3)
    finally:
        jax_cache.reset_cache()
        for name, value in before.items():
            jax.config.update(name, value)
    assert ["loaded a compiled program" in line for line in logged] == [True, False]
