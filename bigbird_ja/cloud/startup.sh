#!/bin/bash
# What a TPU VM runs at boot: installs the package, trains, and deletes its own TPU when nobody else
# does. `bigbird-ja launch` fills in the words between two @@ (bigbird_ja/cloud/startup.py, every
# value quoted for the shell) and sends the result as the instance's start-up script.
#
# Called without an argument it sets up and starts the two services; the service manager (or, where
# there is none, this script itself) calls it again as
#   install puts the package in place; a shell of its own, where `set -e` is in force
#   train   runs `bigbird-ja pretrain`, passes SIGTERM on, reports how it ended
#   watch   the dead man's switch
# No credentials are in here: the VM's service account signs everything.
set -euo pipefail

readonly RUN_NAME=@@RUN_NAME@@
readonly ATTEMPT=@@ATTEMPT@@
readonly NODE=@@NODE@@                       # projects/P/locations/Z/nodes/NAME
readonly QUEUED=@@QUEUED@@                   # the queued resource that owns the node, or empty
readonly SUPERVISOR_DIR=@@SUPERVISOR_DIR@@   # gs://BUCKET/NAME/supervisor
readonly MODEL_DIR=@@MODEL_DIR@@
readonly WHEEL=@@WHEEL@@
readonly WHEEL_SHA256=@@WHEEL_SHA256@@
readonly REQUIREMENTS=@@REQUIREMENTS@@       # pinned, separated by spaces; never TensorFlow
readonly LACKING=@@LACKING@@                 # the engine's packages, for an image without them
readonly PRETRAIN_FLAGS=(@@PRETRAIN_FLAGS@@)
readonly PYTHON=@@PYTHON@@
readonly SERVICE_MANAGER=@@SERVICE_MANAGER@@ # systemd | none
readonly API=@@API@@                         # https://tpu.googleapis.com/v2
readonly METADATA=@@METADATA@@               # http://metadata.google.internal
readonly POLL_SECONDS=@@POLL_SECONDS@@
readonly ENDED_SECONDS=@@ENDED_SECONDS@@     # training has ended and nobody came
readonly STALLED_SECONDS=@@STALLED_SECONDS@@ # no new heartbeat, from the very start

WORK_DIR="${BIGBIRD_JA_VM_DIR:-/opt/bigbird-ja}"
UNIT_DIR="${BIGBIRD_JA_UNIT_DIR:-/etc/systemd/system}"
readonly WORK_DIR UNIT_DIR
readonly LOG="$WORK_DIR/training.log"

say() { printf '%s bigbird-ja: %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }

# get SOURCE TARGET and put SOURCE TARGET: one file from or to the bucket (a directory in tests).
get() {
  case "$1" in
    gs://*) gcloud storage cp --quiet "$1" "$2" 2>/dev/null || gsutil -q cp "$1" "$2" ;;
    *) cp -- "$1" "$2" ;;
  esac
}

put() {
  case "$2" in
    gs://*) gcloud storage cp --quiet "$1" "$2" 2>/dev/null || gsutil -q cp "$1" "$2" ;;
    *) cp -- "$1" "$2.$$.tmp" && mv -- "$2.$$.tmp" "$2" ;;
  esac
}

# put, but a bucket that fails must not end the caller; three tries.
put_patiently() {
  local try
  for try in 1 2 3; do
    put "$1" "$2" && return 0
    sleep "$try"
  done
  say "could not write $2"
}

upload_log() {
  [[ -f "$LOG" ]] || return 0
  tail -c 65536 -- "$LOG" >"$WORK_DIR/tail.log.$$"
  put_patiently "$WORK_DIR/tail.log.$$" "$SUPERVISOR_DIR/training.log"
  rm -f -- "$WORK_DIR/tail.log.$$"
}

