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
began=$SECONDS
source "$here/_site.sh"

mkdir -p "$out"
go_on_from "$earlier" "$out" results.jsonl
use_site "$bundle" "$wheels"
export PYTHONPATH="$PYTHONPATH:$(cd "$here/../.." && pwd)"
echo "ready after $((SECONDS - began)) s"

status=0
python3 "$here/../live/run.py" --plan "$plan" --models "$models" --out "$out" \
  --stop-after $((stop_after - SECONDS + began)) || status=$?

# What is worth bringing back in few files: the folders in one archive, compiled kernels in another.
find "$out" -mindepth 1 -maxdepth 1 -type d -print0 | xargs -0 -r tar -czf "$out/folders.tar.gz"
find "$out" -mindepth 1 -maxdepth 1 -type d -exec rm -r {} +
keep_kernels "$out"
ls -l "$out"
exit "$status"
