#!/usr/bin/env bash
# A spoken-digit recogniser from ONNX to C: compile, build, run, check, measure. Called by `make demo`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

nestling=.venv/bin/nestling
model=examples/fsdd_dscnn.onnx
recorded=$model.npz # eight recordings and the answers of onnxruntime
out=out/demo

step() { printf '\n\033[1m== %s\033[0m\n' "$*"; }

step "1. ONNX to C: $out"
"$nestling" compile "$model" -o "$out"
ls -l "$out"

step "2. the bundle's own example, built with the system compiler"
cc -std=c99 -O3 -Wall -I"$out/include" "$out"/src/*.c "$out"/example/main.c -lm -o "$out/example/main"
"$out/example/main"
size "$out/example/main"

step "3. the same answers as the recorded ones"
"$nestling" verify "$model" --input "$recorded"

step "4. sizes and time"
"$nestling" run "$model" --input "$recorded" --profile
