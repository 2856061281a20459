"""Illegal uses of Prefetch, and what is left of it where later steps change the nest."""

from __future__ import annotations

from tests.golden.test_nests import c_text
from tests.illegal.test_staging import check_refused
from toolkit.schedule.examples import copy_rows, matmul
from toolkit.schedule.steps.annotate import Unroll, Vectorize
from toolkit.schedule.steps.prefetch import Prefetch
from toolkit.schedule.steps.reorder import Reorder


def test_prefetch_of_what_the_loop_does_not_read() -> None:
    why = "loop 'k' does not read elements of 't'."
    check_refused(Prefetch("t", "k", 1), matmul(), why)
    check_refused(Prefetch("q", "i", 1), matmul(), "loop 'i' does not read elements of 'q'.")
    check_refused(Prefetch("w", "q", 1), matmul(), "there is no loop 'q'.")


def test_prefetch_of_what_stays() -> None:
    why = "what is read of 'w' does not change with loop 'i'."
    check_refused(Prefetch("w", "i", 1), matmul(), why)


def test_prefetch_of_nothing_ahead() -> None:
    for distance in (0, 6, -1):
        why = "the distance must lie in 1 .. 5."
        check_refused(Prefetch("w", "k", distance), matmul(), why)


def test_prefetch_in_lanes() -> None:
    func = Vectorize("j").apply(copy_rows())
    check_refused(Prefetch("a", "j", 1), func, "loop 'j' is no loop in C, but vectorized.")


def test_prefetch_of_too_much() -> None:
    func = Reorder(("k", "i", "j")).apply(matmul(columns=16 * 33))
    why = "an iteration reads 33 lines of 'w', over 32."
    check_refused(Prefetch("w", "k", 1), func, why)


def test_a_prefetch_asks_for_each_line_that_the_iteration_reads_when_printed() -> None:
    func = Reorder(("k", "i", "j")).apply(matmul(columns=40))
    func = Prefetch("w", "k", 2).apply(func)
    assert c_text(func, "scalar").count("NST_PREFETCH(w, ") == 3  # of 160 bytes
    assert c_text(Unroll("k").apply(func), "scalar").count("NST_PREFETCH(w, ") == 6 * 3


def test_a_prefetch_that_later_steps_make_too_large_asks_for_nothing() -> None:
    func = Prefetch("w", "k", 1).apply(matmul(columns=16 * 33))
    assert "NST_PREFETCH" in c_text(func, "scalar")
    func = Reorder(("k", "i", "j")).apply(func)
    assert "NST_PREFETCH" not in c_text(func, "scalar")


def test_a_prefetch_in_a_loop_that_became_lanes_asks_copy_by_copy_where_there_are_no_vectors() -> (
    None
):
    func = Vectorize("j").apply(Prefetch("a", "j", 1).apply(copy_rows()))
    assert c_text(func, "scalar").count("NST_PREFETCH(a, ") == 8
    assert "NST_PREFETCH" not in c_text(func, "neon")
