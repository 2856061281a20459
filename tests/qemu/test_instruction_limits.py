"""The 8-bit models that all tools are compared on stay within instruction limits, as users' CI has.

QEMU counts exactly, so that a schedule that got worse is seen even where no result changes.  The
limits are 2 % above what arm-none-eabi-gcc 12.2 gives: other compilers may need others.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import toolkit.cli
from toolkit.targets.board import Board

pytestmark = [pytest.mark.qemu, pytest.mark.slow]

LIMITS = {
    "qemu_mps2_an386": {
        "kws_dscnn_int8.tflite": 3_853_213, "kws_dscnn_int8.onnx": 3_938_553,
        "vww_mbv1_int8.tflite": 7_622_624, "vww_mbv1_int8.onnx": 7_788_781,
        "ic_resnet8_int8.tflite": 16_119_995, "ic_resnet8_int8.onnx": 15_735_173,
        "ad_fcae_int8.tflite": 405_656, "ad_fcae_int8.onnx": 405_656,
    },
    "qemu_mps3_an547": {
        "kws_dscnn_int8.tflite": 1_010_700, "kws_dscnn_int8.onnx": 1_138_797,
        "vww_mbv1_int8.tflite": 2_410_511, "vww_mbv1_int8.onnx": 2_709_899,
        "ic_resnet8_int8.tflite": 2_578_802, "ic_resnet8_int8.onnx": 2_580_885,
        "ad_fcae_int8.tflite": 43_624, "ad_fcae_int8.onnx": 48_266,
    },
}  # fmt: skip
"""Instructions of a run by the default schedules, without records."""


@pytest.fixture(scope="module")
def known_compiler(need_tool: Callable[[str], str]) -> None:
    """Skip where the compiler is not the one that the limits were measured with."""
    version = subprocess.run(
        [need_tool("arm-none-eabi-gcc"), "-dumpversion"], capture_output=True, text=True, check=True
    ).stdout
    if not version.startswith("12."):
        pytest.skip(f"the limits are those of arm-none-eabi-gcc 12, not {version.strip()}")


@pytest.mark.usefixtures("known_compiler")
@pytest.mark.parametrize(
    ("board", "model"), [(board, model) for board, models in LIMITS.items() for model in models]
)
def test_default_schedules_take_no_more_instructions(
    board: str, model: str, corpus: Path, qemu_board: Callable[[str], Board]
) -> None:
    qemu_board(board)
    file, limit = corpus / f"mlperf_{model}", LIMITS[board][model] * 102 // 100
    code = toolkit.cli.run([
        "verify", str(file), "--input", f"{file}.npz", "--board", board, "--no-records",
        "--limit", f"instructions={limit}",
    ])  # fmt: skip
    assert code == 0
