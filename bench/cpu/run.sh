#!/usr/bin/env bash
# Accept lengths on a CPU: the profiler's real mode from end to end, with an SGLang that runs there.
#
#   bench/cpu/run.sh ENGINE_VENV SHIM MODELS OUT [PROFILE ARGUMENTS...]
#
#   ENGINE_VENV   virtual environment with SGLang for CPUs
#   SHIM          folder that this SGLang needs on PYTHONPATH (the CPU operators of sgl_kernel), or an empty one
#   MODELS        folder with the model folder `smol` (SmolLM2-135M-Instruct: weights, tokenizer, config)
#   OUT           where cells.jsonl goes; run it again to go on
#
# CONFIG in the environment names another sweep file than smollm2.toml.
set -euo pipefail

venv=$(cd "$1" && pwd) shim=$(cd "$2" && pwd) models=$(cd "$3" && pwd) out=$4
shift 4
root=$(cd "$(dirname "$0")/../.." && pwd)

tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
cat >"$tools/sglang-python" <<EOF
#!/bin/sh
PYTHONPATH='$shim' exec '$venv/bin/python' "\$@"
EOF
chmod +x "$tools/sglang-python"

export PATH="$tools:$venv/bin:$PATH"
export SGLANG_USE_CPU_ENGINE=1 SGLANG_CACHE_DIR="$venv/cache" HF_HUB_OFFLINE=1 TORCH_COMPILE_DISABLE=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
"$root/.venv/bin/drafter-selector" profile --config "${CONFIG:-$root/bench/cpu/smollm2.toml}" --models "$models" --out "$out" "$@"
