"""An estimate of the cycles of a run: the blocks QEMU carried out, each timed by llvm-mca.

QEMU counts instructions and knows no pipeline; llvm-mca simulates a core's pipeline on straight
code.  A plug-in (`boards/common/blocks_plugin.c`) counts the blocks between the two readings of
the clock around a run; llvm-mca gives each block's cycles when it is repeated without end; the sum
of their products is the estimate.  It leaves out the wait states of flash, the refill after a
branch that is taken, caches, and what one block costs the next.  It is compared with no
measurement, and no tuning goes by it.

What counts is the model: blocks of functions that the linker also finds in the model linked
alone (kernels, executor, libm, libgcc), and so neither server nor clock nor interrupts.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.errors import BoardError, ToolchainError
from toolkit.measure.board import BoardSession, RUN_TIMEOUT_S
from toolkit.paths import BOARDS
from toolkit.targets.board import Board
from toolkit.toolchain.compiler import build_shared, find_compiler
from toolkit.toolchain.firmware import FirmwareArtifact
from toolkit.toolchain.sizes import read_elf

PLUGIN = BOARDS / "common" / "blocks_plugin.c"

CORES: Mapping[str, str] = {
    "cortex-m4": "thumbv7em-none-eabihf",
    "cortex-m7": "thumbv7em-none-eabihf",
    "cortex-m33": "thumbv8m.main-none-eabihf",
    "cortex-m55": "thumbv8.1m.main-none-eabihf",
}
"""Cores that llvm-mca has a model of, as `-mcpu` names them, and LLVM's triple of each."""

_LLVM = tuple(range(16, 22))
"""Versions of LLVM, the preferred first; 16 is the first with a model of Cortex-M55."""

_ITERATIONS = 100
_TOOL_TIMEOUT_S = 300.0
_MARK = "bkpt\t#200"
_MARK_NOPS = 4
_MARK_CODE = bytes.fromhex("00bf" * _MARK_NOPS + "c8be")
"""Parts blocks; the NOPs before it take what an IT instruction at the end of a block says."""

_CALL = re.compile(r"blx?\b")
_IT = re.compile(r"it([te]{0,3})\b")
_STAND_IN = "nop"


@dataclass(frozen=True, slots=True)
class CycleEstimate:
    """About how many cycles a run takes, and the instructions this is made from."""

    cycles: int
    instructions: int
    stand_ins: int
    """Of the instructions: those without a model, which count as a NOP each."""


@dataclass(frozen=True, slots=True)
class _Block:
    address: int
    code: bytes
    instructions: int
    count: int


def require_estimate(board: Board | None, port: str | None = None) -> str:
    """Return the core of a board whose cycles can be estimated.

    Raises BoardError for another board, ToolchainError where llvm-mca is missing.
    """
    if board is None or port is not None or board.qemu is None or board.qemu.plugin is not None:
        raise BoardError("a cycle estimate needs a board in QEMU: --board qemu_mps2_an386")
    flags = board.compiler.flags if board.compiler else ()
    core = next((f.removeprefix("-mcpu=") for f in flags if f.startswith("-mcpu=")), "")
    if core not in CORES:
        raise BoardError(
            f"llvm-mca has no model of the core of board '{board.name}'",
            state=[f"core: {core or 'not stated'}", f"cores with one: {', '.join(CORES)}"],
        )
    _find_llvm()
    return core


def estimate_cycles(
    board: Board,
    firmware: FirmwareArtifact,
    inputs: Sequence[bytes],
    *,
    timeout_s: float = RUN_TIMEOUT_S,
) -> CycleEstimate:
    """Run a model once in QEMU and estimate its cycles; `inputs` as for `BoardSession.run`."""
    core = require_estimate(board)
    blocks = _executed(board, firmware, inputs, timeout_s)
    texts = _disassemble(core, blocks)
    cycles, without_model = _simulate(core, texts)
    counts = [block.count for block in blocks]
    return CycleEstimate(
        cycles=round(sum(c * n for c, n in zip(cycles, counts, strict=True))),
        instructions=sum(block.instructions * block.count for block in blocks),
        stand_ins=sum(
            n * sum(_mnemonic(line) in without_model for line in text)
            for text, n in zip(texts, counts, strict=True)
        ),
    )


def _find_llvm() -> tuple[str, str]:
    """Return the paths of llvm-mca and llvm-mc, of one version."""
    for version in _LLVM:
        mca, mc = (shutil.which(f"{name}-{version}") for name in ("llvm-mca", "llvm-mc"))
        if mca and mc:
            return mca, mc
    raise ToolchainError(
        f"llvm-mca-{_LLVM[0]}, which estimates cycles, is not on PATH",
        hint=f"apt-get install llvm-{_LLVM[0]}",
    )


