#!/usr/bin/env bash
# Writes the locks, each of an environment that is tested: exact versions and hashes.
#
#   requirements.lock         TensorFlow 2.15 with jax 0.4.34, Python 3.10 and 3.11
#   requirements-kaggle.lock  what Kaggle's TPU image ships, Python 3.12 and 3.13
#   requirements-newest.lock  the newest of all, Python 3.12 and 3.13
#   requirements-transformers5.lock  what is laid over the first for transformers 5 beside PyTorch
#
# Versions that are in a lock stay there as long as pyproject.toml allows them; `--upgrade` takes the
# newest. The locks name no registry and no path, so that they install from any mirror.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}

# compile LOCK PYTHON EXTRAS [requirement...]
compile() {
  local lock=$1 python=$2 extras=() extra
  for extra in $3; do extras+=(--extra "$extra"); done
  shift 3
  printf '%s\n' "$@" >"$more"
  echo "$lock"
  "$uv" pip compile pyproject.toml "$more" "${extras[@]}" \
    --universal --python-version "$python" --generate-hashes --no-annotate \
    --custom-compile-command "make locks" --output-file "$lock" --quiet "${upgrade[@]}"
}

upgrade=("$@")
more=$(mktemp --suffix=.in)
trap 'rm -f -- "$more"' EXIT

compile requirements.lock 3.10 "estimator huggingface launch words dev preflight" \
  'transformers<5' 'google-cloud-compute<1.31' # the last that run with numpy 1, with protobuf 3

compile requirements-kaggle.lock 3.12 "tpu huggingface launch words plot test" \
  'jax==0.7.2' 'libtpu==0.0.17' 'tensorflow-cpu==2.20.0' \
  'numpy<2.2' # an older numpy 2 than the newest lock has
compile requirements-newest.lock 3.12 "cpu tpu huggingface launch words plot test"

# The first lock's versions wherever transformers 5 can do with them.
sed -nE 's/^([a-z0-9].*==.*) \\$/\1/p' requirements.lock |
  grep -vE '^(transformers|tokenizers|huggingface-hub|typer)==' >"$more"
echo requirements-transformers5.lock
echo 'transformers>=5,<6' | "$uv" pip compile - --constraint "$more" \
  --universal --python-version 3.11 --generate-hashes --no-annotate \
  --custom-compile-command "make locks" --output-file requirements-transformers5.lock --quiet "${upgrade[@]}"
