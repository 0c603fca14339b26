"""Files on disk or on gs://, read and written by one set of functions, without TensorFlow.

Every path is a string; `gs://bucket/name` is on Google Cloud Storage. What all of them promise:

- a missing file is FileNotFoundError, a refusal (401, 403) PermissionError, each with `.filename`;
- transient faults of the bucket are retried with bounded back-off and logged once; a lasting one
  is `errors.StorageError` with the object's name and the cause;
- a read gives one version of the file, verified against its checksum;
- a file appears whole or not at all;
- FIFOs, sockets and devices are `errors.BadInput`, and never opened.

docs/design/storage.md says how, and why TensorFlow's own gs:// client is not used for this.
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
