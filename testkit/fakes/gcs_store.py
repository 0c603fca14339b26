"""Objects of the fake Google Cloud Storage, and its JSON and XML interfaces.

The interfaces support generations, preconditions, pages of listings, and resumable uploads.
`testkit.fakes.gcs` implements the connections.
"""

import base64
import itertools
import json
import re
import secrets
import threading
import time
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

import google_crc32c

from testkit.fakes.service import now

KEPT_MULTIPLE = 256 << 10  # A broken upload keeps a multiple of this number of bytes.
PAGE = 100  # Names on a page of a listing. The real service lists 1,000.


class HttpError(Exception):
    """Answer that reports an error. Its arguments are the status and Google's message."""


@dataclass
class Reply:
    """Answer to a request. If `body` is content of an object, it starts at byte `first_byte`."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    is_media: bool = False
    first_byte: int = 0


@dataclass(frozen=True)
class Request:
    """Request of a client.

    Attributes:
        segments: parts of the path between "/", unquoted.
        base: scheme and host to which the request was sent, for addresses of uploads.
        is_broken: whether the connection broke before the end of the body.
    """

    method: str
    segments: list[str]
    query: dict[str, str]
    headers: Message
    body: bytes
    base: str
    is_broken: bool


def _glob_to_regex(pattern):
    """Convert a pattern of `matchGlob` to a regular expression. Only `**` matches "/"."""
    forms = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[!?[^]]+\])", pattern)
    return "".join(
        forms.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part))
        for part in parts
    )


@dataclass
class StoredObject:
    """One generation (version) of an object."""

    bucket: str
    name: str
    data: bytes
    generation: int
    metadata: dict[str, str]
    updated: str = field(default_factory=now)

    @property
    def crc32c(self):
        """Big-endian checksum in base64, as in an object's metadata."""
        return base64.b64encode(google_crc32c.value(self.data).to_bytes(4, "big")).decode()

    def resource(self):
        """Return the object's metadata as JSON."""
        place = {name: getattr(self, name) for name in ("bucket", "name", "updated", "metadata")}
        version = {"generation": str(self.generation), "metageneration": "1"}
        return {**place, **version, "size": str(len(self.data)), "crc32c": self.crc32c}


@dataclass
class Upload:
    """Resumable upload, finished or not."""

    bucket: str
    name: str
    resource: dict[str, Any]
    conditions: dict[str, str]
    data: bytes = b""
    done: StoredObject | None = None


