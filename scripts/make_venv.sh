#!/usr/bin/env bash
# Makes the virtual environment $1 from requirements.lock (pinned by hash) and installs bigbird-ja in it.
# torch, for the parity tests alone, is not in the lock: it is taken where a CPU build resolves,
# else those tests skip and say so.
set -euo pipefail
venv=$1

works() { "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] not in ((3, 10), (3, 11)))' >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3.11 python3.10 python3 python; do
    if [ -n "$candidate" ] && works "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

if ! python=$(find_python); then
  echo "bigbird-ja needs Python 3.10 or 3.11 with venv (TensorFlow 2.15 has no build for others)." >&2
  echo "Install one, for instance 'apt install python3.11 python3.11-venv' or 'pyenv install 3.11'," >&2
  echo "and run make again; PYTHON=/path/to/python3.11 names one that is not on the PATH." >&2
  exit 2
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
log=$venv/install.log

pip_install() {
  "$venv/bin/python" -m pip install --disable-pip-version-check "$@" >>"$log" 2>&1
}

install() {
  if ! pip_install "$@"; then
    echo "Installing failed; the last lines of $log:" >&2
    tail -n 15 "$log" >&2
    exit 1
  fi
}

echo "Installing the locked packages into $venv (some minutes the first time)..."
: >"$log"
install --no-deps --require-hashes -r requirements.lock
install --no-deps --no-build-isolation --editable .

if ! "$venv/bin/python" -c 'import torch' >/dev/null 2>&1; then
  pip_install torch==2.13.0+cpu 'numpy<2' 'setuptools<81' ||
    echo "No CPU build of torch here: the tests against Hugging Face's own classes will skip."
fi
