#!/bin/sh
# check_symbols.sh OBJECT..: files that are compiled for better processors must not define symbols that others
# define too: the linker keeps one copy, and theirs would crash lesser processors. Nor may anything of them run at
# start-up.
found=0 status=0
for object in "$@"; do
  case "$object" in
    */dot/avx* | */dot/fp8_rows_avx*) ;;
    *) continue ;;
  esac
  found=$((found + 1))
  if nm -C "$object" | grep -E ' [WVu] |_GLOBAL__sub_I'; then
    echo "$object: shared symbols, or code that runs at start-up (above)" >&2
    status=1
  fi
done
if [ "$found" -lt 4 ]; then
  echo "only $found object files of backend/cpu/dot were given" >&2
  exit 1
fi
exit $status
