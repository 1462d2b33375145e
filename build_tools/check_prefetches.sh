#!/usr/bin/env bash
# Fails if a loop that asks for rows or buckets has no prefetch into the second
# cache. GCC takes a function that does nothing but prefetch for one without
# effect, and takes out calls that it does not inline; nothing but the time of a
# step would tell. Usage: check_prefetches.sh ARCHIVE...
set -euo pipefail

for archive in "$@"; do
  for function in Pool AskForHomes FindAtHomes CopyRows AddRows; do
    if ! objdump --disassemble --demangle "$archive" |
      sed -n "/(anonymous namespace)::$function(.*>:\$/,/^$/p" |
      grep -c prefetcht1 >/dev/null; then
      printf 'No prefetcht1 in %s of %s.\n' "$function" "$archive" >&2
      printf 'Make functions that prefetch ABSL_ATTRIBUTE_ALWAYS_INLINE.\n' >&2
      exit 1
    fi
  done
done