# report STATUS SELF_DELETED: tells the supervisor how training ended.
report() {
  upload_log
  printf '{"attempt": %d, "status": %d, "self_deleted": %s, "time": %d}\n' \
    "$ATTEMPT" "$1" "$2" "$(date +%s)" >"$WORK_DIR/exit.json.$$"
  put_patiently "$WORK_DIR/exit.json.$$" "$SUPERVISOR_DIR/exit.json"
  mv -f -- "$WORK_DIR/exit.json.$$" "$WORK_DIR/exit.json"
}

# The image brings TensorFlow or jax, built for its TPU driver: what pip installs must leave them
# alone, so what is there is a constraint, and the versions are compared afterwards.
install() {
  local wheel_file before after lacking one
  if [[ "$(cat -- "$WORK_DIR/package/.sha256" 2>/dev/null)" == "$WHEEL_SHA256" ]]; then
    return 0 # a reboot: the same bytes are there
  fi
  before=$(versions)
  wheel_file="$WORK_DIR/$(basename -- "$WHEEL")"
  get "$WHEEL" "$wheel_file"
  printf '%s  %s\n' "$WHEEL_SHA256" "$wheel_file" | sha256sum --check --quiet -
  lacking=""
  if [[ -n "$LACKING" ]]; then
    # shellcheck disable=SC2086 # one word per requirement
    lacking=$(absent $LACKING)
  fi
  if [[ -n "$REQUIREMENTS$lacking" ]]; then
    "$PYTHON" -m pip freeze --all | grep -E '^(tensorflow|keras|numpy|protobuf|libtpu|jax|ml.dtypes)[A-Za-z_-]*==' \
      >"$WORK_DIR/constraints.txt" || true
    # shellcheck disable=SC2086 # one word per requirement
    "$PYTHON" -m pip install --quiet --no-input --disable-pip-version-check \
      --constraint "$WORK_DIR/constraints.txt" $REQUIREMENTS $lacking
  fi
  rm -rf -- "$WORK_DIR/package"
  "$PYTHON" -m pip install --quiet --no-input --disable-pip-version-check --no-index --no-deps \
    --target "$WORK_DIR/package" "$wheel_file"
  after=$(versions)
  for one in $before; do
    if [[ " $after " != *" $one "* ]]; then
      say "installing the package has replaced the image's $one"
      return 1
    fi
  done
  printf '%s\n' "$WHEEL_SHA256" >"$WORK_DIR/package/.sha256"
}

versions() { # of what the image may bring
  "$PYTHON" -c 'import importlib.metadata as m
names = [d.metadata["Name"] + "==" + d.version for d in m.distributions()]
kinds = ("tensorflow", "jax", "libtpu")
print(" ".join(sorted(n for n in names if n.lower().startswith(kinds))))'
}

absent() { # absent REQUIREMENT...: those of which no version is there; one TensorFlow is enough
  "$PYTHON" -c 'import importlib.metadata as m, re, sys
here = {re.sub("[-_.]+", "-", d.metadata["Name"]).lower() for d in m.distributions()}
here |= {"tensorflow-cpu"} if here & {"tensorflow", "tensorflow-gpu", "tensorflow-tpu"} else set()
print(*(one for one in sys.argv[1:] if re.split("[=<>]", one)[0] not in here))' "$@"
}

train() {
  local status child interrupted
  export PYTHONPATH="$WORK_DIR/package${PYTHONPATH:+:$PYTHONPATH}"
  "$PYTHON" -m bigbird_ja pretrain "${PRETRAIN_FLAGS[@]}" >>"$LOG" 2>&1 &
  child=$!
  # A signal ends `wait` early: pass it on, then wait for the save and its status.
  trap 'interrupted=1; kill -TERM "$child" 2>/dev/null || true' TERM INT
  while true; do
    interrupted=0 status=0
    wait "$child" || status=$?
    ((interrupted)) || break
  done
  say "training ended with status $status"
  report "$status" false
}

