#!/bin/sh
# Error of the options that round otherwise than the official code, against official and unrounded logits
# (docs/performance-cpu.md).
#
# usage: int8_error.sh [FATHOM]
# FATHOM is the program (default: build/release/bin/fathom). 4,096 tokens of fathom-nano's evaluation: prompt, answer and
# end of every sixth item, one after the other. PYTHON names one with numpy (Debian: python3-numpy). Takes a minute.
set -eu
cd "$(dirname "$0")/../.."
fathom=${1:-build/release/bin/fathom}
compare="${PYTHON:=python3} tools/logits/compare_logits.py"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$PYTHON" - > "$work/text" <<'EOF'
import json
items = [json.loads(line) for line in open("tests/data/fathom-nano-eval.jsonl", encoding="utf-8")]
print("".join(i["prompt"] + i["expected"] + "<｜end▁of▁sentence｜>" for i in items[::6]), end="")
EOF
"$fathom" tokenize --file "$work/text" > "$work/all"
"$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))[:4096])' "$work/all" > "$work/tokens"

run() {
  name=$1
  shift
  "$fathom" logits --tokens "$work/tokens" --out "$work/$name" "$@"
}
run exact --mode exact
run official
run reference --backend reference
run activations --cpu-activations int8
run dense --cpu-dense int8
run both --cpu-activations int8 --cpu-dense int8
run o_proj --o-proj-activations fp8
for name in official reference activations dense both o_proj; do
  for against in exact official; do
    [ "$name" = "$against" ] && continue
    printf '%-12s against %-9s ' "$name" "$against"
    $compare "$work/$against" "$work/$name"
  done
done
