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
site=${SITE:-/tmp/site}
began=$SECONDS

mkdir -p "$out"
if [[ -n $earlier && -f $earlier/cells.jsonl && ! -f $out/cells.jsonl ]]; then
  cp "$earlier/cells.jsonl" "$out/cells.jsonl"
fi
# Compiled kernels of an earlier piece: the first start of a server takes 90 s less with them.
if [[ -n $earlier && -f $earlier/kernels.tar.xz ]]; then
  tar -C "$HOME" -xJf "$earlier/kernels.tar.xz"
fi
if [[ ! -f $site/.complete ]]; then
  python3 "$bundle/unpack.py" "$bundle" "$site"
  touch "$site/.complete"
fi
export PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
echo "ready after $((SECONDS - began)) s"

logs=$(mktemp -d)
status=0
python3 "$here/sweep.py" --config "$config" --models "$models" --out "$out" --logs "$logs" \
  --stop-after $((stop_after - SECONDS + began)) || status=$?

# What is worth bringing back and is not on disk there yet.
tar -C "$logs" -czf "$out/logs.tar.gz" .
caches=()
for cache in .cache .triton; do
  if [[ -d $HOME/$cache ]]; then caches+=("$cache"); fi
done
if ((${#caches[@]})); then
  tar -C "$HOME" --exclude=.cache/pip --exclude=.cache/huggingface -cJf "$out/kernels.tar.xz" "${caches[@]}"
fi
ls -l "$out"
exit "$status"
