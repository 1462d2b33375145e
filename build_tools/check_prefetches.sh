#!/usr/bin/env bash
# Fails if an archive has no prefetch into the second cache. GCC takes a function
# that does nothing but prefetch for one without effect, and takes out calls that
# it does not inline; nothing but the time of a step would tell.
# Usage: check_prefetches.sh ARCHIVE...
set -euo pipefail

for archive in "$@"; do
  if ! objdump --disassemble "$archive" | grep -c prefetcht1 >/dev/null; then
    printf 'No prefetcht1 in %s.\n' "$archive" >&2
    printf 'Make functions that prefetch ABSL_ATTRIBUTE_ALWAYS_INLINE.\n' >&2
    exit 1
  fi
done
