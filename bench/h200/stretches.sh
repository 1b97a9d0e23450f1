# shellcheck shell=bash
# shellcheck disable=SC2154
# Sourced by campaign.sh: what a stretch does, in the order of what a second of it is worth.
#
# Seconds: eight servers on two GPUs are up after 89, a live cell takes its arrivals and 9 more (both measured); expected are
# 60-90 for a launch of one server and 7 for a repeat of a decode cell. Servers that start on a host slow the prefills of
# live cells on it, so nothing is launched while live cells run.

# Two GPUs, 1,640 s, as they went:
#     0-120   eight servers up, four on each GPU
#   120-600   two-gpus, 9 of its 10 cells
#   600-838   three-on-one-targets on the first GPU, 5 cells; on the second again, 6 cells
#   838-944   servers that change their depth up on the second, and the first of compact on the first
#   944-1217  ramp, 6 cells; of compact 16 cells, which need no launch
#  1217-1640  the rest of compact, 100; other targets on both, one with three arms on the second
stretch_pair() {
  local fleet first second
  for fleet in three-again depth-adaptive depth-default; do on_second "$fleet"; done
  raise one-server four-on-one
  raise one-server-second four-on-second
  hold one-server four-on-one || true
  hold one-server-second four-on-second || true
  if ready four-on-one && ready four-on-second; then live two-gpus 1000; fi
  if ready four-on-one; then STEP_S=265 live three-on-one-targets 650; fi &
  first=$!
  if ready four-on-second; then live again 650; fi
  wait "$first"
  release four-on-one four-on-second

  raise_depths
  compact --arms dspark-8-compact &
  first=$!
  hold_depths
  launched compact "$first"
  live_depths 150

  models 1 2 &
  second=$!
  wait "$first"
  compact
  models 0 2
  wait "$second"
}

# Two GPUs, 1,640 s, where what `pair` left is measured on one board and as undisturbed as can be (planned):
#     0-120   eight servers up, four on each GPU
#   120-440   the last cell of two-gpus, then the fixed depths of ramp alone on the host
#   440-790   three-on-one-targets, then prompts among running requests on the first GPU; those of its servers on the second
#   790-910   servers that change their depth up on the first, one arm of another target on the second
#   910-1200  ramp, 6 cells
#  1200-1640  other targets on both
stretch_boards() {
  local first second
  raise one-server four-on-one
  raise one-server-second four-on-second
  hold one-server four-on-one || true
  hold one-server-second four-on-second || true
  if ready four-on-one && ready four-on-second; then live two-gpus 1150; fi
  if ready four-on-one; then live ramp 900 depth-fixed; fi
  if ready four-on-second; then sweep held-second "$work/repo/bench/live/held-second.toml" 1 900; fi &
  second=$!
  if ready four-on-one; then STEP_S=210 live three-on-one-targets 900; fi
  wait "$second"
  if ready four-on-one; then STEP_S=170 sweep held-first "$work/repo/bench/live/held-first.toml" 0 800; fi
  release four-on-one four-on-second

  raise_depths
  model "${TARGETS[1]}" "$FIRST_ARMS" 1 150 --arms eagle3-k3 &
  second=$!
  hold_depths
  launched "${TARGETS[1]}" "$second"
  live_depths 150
  wait "$second"
  stretch_targets
}

# One GPU, 1,640 s, where all cells of ramp and of three-on-one-targets are of one board (planned, without kernels from before):
#     0-170   four servers up
#   170-450   the fixed depths of ramp
#   450-900   three-on-one-targets
#   900-1310  servers that change their depth up, and their cells of ramp
#  1310-1640  other targets
stretch_board() {
  raise one-server four-on-one
  hold one-server four-on-one || return 0
  live ramp 1100 depth-fixed
  live three-on-one-targets 680
  release four-on-one
  raise_depths
  hold_depths
  live_depths 150
  models 0 1
}

# Depths chosen in the engine and one fixed depth, all servers up at once, on one GPU: up 150 without kernels, 6 cells of 46.
stretch_depths() {
  raise ramp depth-open
  hold ramp depth-open || return 0
  live ramp 5 depth-open
}

