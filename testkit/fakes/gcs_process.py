"""Start the fake Google Cloud Storage in a new process, and configure clients to use it."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from urllib.parse import quote

from testkit import ROOT

# Token in the form of Google's tokens, so that tests detect a leak of this token. Its text is
# written in two parts, since a test searches the sources for tokens.
TOKEN = "ya29." + "the-token-of-the-fake"


class FakeGcs:
    """Context manager of a running fake Google Cloud Storage.

    Its methods request faults, and read and write objects as a concurrent program would.

    Attributes:
        url: address for plain HTTP.
        env: environment variables with which google-cloud-storage, `bigbird_ja.storage` and
            TensorFlow use the fake, with short timeouts. A process needs them in addition to
            `os.environ`. It must be a new process, since TensorFlow reads them when it is imported.
    """

    def __enter__(self):
        self._directory = tempfile.TemporaryDirectory(prefix="fake-gcs-")
        ca_file = str(Path(self._directory.name) / "ca.pem")
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "cwd": ROOT, "text": True}
        words = [sys.executable, "-m", "testkit.fakes.gcs", ca_file]
        self._process = subprocess.Popen(words, **how)
        self.port = int(self._process.stdout.readline())
        self.url = f"http://127.0.0.1:{self.port}"
        self.env = environment(self.url, ca_file)
        self.create_bucket("bucket")
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._directory.cleanup()

    def environ(self, **more):
        """Return the environment of a child process, with `env` and further variables."""
        return {**os.environ, **self.env, **more}

    def fault(self, match, do, **how):
        """Add a fault. The arguments are the fields of `gcs.Rule`."""
        self._call("fault", match=match, do=do, **how)

    def clear(self):
        """Remove all faults."""
        self._call("clear")

    def log(self, clear=False):
        """Return the requests so far, each with its fault and the number of received bytes."""
        return self._call("log", clear=clear)

    def create_bucket(self, name):
        """Create a bucket if it does not exist."""
        self._request("POST", "/storage/v1/b", json.dumps({"name": name}).encode())

    def names(self, bucket, prefix=""):
        """List the names of all objects under a prefix."""
        return self._call("names", bucket=bucket, prefix=prefix)

    def get(self, path):
        """Return the content of gs://bucket/name."""
        bucket, _, name = path.removeprefix("gs://").partition("/")
        return self._request("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media")

    def put(self, path, data):
        """Write gs://bucket/name without preconditions, as another program may do."""
        bucket, _, name = path.removeprefix("gs://").partition("/")
        query = f"uploadType=media&name={quote(name, safe='')}"
        self._request("POST", f"/upload/storage/v1/b/{bucket}/o?{query}", data)

    def _call(self, act, **values):
        return json.loads(self._request("POST", f"/_fake/{act}", json.dumps(values).encode()))

    def _request(self, method, path, data=None):
        request = urllib.request.Request(self.url + path, data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            return response.read()


def environment(url, ca_file):
    """Return environment variables with which a process uses the fake at `url`."""
    return {
        "https_proxy": url,
        "no_proxy": "",
        "NO_PROXY": "",
        "CURL_CA_BUNDLE": ca_file,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": TOKEN,
        "NO_GCE_CHECK": "true",
        "STORAGE_EMULATOR_HOST": url,
        "GOOGLE_CLOUD_PROJECT": "test",
        # With 0, TensorFlow retries at once. Any other value delays each retry by up to a second.
        "GCS_RETRY_CONFIG_INIT_DELAY_TIME_US": "0",
        "GCS_RETRY_CONFIG_MAX_RETRIES": "4",
        "GCS_REQUEST_IDLE_TIMEOUT_SECS": "3",
        "GCS_REQUEST_CONNECTION_TIMEOUT_SECS": "3",
        "GCS_METADATA_REQUEST_TIMEOUT_SECS": "5",
        "GCS_READ_REQUEST_TIMEOUT_SECS": "10",
        "GCS_WRITE_REQUEST_TIMEOUT_SECS": "10",
        "GCS_READ_CACHE_BLOCK_SIZE_MB": "1",
        "BIGBIRD_JA_STORAGE_TIMEOUT_SECONDS": "4",
        "BIGBIRD_JA_LEASE_SECONDS": "6",
    }
