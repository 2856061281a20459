"""Spaces: domains of holes, sketches that fit every target, loaders of users' files, validation."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from benchmarks.models import Net
from tests.base_functions import base_functions, layer_functions, LAYERS
from toolkit.errors import NestlingError
from toolkit.ir.build import build
from toolkit.ir.compute import compute, placeholder, reduce_axis, sum
from toolkit.ir.loop import Loop, PrimFunc, UNROLL, VECTORIZE, walk_stmt
from toolkit.schedule.default import apply_trace, default_trace
from toolkit.schedule.derived import ExtentOf, IfLoop, LoopAround
from toolkit.schedule.examples import matmul
from toolkit.schedule.hole import (
    Around,
    FittingLoop,
    FittingTile,
    LoopOrder,
    OneOf,
    replay,
    Replayer,
    VectorTile,
)
from toolkit.schedule.steps.annotate import Annotate, Unroll, Vectorize
from toolkit.schedule.steps.compute_at import ComputeAt
from toolkit.schedule.steps.reorder import Reorder
from toolkit.schedule.steps.rfactor import RFactor
from toolkit.schedule.steps.split import Split
from toolkit.schedule.steps.winograd import Winograd
from toolkit.schedule.trace import trace_from_json, trace_to_json
from toolkit.space.open_trace import open_trace
from toolkit.space.spaces import load_modules, load_space, SPACES
from toolkit.space.task import candidate, Task
from toolkit.space.templates import TEMPLATES
from toolkit.space.templates.config import Config, TemplateSpace
from toolkit.space.validate import count_statements, Limits, validate
from toolkit.targets.isas import ISAS
from toolkit.targets.target import get_target, TARGETS

TUNED = ("x86-64-v4", "x86-64-v3", "aarch64", "cortex-m4", "generic")


def task_of(layer: str, target: str = "x86-64-v4", number: int = 0) -> Task:
    return Task(layer_functions(layer)[number], get_target(target))


# ----------------------------------------------------------------------------------------- holes


def test_vectors_of_a_guarded_tile_may_lack_less_than_one_vector() -> None:
    func = matmul(rows=4, columns=20)
    tiles = {tail: VectorTile("t", 8, 4, tail) for tail in ("guard", "shift", "perfect")}
    domains = {k: t.values(func, Split("j_2", (1,), k)) for k, t in tiles.items()}
    assert domains["guard"] == ((8,), (16,), (24,))
    assert domains["shift"] == ((5,), (8,), (10,), (16,), (20,))
    assert domains["perfect"] == ((20,),)


def test_a_register_tile_leaves_room_for_what_it_reads() -> None:
    func = Split("j_2", (16,)).apply(matmul(rows=40, columns=32))
    tile = FittingTile("t", ("j_2.1",), lanes=8, limit=16, registers=True, waste=0.25)
    domain = tile.values(func, Split("i_2", (1,), "shift"))
    assert max(domain) == (6,)  # 6 rows x 2 vectors, 2 vectors of weights, 1 of a row
    assert all(rows * 2 + 2 + 1 <= 16 for (rows,) in domain)
    assert domain == ((1,), (2,), (3,), (4,), (5,), (6,))
    unroll = FittingTile("u", ("j_2.1",), lanes=8, limit=12)
    assert unroll.values(func, Split("i_2", (1,))) == ((1,), (2,), (4,), (5,))


def test_what_has_no_loop_left_is_left_out() -> None:
    func = matmul(rows=6, columns=8)
    sketch = (
        Split("i_2", OneOf("rows", ((1,), (2,)))),  # type: ignore[arg-type]
        ComputeAt("t", LoopAround("i_2.1")),  # type: ignore[arg-type]
        Reorder(LoopOrder("order", (("k", "i", "j"), ("i", "k", "j")))),  # type: ignore[arg-type]
        Unroll(IfLoop("i")),  # type: ignore[arg-type]
        Unroll(FittingLoop("unroll", "k", ("j", "i"), 8, 6)),  # type: ignore[arg-type]
    )
    one = replay(func, sketch, {"rows": (1,), "unroll": "k"})
    assert one.decisions["order"] == ("k", "j")
    assert Unroll("i") not in one.trace
    assert Unroll("k") in one.trace
    two = replay(func, sketch, {"rows": (2,), "unroll": "k"})
    assert Unroll("i") in two.trace
    assert two.decisions["unroll"] is None  # 2 rows x 6 steps are over 6 copies
    assert trace_from_json(json.loads(json.dumps(trace_to_json(sketch)))) == sketch


def test_a_known_value_is_the_most_probable() -> None:
    hole = Around("n", OneOf("n", (1, 2, 4)), 4, 0.7)
    domain = hole.values(matmul(), Unroll("i"))
    assert hole.weights(domain) == pytest.approx((0.15, 0.15, 0.7))
    assert hole.weights((4,)) == (1.0,)
    assert hole.weights((1, 2)) == (0.5, 0.5)  # elsewhere it is not in the domain


def test_remembered_states_change_nothing() -> None:
    task = task_of("convolution")
    draw = random.Random(3)
    for sketch in SPACES["metaschedule"].sketches(task):
        remembering = Replayer(task.func)
        for _ in range(30):
            drawn = remembering.replay(sketch, {}, draw)
            fresh = replay(task.func, sketch, drawn.decisions)
            assert fresh == drawn
            assert apply_trace(task.func, drawn.trace) == drawn.func


# ---------------------------------------------------------------------------------------- spaces


@pytest.mark.parametrize("target", TUNED)
@pytest.mark.parametrize("space", SPACES)
def test_random_draws_are_legal_and_fit(space: str, target: str) -> None:
    draw = random.Random(7)
    kernels = 0
    for layer in LAYERS:
        for func in layer_functions(layer):
            task = Task(func, get_target(target))
            sketches = SPACES[space].sketches(task)
            kernels += bool(sketches)
            for sketch in sketches:
                for _ in range(4):
                    found = candidate(task, sketch, {}, draw)
                    assert validate(found) is None
                    again = candidate(task, sketch, found.decisions)
                    assert again.trace == found.trace
    assert kernels >= (4 if space == "autotvm" else len(LAYERS))


def test_the_space_of_modules_holds_the_default_of_every_layer() -> None:
    for layer in LAYERS:
        for func in layer_functions(layer):
            for target in TUNED:
                isa = get_target(target).isa
                default = default_trace(func, isa, exact=True)
                usual = replay(func, open_trace(func, default, isa), {})
                assert usual.func == apply_trace(func, default)


def test_an_opened_trace_leaves_tiles_open() -> None:
    task = task_of("convolution")
    isa = task.target.isa
    sketch = open_trace(task.func, default_trace(task.func, isa, exact=True), isa)
    found = {replay(task.func, sketch, {}, random.Random(n)).trace for n in range(40)}
    assert len(found) >= 8


def test_decisions_go_from_one_shape_to_another() -> None:
    small, large = task_of("matmul"), Task(matmul(rows=33, columns=70, depth=9), get_target("host"))
    draw = random.Random(1)
    space = SPACES["metaschedule"]
    decisions = candidate(small, space.sketches(small)[0], {}, draw).decisions
    moved = candidate(large, space.sketches(large)[0], decisions)
    assert validate(moved) is None


def _unknown_reduction() -> PrimFunc:
    """Return y[i] = sum of a[2 k, i] * b[k]: no constant, no contiguous reduction."""
    a, b = placeholder((8, 5), "float32", "a"), placeholder((4,), "float32", "b")
    k = reduce_axis(4, "k")
    return build([compute((5,), lambda i: sum(a[2 * k, i] * b[k], k), "y")], [a, b])


def test_templates_fit_products_with_weights_only() -> None:
    space = SPACES["autotvm"]
    assert isinstance(space, TemplateSpace)
    fits = (
        ("convolution", 1, "conv2d"), ("depthwise", 1, "depthwise"), ("matmul", 0, "gemm"),
        ("gemv", 0, "gemv"),
    )  # fmt: skip
    for layer, number, name in fits:
        task = Task(layer_functions(layer)[number], get_target("x86-64-v4"))
        only = TemplateSpace("one", tuple(t for t in TEMPLATES if t.name == name))
        assert only.sketches(task), name
        others = TemplateSpace("rest", tuple(t for t in TEMPLATES if t.name != name))
        assert not others.sketches(task), name
        fallback = space.fallback(task)
        assert fallback is not None
        assert validate(fallback) is None
        assert fallback.origin == "fallback"
    assert not space.sketches(task_of("softmax"))
    assert space.fallback(Task(_unknown_reduction(), get_target("host"))) is None


def test_a_fallback_is_the_tile_of_the_model() -> None:
    task = Task(matmul(rows=28, columns=64, depth=32), get_target("x86-64-v4"))
    space = SPACES["autotvm"]
    assert isinstance(space, TemplateSpace)
    fallback = space.fallback(task)
    default = default_trace(task.func, task.target.isa)
    assert fallback is not None
    splits = {s.loop: s.factors for s in default if isinstance(s, Split)}
    assert fallback.decisions["tile_x"] == splits["j_2"]
    assert fallback.decisions["tile_y"] == splits["i_2"]


def _convolution(size: int, channels: int) -> PrimFunc:
    """Return the function of a 3x3 convolution on a square image."""
    net = Net("convolution")
    x = net.input("x", 1, channels, size, size)
    found = base_functions(net.model(net.conv(x, channels, 3, gain=1)))
    return max(found, key=lambda func: len(func.inputs))


def test_the_algorithm_of_a_convolution_is_a_knob() -> None:
    task = Task(_convolution(16, 32), get_target("x86-64-v4"))
    space = SPACES["autotvm"]
    assert isinstance(space, TemplateSpace)
    sketches = space.sketches(task)
    forms = [s[0].m if isinstance(s[0], Winograd) else None for s in sketches]
    assert sorted(forms, key=str) == [2, 4, None]
    default = default_trace(task.func, task.target.isa)
    assert isinstance(default[0], Winograd)
    assert forms[0] == default[0].m  # nobody tuned it: the model of the core decides
    fallback = space.fallback(task)
    assert fallback is not None
    assert fallback.func == apply_trace(task.func, default)
    draw = random.Random(3)
    for sketch in sketches:
        drawn = [candidate(task, sketch, {}, draw) for _ in range(12)]
        assert all(validate(c) is None for c in drawn)
        assert len({c.key for c in drawn}) > 4
    single = Task(_convolution(4, 32), task.target)  # F(4x4) has one tile: nothing to block
    assert [s[0].m for s in space.sketches(single) if isinstance(s[0], Winograd)] == [2]


def test_a_knob_is_defined_once_and_asked_by_its_name() -> None:
    cfg = Config(TARGETS["generic"])
    cfg.define_knob("pack", (True, False))
    with pytest.raises(NestlingError, match="'pack' is defined twice"):
        cfg.define_knob("pack", (1,))
    with pytest.raises(NestlingError, match=r"no knob 'tile'.*\n.*defined so far: pack"):
        _ = cfg["tile"]


# ------------------------------------------------------------------------------- users' own files


MODULE = """
def unrolled_rows(sch, target):
    for block in sch.reductions():
        sch.attempt(lambda: sch.unroll(sch.loops(block)[0]))

