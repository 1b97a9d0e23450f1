#!/usr/bin/env bash
# Sweep and live plans side by side on a GPU machine without a network, in the background, in one stretch.
#
#   bench/h200/campaign.sh start BUNDLE MODELS WORK SECONDS [EARLIER] [WHEELS]   returns at once
#   bench/h200/campaign.sh collect WORK OUT SECONDS     waits that long, or for the end, and copies what is there to OUT
#
#   BUNDLE   folder with SGLang: part.*, layout.json, unzstd/, unpack.py
#   MODELS   folder with one folder a model (config.json is enough for dummy weights)
#   WORK     where everything happens; a copy of this repository too, so that later changes do no harm
#   SECONDS  of `start`: after so many nothing runs any more
#   EARLIER  folder with cells.jsonl, results.jsonl and kernels.tar.xz of an earlier stretch
#   WHEELS   folder of wheels that the router needs and the machine lacks (httptools, for one)
#
# With two GPUs: the first runs the one-server and three-on-one plans (bench/live), the second the sweep of Qwen3-8B and
# then the arm that had no room on the first; at the end both run the two-gpus plan. With one GPU: the plans, then the
# sweep. Every step resumes and stops in time, so that a stretch that was cut short loses only the cell in hand.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

copy_repository() {
  mkdir -p "$1"
  for part in selector policies profiles bench pyproject.toml; do cp -r "$here/../../$part" "$1/"; done
}

start() {
  local bundle models work seconds=$4 earlier=${5:-} wheels=${6:-}
  bundle=$(realpath "$1") models=$(realpath "$2")
  mkdir -p "$3" && work=$(realpath "$3")
  source "$here/_site.sh"
  use_site "$bundle" "$wheels"
  mkdir -p "$work/live" "$work/sweep"
  go_on_from "$earlier" "$work/sweep" cells.jsonl
  go_on_from "$earlier" "$work/live" results.jsonl
  copy_repository "$work/repo"
  cp -r "$models" "$work/models"
  nvidia-smi -L | tee "$work/gpus.txt"
  setsid nohup env PYTHONPATH="$PYTHONPATH:$work/repo" bash "$work/repo/bench/h200/campaign.sh" run "$work" "$seconds" \
    >"$work/campaign.log" 2>&1 </dev/null &
  echo "started; $seconds s from now it ends"
}

# Seconds until `$1` seconds before the end.
left() { echo $((end_s - $1 - SECONDS)); }

live() { # live PLAN RESERVE_S: the plan's cells with servers that are up
  python3 "$work/repo/bench/live/run.py" --plan "$work/repo/bench/live/$1.toml" --out "$work/live" --running \
    --stop-after "$(left "$2")" >>"$work/$1.log" 2>&1 || echo "$1 ended with $?"
}

hold() { # hold PLAN FLEET: starts servers, returns once they are up, and sets `held`
  local plan="$work/repo/bench/live/$1.toml"
  try_hold "$plan" "$2" && return
  echo "trying them one after another"
  sed -i 's/^at_once = true/at_once = false/' "$plan"
  try_hold "$plan" "$2" && return
  echo "trying without the plugin: every text has the accept length of conversation"
  sed -i 's/^at_once = false/&\none_length_of = "conversation"/' "$plan"
  try_hold "$plan" "$2"
}

try_hold() { # try_hold PLAN_FILE FLEET
  local log="$work/hold-$2.log" plan=$1
  python3 "$work/repo/bench/live/run.py" --plan "$plan" --out "$work/live" --models "$work/models" \
    --hold "fleets/$2.toml" >"$log" 2>&1 &
  held=$!
  until grep -q '^ready ' "$log"; do
    if ! kill -0 "$held" 2>/dev/null; then
      echo "servers of $2 did not start after $SECONDS s:"
      tail -n 40 "$log"
      return 1
    fi
    sleep 1
  done
  echo "servers of $2 are up after $SECONDS s"
}

prefill() { # prefill RESERVE_S: of every arm, on the servers that are up
  mkdir -p "$work/prefill"
  python3 "$work/repo/bench/h200/sweep.py" --config "$work/repo/bench/live/prefill.toml" --models "$work/models" \
    --out "$work/prefill" --stop-after "$(left "$1")" >>"$work/prefill.log" 2>&1 || echo "prefill ended with $?"
}

sweep() { # sweep GPU RESERVE_S
  python3 "$work/repo/bench/h200/sweep.py" --config "$work/repo/bench/h200/qwen3-8b.toml" --models "$work/models" \
    --out "$work/sweep" --gpus "$1" --port "3110$1" --stop-after "$(left "$2")" >>"$work/sweep.log" 2>&1 ||
    echo "the sweep ended with $?"
}

first_gpu() { # first_gpu RESERVE_S
  hold one-server four-on-one || return 0
  prefill "$1"
  live one-server "$1"
  live router-cost "$1"
  live three-on-one "$1"
}

second_gpu() {
  sweep 1 470
  hold one-server-second three-on-second || return 0
  live one-server-second 120
}

run() {
  work=$1 end_s=$2
  cd "$work"
  if (($(wc -l <gpus.txt) > 1)); then
    (
      trap 'kill "${held:-$!}" 2>/dev/null || true' EXIT
      trap 'exit 0' TERM
      first_gpu 290
      echo "first GPU is free after $SECONDS s"
      touch first.done
      sleep "$(left 0)" &
      wait $!
    ) &
    first=$!
    second_gpu
    echo "second GPU is free after $SECONDS s"
    until [[ -e first.done ]]; do sleep 1; done
    live two-gpus 5
    kill "$first" ${held:+"$held"} || true
  else
    first_gpu 600
    if [[ -n ${held:-} ]]; then kill "$held" && wait "$held" || true; fi
    sweep 0 5
  fi
  source "$work/repo/bench/h200/_site.sh"
  keep_kernels "$work"
  touch "$work/done"
}

collect() {
  local work=$1 out=$2 wait_s=$3
  until [[ -e $work/done ]] || ((SECONDS >= wait_s)); do sleep 1; done
  tail -n 5 "$work"/*.log || true
  cp "$work/sweep/cells.jsonl" "$work/live/results.jsonl" "$work/kernels.tar.xz" "$out/" 2>/dev/null || true
  cp "$work/prefill/cells.jsonl" "$out/prefill.jsonl" 2>/dev/null || true
  tar -C "$work" -czf "$out/traces.tar.gz" sweep || true
  tar -C "$work" --exclude=live/results.jsonl -czf "$out/live.tar.gz" live || true
  tar -C "$work" -czf "$out/logs.tar.gz" $(cd "$work" && ls -- *.log gpus.txt) || true
  ls -l "$out"
}

"$@"