# The dead man's switch. The supervisor deletes this TPU within minutes of the end; when its machine
# is off, this does, because an idle TPU is billed like a working one. Seconds are counted by turns,
# so a clock that jumps cannot fire it.
watch() {
  local last="" now ended=0 quiet=0
  trap 'exit 0' TERM INT
  while true; do
    sleep "$POLL_SECONDS" &
    wait $!
    upload_log
    if [[ -f "$WORK_DIR/exit.json" ]]; then
      ended=$((ended + POLL_SECONDS))
    fi
    now=$(heartbeat)
    if [[ -n "$now" && "$now" != "$last" ]]; then
      last="$now"
      quiet=0
    else
      quiet=$((quiet + POLL_SECONDS))
    fi
    if ((ended >= ENDED_SECONDS || quiet >= STALLED_SECONDS)); then
      say "training has ended or stalled and nobody came: deleting $NODE"
      [[ -f "$WORK_DIR/exit.json" ]] || report 76 true
      delete_self || say "deletion failed; trying again"
    fi
  done
}

# What the trainer wrote last; empty where the bucket does not answer.
heartbeat() {
  if get "$MODEL_DIR/heartbeat.json" "$WORK_DIR/heartbeat.json" 2>/dev/null; then
    sha256sum <"$WORK_DIR/heartbeat.json"
  fi
}

delete_self() {
  local token url="$API/$NODE"
  if [[ -n "$QUEUED" ]]; then
    url="$API/$QUEUED?force=true"
  fi
  token=$(curl --silent --show-error --fail --max-time 20 --header 'Metadata-Flavor: Google' \
    "$METADATA/computeMetadata/v1/instance/service-accounts/default/token" |
    "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["access_token"])')
  # The header goes through a file descriptor: a process list must not show the token.
  curl --silent --show-error --fail --max-time 60 --request DELETE \
    --header @<(printf 'Authorization: Bearer %s' "$token") "$url" >/dev/null
}

unit() { # unit NAME VERB: a systemd service that runs this script again
  cat >"$UNIT_DIR/bigbird-ja-$1.service" <<UNIT
[Unit]
Description=bigbird-ja $1
After=network-online.target

[Service]
ExecStart=/bin/bash $WORK_DIR/startup.sh $1
Environment=BIGBIRD_JA_VM_DIR=$WORK_DIR
KillMode=mixed
TimeoutStopSec=45
Restart=$2
UNIT
}

start_services() {
  if [[ "$SERVICE_MANAGER" == systemd ]]; then
    unit watch always
    unit train no
    systemctl daemon-reload
    systemctl start --no-block bigbird-ja-watch.service
    if "$BASH" "$WORK_DIR/startup.sh" install >>"$LOG" 2>&1; then
      systemctl start --no-block bigbird-ja-train.service
    else
      installing_failed
    fi
    return 0
  fi
  local watcher trainer
  "$BASH" "$WORK_DIR/startup.sh" watch &
  watcher=$!
  trap 'kill -TERM "$watcher" 2>/dev/null || true; exit 143' TERM INT
  if "$BASH" "$WORK_DIR/startup.sh" install >>"$LOG" 2>&1; then
    "$BASH" "$WORK_DIR/startup.sh" train &
    trainer=$!
    trap 'kill -TERM "$trainer" "$watcher" 2>/dev/null || true' TERM INT
    wait "$trainer" || true
    while kill -0 "$trainer" 2>/dev/null; do wait "$trainer" || true; done
  else
    installing_failed
  fi
  wait "$watcher" || true
}

installing_failed() { # the watch goes on: nothing else would delete this TPU
  say "installation failed" 2>>"$LOG"
  report 1 false
}

main() {
  case "${1:-boot}" in
    train) train ;;
    watch) watch ;;
    install) install ;;
    boot)
      mkdir -p -- "$WORK_DIR"
      chmod 700 -- "$WORK_DIR"
      # A reboot of the same TPU starts here again: its old report must not speak for the new start.
      rm -f -- "$WORK_DIR/exit.json"
      cat -- "${BASH_SOURCE[0]}" >"$WORK_DIR/startup.sh"
      say "run $RUN_NAME, attempt $ATTEMPT" 2>&1 | tee -a "$LOG" >&2
      start_services
      ;;
    *) say "unknown argument $1" && exit 2 ;;
  esac
}

main "$@"
