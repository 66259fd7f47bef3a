#!/bin/sh
# Starts `fathom serve` on a free port with the bundled model and runs the client tests against it:
# with_server.sh FATHOM [test file]...
set -eu
fathom=$1
shift
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

out=$(mktemp)
# FATHOM_SERVE_OPTIONS: further options. A context that a test can overrun quickly.
# shellcheck disable=SC2086  # options are words
"$fathom" serve --port 0 --max-model-len 4096 ${FATHOM_SERVE_OPTIONS:-} >"$out" &
server=$!
trap 'kill $server 2>/dev/null || true; wait $server 2>/dev/null || true; rm -f "$out"' EXIT INT TERM

tries=0
until grep -q 'http://' "$out"; do
  kill -0 $server 2>/dev/null || { echo "fathom serve ended early" >&2; exit 1; }
  tries=$((tries + 1))
  [ $tries -lt 300 ] || { echo "fathom serve did not start within 30 s" >&2; exit 1; }
  sleep 0.1
done
FATHOM_BASE_URL=$(sed -n 's/.*\(http:\/\/[^ ]*\).*/\1/p' "$out")
FATHOM_SERVER_PID=$server
export FATHOM_BASE_URL FATHOM_SERVER_PID
"$here/run.sh" "$@"
