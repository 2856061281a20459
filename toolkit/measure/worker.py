"""The child process that loads a built model and runs it; a script that imports no `toolkit`.

Messages on stdin and stdout: a line of JSON, whose "bytes" is the length of the raw data after it.
A crash or a hang of generated code ends this process, not the user's.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
from typing import Any, BinaryIO

import cffi

CDEF = """
typedef struct { uint32_t offset, bytes; const int32_t *shape; uint16_t rank, dtype; } nst_tensor;
typedef struct {
    const void *nodes; const void *operands; const void *consts;
    const nst_tensor *inputs; const nst_tensor *outputs;
    uint32_t node_count, operand_count, const_count;
    uint16_t input_count, output_count;
    uint32_t arena_bytes, digest;
} nst_model;
const char *nst_status_text(int status);
void *nst_input(const nst_model *model, void *arena, uint32_t index);
const void *nst_output(const nst_model *model, const void *arena, uint32_t index);
int nst_step(const nst_model *model, void *arena, uint32_t *node);
int nst_bench(const nst_model *model, int (*run)(void *), void *arena, const uint8_t *inputs,
              uint32_t runs, uint64_t *ns);
int nst_profile(const nst_model *model, void *arena, const uint8_t *inputs, uint64_t *ns);
int nst_stack(const nst_model *model, int (*run)(void *), void *arena, const uint8_t *inputs,
              uint32_t *bytes);
extern nst_model %(name)s_model;
int %(name)s_run(void *arena);
"""
ALIGN = 64
GUARD = 256
GUARD_BYTE = b"\xa5"


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent ends (Linux prctl PR_SET_PDEATHSIG)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, 9)


def send(out: BinaryIO, message: dict[str, Any], data: bytes = b"") -> None:
    """Write one message."""
    out.write(json.dumps({**message, "bytes": len(data)}).encode() + b"\n" + data)
    out.flush()


def main() -> None:
    """Serve requests until stdin closes."""
    die_with_parent()
    path, name = sys.argv[1:3]
    stdin = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    ffi = cffi.FFI()
    ffi.cdef(CDEF % {"name": name})
    lib = ffi.dlopen(path)
    model = ffi.addressof(lib, f"{name}_model")
    run = ffi.addressof(lib, f"{name}_run")
    total = model.arena_bytes + 2 * GUARD + ALIGN
    raw = ffi.new("uint8_t[]", total)
    start = int(ffi.cast("uintptr_t", raw)) + GUARD
    skip = GUARD + (-start % ALIGN)
    arena = raw + skip
    guard = GUARD_BYTE * GUARD

    def set_guards() -> None:
        ffi.memmove(arena - GUARD, guard, GUARD)
        ffi.memmove(arena + model.arena_bytes, guard, GUARD)

    def guards_whole() -> bool:
        before = bytes(ffi.buffer(arena - GUARD, GUARD))
        after = bytes(ffi.buffer(arena + model.arena_bytes, GUARD))
        return before == guard and after == guard

    def outputs() -> bytes:
        parts = []
        for i in range(model.output_count):
            tensor = model.outputs[i]
            parts.append(bytes(ffi.buffer(lib.nst_output(model, arena, i), tensor.bytes)))
        return b"".join(parts)

    send(out, {"ok": True, "arena_bytes": model.arena_bytes, "nodes": model.node_count})
    while line := stdin.readline():
        request = json.loads(line)
        data = stdin.read(request["bytes"])
        inputs = ffi.from_buffer("uint8_t[]", data)
        op = request["op"]
        if op == "run":
            runs = request["runs"]
            ns = ffi.new("uint64_t[]", max(runs, 1))
            # What lay in the arena before must not matter: fill it with a pattern.
            ffi.memmove(arena, request.get("fill", 0xCD).to_bytes(1, "little") * model.arena_bytes,
                        model.arena_bytes)  # fmt: skip
            set_guards()
            status = lib.nst_bench(model, run, arena, inputs, runs, ns)
            text = ffi.string(lib.nst_status_text(status)).decode()
            reply = {
                "ok": status == 0 and guards_whole(),
                "status": text if status else ("" if guards_whole() else "wrote outside its arena"),
                "ns": list(ns),
            }
            send(out, reply, outputs())
        elif op == "profile":
            ns = ffi.new("uint64_t[]", max(model.node_count, 1))
            status = 0
            for _ in range(request["runs"]):
                status = status or lib.nst_profile(model, arena, inputs, ns)
            text = ffi.string(lib.nst_status_text(status)).decode()
            send(out, {"ok": status == 0, "status": text, "ns": list(ns)}, outputs())
        elif op == "stack":
            used = ffi.new("uint32_t *")
            status = lib.nst_stack(model, run, arena, inputs, used)
            text = ffi.string(lib.nst_status_text(status)).decode()
            known = used[0] if used[0] != 0xFFFFFFFF else None
            send(out, {"ok": status == 0, "status": text, "stack_bytes": known})
        elif op == "step":
            offset = 0
            if request["node"] == 0:
                for i in range(model.input_count):
                    size = model.inputs[i].bytes
                    ffi.memmove(lib.nst_input(model, arena, i), data[offset : offset + size], size)
                    offset += size
            node = ffi.new("uint32_t *", request["node"])
            status = lib.nst_step(model, arena, node)
            spans = [bytes(ffi.buffer(arena + o, n)) for o, n in request["read"]]
            send(out, {"ok": status in (0, 1), "status": status, "next": node[0]}, b"".join(spans))
        del inputs


if __name__ == "__main__":
    main()
