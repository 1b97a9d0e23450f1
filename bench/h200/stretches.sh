# shellcheck shell=bash
# shellcheck disable=SC2154
# Sourced by campaign.sh: what a stretch does, in the order of what a second of it is worth.
#
# Seconds: eight servers on two GPUs are up after 89, a live cell takes its arrivals and 9 more (both measured); expected are
# 60-90 for a launch of one server and 7 for a repeat of a decode cell. Servers that start on a host slow the prefills of
# live cells on it, so nothing is launched while live cells run.

# The router in front of real servers, and what can be measured on servers that are up. Rows that are in
# ../results/h200_live.jsonl are not run again; with those of now:
#   one GPU, 800 s:   up 165, router-cost 2 cells of 34, three-on-one 6 of 49, on_held 260
#   two GPUs, 980 s:  the same, up 89, and before on_held two-gpus, 5 cells of 54
stretch_live() {
  raise one-server four-on-one
  if two_gpus; then raise one-server-second four-on-second; fi
  hold one-server four-on-one || return 0
  if ! two_gpus; then
    first_gpu 5
    on_held first 0 5
    return
  fi
  hold one-server-second four-on-second || return 0
  first_gpu 330 &
  local first=$!
  on_held second 1 330
  live one-server-second 330
  wait "$first"
  live two-gpus 5
  on_held first 0 5
}

first_gpu() { # first_gpu RESERVE_S
  live one-server "$1"
  live router-cost "$1"
  live three-on-one "$1"
  live three-on-one "$1"
}

# Depths and verify budgets chosen inside one engine; on one GPU after what needs the servers of one-server.toml anyway:
#   one GPU, 840 s:    depth-adaptive up 120, its 6 cells of 50; compact 420; without rows of them, first up 105,
#                      router-cost 65, three-on-one 280, the fixed depths of the ramp 265 (measured)
#   two GPUs, 1,050 s: both fleets at once; compact on one, what the sweep of Qwen3-8B lacks on the other
stretch_engine() {
  if two_gpus; then
    sed -i -e 's/host0:0/host0:1/' -e "s/:${DRY_FIRST:-3000}/:${DRY_SECOND:-3100}/" \
      "$work/repo/bench/live/fleets/depth-adaptive.toml"
    raise ramp depth-fixed
    raise ramp depth-adaptive
    hold ramp depth-fixed || return 0
    hold ramp depth-adaptive || return 0
    live ramp 500 depth-fixed &
    local first=$!
    live ramp 500 depth-adaptive
    wait "$first"
    release depth-fixed
    release depth-adaptive
    sweep qwen3-8b "$work/repo/bench/h200/qwen3-8b.toml" 1 5 &
    local second=$!
    stretch_compact
    wait "$second"
    return
  fi
  if left_of router-cost || left_of three-on-one || left_of ramp depth-fixed; then
    raise one-server four-on-one
    hold one-server four-on-one || return 0
    live router-cost 850
    live three-on-one 850
    live ramp 500 depth-fixed
    release four-on-one
  fi
  raise ramp depth-adaptive
  hold ramp depth-adaptive || return 0
  live ramp 60 depth-adaptive
  release depth-adaptive
  stretch_compact
}

# Cells that were far from the simulation once more, 320 s.
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
stretch_compact() { sweep compact "$work/repo/bench/h200/dspark-compact.toml" 0 5; }

# What the sweep of Qwen3-8B lacks (730 s), then other targets with a reduced grid: a launch and 75 s an arm, 500 s a target
# with three arms; the other drafters of each in a second round. With two GPUs each takes every other target.
stretch_models() {
  local config="$work/repo/bench/h200/qwen3-8b.toml"
  if ! two_gpus; then
    sweep qwen3-8b "$config" 0 5
    models 0 "${TARGETS[@]}"
    return
  fi
  {
    sweep qwen3-8b "$config" 0 5
    models 0 Qwen3-Coder-30B-A3B gemma-4-31B-it Qwen3.6-35B-A3B JoyAI-LLM-Flash gemma-4-12B-it
  } &
  local first=$!
  models 1 Qwen3-14B Qwen3.6-27B GLM-4.7-Flash gemma-4-26B-A4B Qwen3-4B
  wait "$first"
}

TARGETS=(
  Qwen3-14B Qwen3-Coder-30B-A3B Qwen3.6-27B gemma-4-31B-it GLM-4.7-Flash Qwen3.6-35B-A3B gemma-4-26B-A4B JoyAI-LLM-Flash
  Qwen3-4B gemma-4-12B-it
)

models() { # models GPU TARGET …: none, a block drafter and one that drafts token by token, then one of each kind
  local gpu=$1 target arms
  shift
  for arms in "none,dspark-*[0-9],eagle3-k3*,mtp-k1*" "none,dspark-*[0-9],eagle3-k3*,mtp-k1*,dflash-16*,ngram-8"; do
    for target in "$@"; do
      (($(left 5) > 120)) || return 0
      model "$target" "$arms" "$gpu" 5
    done
  done
}
