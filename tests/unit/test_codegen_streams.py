"""Loads that move their pointer on, and sums that start from their first product."""

from __future__ import annotations

from toolkit.codegen.lines import CLine, from_zero
from toolkit.codegen.streams import clusters, in_order, Stream

AT = {f"&p[{n}]": n for n in (0, 16, 32)}
STREAMS = {text: Stream(f"load({text})", "next({0})", 16) for text in AT}
LINES = [f"c = mac(c, load({text}));" for text in AT]


def test_loads_in_order_are_a_stream() -> None:
    found = in_order(LINES, AT, STREAMS, 48)
    assert found == [STREAMS[text] for text in AT]


def test_gaps_repeats_and_other_orders_are_no_stream() -> None:
    assert in_order(LINES, AT, STREAMS, 64) is None  # the next iteration starts further on
    assert in_order(LINES[::-1], AT, STREAMS, 48) is None
    assert in_order([*LINES, LINES[0]], AT, STREAMS, 48) is None
    assert in_order([LINES[0] + LINES[1], LINES[2]], AT, STREAMS, 48) is None  # unsequenced
    apart = {f"&p[{n}]": n for n in (0, 16, 48)}
    streams = {text: Stream(f"load({text})", "next({0})", 16) for text in apart}
    lines = [f"c = mac(c, load({text}));" for text in apart]
    assert in_order(lines, apart, streams, 48) is None
    assert in_order(LINES, AT, {}, 48) is None  # no load that moves its pointer


def test_pointers_serve_what_is_near() -> None:
    assert clusters({"a": 0, "b": 90, "c": 101, "d": -20}, 100) == [
        {"d": -20, "a": 0}, {"b": 90, "c": 101}
    ]  # fmt: skip


def sums(name: str, count: int) -> list[CLine]:
    return [
        CLine(f"{name} = mac({name}, {n});", phase=0, first=f"{name} = product({n});")
        for n in range(count)
    ]


def texts(lines: list[CLine]) -> list[str]:
    return [line.text for line in lines]


def test_only_the_first_product_replaces_the_zero() -> None:
    for name in ("acc[0]", "acc", "acc_1"):
        lines = [CLine(f"{name} = 0;"), CLine("acc_12 = 0;"), *sums(name, 2)]
        assert texts(from_zero(lines)) == [
            "acc_12 = 0;", f"{name} = product(0);", f"{name} = mac({name}, 1);"
        ]  # fmt: skip


def test_a_zero_that_is_read_or_lies_before_a_loop_stays() -> None:
    read = [CLine("acc = 0;"), CLine("y = acc + 1;"), *sums("acc", 1)]
    assert texts(from_zero(read)) == texts(read)
    looped = [CLine("acc = 0;"), CLine("for (;;)", True, tuple(sums("acc", 1))), *sums("acc", 1)]
    assert texts(from_zero(looped)) == texts(looped)
