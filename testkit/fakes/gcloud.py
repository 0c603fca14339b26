"""`gcloud alpha compute tpus queued-resources create`, which asks the fake Cloud TPU API.

Stands in PATH as `gcloud`, for flex-start; it refuses flags that the real one does not have.
"""

import argparse
import json
import os
import sys
import urllib.error
import urllib.request

from bigbird_ja.launch import tpu_api

COMMAND = ["alpha", "compute", "tpus", "queued-resources", "create"]


def main(arguments):
    if arguments[:5] != COMMAND:
        sys.exit(f"ERROR: (gcloud) Invalid choice: {arguments}")
    flags = argparse.ArgumentParser(allow_abbrev=False)
    flags.add_argument("name")
    for name in (
        "node-id",
        "project",
        "zone",
        "accelerator-type",
        "runtime-version",
        "max-run-duration",
        "provisioning-model",
        "labels",
        "metadata-from-file",
        "network",
        "subnetwork",
        "service-account",
        "scopes",
        "format",
    ):
        flags.add_argument(f"--{name}")
    for name in ("async", "quiet", "internal-ips"):
        flags.add_argument(f"--{name}", action="store_true")
    given = flags.parse_args(arguments[5:])
    metadata = {}
    for pair in given.metadata_from_file.split(","):
        key, _, path = pair.partition("=")
        with open(path, encoding="utf-8") as file:
            metadata[key] = file.read()
    parent = f"projects/{given.project}/locations/{given.zone}"
    node = {
        "acceleratorType": given.accelerator_type,
        "runtimeVersion": given.runtime_version,
        "labels": dict(pair.split("=") for pair in given.labels.split(",")),
        "metadata": metadata,
    }
    body = {
        "tpu": {"nodeSpec": [{"parent": parent, "nodeId": given.node_id, "node": node}]},
        "provisioningModel": given.provisioning_model,
        "maxRunDuration": given.max_run_duration,
    }
    host = os.environ[tpu_api.EMULATOR_VARIABLE]
    url = f"http://{host}/v2/{parent}/queuedResources?queuedResourceId={given.name}"
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            operation = json.loads(answer.read())["name"]
    except urllib.error.HTTPError as error:
        details = json.loads(error.read())["error"]
        sys.exit(f"ERROR: (gcloud.alpha) {details['status']}: {details['message']}")
    print(f"projects/{given.project}/locations/{given.zone}/{operation}")


if __name__ == "__main__":
    main(sys.argv[1:])
