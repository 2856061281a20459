"""A session with a board: sizes, memories, ports, and every bad end; on one board for all."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from toolkit.errors import BoardError, MeasureError, ToolchainError
from toolkit.measure.board import BoardSession, Qemu
from toolkit.targets.board import Board, load_board
from toolkit.toolchain.firmware import build_firmware, FirmwareArtifact

pytestmark = pytest.mark.qemu

MODELS = Path(__file__).with_name("models")
X = np.array([1, 2, 3, -4], np.float32)
Y = np.sqrt(np.abs(X * np.array([1, -2, 3, 0.5], np.float32))) + np.float32(1)

# What the model's second kernel does (models/tiny.c).
PLAIN, FAULT, ENDLESS = 0, 1, 2


def build(board: Board, folder: Path, *cflags: str) -> FirmwareArtifact:
    sources = [MODELS / "tiny.c", MODELS / "tiny_weights.c"]
    return build_firmware(board, sources, [MODELS], "tiny", "tiny.h", folder, cflags)


def inputs(mode: int) -> list[bytes]:
    return [X.tobytes(), struct.pack("<i", mode)]


@pytest.fixture(scope="module")
def board(need_tool: Callable[[str], str]) -> Board:
    need_tool("arm-none-eabi-gcc")
    need_tool("qemu-system-arm")
    return load_board("qemu_mps2_an386")


@pytest.fixture(scope="module")
def firmware(board: Board, tmp_path_factory: pytest.TempPathFactory) -> FirmwareArtifact:
    return build(board, tmp_path_factory.mktemp("firm ware ü"))


@pytest.fixture(scope="module")
def session(board: Board, firmware: FirmwareArtifact) -> Iterator[BoardSession]:
    with BoardSession(board, firmware, run_timeout_s=30) as it:
        yield it


def test_flash_counts_the_model_and_not_the_server(firmware: FirmwareArtifact) -> None:
    by_name = {Path(name).name: size for name, size in firmware.flash_by_object}
    assert {"tiny.o", "nst.o", "tiny_weights.o"} <= set(by_name)
    assert not {"nst_rpc.o", "mps2.o", "main.o", "cortex_m.o"} & set(by_name)
    assert firmware.weights_bytes == 16
    assert firmware.flash_bytes == sum(size for _, size in firmware.flash_by_object)
    assert firmware.flash_bytes + 2000 < firmware.image_bytes < firmware.flash_bytes + 4096
    assert firmware.static_ram_bytes == 4  # tiny_sink
    assert firmware.arena_bytes == 70000
    assert (firmware.weights_memory, firmware.arena_memory) == ("FLASH", "SSRAM")


def test_inputs_of_a_wrong_size_are_refused(session: BoardSession) -> None:
    with pytest.raises(MeasureError, match=r"takes inputs of \[16, 4\] bytes, not \[16, 3\]"):
        session.run([X.tobytes(), b"abc"])


def test_a_crash_names_function_and_address(board: Board, firmware: FirmwareArtifact) -> None:
    start = time.monotonic()
    with BoardSession(board, firmware) as session:
        with pytest.raises(
            MeasureError,
            match=r"crashed in tiny_mode \(pc 0x\w+\): precise bus error at address 0xf0000000$",
        ):
            session.run(inputs(FAULT))
        run = session.run(inputs(PLAIN))  # the board has restarted: the next run works
        np.testing.assert_array_equal(np.frombuffer(run.outputs[0], np.float32), Y)
    assert time.monotonic() - start < 10


def test_a_kernel_that_never_ends_is_given_up(board: Board, firmware: FirmwareArtifact) -> None:
    start = time.monotonic()
    with BoardSession(board, firmware, run_timeout_s=2) as session:
        session.board = _with_time_scale(board, 1000)  # the board's own limit comes much later
        with pytest.raises(BoardError, match=r"^board '.*': the model did not end within 2\.0 s$"):
            session.run(inputs(ENDLESS))
    assert time.monotonic() - start < 12


def _with_time_scale(board: Board, scale: float) -> Board:
    assert board.qemu is not None
    return dataclasses.replace(board, qemu=dataclasses.replace(board.qemu, time_scale=scale))


def test_a_qemu_that_dies_is_named(board: Board, firmware: FirmwareArtifact) -> None:
    with BoardSession(board, firmware) as session:
        assert session._qemu is not None
        os.kill(session._qemu._process.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(MeasureError, match=r"^QEMU of board '.*' ended by signal SIGKILL$"):
            session.run(inputs(PLAIN))
        assert time.monotonic() - start < 10


def test_a_qemu_that_refuses_its_arguments_is_quoted(
    board: Board, firmware: FirmwareArtifact
) -> None:
    assert board.qemu is not None
    qemu = dataclasses.replace(board.qemu, args=("-M", "no-such-machine"))
    with (
        pytest.raises(BoardError, match=r"ended with exit code 1: .*unsupported machine type"),
        BoardSession(dataclasses.replace(board, qemu=qemu), firmware),
    ):
        pass


def test_firmware_that_does_not_answer_is_named(board: Board, tmp_path: Path) -> None:
    source = tmp_path / "idle.c"
    source.write_text("void start(void); void start(void) { for (;;) { } }\n")
    assert board.compiler is not None
    subprocess.run(
        [board.compiler.name, *board.compiler.flags, "-nostdlib", "-Wl,-e,start",
         str(source), "-o", str(tmp_path / "idle.elf")],
        check=True,
    )  # fmt: skip
    firmware = dataclasses.replace(_artifact(board), elf=tmp_path / "idle.elf")
    start = time.monotonic()
    with (
        pytest.raises((BoardError, MeasureError), match=r"did not answer a ping|Lockup"),
        BoardSession(board, firmware),
    ):
        pass
    assert time.monotonic() - start < 15


def _artifact(board: Board) -> FirmwareArtifact:
    return FirmwareArtifact(board, "x", Path(), Path(), 0, 0, 0, 0, "", "", (), 0, 0, "")


def test_a_port_given_by_the_user_works_like_a_qemu_of_our_own(
    board: Board, firmware: FirmwareArtifact
) -> None:
    qemu = Qemu(board, firmware.elf)
    try:
        for _ in range(2):
            with BoardSession(board, firmware, port=qemu.port) as session:
                assert session.run(inputs(PLAIN)).outputs == [Y.tobytes()]
        other = dataclasses.replace(firmware, model_digest=1)
        with (
            pytest.raises(BoardError, match=r"runs another model \(digest 12345678, not 00000001"),
            BoardSession(board, other, port=qemu.port),
        ):
            pass
    finally:
        qemu.close()


@pytest.mark.parametrize("url", ["/dev/pts/9999", "/dev/null", "socket://127.0.0.1:1", "nonsense"])
def test_ports_that_cannot_be_used_are_named(
    board: Board, firmware: FirmwareArtifact, url: str
) -> None:
    start = time.monotonic()
    with (
        pytest.raises(BoardError, match=rf"^port {re.escape(url)} cannot be opened: [^\n]+$"),
        BoardSession(board, firmware, port=url),
    ):
        pass
    assert time.monotonic() - start < 5


def test_qemu_dies_with_its_parent(board: Board, firmware: FirmwareArtifact) -> None:
    code = (
        "import os, sys; from pathlib import Path;"
        "from toolkit.measure.board import Qemu; from toolkit.targets.board import load_board;"
        f"q = Qemu(load_board('{board.name}'), Path({str(firmware.elf)!r}));"
        "print(q._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    pid = int(done.stdout)
    end = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def test_large_weights_go_to_the_memory_that_holds_them(board: Board, tmp_path: Path) -> None:
    """5 MB of weights, more than flash: placed in PSRAM, and still right."""
    weights = tmp_path / "big_weights.c"
    weights.write_text(
        '#include "tiny.h"\n'
        "extern const float tiny_more[1300000];\n"
        "const float tiny_more[1300000] = {0.0f, 1.0f};\n"
        "const float tiny_w[4] = {1.0f, -2.0f, 3.0f, 0.5f};\n"
    )
    model = tmp_path / "tiny.c"
    text = (MODELS / "tiny.c").read_text(encoding="utf-8")
    text = text.replace("{tiny_w};", "{tiny_w, tiny_more};")
    model.write_text("extern const float tiny_more[1300000];\n" + text)
    artifact = build_firmware(board, [model, weights], [MODELS], "tiny", "tiny.h", tmp_path / "o")
    assert artifact.weights_memory == "PSRAM"
    assert artifact.weights_bytes == 5_200_016
    with BoardSession(board, artifact) as session:
        assert session.run(inputs(PLAIN)).outputs == [Y.tobytes()]


def test_a_large_arena_goes_to_the_memory_that_holds_it(board: Board, tmp_path: Path) -> None:
    artifact = build(board, tmp_path, "-O2")
    assert artifact.arena_memory == "SSRAM"
    artifact = _with_arena(board, tmp_path, 5_000_000)
    assert artifact.arena_memory == "PSRAM"
    with BoardSession(board, artifact) as session:
        assert session.run(inputs(PLAIN)).outputs == [Y.tobytes()]


def _with_arena(board: Board, folder: Path, arena_bytes: int) -> FirmwareArtifact:
    (folder / "inc").mkdir(exist_ok=True)
    text = (MODELS / "tiny.h").read_text(encoding="utf-8")
    (folder / "inc" / "tiny.h").write_text(text.replace("70000u", f"{arena_bytes}u"))
    sources = [folder / "inc" / "tiny.c", folder / "inc" / "tiny_weights.c"]
    for source in sources:
        source.write_text((MODELS / source.name).read_text(encoding="utf-8"))
    return build_firmware(board, sources, [folder / "inc"], "tiny", "tiny.h", folder)


def test_an_arena_that_does_not_fit_is_refused(board: Board, tmp_path: Path) -> None:
    with pytest.raises(
        BoardError,
        match=r"^the arena of 20000000 bytes does not fit the 16777216 bytes RAM of board 'qemu_",
    ):
        _with_arena(board, tmp_path, 20_000_000)


def test_weights_that_do_not_fit_are_refused(board: Board, tmp_path: Path) -> None:
    weights = tmp_path / "big_weights.c"
    weights.write_text("extern const char w[30000000]; const char w[30000000] = {1};\n")
    with pytest.raises(BoardError, match=r"^the block of weights of 30000000 bytes does not fit"):
        build_firmware(
            board, [MODELS / "tiny.c", weights], [MODELS], "tiny", "tiny.h", tmp_path / "o"
        )


def test_code_that_does_not_fit_is_refused(board: Board, tmp_path: Path) -> None:
    flash, *others = board.memories
    small = dataclasses.replace(
        board, memories=(dataclasses.replace(flash, nbytes=66_000), *others)
    )
    model = tmp_path / "tiny.c"
    text = (MODELS / "tiny.c").read_text(encoding="utf-8")
    model.write_text(
        text.replace("{tiny_w};", "{tiny_w, more};").replace(
            "static uint32_t tiny_sink;",
            "static uint32_t tiny_sink; extern const char more[]; const char more[90000] = {1};",
        )
    )
    with pytest.raises(BoardError, match=r"too large for memory FLASH of board 'qemu_mps2_an386'"):
        build_firmware(
            small, [model, MODELS / "tiny_weights.c"], [MODELS], "tiny", "tiny.h", tmp_path / "o"
        )


def test_a_missing_compiler_is_named_with_its_package(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolchainError, match=r"arm-none-eabi-gcc.* is not on PATH") as caught:
        build(board, tmp_path)
    assert "gcc-arm-none-eabi" in (caught.value.hint or "")
    with pytest.raises(ToolchainError, match=r"qemu-system-arm.* is not on PATH"):
        Qemu(board, tmp_path / "x.elf")


def test_code_the_compiler_refuses_is_quoted(board: Board, tmp_path: Path) -> None:
    bad = tmp_path / "bad.c"
    bad.write_text("int x = y;\n")
    with pytest.raises(ToolchainError, match=r"(?s)failed compiling bad\.c.*'y' undeclared"):
        build_firmware(board, [bad], [MODELS], "tiny", "tiny.h", tmp_path)


def test_the_host_takes_no_firmware(tmp_path: Path) -> None:
    with pytest.raises(BoardError, match="board 'host' takes no firmware"):
        build(load_board("host"), tmp_path)


@pytest.mark.full
def test_counts_are_exact_past_the_timers_32_bits(session: BoardSession) -> None:
    """4e9 instructions are 6.4e9 ticks: the timer wraps once.  About 20 s."""
    short, long = (session.run(inputs(turns)).ticks for turns in (100, 2_000_000_000))
    assert long - short == 2 * (2_000_000_000 - 100)
