"""Fake of the Hugging Face Hub's HTTP interface, with repositories in memory.

It serves the requests of huggingface_hub for uploads (create, preupload, LFS batch, commit) and for
downloads (revision, tree, resolve).
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeHub:
    """Repositories of a fake Hub.

    Attributes:
        repos: files of each repository, by its name.
        refuses: status with which every request is refused, or None.
    """

    def __init__(self):
        self.repos, self.private, self.blobs, self.tokens = {}, {}, {}, set()
        self.refuses = None
        self.asked = []

    def environ(self, folder):
        """Return environment variables for a client of this Hub, with a cache in `folder`."""
        home = {"HF_HOME": f"{folder}/hf_home", "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": "hf_test"}
        return {"HF_ENDPOINT": self.url, "HF_HUB_OFFLINE": "0", **home}

    def sha(self, repo):
        """Return the id of a repository's commit, which is a hash of its files."""
        return hashlib.sha1(repr(sorted(self.repos[repo].items())).encode()).hexdigest()

    def commit(self, repo, lines):
        """Apply a commit, whose lines are JSON objects."""
        for line in map(json.loads, lines):
            value = line["value"]
            if line["key"] == "file":
                self.repos[repo][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.repos[repo][value["path"]] = self.blobs[value["oid"]]


@contextlib.contextmanager
def serving():
    """Serve a `FakeHub`, and yield it. Its attribute `url` is its address."""
    hub = FakeHub()
    door = type("Door", (_Door,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), door) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()


class _Door(BaseHTTPRequestHandler):
    hub = None
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self, status, value, **headers):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _handle(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        hub, path = self.hub, self.path.partition("?")[0]
        hub.asked.append(f"{self.command} {path}")
        hub.tokens.add(self.headers.get("Authorization"))
        if hub.refuses:
            self._answer(hub.refuses, {"error": "refused"})
        elif self.command == "PUT":
            hub.blobs[path.rpartition("/")[2]] = body
            self._answer(200, b"")
        elif self.command == "POST":
            self._post(path, body)
        else:
            self._get(path)

    do_GET = do_HEAD = do_POST = do_PUT = _handle  # noqa: N815

    def _post(self, path, body):
        hub, asked = self.hub, None if path.split("/")[-2] == "commit" else json.loads(body)
        repo = "/".join(path.removeprefix("/api/models").split("/")[1:3]).removesuffix(".git")
        if path == "/api/repos/create":
            repo = f"{asked['organization']}/{asked['name']}"
            status = 409 if repo in hub.repos else 200
            hub.repos.setdefault(repo, {})
            hub.private.setdefault(repo, asked.get("private") or asked.get("visibility"))
            self._answer(status, {"url": f"{hub.url}/{repo}", "id": repo, "name": repo})
        elif path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {
                    "path": f["path"],
                    "uploadMode": "lfs" if f["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                }
                for f in asked["files"]
            ]
            self._answer(200, {"files": files})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = [
                {**o, "actions": {"upload": {"href": f"{hub.url}/lfs/{o['oid']}"}}}
                for o in asked["objects"]
            ]
            self._answer(200, {"transfer": "basic", "objects": objects})
        else:
            hub.commit(repo, body.splitlines())
            oid = hub.sha(repo)
            url = f"{hub.url}/{repo}/commit/{oid}"
            self._answer(200, {"success": True, "commitUrl": url, "commitOid": oid})

    def _get(self, path):
        hub, parts = self.hub, re.sub("^(/api)?/(models|datasets)", "", path).split("/")
        repo = "/".join(parts[1:3])
        name = "/".join(parts[5:])
        if repo not in hub.repos:
            self._answer(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")
            return
        files = hub.repos[repo]
        if "/resolve/" in path and name not in files:
            self._answer(404, {"error": "Entry not found"}, X_Error_Code="EntryNotFound")
        elif "/resolve/" in path:
            data = files[name]
            etag = hashlib.sha1(data).hexdigest()
            self._answer(200, data, ETag=f'"{etag}"', X_Repo_Commit=hub.sha(repo))
        elif "/tree/" in path:
            entry = [
                {"type": "file", "path": n, "size": len(d), "oid": hashlib.sha1(d).hexdigest()}
                for n, d in files.items()
            ]
            self._answer(200, entry)
        else:
            siblings = [{"rfilename": name} for name in files]
            about = {"_id": "1", "id": repo, "sha": hub.sha(repo), "siblings": siblings}
            self._answer(200, {**about, "private": False, "downloads": 0, "tags": []})
