"""Functions on files on disk or on gs://, without TensorFlow.

Every path is a string; `gs://bucket/name` is on Google Cloud Storage. All functions guarantee:

- A missing file raises FileNotFoundError. A denied access (HTTP 401 or 403) raises PermissionError.
  Both exceptions have a `.filename`.
- Transient faults of the bucket are logged and retried with backoff. If retries fail, they raise
  `errors.StorageError` with the object's name and the cause.
- A read returns one version of the file. On a bucket, its checksum is verified.
- A write is atomic.
- FIFOs, sockets and devices are never opened, and raise `errors.BadInput`.

docs/design/storage.md explains the implementation, and why TensorFlow's gs:// client is not used.
"""

# fmt: off
# isort: off
from bigbird_ja.storage.disk import clean_temporary, compute_file_crc32c
from bigbird_ja.storage.files import (
    create_exclusive, delete, delete_if, delete_many, download, exists, fetch, find_free_name,
    find_place, get_bucket_location, glob, list_files, list_stats, list_tree, make_directory,
    open_read, put_all, read_bytes, read_text, read_with_token, rename, rename_all, replace_if,
    run_all, stat, take, upload, write_bytes, write_text, writing,
)
from bigbird_ja.storage.paths import (
    TEMPORARY_PREFIX, Stat, check_inside, compute_crc32c, get_base_name, get_directory,
    is_remote, join,
)

__all__ = [
    "TEMPORARY_PREFIX", "Stat", "check_inside", "clean_temporary", "compute_crc32c",
    "compute_file_crc32c", "create_exclusive", "delete", "delete_if", "delete_many", "download",
    "exists", "fetch", "find_free_name", "find_place", "get_base_name", "get_bucket_location",
    "get_directory", "glob", "is_remote", "join", "list_files", "list_stats", "list_tree",
    "make_directory", "open_read", "put_all", "read_bytes", "read_text", "read_with_token",
    "rename", "rename_all", "replace_if", "run_all", "stat", "take", "upload", "write_bytes",
    "write_text", "writing",
]
