#!/usr/bin/env bash
# Fails if an object that is compiled for a wide instruction set defines weak
# symbols (inline functions of a shared header): the linker may pick such a copy
# for everyone, and then the library dies on a machine without those
# instructions. Usage: check_isa_symbols.sh ARCHIVE...
set -euo pipefail

[[ $# -gt 0 ]] || exit 0 # Another processor, which has no such objects.
symbols=$(nm --demangle --defined-only "$@")
found=$(grep -E '^[0-9a-f]+ [uVvWw] ' <<<"$symbols" || true)
if [[ -n $found ]]; then
  printf 'Shared by name with code for every machine:\n%s\n' "$found" >&2
  printf 'Use only code of an anonymous namespace, or always inline, in cc/core/simd.\n' >&2
  exit 1
fi
