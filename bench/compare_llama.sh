#!/usr/bin/env bash
# fathom and llama.cpp on the same weights, in turns; bench/compare_llama.md explains it.
#
#   bench/compare_llama.sh CHECKPOINT MODEL.gguf [-- options of `fathom bench model`]
#
# Environment: PEERS (folder with node_modules/node-llama-cpp), FATHOM (the program), ROUNDS, THREADS,
# TOKENS (prompt lengths), GENERATED (tokens behind each), RUNS (file that keeps every run).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
[[ $# -ge 2 && "$1" != -* && "$2" != -* ]] || usage
checkpoint=$1 gguf=$2
shift 2
if [[ $# -gt 0 ]]; then
  [[ "$1" == "--" ]] || usage
  shift
fi

fathom=${FATHOM:-$root/build/release/bin/fathom}
peers=${PEERS:-.}
rounds=${ROUNDS:-3} threads=${THREADS:-2} generated=${GENERATED:-32}
read -r -a lengths <<< "${TOKENS:-512 2048 8192}"
for needed in "$fathom" "$checkpoint/config.json" "$gguf" "$peers/node_modules/node-llama-cpp"; do
  [[ -e "$needed" ]] || { echo "compare_llama: $needed: not there" >&2; exit 1; }
done
vocab=$(node -p 'JSON.parse(require("fs").readFileSync(process.argv[1])).vocab_size' "$checkpoint/config.json")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Packages are found from the script's folder.
cp "$root/tools/peers/llama_bench.mjs" "$work/"
ln -s "$(realpath "$peers/node_modules")" "$work/node_modules"
runs=${RUNS:-$work/runs.jsonl}
: > "$runs"

run_fathom() {
  "$fathom" bench model --model "$checkpoint" --threads "$threads" --parts prefill,decode --prefill "$1" \
    --contexts "$1" --steps "$generated" --repeats 1 --json "${@:2}" > "$work/fathom.json"
  node -e '
    const {tables} = JSON.parse(require("fs").readFileSync(process.argv[1]));
    const prefill = tables.prefill[0], decode = tables.decode[0];
    console.log(JSON.stringify({program: "fathom", tokens: prefill.prompt_tokens,
      prefill: prefill.median_tokens_per_s, decode: decode.median_tokens_per_s,
      read_limit_gb_per_s: decode.read_limit_gb_per_s, share_of_read: decode.share_of_read}));' "$work/fathom.json"
}

run_llama() {
  VOCAB=$vocab node "$work/llama_bench.mjs" "$(realpath "$gguf")" "$1" "$generated" "$threads" | tail -n 1 > "$work/llama.json"
  node -e '
    const run = JSON.parse(require("fs").readFileSync(process.argv[1]));
    console.log(JSON.stringify({program: "llama.cpp", tokens: run.prompt_tokens,
      prefill: run.prefill_tokens_per_s, decode: run.decode_tokens_per_s}));' "$work/llama.json"
}

# Both files into the page cache: neither program shall wait for the disk.
cat "$checkpoint"/*.safetensors "$gguf" > /dev/null
for ((round = 1; round <= rounds; ++round)); do
  for tokens in "${lengths[@]}"; do
    echo "round $round of $rounds, $tokens tokens" >&2
    run_fathom "$tokens" "$@" | tee -a "$runs" >&2
    run_llama "$tokens" | tee -a "$runs" >&2
  done
done
"$fathom" --version
echo "$threads threads, $generated tokens behind each prompt, options: ${*:-none}"
echo
node "$root/tools/peers/medians.mjs" "$runs"