def _executed(
    board: Board, firmware: FirmwareArtifact, inputs: Sequence[bytes], timeout_s: float
) -> list[_Block]:
    """Run once under the plug-in; return the model's blocks in the order of their addresses."""
    elf = read_elf(firmware.elf)
    clock = next(s.address for s in elf.symbols if s.name == "nst_port_clock")
    with tempfile.TemporaryDirectory(prefix="nestling-blocks-") as folder:
        library = build_shared(
            find_compiler(), [PLUGIN], [], Path(folder) / "plugin.so", flags=("-O2",), libs=()
        )
        listing = Path(folder) / "blocks"
        plugin = ("-plugin", f"file={library},clock={clock:x},blocks={listing}")
        session = BoardSession(board, firmware, run_timeout_s=timeout_s, qemu_options=plugin)
        with session:
            session.run(inputs)
            lines = listing.read_text(encoding="ascii").splitlines()
    names = {s.name for s in read_elf(firmware.map.with_suffix(".elf")).symbols if s.is_function}
    counts: Counter[tuple[int, bytes, int]] = Counter()
    for line in lines:
        address, instructions, code, count = line.split()
        function = elf.function_at(int(address, 16))
        if function is None or function.name in names:  # assembly may have no sizes
            whole = _whole(bytes.fromhex(code), int(instructions))
            counts[int(address, 16), whole, int(instructions)] += int(count)
    return [_Block(*key, count) for key, count in sorted(counts.items())]


def _whole(code: bytes, instructions: int) -> bytes:
    """Cut Thumb code after so many instructions (Armv7-M Reference Manual, A5.1)."""
    at = 0
    for _ in range(instructions):
        at += 4 if code[at + 1] >= 0xE8 else 2
    return code[:at]


def _disassemble(core: str, blocks: Sequence[_Block]) -> list[list[str]]:
    """Return the instructions of every block as LLVM writes them."""
    given = " ".join(f"0x{byte:02x}" for b in blocks for byte in b.code + _MARK_CODE)
    said = _run(
        [_find_llvm()[1], "--disassemble", f"--triple={CORES[core]}", f"--mcpu={core}"], given
    )
    lines = (line.strip() for line in said.stdout.splitlines())
    texts: list[list[str]] = [[]]
    for line in lines:
        if line == _MARK:
            texts.append([])
        elif line and not line.startswith("."):
            texts[-1].append(line)
    if said.returncode or len(texts) != len(blocks) + 1:
        raise ToolchainError("llvm-mc cannot disassemble the model", state=_first(said.stderr))
    # Where LLVM does not know an instruction it writes none: a stand-in keeps the count.
    return [
        (text[:-_MARK_NOPS] + [_STAND_IN] * block.instructions)[: block.instructions]
        for text, block in zip(texts, blocks, strict=False)
    ]


def _simulate(core: str, texts: Sequence[Sequence[str]]) -> tuple[list[float], frozenset[str]]:
    """Return cycles of each block in the steady state, and mnemonics that have no model.

    llvm-mca stops at the first instruction without one, so it is asked until none is left.
    """
    without: set[str] = set()
    while True:
        source = "".join(
            f"@ LLVM-MCA-BEGIN {i}\n" + "".join(f"{line}\n" for line in _modelled(text, without))
            + "@ LLVM-MCA-END\n"
            for i, text in enumerate(texts)
        )  # fmt: skip
        target = (f"--mtriple={CORES[core]}", f"--mcpu={core}")
        options = (f"--iterations={_ITERATIONS}", "--json", "--instruction-info=0")
        said = _run([_find_llvm()[0], *target, *options], f".syntax unified\n{source}")
        if not said.returncode:
            break
        refused = re.search(r"note: instruction:\s+(\S+)", said.stderr)
        if refused is None or refused[1] in without:
            raise ToolchainError("llvm-mca failed", state=_first(said.stderr))
        without.add(refused[1])
    regions = json.loads(said.stdout)["CodeRegions"]
    cycles = {int(r["Name"]): r["SummaryView"]["TotalCycles"] / _ITERATIONS for r in regions}
    return [cycles[i] for i in range(len(texts))], frozenset(without)


def _modelled(text: Sequence[str], without: set[str]) -> Iterator[str]:
    """Yield a block's instructions as llvm-mca takes them.

    A call is a branch here: llvm-mca would count 100 cycles for what is called.  Conditions go
    where the instruction that announces them has no model, or announces more than there are.
    """
    unconditional = 0
    for i, line in enumerate(text):
        name = _mnemonic(line)
        if block := _IT.fullmatch(name):
            follows = 1 + len(block[1])
            if name in without or i + follows >= len(text):
                unconditional = follows
                yield _STAND_IN
                continue
        elif unconditional:
            unconditional -= 1
            stem, dot, suffix = name.partition(".")
            line, name = line.replace(name, stem[:-2] + dot + suffix, 1), stem[:-2] + dot + suffix
        if _CALL.fullmatch(name):
            yield "b.w\t#0"
        else:
            yield _STAND_IN if name in without else line


def _mnemonic(line: str) -> str:
    return line.split(maxsplit=1)[0]


def _first(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()][:6]


def _run(arguments: Sequence[str], given: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            arguments,
            input=given,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TOOL_TIMEOUT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ToolchainError(
            f"{Path(arguments[0]).name} took over {_TOOL_TIMEOUT_S:.0f} s"
        ) from None
