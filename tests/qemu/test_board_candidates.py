"""Candidates on a board: exact counts, and faults that cost only the candidate that has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from toolkit.errors import BoardError, ToolchainError
from toolkit.measure.candidates.board import BoardMeasurer
from toolkit.measure.candidates.image import Trial
from toolkit.measure.candidates.source import Alter
from toolkit.schedule.default import default_trace
from toolkit.schedule.examples import matmul
from toolkit.schedule.steps.split import Split
from toolkit.search.result import Status
from toolkit.space.task import Candidate, candidate, Task
from toolkit.targets.board import load_board
from toolkit.targets.target import get_target

pytestmark = [pytest.mark.qemu, pytest.mark.needs("arm-none-eabi-gcc", "qemu-system-arm", "gcc")]

BOARD = load_board("qemu_mps2_an386")
TARGET = get_target(BOARD.target)
TASK = Task(matmul(8, 12, 16), TARGET)
ENTRY = "(void *const *p) {\n"


def candidates() -> list[Candidate]:
    """Return the default and others that compute the same in other loops."""
    default = candidate(TASK, default_trace(TASK.func, TARGET.isa), {}, origin="default")
    return [default, *(candidate(TASK, (Split("i", (n,)),), {}) for n in (1, 2, 4))]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_the_same_candidates_cost_the_same_alone_and_together(cache: Path) -> None:
    some = candidates()
    with BoardMeasurer(BOARD, cache_dir=cache) as board:
        together = [r.cost for r in board.measure(some)]
        again = [r.cost for r in board.measure(list(reversed(some)))][::-1]
    with BoardMeasurer(BOARD, cache_dir=cache) as board:
        alone = [board.measure([c])[0].cost for c in some]
    assert None not in together
    assert together == again == alone
    assert len(set(together)) > 1


def test_comparing_gives_exact_ratios(cache: Path) -> None:
    some = candidates()[:2]
    with BoardMeasurer(BOARD, cache_dir=cache) as board:
        costs = [r.cost for r in board.measure(some)]
        base, other = board.compare(some)
    assert (base.ratio, base.low, base.high) == (1.0, 1.0, 1.0)
    assert costs[0]
    assert costs[1]
    assert other.ratio == other.low == other.high == costs[1] / costs[0]


def faulty(faults: dict[str, str]) -> Alter:
    def alter(one: Candidate, text: str) -> str:
        return text.replace(ENTRY, ENTRY + faults.get(one.key, "") + "\n")

    return alter


FAULTS = [
    ("__builtin_trap();", Status.CRASHED, "undefined instruction"),
    ("*(volatile int *)0xF0000000 = 1;", Status.CRASHED, "crashed in nst_c"),
    ("volatile int forever = 1; while (forever) { }", Status.TIMED_OUT, "did not end within"),
    ("((float *)p[0])[8 * 12] = 1.0f;", Status.WRONG_RESULT, "wrote behind output 'y'"),
    ("((float *)p[1])[-1] = 1.0f;", Status.WRONG_RESULT, "wrote before input 'a'"),
    ("((float *)p[1])[2] = 9.0f;", Status.WRONG_RESULT, "wrote into its input 'a'"),
    ("if (p) return;", Status.WRONG_RESULT, "y[0, 0] is nan, expected "),
    ("this is no C;", Status.BUILD_FAILED, "does not compile: "),
]


@pytest.mark.parametrize(("code", "status", "text"), FAULTS, ids=[f[0][:16] for f in FAULTS])
def test_a_bad_candidate_costs_itself_alone(
    cache: Path, code: str, status: Status, text: str
) -> None:
    some = candidates()
    with BoardMeasurer(BOARD, cache_dir=cache, alter=faulty({some[2].key: code})) as board:
        results = board.measure(some)
    states = [r.status for r in results]
    assert states == [Status.OK, Status.OK, status, Status.OK], results[2]
    assert text in results[2].detail
    assert f"reproduce: {board.host.compiler.command} " in results[2].detail


def test_limits_are_in_the_boards_own_unit(cache: Path) -> None:
    """The first limit comes from the loops of the function, later ones from the best count."""
    some = candidates()
    with BoardMeasurer(BOARD, cache_dir=cache) as board:
        made = board._print(some[0])
        assert isinstance(made, Trial)
        first = board.limit(made)
        (result,) = board.measure(some[:1])
        assert result.cost is not None
        assert result.cost < board.limit(made) < first


def test_what_does_not_fit_the_board_is_too_big(cache: Path) -> None:
    big = Task(matmul(2, 2600, 2600), TARGET)
    with BoardMeasurer(BOARD, cache_dir=cache) as board:
        (result,) = board.measure([candidate(big, default_trace(big.func, TARGET.isa), {})])
    assert result.status == Status.TOO_BIG
    assert "does not fit" in result.detail


def test_a_lost_board_is_a_status_and_the_next_image_starts_it_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = candidates()
    with BoardMeasurer(BOARD, cache_dir=cache) as board:
        opened = board._open
        count = 0

        def kill_second(*args: object) -> object:
            nonlocal count
            session = opened(*args)  # type: ignore[arg-type]
            count += 1
            if count == 2:
                assert session._qemu is not None
                session._qemu._process.kill()
            return session

        monkeypatch.setattr(board, "_open", kill_second)
        states = [r.status for r in board.measure(some)]
    assert states == [Status.OK, Status.DEVICE_LOST, Status.OK, Status.OK]


def test_a_port_that_is_not_there_is_named(cache: Path) -> None:
    with pytest.raises(BoardError, match=r"^port /dev/ttyACM97 cannot be opened: [^\n]+$"):
        BoardMeasurer(BOARD, "/dev/ttyACM97", cache_dir=cache)


def test_a_missing_cross_compiler_is_one_clear_line(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    with pytest.raises(ToolchainError, match="arm-none-eabi-gcc, which builds firmware"):
        BoardMeasurer(BOARD, cache_dir=cache)
