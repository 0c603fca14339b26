#!/usr/bin/env bash
# make_venv.sh ENVIRONMENT FOLDER: makes the virtual environment FOLDER from ENVIRONMENT's lock (pinned
# by hash) and installs bigbird-ja in it. make_venv.sh ENVIRONMENT only prints the Python that it would
# take, or says what to install and exits with 2 where there is none.
#   estimator  TensorFlow 2.15 with TPUEstimator    kaggle  what Kaggle's TPU image ships
#   newest     the newest TensorFlow, jax and libtpu
# torch and accelerate, for the tests of parity and fine-tuning alone, are in no lock: they are taken where
# a CPU build of torch resolves, else those tests skip and say so.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=$1
venv=${2:-}

case $environment in
  estimator) lock=requirements.lock pythons="3.11 3.10" why="TensorFlow 2.15 has no build for others" ;;
  kaggle) lock=requirements-kaggle.lock pythons="3.12 3.13" why="its lock is made for these" ;;
  newest) lock=requirements-newest.lock pythons="3.12 3.13" why="jax has no build for older ones" ;;
  *)
    echo "make_venv.sh: no environment $environment (estimator, kaggle, newest)" >&2
    exit 2
    ;;
esac

# Where a name is one of pyenv's shims it may be there and still not run: only what runs counts.
is_python() {
  [ "$("$1" -c 'import sys, venv, ensurepip; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$2" ]
}

find_python() {
  local version candidate
  for version in $pythons; do
    for candidate in "${PYTHON:-}" "python$version" python3 python \
      "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
      if [ -n "$candidate" ] && is_python "$candidate" "$version"; then
        echo "$candidate"
        return
      fi
    done
  done
  return 1
}

if ! python=$(find_python); then
  newest=${pythons%% *}
  echo "This environment needs Python ${pythons/ / or } with venv ($why)." >&2
  echo "Install one, for instance 'apt install python$newest python$newest-venv' or 'pyenv install $newest'," >&2
  echo "and run make again; PYTHON=/path/to/python$newest names one that is not on the PATH." >&2
  exit 2
fi
if [ -z "$venv" ]; then
  echo "$python"
  exit
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

echo "Installing the packages of $lock into $venv (some minutes the first time)..."
: >"$log"
install --no-deps --require-hashes -r "$lock"
install --no-deps --no-build-isolation --editable .

if ! "$venv/bin/python" -c 'import torch, accelerate' >/dev/null 2>&1; then
  installed=$("$venv/bin/python" -m pip freeze --disable-pip-version-check --exclude-editable 2>/dev/null)
  pip_install torch==2.13.0+cpu accelerate==1.15.0 --constraint <(echo "$installed") ||
    echo "No CPU build of torch here: the tests against Hugging Face's own classes will skip."
fi
