#!/bin/bash
# Runs on a TPU VM at boot: installs the package, trains, and watches over its own lease.
# `bigbird-ja launch` fills in the words between two @@ (launch/machine/startup.py, every value
# quoted for the shell) and sends the result as the instance's start-up script.
#
# Called without an argument it starts the watcher (launch/machine/watcher.py, which deletes this
# machine when it must go), installs, and trains; it, or the service manager, calls it again as
#   install puts the package in place; a shell of its own, in which `set -e` holds
#   train   runs `bigbird-ja pretrain` as a user of its own, passes SIGTERM on, reports the exit status
# No credentials are in here: the VM's service account signs everything.
set -euo pipefail

readonly RUN_NAME=@@RUN_NAME@@
readonly ATTEMPT=@@ATTEMPT@@
readonly PACKAGE=@@PACKAGE@@
readonly PACKAGE_SHA256=@@PACKAGE_SHA256@@
readonly LOCK=@@LOCK@@                       # the package's lock that is installed; empty: none
readonly PRETRAIN_FLAGS=(@@PRETRAIN_FLAGS@@)
readonly PYTHON=@@PYTHON@@                   # the image's
readonly SERVICE_MANAGER=@@SERVICE_MANAGER@@ # systemd | none
readonly HOSTS=@@HOSTS@@                     # of this slice; each of them runs this script
readonly TERMS=@@TERMS@@                     # the terms of its lease for the watcher, as JSON
readonly WATCHER=@@WATCHER@@

WORK_DIR="${BIGBIRD_JA_VM_DIR:-/opt/bigbird-ja}"
UNIT_DIR="${BIGBIRD_JA_UNIT_DIR:-/etc/systemd/system}"
DEVICE_DIR="${BIGBIRD_JA_DEVICE_DIR:-/dev}"
readonly WORK_DIR UNIT_DIR DEVICE_DIR
readonly LOG="$WORK_DIR/training.log"
readonly AGAIN_SECONDS=2 # between two tries of a slice
if [[ -n "$LOCK" ]]; then TRAINER="$WORK_DIR/venv/bin/python"; else TRAINER=$PYTHON; fi
readonly TRAINER

