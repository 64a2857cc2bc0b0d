#!/usr/bin/env bash
# Proves that folders include only what ARCHITECTURE.md allows. To allow an edge, add it here, to
# ARCHITECTURE.md and to the folder's CMakeLists.txt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

declare -A allowed=(
  [base]="base"
  [kernels]="base kernels"
  [model]="base kernels model"
  [kv]="base kernels kv"
  [store]="base kv store"
  [plan]="base plan"
  [exec]="base kernels model kv store plan exec"
  [server]="base kernels model kv store plan exec server"
  [bench]="base kernels model kv store plan exec server bench"
  [cli]="base kernels model kv store plan exec server bench cli"
)
failed=0
n_edge=0
for folder in src/*/; do
  folder=$(basename "$folder")
  if [[ -z ${allowed[$folder]:-} ]]; then
    echo "src/$folder is not in ARCHITECTURE.md's table"
    failed=1
    continue
  fi
  while IFS=: read -r file _ included; do
    n_edge=$((n_edge + 1))
    [[ $file == *_test.cc && $included == tests/* ]] && continue  # what tests share
    if [[ " ${allowed[$folder]} " != *" ${included%%/*} "* ]]; then
      echo "$file includes $included: src/$folder may include ${allowed[$folder]}"
      failed=1
    fi
  done < <(grep -rnoP '^#include "\K[a-z_]+/[^"]+' "src/$folder" --include='*.h' --include='*.cc')
done
if ((n_edge < 100)); then
  echo "only $n_edge includes found: the pattern no longer matches"
  failed=1
fi
echo "$n_edge includes checked"
exit $failed
