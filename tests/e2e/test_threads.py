"""Models for several threads: the same bits, no race, no warning, whatever runs the parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import toolkit
from tests.e2e.test_sanitizers import run_sanitized
from tests.e2e.test_warnings import C99, check, CXX, Form
from tests.generated import inputs_of, MODEL_BYTES, one_case_per_operator
from tests.onnx_cases import case_named
from tests.small_models import save
from toolkit import pipeline
from toolkit.backend import compile_for
from toolkit.errors import NestlingError
from toolkit.ir.program import Call, Fork, Program
from toolkit.paths import RUNTIME_C
from toolkit.pipeline import compile_model, Compiled, load, Model, Options
from toolkit.runners import BuiltModel
from toolkit.schedule.threads import Team
from toolkit.targets.target import get_target

PORT = ("-DNST_PARALLEL=2", "-pthread", str(RUNTIME_C / "port" / "host" / "nst_threads.c"))
TSAN = ("-g", "-O1", "-ffp-contract=off", "-fsanitize=thread", "-DNST_PORT_TAKE_BACK=0", *PORT)
PLAIN = ("-O1", "-ffp-contract=off")
OPENMP = (*PLAIN, "-fopenmp")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whatever can run in parts do so, however small it is."""
    monkeypatch.setattr(pipeline, "team_of", lambda target, threads: Team(threads, 0, 0))