# Two GPUs, 1,640 s, where each board has the cells of one plan after what needs both, as they went (without kernels):
#     0-170   three servers up on the first; on the second those of two-gpus, and two that choose their depth
#   170-700   two-gpus, 10 cells
#   700-1240  three-on-one-targets under two seeds on the first, 10 runs; depths under two seeds on the second, 12
#  1240-1640  other targets on both
stretch_each() {
  local fleet second
  for fleet in depth-chosen depth-open; do on_second "$fleet"; done
  raise two-gpus three-on-one
  raise two-gpus two-second
  raise ramp depth-chosen
  hold two-gpus three-on-one || true
  hold two-gpus two-second || true
  hold ramp depth-chosen || true
  if ready three-on-one && ready two-second; then live two-gpus 900; fi
  if ready two-second && ready depth-chosen; then live ramp 370 depth-open; fi &
  second=$!
  if ready three-on-one; then live three-on-one-targets 370; fi
  wait "$second"
  release three-on-one two-second depth-chosen
  stretch_targets
}

# Two GPUs, 1,640 s, where each board has live cells of its own (planned, without kernels from before):
#     0-170   three servers up on each
#   170-715   three-on-one-targets under two seeds on the first, 10 runs, and 2 of asleep; depths under two more seeds on the
#             second, 12 runs
#   715-1140  servers of clients up on the second, and its 8 cells; other targets on the first
#  1140-1640  other targets on both
stretch_apart() {
  local first second
  on_second depth-open
  on_second depth-closed
  raise two-gpus three-on-one
  raise ramp depth-open
  hold two-gpus three-on-one || true
  hold ramp depth-open || true
  if ready depth-open; then live ramp 820 depth-open; fi &
  second=$!
  if ready three-on-one; then
    live three-on-one-targets 820
    live asleep 820
  fi
  wait "$second"
  release three-on-one depth-open

  models 0 2 &
  first=$!
  raise clients depth-closed
  if hold clients depth-closed; then live clients 470; fi
  release depth-closed
  models 1 2
  wait "$first"
}

# What `apart` left when it was cut short, on one GPU, 1,000 s: clients on servers that choose their depth (up 120, 8 cells of
# 40), then other targets.
stretch_clients() {
  raise clients depth-closed
  if hold clients depth-closed; then live clients 300; fi
  release depth-closed
  models 0 1
}

# Other targets alone, on two GPUs.
stretch_targets() {
  local second
  models 1 2 &
  second=$!
  models 0 2
  wait "$second"
}

# The router in front of real servers of one GPU, and what can be measured on servers that are up: 800 s without a row in
# ../results/h200_live.jsonl, up 165, router-cost 2 cells of 34, three-on-one 6 of 49, the sweep 240.
stretch_live() {
  raise one-server four-on-one
  hold one-server four-on-one || return 0
  live one-server 5
  live router-cost 5
  live three-on-one 5
  live three-on-one 5
  sweep held-first "$work/repo/bench/live/held-first.toml" 0 5
}

# Depths and verify budgets chosen inside one engine, on one GPU, after what needs the servers of one-server.toml anyway:
# depth servers up 120, 6 cells of 50, compact 420; without rows of them, first up 105, router-cost 65, three-on-one 280, the
# fixed depths of the ramp 265 (measured).
stretch_engine() {
  if left_of router-cost || left_of three-on-one || left_of ramp depth-fixed; then
    raise one-server four-on-one
    hold one-server four-on-one || return 0
    live router-cost 850
    live three-on-one 850
    live ramp 500 depth-fixed
    release four-on-one
  fi
  raise_depths
  hold_depths
  live_depths 60
  compact
}

# Servers that change their depth. SGLang's own schedule is a fleet of its own: where it does not start the others still do.
raise_depths() {
  raise ramp depth-adaptive
  raise ramp depth-default
}

hold_depths() {
  hold ramp depth-adaptive || true
  up depth-default || true
}