class Store:
    """All buckets with their objects, in memory."""

    def __init__(self):
        self.lock = threading.RLock()
        self.buckets = {}
        self.uploads = {}
        self._generations = itertools.count(int(time.time() * 1e6))

    def serve(self, request):
        """Return the answer to a request."""
        try:
            with self.lock:
                return self._route(request)
        except HttpError as error:
            return error_reply(*error.args)

    def _route(self, request):
        query = request.query
        if "upload_id" in query:
            return self._continue_upload(query["upload_id"], request)
        if request.is_broken:
            raise HttpError(400, "The request ended too early.")
        match request.segments:
            case ["storage", "v1", "b"]:
                self.buckets.setdefault(json.loads(request.body)["name"], {})
                return json_reply({})
            case ["storage", "v1", "b", bucket]:
                self.objects(bucket)
                return json_reply({"name": bucket, "location": "US-CENTRAL1"})
            case ["storage", "v1", "b", bucket, "o"]:
                return json_reply(self._list(bucket, query))
            case [*_, "b", bucket, "o", name, "rewriteTo", "b", target_bucket, "o", target]:
                copied = self.get(bucket, name, {}).data
                copy = self._put(target_bucket, target, copied, {}, query)
                size = str(len(copy.data))
                done = {"done": True, "objectSize": size, "totalBytesRewritten": size}
                return json_reply({**done, "resource": copy.resource()})
            case ["upload", *_, "b", bucket, "o"]:
                return self._upload(bucket, request)
            case ["storage" | "download", *_, "b", bucket, "o", name]:
                stored = self.get(bucket, name, query)
                if request.method == "DELETE":
                    del self.buckets[bucket][name]
                    return Reply(204)
                is_media = query.get("alt") == "media"
                return _media(stored, request) if is_media else json_reply(stored.resource())
            # TensorFlow downloads from https://storage.googleapis.com/BUCKET/NAME.
            case [bucket, *names]:
                return _media(self.get(bucket, "/".join(names), query), request)
        raise HttpError(404, "Not Found")

    def objects(self, bucket):
        """Return the objects of a bucket by name."""
        if bucket not in self.buckets:
            raise HttpError(404, "The specified bucket does not exist.")
        return self.buckets[bucket]

    def get(self, bucket, name, conditions):
        """Return the current object, or raise HttpError if it does not satisfy the conditions."""
        stored = self.objects(bucket).get(name)
        wanted = conditions.get("generation")
        if stored is None or (wanted and int(wanted) != stored.generation):
            raise HttpError(404, f"No such object: {bucket}/{name}")
        _check(stored, conditions)
        return stored

    def _put(self, bucket, name, data, resource, conditions):
        """Store a new generation, after a check of its preconditions and its checksum."""
        objects = self.objects(bucket)
        _check(objects.get(name), conditions)
        metadata = resource.get("metadata") or {}
        made = StoredObject(bucket, name, data, next(self._generations), metadata)
        if resource.get("crc32c") not in (None, made.crc32c):
            raise HttpError(400, f"Provided CRC32C {resource['crc32c']!r} doesn't match.")
        objects[name] = made
        return made

    def _list(self, bucket, query):
        """Return one page of a listing of the objects whose names start with a prefix.

        Names that contain the delimiter after the prefix are not listed. `prefixes` contains the
        beginnings of these names up to the delimiter, each only once.
        """
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        wanted = re.compile(_glob_to_regex(query.get("matchGlob", "**")))
        most = int(query.get("maxResults") or PAGE)
        entries = {}
        for name, stored in self.objects(bucket).items():
            if not name.startswith(prefix) or not wanted.fullmatch(name):
                continue
            end = name.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                entries[name[: end + len(delimiter)]] = None
            else:
                entries[name] = stored
        after = base64.b64decode(query.get("pageToken", "")).decode()
        names = [name for name in sorted(entries) if name > after]
        shown = [entries[name] for name in names[:most]]
        page = {"items": [entry.resource() for entry in shown if entry]}
        page["prefixes"] = [name for name in names[:most] if entries[name] is None]
        if len(names) > most:
            page["nextPageToken"] = base64.b64encode(names[most - 1].encode()).decode()
        return page

    def _upload(self, bucket, request):
        query, kind = request.query, request.query["uploadType"]
        if kind == "resumable":
            resource = json.loads(request.body or b"{}")
            name = query.get("name") or resource["name"]
            _check(self.objects(bucket).get(name), query)
            upload_id = secrets.token_hex(8)
            self.uploads[upload_id] = Upload(bucket, name, resource, query)
            address = f"{request.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable"
            return Reply(200, b"", {"Location": f"{address}&upload_id={upload_id}"})
        if kind == "multipart":
            resource, data = _parts(request)
        else:
            resource, data = {}, request.body
        name = query.get("name") or resource["name"]
        return json_reply(self._put(bucket, name, data, resource, query).resource())

    def _continue_upload(self, upload_id, request):
        """Add a chunk to an upload, or report the number of uploaded bytes.

        The last chunk completes the upload. After a broken request, the upload keeps a multiple of
        256 KiB of the received bytes.
        """
        upload = self.uploads.get(upload_id)
        if upload is None:
            raise HttpError(404, "Not Found")
        # Without a range, the request contains the whole object.
        stated = request.headers.get("Content-Range", f"bytes 0-/{len(request.body)}")
        chunk = re.fullmatch(r"bytes (?:(\d+)-\d*|\*)/(\d+|\*)", stated)
        if chunk is None or int(chunk[1] or 0) > len(upload.data):
            raise HttpError(400, f"Invalid request: {stated}, after {len(upload.data)} bytes.")
        if chunk[1] and not upload.done:
            kept = upload.data[: int(chunk[1])] + request.body
            if request.is_broken:
                kept = kept[: len(kept) // KEPT_MULTIPLE * KEPT_MULTIPLE]
            upload.data = max(upload.data, kept, key=len)
        is_whole = chunk[2] != "*" and len(upload.data) >= int(chunk[2])
        if is_whole and not request.is_broken and not upload.done:
            place = (upload.bucket, upload.name)
            upload.done = self._put(*place, upload.data, upload.resource, upload.conditions)
        if upload.done:
            return json_reply(upload.done.resource())
        size = len(upload.data)
        return Reply(308, b"", {"Range": f"bytes=0-{size - 1}"} if size else {})


def error_reply(status, message):
    """Return an error in the form of Google's answers."""
    detail = {"message": message, "domain": "global", "reason": "fake"}
    return json_reply({"error": {"code": status, "message": message, "errors": [detail]}}, status)


def json_reply(value, status=200):
    """Return an answer that contains a value as JSON."""
    kind = {"Content-Type": "application/json; charset=UTF-8"}
    return Reply(status, json.dumps(value).encode(), kind)


def _check(stored, conditions):
    """Raise HttpError with status 412 if the generation does not satisfy a precondition."""
    current = stored.generation if stored else 0
    wanted = conditions.get("ifGenerationMatch")
    if wanted is not None and int(wanted) != current:
        raise HttpError(412, "At least one of the pre-conditions you specified did not hold.")


def _media(stored, request):
    size = len(stored.data)
    answer = {
        "Content-Type": "application/octet-stream",
        "x-goog-generation": str(stored.generation),
        "x-goog-hash": f"crc32c={stored.crc32c}",
    }
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if not wanted:
        return Reply(200, stored.data, answer, is_media=True)
    start = int(wanted[1])
    end = min(int(wanted[2] or size), size - 1)
    if start >= size:
        raise HttpError(416, "The requested range cannot be satisfied.")
    answer["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Reply(206, stored.data[start : end + 1], answer, is_media=True, first_byte=start)


def _parts(request):
    """Return the metadata and the content in a multipart/related body.

    The package `email` is not used, since it would change line breaks in binary content.
    """
    boundary = b"--" + str(request.headers.get_boundary()).encode()
    _, first, second = request.body.split(boundary, 2)
    content = second[: second.rfind(b"\r\n" + boundary)].partition(b"\r\n\r\n")[2]
    return json.loads(first.partition(b"\r\n\r\n")[2]), content
