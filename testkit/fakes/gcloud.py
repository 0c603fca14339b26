"""`gcloud alpha compute tpus queued-resources create`, which asks the fake Cloud TPU API.

Stands in PATH as `gcloud`, for flex-start; it refuses flags that the real one does not have.
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path

from bigbird_ja.launch import tpu_api

COMMAND = ["alpha", "compute", "tpus", "queued-resources", "create"]
FLAGS = {
    *("node-id", "project", "zone", "accelerator-type", "runtime-version", "max-run-duration"),
    *("provisioning-model", "labels", "metadata-from-file", "network", "subnetwork"),
    *("service-account", "scopes", "format", "async", "quiet", "internal-ips"),
}


def main(arguments):
    name, *words = arguments[5:]
    given = {flag[2:]: value for flag, _, value in (word.partition("=") for word in words)}
    if arguments[:5] != COMMAND or given.keys() - FLAGS:
        sys.exit(f"ERROR: (gcloud) Invalid choice: {arguments}")
    files = dict(pair.split("=") for pair in given["metadata-from-file"].split(","))
    parent = f"projects/{given['project']}/locations/{given['zone']}"
    node = {
        "acceleratorType": given["accelerator-type"],
        "runtimeVersion": given["runtime-version"],
        "labels": dict(pair.split("=") for pair in given["labels"].split(",")),
        "metadata": {key: Path(path).read_text("utf-8") for key, path in files.items()},
    }
    body = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": given["node-id"], "node": node}]},
        "provisioningModel": given["provisioning-model"],
        "maxRunDuration": given["max-run-duration"],
    }
    host = os.environ[tpu_api.EMULATOR_VARIABLE]
    url = f"http://{host}/v2/{parent}/queuedResources?queuedResourceId={name}"
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            operation = json.loads(answer.read())["name"]
    except urllib.error.HTTPError as error:
        details = json.loads(error.read())["error"]
        sys.exit(f"ERROR: (gcloud.alpha) {details['status']}: {details['message']}")
    print(f"{parent}/{operation}")


if __name__ == "__main__":
    main(sys.argv[1:])
