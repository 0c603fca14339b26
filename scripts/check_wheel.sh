#!/usr/bin/env bash
# check_wheel.sh [PYTHON]: build dist/*.tar.gz, build dist/*.whl from this archive, and check the
# metadata of both. Then use the wheel as a new user does: install it with the README's extras in a new
# environment of PYTHON, and run doctor, plan and the demo in another folder. The demo's loss must be in
# the range that the README states.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${1:-$(scripts/make_venv.sh main)}
folder=$(mktemp -d)
trap 'rm -rf -- "$folder"' EXIT

rm -rf build dist
"$python" -m venv "$folder/tools"
"$folder/tools/bin/pip" install --quiet build twine
"$folder/tools/bin/python" -m build --outdir dist . >"$folder/build.log" || { tail -n 15 "$folder/build.log"; exit 1; }
"$folder/tools/bin/twine" check --strict dist/*
wheel=$(realpath dist/*.whl)

"$python" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "${wheel}[cpu,huggingface]"
cd "$folder"
export PATH="$folder/venv/bin:$PATH"
bigbird-ja doctor
bigbird-ja plan --config base-4096 # a preset, by name
bigbird-ja launch --config base-4096 --max_cost 40 --dry_run >/dev/null # This reads the locks of a machine.
bigbird-ja demo --work_dir demo --json >demo.json
python - "$root/README.md" demo.json <<'PYTHON'
import json
import re
import sys
from pathlib import Path

stated = re.search(r"loss of ([\d.]+) to ([\d.]+) nats", Path(sys.argv[1]).read_text("utf-8"))
loss = json.loads(Path(sys.argv[2]).read_text("utf-8"))["eval_loss"]
low, high = map(float, stated.groups())
print(f"demo: {loss:.2f} nats; README: {low} to {high}")
sys.exit(not low <= loss <= high)
PYTHON
