#!/usr/bin/env bash
# Installs what fathom needs to build and test on Debian 12: compilers, libraries, Node for client tests.
# Run as root or by a user with sudo. Does nothing, quickly, when everything is there.
set -euo pipefail

packages=(
  g++ cmake ninja-build ccache pkg-config git
  libboost1.81-dev libssl-dev nlohmann-json3-dev libcli11-dev libspdlog-dev libfmt-dev libhwy-dev libpcre2-dev
  prometheus-cpp-dev libyaml-cpp-dev
  libgtest-dev libgmock-dev
)
# Only what tests need besides: official API clients and the formatter.
if [[ "${1:-}" == "--with-tests" ]]; then
  packages+=(clang-format)
  # Any Node with npm will do to fetch packages; the client tests bring their own Node 20 where it is older.
  command -v node >/dev/null && command -v npm >/dev/null || packages+=(nodejs npm)
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [[ "$status" == "install ok installed" ]] || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  exit 0
fi

echo "Installing: ${missing[*]}"
as_root=()
if ((EUID != 0)); then
  command -v sudo >/dev/null || { echo "Run this as root, or install sudo." >&2; exit 1; }
  as_root=(sudo)
fi
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
