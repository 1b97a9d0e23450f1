#!/usr/bin/env bash
# A stretch of GPU time on a machine without a network: servers that are held up, live plans and sweeps, in the background.
#
#   bench/h200/campaign.sh start BUNDLE MODELS WORK SECONDS STRETCH [EARLIER] [WHEELS]   returns at once
#   bench/h200/campaign.sh collect WORK OUT SECONDS    waits that long, or for the end, and copies what is there to OUT
#   bench/h200/campaign.sh gather RAW SWEEPS NAME      all cells of a profile on standard output: raw ones, and of sweeps/
#   bench/h200/campaign.sh dry MODELS WORK SECONDS STRETCH GPUS [EARLIER]    without a GPU: emulated servers, waits for the end
#
#   BUNDLE   folder with SGLang: part.*, layout.json, unzstd/, unpack.py
#   MODELS   folder with one folder a model (config.json is enough for dummy weights)
#   WORK     where everything happens; a copy of this repository too, so that later changes do no harm
#   SECONDS  after so many nothing runs any more
#   STRETCH  live, engine, again, open, compact, models, pair, boards, board, depths, each, apart, clients, targets
#            or rest:
#            stretches.sh says what each is and takes
#   EARLIER  folder with results.jsonl, sweeps/ and kernels.tar.xz of earlier stretches
#   WHEELS   folder of wheels that the router needs and the machine lacks (httptools, for one)
#
# Every step goes on where an earlier one stopped (the rows of bench/results and profiles/raw count), writes cell by cell,
# takes 585 s at most and ends in time, so a stretch that is cut short loses only the cells in hand. `dry` runs the same
# steps with the plans' times shortened, DRY_STEP_S seconds each at most; its numbers mean nothing. It takes the ports
# DRY_FIRST1 … DRY_FIRST9 and DRY_SECOND1 … DRY_SECOND9 (3000 and 3100).
# shellcheck source-path=SCRIPTDIR
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
source "$here/stretches.sh"

copy_repository() {
  mkdir -p "$1"
  for part in selector policies profiles bench pyproject.toml; do cp -r "$here/../../$part" "$1/"; done
}

# prepare MODELS WORK EARLIER: the folders that `run` works in.
prepare() {
  local models=$1 earlier=$3
  work=$2
  mkdir -p "$work/live" "$work/sweeps" "$work/logs"
  copy_repository "$work/repo"
  cp -rT "$models" "$work/models"
  cp "$here/../results/h200_live.jsonl" "$work/live/results.jsonl"
  [[ -n $earlier ]] || return 0
  if [[ -d $earlier/sweeps ]]; then cp -r "$earlier/sweeps/." "$work/sweeps/"; fi
  if [[ -f $earlier/results.jsonl ]]; then cp "$earlier/results.jsonl" "$work/live/"; fi
}

start() {
  local bundle models seconds=$4 stretch=$5 earlier=${6:-} wheels=${7:-}
  bundle=$(realpath "$1") models=$(realpath "$2")
  mkdir -p "$3" && work=$(realpath "$3")
  source "$here/_site.sh"
  use_site "$bundle" "$wheels"
  prepare "$models" "$work" "$earlier"
  go_on_from "$earlier" "$work" kernels.tar.xz
  nvidia-smi -L | tee "$work/gpus.txt"
  setsid nohup env PYTHONPATH="$PYTHONPATH:$work/repo" bash "$work/repo/bench/h200/campaign.sh" run "$work" "$seconds" \
    "$stretch" >"$work/logs/campaign.log" 2>&1 </dev/null &
  echo "started; $seconds s from now it ends"
}

