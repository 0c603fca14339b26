#!/bin/bash
# Start-up script of a rented VM: it starts the watcher, installs the package, and trains.
# `bigbird-ja launch` replaces the words between two @@ (launch/machine/startup.py, every value
# quoted for the shell) and sends the result as the instance's start-up script.
#
# Without an argument, it starts the watcher (launch/machine/watcher.py, which deletes this machine
# at its limits), installs, and trains. For that, it or the service manager calls it again:
#   install  installs the package. It is a separate shell because `set -e` has no effect inside `if`.
#   train    runs `bigbird-ja pretrain` as a separate user, forwards SIGTERM, reports the exit status.
# It contains no credentials: requests are signed by the VM's service account.
set -euo pipefail

readonly RUN_NAME=@@RUN_NAME@@
readonly ATTEMPT=@@ATTEMPT@@
readonly PACKAGE=@@PACKAGE@@
readonly PACKAGE_SHA256=@@PACKAGE_SHA256@@
readonly LOCK=@@LOCK@@                       # File of locked packages; empty: install none.
readonly PRETRAIN_FLAGS=(@@PRETRAIN_FLAGS@@)
readonly PYTHON=@@PYTHON@@                   # Python of the image.
readonly SERVICE_MANAGER=@@SERVICE_MANAGER@@ # systemd or none.
readonly HOSTS=@@HOSTS@@                     # Hosts of the slice, each of which runs this script.
readonly TERMS=@@TERMS@@                     # Limits for the watcher, as JSON.
readonly WATCHER=@@WATCHER@@

WORK_DIR="${BIGBIRD_JA_VM_DIR:-/opt/bigbird-ja}"
UNIT_DIR="${BIGBIRD_JA_UNIT_DIR:-/etc/systemd/system}"
DEVICE_DIR="${BIGBIRD_JA_DEVICE_DIR:-/dev}"
readonly WORK_DIR UNIT_DIR DEVICE_DIR
readonly LOG="$WORK_DIR/training.log"
# Seconds until a trainer of a slice is restarted.
readonly AGAIN_SECONDS=2
if [[ -n "$LOCK" ]]; then TRAINER="$WORK_DIR/venv/bin/python"; else TRAINER=$PYTHON; fi
readonly TRAINER

