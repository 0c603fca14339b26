"""Files on disk or on gs://, read and written by one set of functions, without TensorFlow.

Every path is a string; `gs://bucket/name` is on Google Cloud Storage. All of them guarantee:

- a missing file raises FileNotFoundError, a refusal (401, 403) PermissionError, with `.filename`;
- transient faults of the bucket are retried with backoff and logged; a fault that lasts raises
  `errors.StorageError` with the object's name and the cause;
- a read returns one version of the file, verified against its checksum;
- a file appears whole or not at all;
- FIFOs, sockets and devices raise `errors.BadInput`, and are never opened.

docs/design/storage.md explains the implementation, and why TensorFlow's own gs:// client is not
used for this.
"""

from bigbird_ja.storage.disk import clean_temporary as clean_temporary
from bigbird_ja.storage.disk import crc32c_of_file as crc32c_of_file
from bigbird_ja.storage.files import *  # noqa: F403 - all functions on files
from bigbird_ja.storage.paths import TEMPORARY_PREFIX as TEMPORARY_PREFIX
from bigbird_ja.storage.paths import Stat as Stat
from bigbird_ja.storage.paths import base_name as base_name
from bigbird_ja.storage.paths import check_inside as check_inside
from bigbird_ja.storage.paths import crc32c_text as crc32c_text
from bigbird_ja.storage.paths import directory_of as directory_of
from bigbird_ja.storage.paths import is_remote as is_remote
from bigbird_ja.storage.paths import join as join
