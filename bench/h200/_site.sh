# shellcheck shell=bash
# Sourced by the scripts beside it: SGLang unpacked once per machine, compiled kernels brought along and kept.

site=${SITE:-/tmp/site}

# use_site BUNDLE [WHEELS]: SGLang from its bundle, with the wheels of a folder beside it, on PYTHONPATH; and the plugin that
# starts targets which see from their config.json alone. `here` is this folder.
use_site() {
  local bundle=$1 wheels=${2:-}
  if [[ ! -f $site/.complete ]]; then
    python3 "$bundle/unpack.py" "$bundle" "$site"
    if [[ -n $wheels ]]; then
      python3 -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl
    fi
    # A server imports all of it in two processes, and where Python writes no byte code (PYTHONDONTWRITEBYTECODE) compiles it anew.
    python3 -m compileall -q -j 0 "$site" "$(python3 -c 'import os, torch; print(os.path.dirname(torch.__file__))')" || true
    touch "$site/.complete"
  fi
  export PYTHONPATH="$site:$here/textonly${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
}

# go_on_from EARLIER OUT FILE: what an earlier piece left; its compiled kernels make the first start 90 s shorter.
go_on_from() {
  local earlier=$1 out=$2 file=$3
  [[ -n $earlier ]] || return 0
  if [[ -f $earlier/$file && ! -f $out/$file ]]; then
    cp "$earlier/$file" "$out/$file"
  fi
  if [[ -f $earlier/kernels.tar.xz ]]; then
    tar -C "$HOME" -xJf "$earlier/kernels.tar.xz"
  fi
}

# keep_kernels OUT: the compiled kernels, for the next piece.
keep_kernels() {
  local caches=() cache
  for cache in .cache .triton; do
    if [[ -d $HOME/$cache ]]; then caches+=("$cache"); fi
  done
  if ((${#caches[@]})); then
    tar -C "$HOME" --exclude=.cache/pip --exclude=.cache/huggingface -cJf "$1/kernels.tar.xz" "${caches[@]}"
  fi
}
