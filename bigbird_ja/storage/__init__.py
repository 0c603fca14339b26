"""Files on disk or on gs://, read and written by one set of functions, without TensorFlow.

Every path is a string; `gs://bucket/name` is on Google Cloud Storage. All of them guarantee:

- a missing file raises FileNotFoundError, a refusal (401, 403) PermissionError, with `.filename`;
- transient faults of the bucket are retried with backoff and logged. A fault that lasts raises
  `errors.StorageError` with the object's name and the cause;
- a read returns one version of the file, verified against its checksum;
- a file appears whole or not at all;
- FIFOs, sockets and devices raise `errors.BadInput`, and are never opened.

docs/design/storage.md explains the implementation, and why TensorFlow's own gs:// client is not
used for this.
"""

# fmt: off
# isort: off
from bigbird_ja.storage.disk import clean_temporary, crc32c_of_file
from bigbird_ja.storage.files import (
    bucket_location, create_exclusive, delete, delete_if, delete_many, download, exists, fetch,
    free_name, glob, list_files, list_stats, list_tree, make_directory, open_read, place_of,
    put_all, read_bytes, read_text, read_with_token, rename, rename_all, replace_if, run_all, stat,
    take, upload, write_bytes, write_text, writing,
)
from bigbird_ja.storage.paths import (
    TEMPORARY_PREFIX, Stat, base_name, check_inside, crc32c_text, directory_of, is_remote, join,
)

__all__ = [
    "TEMPORARY_PREFIX", "Stat", "base_name", "bucket_location", "check_inside",
    "clean_temporary", "crc32c_of_file", "crc32c_text", "create_exclusive", "delete",
    "delete_if", "delete_many", "directory_of", "download", "exists", "fetch", "free_name",
    "glob", "is_remote", "join", "list_files", "list_stats", "list_tree", "make_directory",
    "open_read", "place_of", "put_all", "read_bytes", "read_text", "read_with_token", "rename",
    "rename_all", "replace_if", "run_all", "stat", "take", "upload", "write_bytes",
    "write_text", "writing",
]
