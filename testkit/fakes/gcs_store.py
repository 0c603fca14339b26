"""The objects of the fake bucket: generations, preconditions, resumable uploads. No HTTP here."""

from __future__ import annotations

import base64
import itertools
import secrets
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

KEPT_MULTIPLE = 256 << 10  # of a broken upload, whole multiples of this survive


class HttpError(Exception):
    """An answer other than success, with Google's words for it."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclass
class StoredObject:
    """One generation of one object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    metadata: dict[str, str] = field(default_factory=dict)
    updated: float = field(default_factory=time.time)

    @property
    def crc32c(self) -> str:
        """As metadata states it: base64 of the big-endian checksum."""
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    def resource(self) -> dict[str, Any]:
        """The JSON resource."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(self.updated))
        when += f".{int(self.updated % 1 * 1000):03d}Z"
        return {
            "bucket": self.bucket, "name": self.name, "size": str(len(self.data)),
            "generation": str(self.generation), "metageneration": "1", "crc32c": self.crc32c,
            "updated": when, "metadata": self.metadata,
        }  # fmt: skip


@dataclass
class Upload:
    """A resumable upload that is under way or done."""

    bucket: str
    name: str
    resource: dict[str, Any]
    conditions: dict[str, str]
    data: bytearray = field(default_factory=bytearray)
    done: StoredObject | None = None


class Store:
    """All buckets, in memory."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.buckets: dict[str, dict[str, StoredObject]] = {}
        self.uploads: dict[str, Upload] = {}
        self._generations = itertools.count(int(time.time() * 1e6))

    def create_bucket(self, name: str) -> dict[str, Any]:
        """Makes a bucket; fine where it exists."""
        with self.lock:
            self.buckets.setdefault(name, {})
            return self.bucket_resource(name)

    def bucket_resource(self, name: str) -> dict[str, Any]:
        """The JSON resource of a bucket."""
        self.objects(name)
        return {"kind": "storage#bucket", "name": name, "location": "US-CENTRAL1"}

    def objects(self, bucket: str) -> dict[str, StoredObject]:
        """Name to object."""
        if bucket not in self.buckets:
            raise HttpError(404, "The specified bucket does not exist.")
        return self.buckets[bucket]

    def get(self, bucket: str, name: str, conditions: dict[str, str]) -> StoredObject:
        """The current object, if it satisfies `generation` and `ifGenerationMatch`."""
        with self.lock:
            stored = self.objects(bucket).get(name)
            wanted = conditions.get("generation")
            if stored is None or (wanted and int(wanted) != stored.generation):
                raise HttpError(404, f"No such object: {bucket}/{name}")
            self.check(stored, conditions)
            return stored

    def check(self, stored: StoredObject | None, conditions: dict[str, str]) -> None:
        """Raises 412 where a precondition on the generation does not hold."""
        current = stored.generation if stored else 0
        wanted = conditions.get("ifGenerationMatch")
        if wanted is not None and int(wanted) != current:
            raise HttpError(412, "At least one of the pre-conditions you specified did not hold.")

    def put(
        self, bucket: str, name: str, data: bytes,
        resource: dict[str, Any] | None = None, conditions: dict[str, str] | None = None,
    ) -> StoredObject:  # fmt: skip
        """Stores a new generation, after its preconditions and its stated checksum."""
        resource = resource or {}
        with self.lock:
            objects = self.objects(bucket)
            self.check(objects.get(name), conditions or {})
            metadata = resource.get("metadata") or {}
            made = StoredObject(bucket, name, data, next(self._generations), metadata)
            if resource.get("crc32c") not in (None, made.crc32c):
                raise HttpError(400, f"Provided CRC32C {resource['crc32c']!r} doesn't match.")
            objects[name] = made
            return made

    def delete(self, bucket: str, name: str, conditions: dict[str, str]) -> None:
        """Removes the current generation."""
        with self.lock:
            self.get(bucket, name, conditions)
            del self.objects(bucket)[name]

    def list(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        """One page of names below a prefix, folded at the delimiter."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = int(query.get("maxResults") or 100)  # the real one: 1000
        with self.lock:
            objects = dict(self.objects(bucket))
        entries: dict[str, StoredObject | None] = {}
        for name in sorted(n for n in objects if n.startswith(prefix)):
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                entries.setdefault(name[: end + len(delimiter)], None)
            else:
                entries[name] = objects[name]
        after = base64.b64decode(query.get("pageToken", "")).decode()
        names = [name for name in sorted(entries) if name > after]
        page: dict[str, Any] = {"kind": "storage#objects"}
        shown = [entries[name] for name in names[:most]]
        page["items"] = [entry.resource() for entry in shown if entry]
        page["prefixes"] = [name for name in names[:most] if entries[name] is None]
        if len(names) > most:
            page["nextPageToken"] = base64.b64encode(names[most - 1].encode()).decode()
        return page

    def start_upload(
        self, bucket: str, name: str, resource: dict[str, Any], conditions: dict[str, str]
    ) -> str:
        """The id of a new resumable upload."""
        with self.lock:
            self.check(self.objects(bucket).get(name), conditions)
            upload_id = secrets.token_hex(8)
            self.uploads[upload_id] = Upload(bucket, name, resource, conditions)
            return upload_id

    def continue_upload(
        self, upload_id: str, start: int | None, total: int | None, data: bytes, is_broken: bool
    ) -> Upload:
        """Adds a chunk that begins at `start` (None: only asks); completes it at `total`.

        A broken request keeps the whole 256 KiB multiples of what arrived.
        """
        with self.lock:
            if upload_id not in self.uploads:
                raise HttpError(404, "Not Found")
            upload = self.uploads[upload_id]
            if upload.done or start is None:
                self._complete(upload, total, is_broken)
                return upload
            if start > len(upload.data):
                raise HttpError(400, f"Invalid request. There is a gap before byte {start}.")
            kept = upload.data[:start] + data
            if is_broken:
                kept = kept[: len(kept) // KEPT_MULTIPLE * KEPT_MULTIPLE]
            if len(kept) > len(upload.data):
                upload.data = kept
            self._complete(upload, total, is_broken)
            return upload

    def _complete(self, upload: Upload, total: int | None, is_broken: bool) -> None:
        if upload.done or is_broken or total is None or len(upload.data) < total:
            return
        upload.done = self.put(
            upload.bucket, upload.name, bytes(upload.data), upload.resource, upload.conditions
        )
        upload.data = bytearray()
