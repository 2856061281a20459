"""The estimate of cycles says what it needs, and gives llvm-mca a text that it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.errors import BoardError, ToolchainError
from toolkit.measure.estimate import _modelled, _whole, CORES, require_estimate
from toolkit.targets.board import load_board


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_tools")
def test_without_llvm_the_error_says_what_to_install() -> None:
    with pytest.raises(ToolchainError) as caught:
        require_estimate(load_board("qemu_mps2_an386"))
    assert "llvm-mca-16" in caught.value.what
    assert caught.value.hint == "apt-get install llvm-16"


@pytest.mark.usefixtures("no_tools")
def test_the_command_refuses_before_it_reads_the_model(
    nestling: Callable[..., tuple[str, str]], tmp_path: Path
) -> None:
    absent = tmp_path / "absent.onnx"
    absent.touch()
    _, err = nestling("run", absent, "--board", "qemu_mps2_an386", "--cycles", code=2)
    assert "llvm-mca-16" in err
    assert "apt-get install llvm-16" in err


@pytest.mark.parametrize(
    ("name", "port", "reason"),
    [
        (None, None, "needs a board in QEMU"),
        ("nucleo_f446re", None, "needs a board in QEMU"),
        ("qemu_mps2_an386", "/dev/ttyACM0", "needs a board in QEMU"),
        ("qemu_aarch64", None, "needs a board in QEMU"),
        ("qemu_mps2_an385", None, "no model of the core"),
        ("qemu_riscv32_virt", None, "no model of the core"),
    ],
)
def test_a_board_that_cannot_be_estimated_is_refused(
    name: str | None, port: str | None, reason: str
) -> None:
    with pytest.raises(BoardError) as caught:
        require_estimate(load_board(name) if name else None, port)
    assert reason in caught.value.what
    if name == "qemu_mps2_an385":
        assert caught.value.state == ("core: cortex-m3", f"cores with one: {', '.join(CORES)}")


def test_code_is_cut_after_its_instructions() -> None:
    mov, smlad = bytes.fromhex("1a46"), bytes.fromhex("23fb0052")
    assert _whole(mov + smlad + mov + smlad[:2], 3) == mov + smlad + mov
    assert _whole(smlad + mov, 1) == smlad


def test_a_call_is_a_branch_and_what_has_no_model_a_nop() -> None:
    text = ["blx\tr3", "bl\t#64", "ble\t#8", "le\tlr, #-8", "bls\t#4"]
    assert list(_modelled(text, {"le"})) == ["b.w\t#0", "b.w\t#0", "ble\t#8", "nop", "bls\t#4"]


def test_conditions_go_with_the_instruction_that_announces_them() -> None:
    text = ["ite\tge", "addge\tr0, r1, r2", "vmovlt.f32\ts0, s1", "bne\t#4"]
    assert list(_modelled(text, set())) == text
    plain = ["nop", "add\tr0, r1, r2", "vmov.f32\ts0, s1", "bne\t#4"]
    assert list(_modelled(text, {"ite"})) == plain
    assert list(_modelled(text[:2], set())) == plain[:2]  # the block ends too early
