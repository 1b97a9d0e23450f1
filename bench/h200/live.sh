#!/usr/bin/env bash
# One piece of a live plan on a GPU machine without a network: real servers, the router, the meter (see bench/live).
#
#   bench/h200/live.sh BUNDLE MODELS OUT STOP_AFTER_S PLAN [EARLIER] [WHEELS]
#
#   BUNDLE        folder with SGLang: part.*, layout.json, unzstd/, unpack.py
#   MODELS        folder with one folder a model (config.json is enough for dummy weights)
#   OUT           where results.jsonl, decision logs, server logs and kernels.tar.xz go
#   STOP_AFTER_S  seconds, from the start of this script, after which nothing new is started
#   PLAN          bench/live/*.toml
#   EARLIER       folder with results.jsonl and kernels.tar.xz of an earlier piece
#   WHEELS        folder of wheels that the router needs and the machine lacks (httptools, for one)
set -euo pipefail

bundle=$1 models=$2 out=$3 stop_after=$4 plan=$5
here=$(cd "$(dirname "$0")" && pwd)
earlier=${6:-} wheels=${7:-}
site=${SITE:-/tmp/site}
began=$SECONDS

mkdir -p "$out"
if [[ -n $earlier && -f $earlier/results.jsonl && ! -f $out/results.jsonl ]]; then
  cp "$earlier/results.jsonl" "$out/results.jsonl"
fi
if [[ -n $earlier && -f $earlier/kernels.tar.xz ]]; then
  tar -C "$HOME" -xJf "$earlier/kernels.tar.xz"
fi
if [[ ! -f $site/.complete ]]; then
  python3 "$bundle/unpack.py" "$bundle" "$site"
  if [[ -n $wheels ]]; then
    python3 -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl
  fi
  touch "$site/.complete"
fi
export PYTHONPATH="$site:$(cd "$here/../.." && pwd)${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
echo "ready after $((SECONDS - began)) s"

status=0
python3 "$here/../live/run.py" --plan "$plan" --models "$models" --out "$out" \
  --stop-after $((stop_after - SECONDS + began)) || status=$?

# What is worth bringing back in few files: logs in one archive, compiled kernels in another.
find "$out" -mindepth 1 -maxdepth 1 -type d -print0 | xargs -0 -r tar -czf "$out/folders.tar.gz"
find "$out" -mindepth 1 -maxdepth 1 -type d -exec rm -r {} +
caches=()
for cache in .cache .triton; do
  if [[ -d $HOME/$cache ]]; then caches+=("$cache"); fi
done
if ((${#caches[@]})); then
  tar -C "$HOME" --exclude=.cache/pip --exclude=.cache/huggingface -cJf "$out/kernels.tar.xz" "${caches[@]}"
fi
ls -l "$out"
exit "$status"
