#!/usr/bin/env bash
# Counts the instructions that a row's product with a column takes for 256 weights: ours for plain
# ARMv8.0 and with the dot product instruction, and ggml's as its archive was built (ARMv8.0). Fails
# where our plain one takes more than ggml's. No emulator tells the time; this count is the nearest.
#
#   instructions_test.sh ROW_PRODUCTS EMULATOR...
#
# qemu writes a line for every instruction at the addresses of a program that is linked to a fixed
# place, so those of the loader and of shared libraries are left out; a row is the difference between
# five rows and one. To add a type, add it here and to row_products.cc.
set -euo pipefail

program=$1
emulator=("${@:2}")

# executed ARGUMENT...: the instructions of a whole run.
executed() {
  "${emulator[@]}" -singlestep -d exec,nochain -dfilter 0x400000+0x10000000 "$program" "$@" 2>&1 \
    >/dev/null | grep -c '^Trace '
}

# row_count KERNEL TYPE: of 256 weights; rows have 2048.
row_count() {
  local five one
  five=$(executed "$1" "$2" 5)
  one=$(executed "$1" "$2" 1)
  echo $(((five - one) / 4 / 8))
}

status=0
printf '%-6s %6s %6s %13s\n' type ggml neon "neon dotprod"
for type in Q4_0 Q4_1 Q8_0 Q4_K Q5_K Q6_K; do
  ggml=$(row_count ggml "$type")
  neon=$(row_count neon "$type")
  printf '%-6s %6d %6d %13d\n' "$type" "$ggml" "$neon" "$(row_count "neon dotprod" "$type")"
  ((neon > 0 && neon <= ggml)) || status=1
done
exit "$status"
