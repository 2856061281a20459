"""The choice of an algorithm: where it wins clearly by the model, and never against the options."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meaning.convolutions import convolution
from toolkit.codegen.kernel import print_kernel
from toolkit.lowering.kernels import func_key, schedule
from toolkit.schedule.algorithm import algorithms, rounds
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.steps.winograd import POINTS, transform, Winograd
from toolkit.targets.isas import ISAS


def chosen(size: int, channels: tuple[int, int], isa: str) -> list[int]:
    """Return m of the forms that win, best first."""
    found = algorithms(convolution((size, size), channels), ISAS[isa])
    return [plan.step.m for plan in found]


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
def test_wide_convolutions_take_the_large_tile(isa: str) -> None:
    assert chosen(56, (64, 64), isa) == [4, 2]


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_weights_that_come_from_memory_keep_the_small_tile(isa: str) -> None:
    assert chosen(7, (512, 512), isa) == [2]


def test_few_channels_and_microcontrollers_stay_direct() -> None:
    assert chosen(224, (3, 64), "avx2") == []
    assert chosen(32, (16, 24), "avx512") == []
    for isa in ("scalar", "armv7em", "helium"):
        assert chosen(56, (64, 64), isa) == []
    assert list(algorithms(convolution((56, 56), (64, 64), dtype="int32"), ISAS["avx2"])) == []


@pytest.mark.parametrize("isa", ["avx2", "avx512", "neon"])
def test_what_lies_between_two_halves_of_a_transform_is_in_registers(isa: str) -> None:
    """The 36 vectors of AVX-512 take more than its 32 registers; stored all, they cost 2 percent of
    the kernel and a fifth of the compiler's time."""
    func = convolution((56, 56), (64, 64))
    kernel = print_kernel(apply_trace(func, default_trace(func, ISAS[isa])), "k", isa=ISAS[isa])
    assert [b.name[-2:] for b in kernel.scratch] == ["_d", "_v", "_u"]


def test_exact_keeps_the_direct_form_also_of_recorded_traces() -> None:
    func, isa = convolution((56, 56), (64, 64)), ISAS["avx2"]
    trace = default_trace(func, isa)
    assert trace[0] == Winograd("conv", "w", (0, 1), 4)
    recorded = {func_key(func): trace}
    assert schedule(func, isa, recorded)[1] == trace
    for traces in (None, recorded):
        found = schedule(func, isa, traces, exact=True)[1]
        assert found == default_trace(func, isa, exact=True)
        assert not rounds(found)


@pytest.mark.parametrize("m", POINTS)
def test_transformed_weights_are_rounded_once(m: int, rng: np.random.Generator) -> None:
    step = Winograd("conv", "w", (1, 2), m)
    data = rng.standard_normal((5, 3, 3, 2)).astype(np.float32)
    taps = np.array(transform(m).taps, dtype=float)
    wanted = np.einsum("ia,naco,jc->nijo", taps, data.astype(float), taps)
    found = step.layout_data(data)
    assert found.dtype == np.float32
    assert found.shape == (5, m + 2, m + 2, 2)
    # Double precision may itself differ in its last bit, and round to the neighbour.
    assert np.abs(found - wanted).max() <= np.spacing(np.float32(np.abs(wanted).max())) / 2 + 1e-12