say() { printf '%s bigbird-ja: %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }

# From memory, not from a file: a full disk must not stop it.
watcher() { # watcher VERB [ARGUMENT...]
  local verb=$1
  shift
  "$PYTHON" -c "$WATCHER" "$verb" "$TERMS" "$@"
}

# report STATUS: reports the exit status of training; the watcher deletes the machine after a while.
report() {
  touch "$WORK_DIR/ended" || true
  watcher report "$1" || say "could not report status $1"
}

# All of it lies below WORK_DIR, and no package of the image is touched: its pip installs uv by hash,
# and uv a CPython by version and checksum (cpython.json), and the lock's packages by hash.
install() {
  local zip_file locks="$WORK_DIR/package/bigbird_ja/launch/locks" uv="$WORK_DIR/uv/bin/uv"
  local base=(3.11 --managed-python) # of cpython.json
  if [[ "$(cat -- "$WORK_DIR/package/.sha256" 2>/dev/null)" == "$PACKAGE_SHA256" ]]; then
    return 0 # a reboot: the same bytes are there
  fi
  zip_file="$WORK_DIR/$(basename -- "$PACKAGE")"
  watcher get "$PACKAGE" "$zip_file"
  printf '%s  %s\n' "$PACKAGE_SHA256" "$zip_file" | sha256sum --check --quiet -
  rm -rf -- "$WORK_DIR"/{package,uv,venv}
  "$PYTHON" -m zipfile --extract "$zip_file" "$WORK_DIR/package"
  if [[ -n "$LOCK" ]]; then
    "$PYTHON" -m pip --version || install_pip
    "$PYTHON" -m pip install --quiet --no-input --disable-pip-version-check --target "$WORK_DIR/uv" \
      --require-hashes --only-binary :all: --requirement "$locks/uv.lock"
    # TPUEstimator needs the image's TensorFlow, which is built for its TPU driver, and its Python.
    [[ "$LOCK" != image.lock ]] || base=("$PYTHON" --system-site-packages)
    export UV_PYTHON_INSTALL_DIR="$WORK_DIR/python" UV_CACHE_DIR="${UV_CACHE_DIR:-$WORK_DIR/cache}"
    export UV_PYTHON_DOWNLOADS_JSON_URL="${UV_PYTHON_DOWNLOADS_JSON_URL:-$locks/cpython.json}"
    "$uv" venv --quiet --python "${base[@]}" "$WORK_DIR/venv"
    "$uv" pip install --quiet --python "$TRAINER" --no-deps --require-hashes \
      --only-binary :all: --requirement "$locks/$LOCK"
  fi
  printf '%s\n' "$PACKAGE_SHA256" >"$WORK_DIR/package/.sha256"
}

install_pip() { # plain images of Ubuntu have none; at boot they may be updating themselves
  apt-get -q update
  apt-get -qy -o DPkg::Lock::Timeout=600 install --no-install-recommends python3-pip
}

# Gives the TPU's devices to the trainer's own user, and sets as_user to the prefix that runs a
# command as that user, without a way back to root. Fails if a part of it is not possible.
own_user() {
  local devices one uid gid
  shopt -s nullglob
  devices=("$DEVICE_DIR"/accel[0-9]* "$DEVICE_DIR"/vfio/*)
  shopt -u nullglob
  ((${#devices[@]})) || return 1
  id bigbird-ja || useradd --system --user-group --create-home bigbird-ja || return 1
  uid=$(id -u bigbird-ja) && gid=$(id -g bigbird-ja) || return 1
  # Memory that a device reaches by VFIO is locked, of which all users but root have little.
  [[ ! -d "$DEVICE_DIR/vfio" ]] || ulimit -l unlimited || return 1
  chown -- "$uid" "${devices[@]}" || return 1
  chgrp -- "$gid" "$WORK_DIR" && chmod 710 -- "$WORK_DIR" || return 1
  as_user=(setpriv "--reuid=$uid" "--regid=$gid" --clear-groups --no-new-privs
    env HOME=/home/bigbird-ja USER=bigbird-ja)
  for one in "${devices[@]}"; do
    "${as_user[@]}" test -r "$one" -a -w "$one" || return 1
  done
  # An image may have its TensorFlow in a place that only root reads.
  "${as_user[@]}" "$TRAINER" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("tensorflow") is None)' || return 1
  rm -rf -- "${TMPDIR:-/tmp}"/{libtpu_lockfile,tpu_logs} # of root, if it has used the TPU before
}

train() {
  local status child signaled=0 interrupted as_user=()
  export PYTHONPATH="$WORK_DIR/package${PYTHONPATH:+:$PYTHONPATH}"
  if ! own_user >>"$LOG" 2>&1; then
    as_user=()
    say "the trainer runs as root: the TPU could not be handed to a user of its own" 2>>"$LOG"
  fi
  while true; do
    "${as_user[@]}" "$TRAINER" -m bigbird_ja pretrain "${PRETRAIN_FLAGS[@]}" >>"$LOG" 2>&1 &
    child=$!
    # A signal ends `wait` early: pass it on, then wait for the save and its status.
    trap 'interrupted=1 signaled=1; kill -TERM "$child" 2>/dev/null || true' TERM INT
    while true; do
      interrupted=0 status=0
      wait "$child" || status=$?
      ((interrupted)) || break
    done
    say "training ended with status $status"
    # One of several hosts, and it goes itself: that is not the end of training for the others.
    ((HOSTS > 1 && signaled && status != 0)) && return 0
    # Interrupted or stalled, one of several hosts: another has gone, and its successor comes.
    ((HOSTS > 1 && (status == 75 || status == 76))) || break
    say "another host has gone: waiting for its successor"
    sleep "$AGAIN_SECONDS"
    ((signaled)) && return 0 # meanwhile this host got a signal, too
  done
  report "$status"
}

# The watcher comes first and from memory, as a unit that lives in memory too: a disk that is full
# after a reboot must not keep it from starting.
start_watcher() {
  if [[ "$SERVICE_MANAGER" == systemd ]]; then
    systemd-run --quiet --unit=bigbird-ja-watch --setenv="BIGBIRD_JA_VM_DIR=$WORK_DIR" \
      --property=Restart=always --property=RestartSec=10 --property=StartLimitIntervalSec=0 \
      "$(command -v "$PYTHON")" -c "$WATCHER" watch "$TERMS" && return 0
    say "the watcher is no unit: it runs already, or as a child of this script from now on"
  fi
  "$PYTHON" -c "$WATCHER" watch "$TERMS" &
  watcher_process=$!
}

train_as_a_unit() {
  cat >"$UNIT_DIR/bigbird-ja-train.service" <<UNIT
[Unit]
Description=bigbird-ja train
After=network-online.target

[Service]
ExecStart=/bin/bash $WORK_DIR/startup.sh train
Environment=BIGBIRD_JA_VM_DIR=$WORK_DIR
KillMode=mixed
TimeoutStopSec=45
Restart=no
UNIT
  systemctl daemon-reload
  systemctl start --no-block bigbird-ja-train.service
}

# Where there is no service manager, this script waits for its processes and passes SIGTERM on.
train_as_a_child() {
  local trainer
  "$BASH" "$WORK_DIR/startup.sh" train &
  trainer=$!
  trap 'kill -TERM "$trainer" "$watcher_process" 2>/dev/null || true' TERM INT
  wait "$trainer" || true
  while kill -0 "$trainer" 2>/dev/null; do wait "$trainer" || true; done
}

boot() {
  local watcher_process=""
  start_watcher
  trap 'kill -TERM "$watcher_process" 2>/dev/null || true; exit 143' TERM INT
  mkdir -p -- "$WORK_DIR"
  chmod 700 -- "$WORK_DIR"
  # A reboot of the same TPU starts here again: its old end must not speak for the new start.
  rm -f -- "$WORK_DIR/ended"
  cat -- "${BASH_SOURCE[0]}" >"$WORK_DIR/startup.sh"
  say "run $RUN_NAME, attempt $ATTEMPT" 2>&1 | tee -a "$LOG" >&2
  if ! "$BASH" "$WORK_DIR/startup.sh" install >>"$LOG" 2>&1; then
    installing_failed
  elif [[ "$SERVICE_MANAGER" == systemd ]]; then
    train_as_a_unit
  else
    train_as_a_child
  fi
  [[ -z "$watcher_process" ]] || wait "$watcher_process" || true
}

installing_failed() { # the watch goes on: nothing else would delete this TPU
  say "installation failed" 2>>"$LOG"
  report 1
}

main() {
  case "${1:-boot}" in
    train) train ;;
    install) install ;;
    boot) boot ;;
    *) say "unknown argument $1" && exit 2 ;;
  esac
}

main "$@"