say() { printf '%s bigbird-ja: %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }

# The watcher is run from memory, not from a file, so that it also runs on a full disk.
watcher() { # watcher VERB [ARGUMENT...]
  local verb=$1
  shift
  "$PYTHON" -c "$WATCHER" "$verb" "$TERMS" "$@"
}

# report STATUS: reports the exit status of training. The watcher deletes the machine later.
report() {
  touch "$WORK_DIR/ended" || true
  watcher report "$1" || say "could not report status $1"
}

# Everything is installed below WORK_DIR, so that the image's packages do not change. The image's pip
# installs uv by hash. uv installs CPython by version and checksum (cpython.json), and the locked
# packages by hash.
install() {
  local zip_file locks="$WORK_DIR/package/bigbird_ja/launch/locks" uv="$WORK_DIR/uv/bin/uv"
  # The version in cpython.json.
  local base=(3.11 --managed-python)
  if [[ "$(cat -- "$WORK_DIR/package/.sha256" 2>/dev/null)" == "$PACKAGE_SHA256" ]]; then
    return 0 # The same package is installed: this is a reboot.
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
    # TPUEstimator requires the image's TensorFlow, which is built for the TPU's driver, and Python.
    [[ "$LOCK" != image.lock ]] || base=("$PYTHON" --system-site-packages)
    export UV_PYTHON_INSTALL_DIR="$WORK_DIR/python" UV_CACHE_DIR="${UV_CACHE_DIR:-$WORK_DIR/cache}"
    export UV_PYTHON_DOWNLOADS_JSON_URL="${UV_PYTHON_DOWNLOADS_JSON_URL:-$locks/cpython.json}"
    "$uv" venv --quiet --python "${base[@]}" "$WORK_DIR/venv"
    "$uv" pip install --quiet --python "$TRAINER" --no-deps --require-hashes \
      --only-binary :all: --requirement "$locks/$LOCK"
  fi
  printf '%s\n' "$PACKAGE_SHA256" >"$WORK_DIR/package/.sha256"
}

# Ubuntu's images do not contain pip. They may hold the lock of dpkg during updates at boot.
install_pip() {
  apt-get -q update
  apt-get -qy -o DPkg::Lock::Timeout=600 install --no-install-recommends python3-pip
}

# Gives the TPU's devices to a separate user, and sets as_user to the prefix that runs a command as
# that user, who cannot become root. Fails if any part is impossible.
create_user() {
  local devices one uid gid
  shopt -s nullglob
  devices=("$DEVICE_DIR"/accel[0-9]* "$DEVICE_DIR"/vfio/*)
  shopt -u nullglob
  ((${#devices[@]})) || return 1
  id bigbird-ja || useradd --system --user-group --create-home bigbird-ja || return 1
  uid=$(id -u bigbird-ja) && gid=$(id -g bigbird-ja) || return 1
  # VFIO locks memory, which is limited for all users except root.
  [[ ! -d "$DEVICE_DIR/vfio" ]] || ulimit -l unlimited || return 1
  chown -- "$uid" "${devices[@]}" || return 1
  chgrp -- "$gid" "$WORK_DIR" && chmod 710 -- "$WORK_DIR" || return 1
  as_user=(setpriv "--reuid=$uid" "--regid=$gid" --clear-groups --no-new-privs
    env HOME=/home/bigbird-ja USER=bigbird-ja)
  for one in "${devices[@]}"; do
    "${as_user[@]}" test -r "$one" -a -w "$one" || return 1
  done
  # The image's TensorFlow may be readable only by root.
  "${as_user[@]}" "$TRAINER" -c 'import importlib.util, sys
sys.exit(importlib.util.find_spec("tensorflow") is None)' || return 1
  # These files belong to root if root has used the TPU before.
  rm -rf -- "${TMPDIR:-/tmp}"/{libtpu_lockfile,tpu_logs}
}

train() {
  local status child signaled=0 interrupted as_user=()
  export PYTHONPATH="$WORK_DIR/package${PYTHONPATH:+:$PYTHONPATH}"
  if ! create_user >>"$LOG" 2>&1; then
    as_user=()
    say "the trainer runs as root: the TPU could not be given to a separate user" 2>>"$LOG"
  fi
  while true; do
    "${as_user[@]}" "$TRAINER" -m bigbird_ja pretrain "${PRETRAIN_FLAGS[@]}" >>"$LOG" 2>&1 &
    child=$!
    # A signal interrupts `wait`: forward it, then wait for the save and the exit status.
    trap 'interrupted=1 signaled=1; kill -TERM "$child" 2>/dev/null || true' TERM INT
    while true; do
      interrupted=0 status=0
      wait "$child" || status=$?
      ((interrupted)) || break
    done
    say "training ended with status $status"
    # This host of a slice is being stopped. Training continues after the host is replaced.
    ((HOSTS > 1 && signaled && status != 0)) && return 0
    # Training was interrupted or stalled because another host was stopped, which will be replaced.
    ((HOSTS > 1 && (status == 75 || status == 76))) || break
    say "another host was stopped: waiting for its replacement"
    sleep "$AGAIN_SECONDS"
    ((signaled)) && return 0 # Meanwhile this host received a signal, too.
  done
  report "$status"
}

# The watcher is started first, as a transient unit from memory, so that it also starts on a full
# disk after a reboot.
start_watcher() {
  if [[ "$SERVICE_MANAGER" == systemd ]]; then
    systemd-run --quiet --unit=bigbird-ja-watch --setenv="BIGBIRD_JA_VM_DIR=$WORK_DIR" \
      --property=Restart=always --property=RestartSec=10 --property=StartLimitIntervalSec=0 \
      "$(command -v "$PYTHON")" -c "$WATCHER" watch "$TERMS" && return 0
    say "the watcher is not a new unit: it runs already, or becomes a child of this script"
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

# Without a service manager, this script waits for its processes and forwards SIGTERM.
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
  # After a reboot, the file of the last end of training must not count.
  rm -f -- "$WORK_DIR/ended"
  cat -- "${BASH_SOURCE[0]}" >"$WORK_DIR/startup.sh"
  say "run $RUN_NAME, attempt $ATTEMPT" 2>&1 | tee -a "$LOG" >&2
  if ! "$BASH" "$WORK_DIR/startup.sh" install >>"$LOG" 2>&1; then
    report_failed_install
  elif [[ "$SERVICE_MANAGER" == systemd ]]; then
    train_as_a_unit
  else
    train_as_a_child
  fi
  [[ -z "$watcher_process" ]] || wait "$watcher_process" || true
}

# The watcher continues, since nothing else would delete this TPU.
report_failed_install() {
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
