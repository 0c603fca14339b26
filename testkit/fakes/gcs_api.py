"""The JSON and XML doors of the fake bucket: from a request to the store and back."""

from __future__ import annotations

import email.parser
import email.policy
import json
import re
from dataclasses import dataclass, field
from http.client import responses
from typing import Any

from testkit.fakes.gcs_store import HttpError, Store, StoredObject

_JSON = {"Content-Type": "application/json; charset=UTF-8"}


@dataclass
class Reply:
    """An answer. `first_byte` is the object's byte that a media body begins with."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    is_media: bool = False
    first_byte: int = 0

    @property
    def words(self) -> str:
        """The reason phrase."""
        return "Resume Incomplete" if self.status == 308 else responses.get(self.status, "Status")


@dataclass(frozen=True)
class Request:
    """What a client asks.

    Attributes:
        segments: the path, split at "/" and then unquoted.
        base: scheme and host of the door that was used, for upload addresses.
        is_broken: the body ended before its announced end.
    """

    method: str
    segments: list[str]
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    base: str
    is_broken: bool


def serve(store: Store, request: Request) -> Reply:
    """The answer to one request."""
    try:
        return _route(store, request)
    except HttpError as error:
        return error_reply(error.status, error.message)


def error_reply(status: int, message: str) -> Reply:
    """An answer that is not success, in Google's form."""
    detail = {"message": message, "domain": "global", "reason": "fake"}
    return _json({"error": {"code": status, "message": message, "errors": [detail]}}, status)


def _route(store: Store, request: Request) -> Reply:
    segments = request.segments
    if "upload_id" in request.query:
        return _upload_chunk(store, request.query["upload_id"], request)
    if request.is_broken:
        raise HttpError(400, "The request ended too early.")
    if segments[0] == "upload":
        return _upload(store, segments[4], request)
    if segments[0] == "download":
        segments = segments[1:]
    if segments[:3] == ["storage", "v1", "b"]:
        return _json_door(store, segments[3:], request)
    # TensorFlow reads from https://storage.googleapis.com/BUCKET/NAME.
    stored = store.get(segments[0], "/".join(segments[1:]), request.query)
    return _media(stored, request.headers)


def _json_door(store: Store, rest: list[str], request: Request) -> Reply:
    if not rest or not rest[0]:
        return _json(store.create_bucket(json.loads(request.body)["name"]))
    bucket = rest[0]
    if len(rest) == 1:
        return _json(store.bucket_resource(bucket))
    if len(rest) == 2:
        return _json(store.list(bucket, request.query))
    name = rest[2]
    if len(rest) > 3:
        return _rewrite(store, bucket, name, rest[5], rest[7])
    if request.method == "DELETE":
        store.delete(bucket, name, request.query)
        return Reply(204)
    stored = store.get(bucket, name, request.query)
    if request.query.get("alt") == "media":
        return _media(stored, request.headers)
    return _json(stored.resource())


def _rewrite(store: Store, bucket: str, name: str, target_bucket: str, target: str) -> Reply:
    source = store.get(bucket, name, {})
    copy = store.put(target_bucket, target, source.data)
    size = str(len(copy.data))
    done = {"done": True, "objectSize": size, "totalBytesRewritten": size}
    return _json({**done, "resource": copy.resource()})


def _media(stored: StoredObject, headers: dict[str, str]) -> Reply:
    size = len(stored.data)
    answer = {
        "Content-Type": "application/octet-stream",
        "x-goog-generation": str(stored.generation),
        "x-goog-hash": f"crc32c={stored.crc32c}",
    }
    wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or headers.get("range") or "")
    if not wanted:
        return Reply(200, stored.data, answer, is_media=True)
    start = int(wanted.group(1))
    end = min(int(wanted.group(2) or size), size - 1)
    if start >= size:
        raise HttpError(416, "The requested range cannot be satisfied.")
    answer["Content-Range"] = f"bytes {start}-{end}/{size}"
    return Reply(206, stored.data[start : end + 1], answer, is_media=True, first_byte=start)


def _upload(store: Store, bucket: str, request: Request) -> Reply:
    query = request.query
    kind = query.get("uploadType")
    if kind == "resumable":
        resource = json.loads(request.body or b"{}")
        name = query.get("name") or resource["name"]
        upload_id = store.start_upload(bucket, name, resource, query)
        address = f"{request.base}/upload/storage/v1/b/{bucket}/o?uploadType=resumable"
        return Reply(200, b"", {"Location": f"{address}&upload_id={upload_id}"})
    if kind == "multipart":
        resource, data = _parts(request.headers, request.body)
        name = query.get("name") or resource["name"]
        return _json(store.put(bucket, name, data, resource, query).resource())
    return _json(store.put(bucket, query["name"], request.body, {}, query).resource())


def _upload_chunk(store: Store, upload_id: str, request: Request) -> Reply:
    headers, body, is_broken = request.headers, request.body, request.is_broken
    stated = headers.get("Content-Range") or headers.get("content-range")
    if stated is None:  # all at once: an empty file, or a client that does not cut
        start, total = 0, len(body)
    else:
        stored = re.fullmatch(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)", stated)
        if not stored:
            raise HttpError(400, f"Failed to parse Content-Range {stated!r}")
        start = int(stored.group(1)) if stored.group(1) else None
        total = int(stored.group(3)) if stored.group(3) != "*" else None
        if start is not None and not is_broken and len(body) != int(stored.group(2)) + 1 - start:
            raise HttpError(400, "Content-Range does not match the body.")
    upload = store.continue_upload(upload_id, start, total, body, is_broken)
    if upload.done:
        return _json(upload.done.resource())
    held = len(upload.data)
    return Reply(308, b"", {"Range": f"bytes=0-{held - 1}"} if held else {})


def _parts(headers: dict[str, str], body: bytes) -> tuple[dict[str, Any], bytes]:
    """Metadata and content of a multipart/related body.

    Cut by hand: the email package would touch line ends in binary content.
    """
    kind = next(v for k, v in headers.items() if k.lower() == "content-type")
    parsed = email.parser.Parser(policy=email.policy.HTTP).parsestr(f"Content-Type: {kind}\r\n\r\n")
    boundary = b"--" + parsed.get_boundary("").encode()
    _, first, second = body.split(boundary, 2)
    end = second.rfind(b"\r\n" + boundary)
    content = second[:end].partition(b"\r\n\r\n")[2]
    return json.loads(first.partition(b"\r\n\r\n")[2]), content


def _json(value: dict[str, Any], status: int = 200) -> Reply:
    return Reply(status, json.dumps(value).encode(), dict(_JSON))
