#!/usr/bin/env bash
# One piece of a sweep on a GPU machine without a network. What an earlier piece measured is not measured again.
#
#   bench/h200/run.sh BUNDLE MODELS OUT STOP_AFTER_S [CONFIG] [EARLIER]
#
#   BUNDLE        folder with SGLang: part.*, layout.json, unzstd/, unpack.py
#   MODELS        folder with one folder a model (config.json is enough for dummy weights)
#   OUT           where cells.jsonl, traces, logs.tar.gz and kernels.tar.xz go
#   STOP_AFTER_S  seconds, from the start of this script, after which nothing new is started
#   CONFIG        sweep file (default: qwen3-8b.toml beside this script)
#   EARLIER       folder with cells.jsonl and kernels.tar.xz of an earlier piece, on this machine or another
set -euo pipefail

bundle=$1 models=$2 out=$3 stop_after=$4
here=$(cd "$(dirname "$0")" && pwd)
config=${5:-$here/qwen3-8b.toml}
earlier=${6:-}
began=$SECONDS
source "$here/_site.sh"

mkdir -p "$out"
go_on_from "$earlier" "$out" cells.jsonl
use_site "$bundle"
echo "ready after $((SECONDS - began)) s"

logs=$(mktemp -d)
status=0
python3 "$here/sweep.py" --config "$config" --models "$models" --out "$out" --logs "$logs" \
  --stop-after $((stop_after - SECONDS + began)) || status=$?

# What is worth bringing back and is not on disk there yet.
tar -C "$logs" -czf "$out/logs.tar.gz" .
keep_kernels "$out"
ls -l "$out"
exit "$status"
