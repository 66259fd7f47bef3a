#!/usr/bin/env bash
# From a fresh Debian 12 to a streamed answer of the bundled model: packages, release build, one chat turn.
# A second run only builds what changed.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== 1/3 packages"
scripts/install-packages.sh
echo "== 2/3 release build (the first one takes some minutes)"
cmake --preset release --log-level=WARNING
cmake --build --preset release --target fathom
fathom=build/release/bin/fathom

question="${*:-What is 17*19? Return only the final integer.}"
echo "== 3/3 fathom-nano answers: $question"
echo
"$fathom" generate --thinking high --temperature 0 "$question"

cat <<TEXT

Next:
  $fathom chat                      talk with the bundled model (/help lists commands)
  $fathom serve                     OpenAI-compatible API at http://127.0.0.1:8000/v1
  $fathom chat --model DIR          an official DeepSeek-V4 checkpoint: DIR holds config.json, tokenizer.json
                                    and the model-*.safetensors files as published
TEXT