dry() {
  local models seconds=$3 stretch=$4 gpus=$5 earlier=${6:-}
  models=$(realpath "$1")
  mkdir -p "$2" && work=$(realpath "$2")
  prepare "$models" "$work" "$earlier"
  seq "$gpus" >"$work/gpus.txt"
  # Short cells, no GPU to meter, an emulated server for every real one, ports that nobody else has.
  printf '#!/bin/sh\nexec python3 "%s" "$@"\n' "$work/repo/bench/h200/standin.py" >"$work/server"
  chmod +x "$work/server"
  sed -i -E -e 's/^seconds = .*/seconds = 4/' -e 's/^window_s = .*/window_s = 1.0/' -e 's/^indices = .*/indices = []/' \
    -e "s|^python = .*|python = \"$work/server\"|" \
    "$work"/repo/bench/live/*.toml "$work"/repo/bench/h200/*.toml
  sed -i -E -e "s/127\.0\.0\.1:3000/127.0.0.1:${DRY_FIRST:-3000}/" -e "s/127\.0\.0\.1:3100/127.0.0.1:${DRY_SECOND:-3100}/" \
    "$work"/repo/bench/live/*.toml "$work"/repo/bench/live/fleets/*.toml
  export PYTHONPATH="$work/repo" DRY=1
  bash "$work/repo/bench/h200/campaign.sh" run "$work" "$seconds" "$stretch" 2>&1 | tee "$work/logs/campaign.log"
}

# Seconds until `$1` seconds before the end, at most what one step may take. In a dry run less is kept for what follows.
left() {
  local reserve=$1 most=${STEP_S:-585} seconds
  if [[ -n ${DRY:-} ]]; then reserve=$((reserve / 8)) most=${DRY_STEP_S:-60}; fi
  seconds=$((end_s - reserve - SECONDS))
  echo $((seconds < most ? seconds : most))
}

two_gpus() { (($(wc -l <"$work/gpus.txt") > 1)); }

# In a dry run: what makes run.py emulate.
emulated() { if [[ -n ${DRY:-} ]]; then echo "--emulate"; fi; }

live() { # live PLAN RESERVE_S [FLEET]: the plan's cells, of one fleet if it is named, with servers that are up
  # shellcheck disable=SC2046
  python3 "$work/repo/bench/live/run.py" --plan "$work/repo/bench/live/$1.toml" --out "$work/live" --running \
    --stop-after "$(left "$2")" ${3:+--fleet "$3"} $(emulated) >>"$work/logs/$1.log" 2>&1 || echo "$1 ended with $?"
  echo "live $1 ${3:-} until $SECONDS s"
}

left_of() { # left_of PLAN [FLEET]: whether cells of the plan, of one fleet if it is named, are still to be measured
  python3 "$work/repo/bench/live/run.py" --plan "$work/repo/bench/live/$1.toml" --out "$work/live" --list \
    ${2:+--fleet "$2"} | grep '^left ' >/dev/null
}

declare -A held=()

raise() { # raise PLAN FLEET [--one-by-one]: starts servers in the background
  # shellcheck disable=SC2046
  python3 "$work/repo/bench/live/run.py" --plan "$work/repo/bench/live/$1.toml" --out "$work/live" \
    --models "$work/models" --hold "fleets/$2.toml" ${3:+"$3"} $(emulated) >"$work/logs/hold-$2.log" 2>&1 &
  held[$2]=$!
}

hold() { # hold PLAN FLEET: returns once the servers of `raise` are up, started one by one if they fail together
  up "$2" && return
  raise "$1" "$2" --one-by-one
  up "$2"
}

ready() { grep -qs '^ready ' "$work/logs/hold-$1.log"; } # ready FLEET: whether its servers came up

up() { # up FLEET: returns once its servers are up
  local log="$work/logs/hold-$1.log"
  until ready "$1"; do
    if ! kill -0 "${held[$1]}" 2>/dev/null; then
      echo "servers of $1 did not start after $SECONDS s:"
      tail -n 40 "$log"
      return 1
    fi
    sleep 1
  done
  echo "servers of $1 are up after $SECONDS s"
}

release() { # release FLEET …: their servers end, all at once
  local fleet
  for fleet in "$@"; do kill "${held[$fleet]:-}" 2>/dev/null || true; done
  for fleet in "$@"; do
    if [[ -n ${held[$fleet]:-} ]]; then wait "${held[$fleet]}" || true; fi
    unset "held[$fleet]"
  done
}

# gather RAW SWEEPS NAME: every cell of a profile, those of RAW and of all sweeps for it, each once.
gather() { { cat "$1/$3.cells.jsonl" "$2/$3"/*/cells.jsonl 2>/dev/null || true; } | awk '!seen[$0]++'; }