def _helper(sch, target):
    raise AssertionError
"""

TEMPLATE = """
from toolkit.space.templates.config import Template

def program(cfg, sch):
    i, j = sch.loops("y")
    cfg.define_split("rows", max_inner=4, fallback=(2,))
    sch.unroll(sch.split(i, cfg["rows"])[1])

TEMPLATES = [Template("mine", program)]
"""

RULE = """
from toolkit.space.rules import RULES as BUILT_IN
from toolkit.space.rules.state import Match, Rule
from toolkit.schedule.steps.annotate import Annotate

def condition(state, block):
    return Match.ONLY

def apply(state, block):
    return [state.then(lambda sch: sch.annotate(sch.loops(block)[0], "comment", "mine"))]

RULES = (Rule("mine", condition, apply), *BUILT_IN)
"""


def test_a_module_of_the_users_runs_before_those_of_the_space(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MODULE)
    assert [m.__name__ for m in load_modules(file)] == ["unrolled_rows"]
    space = load_space("metaschedule", [file])
    assert space.name == "metaschedule+mine"
    task = task_of("gemv")
    first = space.sketches(task)[0][0]
    assert isinstance(first, Unroll)
    with pytest.raises(NestlingError, match="'autotvm' is not made of modules"):
        load_space("autotvm", [file])


def test_the_example_splits_sums_of_few_columns_only() -> None:
    example = Path(__file__).parents[2] / "examples" / "chains.py"
    assert len(example.read_text().splitlines()) <= 82
    space = load_space("metaschedule", [example])
    [few, *_] = space.sketches(task_of("gemv"))
    assert any(isinstance(step, RFactor) for step in few)
    for layer, number in (("matmul", 0), ("convolution", 1), ("softmax", 0)):
        task = task_of(layer, number=number)
        assert space.sketches(task) == SPACES["metaschedule"].sketches(task)


def test_templates_and_rules_of_the_users_are_spaces(tmp_path: Path) -> None:
    task = Task(matmul(), get_target("host"))
    (tmp_path / "templates.py").write_text(TEMPLATE)
    space = load_space(str(tmp_path / "templates.py"))
    assert isinstance(space, TemplateSpace)
    assert space.name == "templates"
    fallback = space.fallback(task)
    assert fallback is not None
    assert fallback.decisions["rows"] == (2,)
    (tmp_path / "rules.py").write_text(RULE)
    [sketch] = load_space(str(tmp_path / "rules.py")).sketches(task)
    noted = [step for step in sketch if isinstance(step, Annotate)]
    assert [step.loop for step in noted] == ["i_2", "i"]  # from the output to the inputs


def test_the_page_of_spaces_works(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spaces.md").read_text()
    module, template, rule = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    task = Task(matmul(rows=8, columns=64), get_target("x86-64-v3"))
    for name, text in (("module", module), ("template", template), ("rule", rule)):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        own = name == "module"
        space = load_space("metaschedule", [file]) if own else load_space(str(file))
        sketches = space.sketches(task)
        assert candidate(task, sketches[0], {}, random.Random(2)).trace
        if name != "template":
            assert any(isinstance(sketch[0], Unroll) for sketch in sketches)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n", "defines no space"),
        ("TEMPLATES = []\n", "no list with at least one element"),
        ("TEMPLATES = [1]\n", "1 in TEMPLATES is not a Template"),
        ("RULES = ['r']\n", "'r' in RULES is not a Rule"),
        ("MODULES = (3,)\n", "3 in MODULES is not a function"),
        ("def f(:\n", r"running it failed \(line 1\): SyntaxError"),
        ("1 / 0\n", r"running it failed \(line 1\): ZeroDivisionError"),
    ],
)
def test_files_that_are_no_space_say_why(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "space.py"
    file.write_text(text)
    with pytest.raises(NestlingError, match=why):
        load_space(str(file))


def test_unknown_spaces_and_empty_modules_are_named(tmp_path: Path) -> None:
    with pytest.raises(NestlingError, match=r"no such space.*\n.*autotvm, ansor, metaschedule"):
        load_space("tvm")
    with pytest.raises(NestlingError, match=r"missing.py: there is no such file"):
        load_space("missing.py")
    file = tmp_path / "empty.py"
    file.write_text("def helper(x): return x\n")
    with pytest.raises(NestlingError, match="defines no module"):
        load_modules(file)


# ------------------------------------------------------------------------------------- validation


def test_hopeless_candidates_are_named_before_they_are_compiled() -> None:
    func = matmul(rows=64, columns=64, depth=8)
    task = Task(func, get_target("x86-64-v3"))

    def made(*trace: object) -> str | None:
        return validate(candidate(task, tuple(trace), {}), limits)  # type: ignore[arg-type]

    limits = Limits(statements=100)
    assert made() is None
    rows = Split("i_2", (16,))
    assert made(rows, Unroll("i_2.0"), Unroll("i_2.1")) is None
    unrolled = (Unroll("j_2"), Unroll("i_2"))
    assert made(*unrolled) == "it prints 4097 statements, over 100"
    tile = (
        Split("j_2", (32,)), Split("i_2", (8,)), Reorder(("i_2.0", "j_2.0", "i_2.1", "j_2.1")),
        ComputeAt("t", "j_2.0"), Reorder(("k", "i", "j")), Unroll("i"), Vectorize("j"),
    )  # fmt: skip
    assert made(*tile) == "block 't' holds 32 accumulators, of 16 registers"
    limits = Limits(scratch_bytes=1000)
    assert made() == "it takes 16384 bytes of scratch, over 1000"
    assert made(ComputeAt("t", "j_2")) is None  # one element at a time
    limits = Limits(flash_bytes=2048)
    assert made() == "it takes 2064 bytes of flash or more, over 2048"
    limits = Limits(ram_bytes=20000)
    assert made() == "it takes 16384 bytes of scratch, over 1568"


def test_a_limit_of_the_task_counts_too() -> None:
    task = Task(matmul(rows=64, columns=64), get_target("host"), scratch_limit_bytes=64)
    assert validate(candidate(task, (), {})) == "it takes 16384 bytes of scratch, over 64"


def test_statements_are_counted_in_vectors() -> None:
    func = matmul(rows=4, columns=32)
    for step in (Vectorize("j_2"), Unroll("i_2")):
        func = step.apply(func)
    kinds = {s.var: s.kind for s in walk_stmt(func.body) if isinstance(s, Loop)}
    assert (kinds["j_2"], kinds["i_2"]) == (VECTORIZE, UNROLL)
    assert count_statements(func.body, ISAS["avx2"]) == 4 * 4 + 1
    assert count_statements(func.body, ISAS["scalar"]) == 4 * 32 + 1


def test_extents_follow_the_state() -> None:
    func = Split("i_2", (2,)).apply(matmul())
    assert ExtentOf("i_2.1").value(func) == 2
    assert ExtentOf("nowhere").value(func) is None
    assert LoopAround("i_2.1").value(func) == "i_2.0"
    assert LoopAround("i_2.0").value(func) is None
