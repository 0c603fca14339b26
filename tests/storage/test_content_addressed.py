"""Folders named by a hash of their content are uploaded once, and refused if incomplete."""

import hashlib
import subprocess

import pytest

from bigbird_ja import storage
from bigbird_ja.errors import BadInput, StorageError
from bigbird_ja.storage import content_addressed


@pytest.fixture
def files(tmp_path):
    """Write two local files, and return their paths by name."""
    paths = {"config.json": tmp_path / "a", "model.safetensors": tmp_path / "b"}
    paths["config.json"].write_text("{}")
    paths["model.safetensors"].write_bytes(b"weights" * 1000)
    return {name: str(path) for name, path in paths.items()}


def test_a_folder_is_uploaded_once_and_passes_sha256sum(files, tmp_path):
    folder, listing = content_addressed.compute_address(files, str(tmp_path / "encoders"))
    assert storage.get_base_name(folder) == hashlib.sha256(listing.encode()).hexdigest()
    content_addressed.put(files, folder, listing)
    content_addressed.verify(folder)
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", content_addressed.LISTING], cwd=folder
    )
    assert done.returncode == 0
    files["config.json"] = "/nonexistent"
    # The folder is complete, so no file is read.
    content_addressed.put(files, folder, listing)


def test_an_interrupted_upload_is_refused_and_then_completed(files, base, monkeypatch):
    folder, listing = content_addressed.compute_address(files, base)
    with monkeypatch.context() as patched:

        def interrupt(path, text):
            raise StorageError("the bucket fails")

        patched.setattr(storage, "write_text", interrupt)
        with pytest.raises(StorageError):
            content_addressed.put(files, folder, listing)
    assert storage.list_files(folder) == [*files]
    with pytest.raises(BadInput, match="SHA256SUMS is missing: remove"):
        content_addressed.verify(folder)
    content_addressed.put(files, folder, listing)
    content_addressed.verify(folder)


@pytest.mark.parametrize("name", ["config.json", "SHA256SUMS"])
def test_a_changed_file_is_refused(files, base, name):
    folder, listing = content_addressed.compute_address(files, base)
    content_addressed.put(files, folder, listing)
    storage.write_text(storage.join(folder, name), "other")
    with pytest.raises(BadInput, match=rf"{name} has changed since it was uploaded: remove"):
        content_addressed.verify(folder)
    storage.delete(storage.join(folder, "model.safetensors"))
    with pytest.raises(BadInput):
        content_addressed.verify(folder)


@pytest.mark.parametrize("name", ["model.ckpt-99", "model-00001-of-00002.safetensors", "sub/x"])
def test_a_file_that_the_listing_lacks_is_refused(files, base, name):
    folder, listing = content_addressed.compute_address(files, base)
    content_addressed.put(files, folder, listing)
    storage.make_directory(f"{folder}/sub")
    storage.write_text(f"{folder}/{name}", "foreign")
    with pytest.raises(BadInput, match=rf"{name} is not in SHA256SUMS: remove"):
        content_addressed.verify(folder)


def test_a_folder_of_another_name_is_accepted(tmp_path):
    content_addressed.verify(str(tmp_path))
