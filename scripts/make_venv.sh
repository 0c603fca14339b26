#!/usr/bin/env bash
# make_venv.sh ENVIRONMENT FOLDER: create the virtual environment FOLDER from ENVIRONMENT's lock (pinned
# by hash), and install bigbird-ja in it. Without FOLDER, only print the path of the Python for the
# environment. If no suitable Python is installed, print how to install one, and exit with status 2. An
# environment supports several versions of Python, of which the first one is the default.
# ENVIRONMENT-3.12 selects 3.12.
#
#   main       environment of `make test`, `preflight` and every rented machine
#   extra      additional packages for main: libtpu, a MeCab dictionary, PyTorch. Tests that need them are
#              skipped without them.
#   estimator  TensorFlow 2.15 with TPUEstimator
#   kaggle     packages of Kaggle's TPU image
#
# No lock contains PyTorch, since not every index offers its build for CPUs. If the index offers it, it
# is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
environment=${1%-3.*}
only=${1#"$environment"}
venv=${2:-}

case $environment in
  main | extra) pythons="3.11 3.12 3.13" why="jax 0.10.2 and TensorFlow 2.21 have builds for these" ;;
  estimator) pythons="3.11" why="what TensorFlow 2.15 is tested with" ;;
  kaggle) pythons="3.12" why="as Kaggle's image" ;;
  *)
    echo "make_venv.sh: no environment $1 (main, extra, estimator, kaggle; main-3.12)" >&2
    exit 2
    ;;
esac
lock=requirements/$environment.lock
if [ -n "$only" ]; then
  case " $pythons " in
    *" ${only#-} "*) pythons=${only#-} ;;
    *)
      echo "make_venv.sh: the environment $environment is not for Python ${only#-} ($pythons)" >&2
      exit 2
      ;;
  esac
fi

# Run the command as a test, since it may be a shim of pyenv for a version that is not installed.
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
  first=${pythons%% *}
  echo "This environment needs Python ${pythons// / or } with venv ($why)." >&2
  echo "Install one, for instance 'apt install python$first python$first-venv' or 'pyenv install $first'," >&2
  echo "and run make again; PYTHON=/path/to/python$first names one that is not on the PATH." >&2
  exit 2
fi
if [ -z "$venv" ]; then
  echo "$python"
  exit
fi

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
log=$venv/install.log
: >"$log"

# Run a command, append its output to the log, and print a line every ten seconds.
step() {
  local what=$1 started=$SECONDS
  shift
  "$@" >>"$log" 2>&1 &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.5
    if ((SECONDS - started >= 10 && (SECONDS - started) % 10 == 0)); then
      echo "  $what: $((SECONDS - started)) s, $(du -sm "$venv" | cut -f1) MB so far"
      sleep 1
    fi
  done
  wait "$pid"
}

must() {
  if ! step "$@"; then
    echo "Installing failed; the last lines of $log:" >&2
    tail -n 15 "$log" >&2
    exit 1
  fi
}

pip() { "$venv/bin/python" -m pip install --disable-pip-version-check "$@"; }

# Install uv by pip, in the version of the lock, and the other packages by uv, which takes a third of
# pip's time. If uv fails, install the packages by pip.
from_lock() {
  if pip --require-hashes -r <(sed -n '/^uv==/,/[^\\]$/p' requirements/main.lock) &&
    "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --require-hashes -r "$lock"; then
    return
  fi
  pip --no-deps --require-hashes -r "$lock"
}

echo "Installing the packages of $lock into $venv (one to four minutes the first time)..."
must "downloading and installing" from_lock
# Remove 400 MB of unused files: headers and a compiler's library for operations in C++, a network
# service of Arrow, and icons.
for unused in tensorflow/include clang/native 'pyarrow/libarrow_flight.so*' material/templates/.icons/simple; do
  # shellcheck disable=SC2086 # a pattern
  rm -rf -- "$venv"/lib/python*/site-packages/$unused
done
if [ "$environment" != extra ]; then
  must "bigbird-ja itself" pip --no-deps --no-build-isolation --editable .
fi
if [ "$environment" = extra ] || [ "$environment" = estimator ]; then
  torch() {
    "$venv/bin/python" -c 'import torch' 2>/dev/null && return
    pip torch==2.13.0+cpu --constraint <("$venv/bin/python" -m pip freeze --exclude-editable)
  }
  step "PyTorch for the tests of parity" torch ||
    echo "No CPU build of PyTorch here: the tests against Hugging Face's own classes will skip."
fi