@pytest.fixture
def branching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no kernel run in parts, and branches side by side wherever they can."""
    monkeypatch.setattr(pipeline, "team_of", lambda target, threads: Team(threads, 0, 10**12))


def compile_cases(names: Sequence[str], options: Options) -> dict[str, Compiled]:
    found = {}
    for name in names:
        try:
            compiled, _ = compile_for(case_named(name).model, inputs_of(name), options, f"{name}_m")
        except NestlingError:
            continue
        if compiled.weights_bytes <= MODEL_BYTES:
            found[name] = compiled
    return found


def assert_same(a: Sequence[dict[str, np.ndarray]], b: Sequence[dict[str, np.ndarray]]) -> None:
    for left, right in zip(a, b, strict=True):
        assert left.keys() == right.keys()
        for name in left:
            assert left[name].tobytes() == right[name].tobytes(), name


@pytest.mark.parametrize(
    "options",
    [
        Options(target="generic", threads=2),
        Options(target=get_target("host").name, executor="aot", weights="incbin", threads=3),
    ],
    ids=["generic-graph-2", "vectors-aot-3"],
)
def test_an_example_of_every_operator_runs_in_parts_without_a_race(
    options: Options,
    eager: None,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> None:
    names = one_case_per_operator(request.config.getoption("--seed"))
    models = compile_cases(names, options)
    assert sum("nst_parallel(" in str(m.files.files[f"{m.name}.c"]) for m in models.values()) > 100
    inputs = [inputs_of(name) for name in models]
    flags = get_target(options.target).cflags
    folder = tmp_path / "parts"
    folder.mkdir()
    found = run_sanitized(
        list(models.values()), inputs, folder, need_tool("gcc"), flags, sanitize=TSAN
    )
    alone = compile_cases(list(models), Options(options.executor, options.weights, options.target))
    folder = tmp_path / "alone"
    folder.mkdir()
    want = run_sanitized(list(alone.values()), inputs, folder, "gcc", flags, sanitize=PLAIN)
    assert_same(found, want)


def test_the_sanitizer_does_see_a_race(
    eager: None, tmp_path: Path, need_tool: Callable[[str], str]
) -> None:
    """Parts that all do all iterations would be caught."""
    compiled = compile_cases(["test_relu"], Options(target="generic", threads=2))["test_relu"]
    text = str(compiled.files.files[f"{compiled.name}.c"])
    parts = ", 2u, part), "
    assert parts in text
    broken = text.replace(parts, ", 2u, 0u), ").replace(", 2u, part + 1u)", ", 2u, 2u)")
    compiled.files.files[f"{compiled.name}.c"] = broken
    with pytest.raises(AssertionError, match="data race"):
        run_sanitized(
            [compiled], [inputs_of("test_relu")], tmp_path, need_tool("gcc"), (), sanitize=TSAN
        )


M0PLUS = ("-mcpu=cortex-m0plus", "-mthumb")
M33 = ("-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16")


@pytest.mark.parametrize(
    "form",
    [
        Form("gcc", C99, Options(target="generic", threads=2), optimise=True),
        Form("gcc", (*C99, "-fopenmp"), Options(target="generic", executor="aot", threads=2)),
        Form("gcc", (*C99, "-DNST_PARALLEL=2", "-march=x86-64-v4"),
             Options(target="x86-64-v4", executor="aot", threads=3)),
        Form("clang", (*C99, "-DNST_PARALLEL=2"), Options(target="generic", threads=3)),
        Form("g++", (*CXX, "-fopenmp"), Options(target="generic", executor="aot", threads=2)),
        Form("clang++", (*CXX, "-DNST_PARALLEL=2"), Options(target="generic", threads=2)),
        Form("arm-none-eabi-gcc", (*C99, *M0PLUS, "-DNST_PARALLEL=2"),
             Options(target="cortex-m0", threads=2)),
        Form("arm-none-eabi-gcc", (*C99, *M33, "-DNST_PARALLEL=2"),
             Options(target="cortex-m33", executor="aot", threads=2)),
        Form("aarch64-linux-gnu-gcc", (*C99, "-fopenmp"), Options(target="aarch64", threads=2)),
    ],
    ids=lambda form: "-".join([form.label, str(form.options.threads), *form.flags[1:]]),
)  # fmt: skip
def test_code_for_several_threads_compiles_without_a_warning(
    form: Form,
    eager: None,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    request: pytest.FixtureRequest,
) -> None:
    need_tool("clang" if form.compiler == "clang++" else form.compiler)
    names = one_case_per_operator(request.config.getoption("--seed"))
    check(form, list(compile_cases(names, form.options).values()), tmp_path)


# ------------------------------------------------------------------------ branches, whole nets


def branches(path: Path) -> Path:
    """Write a net of two blocks of four branches each, joined, as in Inception."""
    rng = np.random.default_rng(5)
    nodes, consts = [], {}

    def conv(x: str, channels: int, filters: int, size: int) -> str:
        n = len(nodes)
        shape = (filters, channels, size, size)
        consts[f"w{n}"] = rng.standard_normal(shape).astype(np.float32) / 4
        nodes.append(helper.make_node("Conv", [x, f"w{n}"], [f"c{n}"], pads=[size // 2] * 4))
        nodes.append(helper.make_node("Tanh", [f"c{n}"], [f"t{n}"]))
        return f"t{n}"

    def block(x: str, channels: int, name: str) -> str:
        pool = helper.make_node("MaxPool", [x], [f"{name}p"], kernel_shape=[3, 3], pads=[1] * 4)
        nodes.append(pool)
        ends = [
            conv(x, channels, 6, 1),
            conv(conv(x, channels, 4, 1), 4, 5, 3),
            conv(conv(conv(x, channels, 4, 3), 4, 4, 3), 4, 7, 1),
            conv(f"{name}p", channels, 6, 1),
        ]
        nodes.append(helper.make_node("Concat", ends, [name], axis=1))
        return name

    last = block(block("x", 8, "a"), 24, "b")
    return save(path, nodes, {"x": [1, 8, 9, 10]}, {last: [1, 24, 9, 10]}, consts)


def conditional(path: Path) -> Path:
    """Write a net with branches before, in and after an If."""
    nodes = []

    def two(x: str, to: str) -> list[object]:
        return [
            helper.make_node("Exp", [x], [f"{to}1"]),
            helper.make_node("Sin", [x], [f"{to}2"]),
            helper.make_node("MatMul", [f"{to}1", f"{to}2"], [to]),
        ]

    def body(name: str) -> object:
        from onnx import TensorProto

        out = helper.make_tensor_value_info(f"{name}y", TensorProto.FLOAT, [6, 6])
        return helper.make_graph(two("p", f"{name}y"), name, [], [out])

    nodes += two("x", "p")
    nodes.append(helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0))
    nodes.append(helper.make_node("Greater", ["s", "zero"], ["c"]))
    nodes.append(
        helper.make_node("If", ["c"], ["q"], then_branch=body("then"), else_branch=body("else"))
    )
    nodes += two("q", "y")
    consts = {"zero": np.array(0, np.float32)}
    return save(path, nodes, {"x": [6, 6]}, {"y": [6, 6]}, consts)


def renamed(model: Model, compiled: Compiled, name: str) -> Compiled:
    """Compile the model again under another name: the program runs each model once."""
    return compile_model(replace(model, name=name), compiled.options)


def lanes(program: Program) -> list[list[list[Call]]]:
    """Return the calls of the lanes of each fork."""
    found = []
    for index, step in enumerate(program.steps):
        if isinstance(step, Fork):
            at, fork = index + 1, []
            for count in step.counts:
                calls = program.steps[at : at + count]
                assert all(isinstance(c, Call) for c in calls)
                fork.append([c for c in calls if isinstance(c, Call)])
                at += count
            found.append(fork)
    return found


def assert_lanes_apart(program: Program) -> None:
    """Check in the arena as planned: no lane touches what another one writes."""

    def spans(names: Sequence[str]) -> list[tuple[int, int]]:
        placed = [n for n in names if n in program.offsets]
        return [(program.offsets[n], program.offsets[n] + program.types[n].nbytes) for n in placed]

    for fork in lanes(program):
        for one, other in combinations(fork, 2):
            for mine, yours in ((one, other), (other, one)):
                writes = spans([n for c in mine for n in (*c.outputs, *c.scratch)])
                touches = spans([n for c in yours for n in (*c.outputs, *c.scratch, *c.inputs)])
                for a, b in writes:
                    assert all(b <= first or end <= a for first, end in touches)


@pytest.mark.parametrize("make", [branches, conditional], ids=lambda make: make.__name__)
@pytest.mark.parametrize("executor", ["graph", "aot"])
def test_branches_run_side_by_side_and_give_the_same(
    make: Callable[[Path], Path],
    executor: str,
    branching: None,
    tmp_path: Path,
    need_tool: Callable[[str], str],
    rng: np.random.Generator,
) -> None:
    model = load(make(tmp_path / "m.onnx"))
    shape = next(iter(model.inputs.values())).shape
    plus = np.abs(rng.standard_normal(shape)).astype(np.float32)
    results = []
    for threads, form in ((1, PLAIN), (2, PLAIN), (2, OPENMP), (2, TSAN), (3, TSAN)):
        compiled = compile_model(model, Options(executor, target="generic", threads=threads))
        assert bool(lanes(compiled.program)) == (threads > 1)
        assert_lanes_apart(compiled.program)
        twice = [compiled, renamed(model, compiled, "other")]
        folder = tmp_path / str(len(results))
        folder.mkdir()
        inputs = [{"x": plus}, {"x": -plus}]
        results.append(run_sanitized(twice, inputs, folder, need_tool("gcc"), (), sanitize=form))
    for other in results[1:]:
        assert_same(results[0], other)


def test_branches_are_not_run_side_by_side_where_all_cores_share_each(tmp_path: Path) -> None:
    """Small nets stay as they are; so do large ones, whose loops are shared."""
    compiled = compile_model(load(branches(tmp_path / "m.onnx")), Options(threads=2))
    for fork in lanes(compiled.program):
        assert all("Parallel(" not in str(k.comment) for k in compiled.program.kernels), fork


def test_steps_one_by_one_pass_over_forks(branching: None, tmp_path: Path) -> None:
    model = load(branches(tmp_path / "m.onnx"))
    x = {"x": np.ones((1, 8, 9, 10), np.float32)}
    tensors = []
    for threads in (1, 2):
        with BuiltModel(compile_model(model, Options(threads=threads))) as built:
            tensors.append({n: a for _, _, made in built.trace(x) for n, a in made.items()})
            profile = built.profile(x, 3)
    assert lanes(built.compiled.program)
    assert_same(tensors[:1], tensors[1:])
    assert len(profile) == sum(isinstance(s, Call) for s in built.compiled.program.steps)


@pytest.mark.parametrize("parallel", ["port", "openmp", "none"])
def test_a_built_model_runs_with_threads_whatever_runs_them(
    parallel: str, branching: None, tmp_path: Path
) -> None:
    model = load(branches(tmp_path / "m.onnx"))
    x = np.ones((1, 8, 9, 10), np.float32)
    with BuiltModel(compile_model(model)) as alone:
        (want,) = alone(x)
    with BuiltModel(compile_model(model, Options(threads=2, parallel=parallel))) as built:
        for _ in range(20):
            assert np.array_equal(built(x)[0], want)


def test_threads_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NestlingError, match=r"threads 0 is not within 1\.\.64"):
        Options(threads=0)
    with pytest.raises(NestlingError, match=r"parallel 'tbb' is unknown; it is one of"):
        Options(threads=2, parallel="tbb")


# --------------------------------------------------------------------------------- as users use it


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """Return a model that is large enough for two cores."""
    w = np.random.default_rng(7).standard_normal((300, 400)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    return save(tmp_path / "product.onnx", nodes, {"x": [200, 300]}, {"y": [200, 400]}, {"w": w})


def test_commands_take_threads(
    product: Path, tmp_path: Path, nestling: Callable[..., tuple[str, str]]
) -> None:
    nestling("compile", product, "-o", tmp_path / "c", "--threads", 2)
    assert "nst_parallel(" in (tmp_path / "c" / "src" / "product.c").read_text()
    nestling("run", product, "--threads", 2, "--runs", 3)
    nestling("verify", product, "--threads", 2, "--executor", "aot")
    out, _ = nestling("bench", product, "--threads", 2, "--runs", 5)
    assert "onnxruntime" in out
    _, err = nestling("run", product, "--threads", 0, code=2)
    assert "--threads" in err


def test_python_takes_threads(product: Path) -> None:
    x = np.random.default_rng(8).standard_normal((200, 300)).astype(np.float32)
    answers = []
    for threads in (1, 2):
        with toolkit.build(product, threads=threads) as built:
            answers.append(built(x)[0])
    assert np.array_equal(*answers)


def test_a_model_of_one_thread_knows_nothing_of_parts(product: Path) -> None:
    compiled = toolkit.compile(product)
    assert "parallel" not in str(compiled.files.files["product.c"]).lower()