live_depths() { # live_depths RESERVE_S: the cells on those that are up, and their end
  local fleet
  for fleet in depth-adaptive depth-default; do
    if ready "$fleet"; then live ramp "$1" "$fleet"; fi
  done
  release depth-adaptive depth-default
}

# Cells that were far from the simulation once more, on one GPU, 320 s.
stretch_again() { # stretch_again [RESERVE_S]
  raise again three-again
  hold again three-again || return 0
  live again "${1:-5}"
  release three-again
}

# What was never measured, on one GPU, 1,160 s.
stretch_open() {
  stretch_again 850
  stretch_engine
}

# DSpark's verify budget alone, 420 s.
stretch_compact() { compact; }

compact() { # compact [OPTION …]
  sweep compact "$work/repo/bench/h200/dspark-compact.toml" 0 5 "$@"
}

# 585 s of what the sweep of Qwen3-8B lacks, then other targets with a reduced grid: a launch and 75 s an arm, 500 s a target
# with three arms; the other drafters of each in a second round. With two GPUs each takes every other target.
stretch_models() {
  local gpus=1 second
  if two_gpus; then
    gpus=2
    models 1 2 &
    second=$!
  fi
  sweep qwen3-8b "$work/repo/bench/h200/qwen3-8b.toml" 0 5
  models 0 "$gpus"
  if two_gpus; then wait "$second"; fi
}

# What is left of the targets, on one GPU, 1,640 s a time, to be run until nothing is: the balance point of the board, all of
# Qwen3-8B (1,230 s), the first arms of each other target, two mixtures without CUDA graphs, accept lengths of a model whose
# weights are there (600 s), then the other drafters of each (2,100 s).
stretch_rest() {
  local target
  balance
  STEP_S=1500 sweep qwen3-8b "$work/repo/bench/h200/qwen3-8b.toml" 0 5
  each_target 0 1 "$FIRST_ARMS"
  for target in Qwen3.6-35B-A3B gemma-4-26B-A4B; do
    (($(left 5) > 60)) || return 0
    without_graphs "$target" "$FIRST_ARMS" 0 5
  done
  real
  each_target 0 1 "$MORE_ARMS"
}

# What the board copies and multiplies, 20 s, if that was not measured yet.
balance() {
  if [[ -n ${DRY:-} || -e $work/repo/bench/results/balance_point.json ]]; then return; fi
  python3 "$work/repo/bench/balance_point.py" --out "$work/live/balance_point.json" >"$work/logs/balance.log" 2>&1 ||
    echo "balance_point ended with $?"
}

# Of MODELS/smol with the prompts of MODELS/prompts, if they are there.
real() {
  if [[ -d $work/models/smol && -d $work/models/prompts ]]; then
    sweep smollm2 "$work/repo/bench/h200/smollm2.toml" 0 5 --prompts "$work/models/prompts"
  fi
}

TARGETS=(
  Qwen3-14B Qwen3-Coder-30B-A3B Qwen3.6-27B gemma-4-31B-it GLM-4.7-Flash Qwen3.6-35B-A3B gemma-4-26B-A4B JoyAI-LLM-Flash
  Qwen3-4B gemma-4-12B-it
)

FIRST_ARMS="none,dspark-*[0-9],eagle3-k3*,mtp-k1*"
MORE_ARMS="$FIRST_ARMS,dflash-16*,ngram-8"

# models GPU GPUS: none, a block drafter and one that drafts token by token, then one of each kind.
models() {
  each_target "$1" "$2" "$FIRST_ARMS"
  each_target "$1" "$2" "$MORE_ARMS"
}

# each_target GPU GPUS ARMS: those arms of every target. Of two GPUs the second takes the first target, since the first has
# something to do before.
each_target() {
  local gpu=$1 gpus=$2 arms=$3 number
  for ((number = gpus - 1 - gpu; number < ${#TARGETS[@]}; number += gpus)); do
    (($(left 5) > 60)) || return 0
    model "${TARGETS[number]}" "$arms" "$gpu" 5
  done
}
