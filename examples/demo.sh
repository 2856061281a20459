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
"$nestling" compile "$model" -o "$out" --name digits --input "$recorded"
(cd "$out" && wc -c include/* src/* example/*)

step "2. the bundle's own example, built with the system compiler, on the first recording"
cc -std=c99 -O3 -march=native -Wall -Wextra -I"$out/include" "$out"/src/*.c "$out"/example/*.c -lm \
    -o "$out/example/main"
"$out/example/main"
size "$out/example/main"

step "3. all eight recordings: the same answers as onnxruntime's"
"$nestling" verify "$model" --input "$recorded"

step "4. sizes, time, and what each kernel costs"
"$nestling" run "$model" --input "$recorded" --runs 1000 --profile

if command -v arm-none-eabi-gcc >/dev/null && command -v qemu-system-arm >/dev/null; then
    step "5. the same on a Cortex-M4 in QEMU: exact instruction count, flash, RAM"
    "$nestling" verify "$model" --input "$recorded" --board qemu_mps2_an386
    "$nestling" run "$model" --input "$recorded" --board qemu_mps2_an386
else
    step "5. for a Cortex-M4 in QEMU: apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
fi