sweep() { # sweep NAME CONFIG GPU RESERVE_S [OPTION …]: what no sweep for its profile has measured, here or in profiles/raw
  local profile out options=("${@:5}")
  profile=$(sed -n 's/^output_name = "\(.*\)"/\1/p' "$2")
  out="$work/sweeps/$profile/$1"
  mkdir -p "$out"
  gather "$work/repo/profiles/raw" "$work/sweeps" "$profile" >"$out/cells"
  mv "$out/cells" "$out/cells.jsonl"
  if [[ -z ${DRY:-} ]]; then options+=(--gpus "$3"); fi
  python3 "$work/repo/bench/h200/sweep.py" --config "$2" --models "$work/models" --out "$out" --logs "$work/logs/$1" \
    --port "${DRY_SECOND:-3110}$((8 + $3))" "${options[@]}" --stop-after "$(left "$4")" >>"$work/logs/$1.log" 2>&1 ||
    echo "the sweep $1 ended with $?"
  echo "sweep $1 until $SECONDS s"
}

launched() { # launched NAME PID: returns once the sweep that runs as PID has measured with a server, or has ended
  local with_server='/: starting the server$/ { started = 1 } started && / left\]$/ { seen = 1 } END { exit !seen }'
  until awk "$with_server" "$work/logs/$1.log" 2>/dev/null || ! kill -0 "$2" 2>/dev/null; do sleep 1; done
  echo "the first launch of $1 is over after $SECONDS s"
}

on_second() { # on_second FLEET: its servers are those of the second GPU, at the ports of four-on-second
  sed -i -e 's/host0:0/host0:1/' -e "s/:${DRY_FIRST:-3000}/:${DRY_SECOND:-3100}/" "$work/repo/bench/live/fleets/$1.toml"
}

planned() { # planned CONFIG TARGET ARMS [OPTION …]: the sweep file of a target, with options of plan.py
  python3 "$work/repo/bench/h200/plan.py" "$2" --models "$work/models" --arms "$3" "${@:4}" >"$1" || return 1
  if [[ -n ${DRY:-} ]]; then
    sed -i -e 's/^window_s = .*/window_s = 1.0/' -e 's/^indices = .*/indices = []/' \
      -e "s|^\[server\]|&\npython = \"$work/server\"|" "$1"
  fi
}

model() { # model TARGET ARMS GPU RESERVE_S [OPTION …]: a reduced grid of a target, with options of the sweep
  planned "$work/$1.toml" "$1" "$2" || return 0
  sweep "$1" "$work/$1.toml" "$3" "$4" "${@:5}"
}

without_graphs() { # without_graphs TARGET ARMS GPU RESERVE_S: single steps of a target without CUDA graphs
  planned "$work/$1-no-graphs.toml" "$1" "$2" --grid single --no-graphs || return 0
  sweep "$1-no-graphs" "$work/$1-no-graphs.toml" "$3" "$4"
}

run() {
  work=$1 end_s=$2
  cd "$work/repo" # sweep files name what lies in the repository from its root
  trap 'for fleet in "${!held[@]}"; do kill "${held[$fleet]}" 2>/dev/null || true; done' EXIT
  "stretch_$3"
  release "${!held[@]}"
  if [[ -z ${DRY:-} ]]; then
    # shellcheck source=_site.sh
    source "$work/repo/bench/h200/_site.sh"
    keep_kernels "$work"
  fi
  touch "$work/done"
}

collect() {
  local work=$1 out=$2 wait_s=$3
  until [[ -e $work/done ]] || ((SECONDS >= wait_s)); do sleep 1; done
  tail -n 5 "$work"/logs/*.log || true
  cp "$work/live/results.jsonl" "$work/kernels.tar.xz" "$out/" 2>/dev/null || true
  tar -C "$work" -czf "$out/sweeps.tar.gz" sweeps || true
  tar -C "$work" --exclude=live/results.jsonl -czf "$out/live.tar.gz" live || true
  tar -C "$work" -czf "$out/logs.tar.gz" logs gpus.txt || true
  ls -l "$out"
}

"$@"
