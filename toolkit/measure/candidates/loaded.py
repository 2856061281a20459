"""`Loader`: candidates loaded into the RAM of a board whose server takes code, and called there.

Nothing is flashed.  Inputs and weights are made on the board from seeds and put in the order a
candidate wants them; only what cannot be made that way is sent, once.  Outputs are judged by their
CRC where it is that of a right answer seen before, as exact integers have but one; others come
back.

A candidate may have written anywhere.  So after a restart, or a wrong result, code and data are
compared with what they should be, and a wrong result counts when they were.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from toolkit.errors import BoardError
from toolkit.measure.board import beat_ms, board_fault, QUIET_S
from toolkit.measure.candidates.check import first_wrong
from toolkit.measure.candidates.data import AWKWARD_STEP, operand_value, Recipe
from toolkit.measure.candidates.image import (
    argument,
    head_bytes,
    loaded_files,
    NAME,
    operand_places,
    read_reply,
    Reply,
    REPLY_AT,
    REPLY_BYTES,
    STATUS,
    stored,
    Trial,
)
from toolkit.measure.candidates.source import Operand, Unfit
from toolkit.measure.rpc.client import BoardCrashed, BoardSilent, RpcClient
from toolkit.measure.rpc.messages import FEATURE_BEAT, FEATURE_LOAD, FillKind, RegionReply
from toolkit.measure.rpc.pattern import KINDS, strided
from toolkit.measure.rpc.transport import PortLost
from toolkit.search.result import Status
from toolkit.targets.board import Board
from toolkit.toolchain.loaded import link_code, LoadedCode

_ALIGN = 64
_CODE_BYTES = 1 << 19
"""Most RAM for the code of one load."""
_TABLE_BYTES = 64
"""At the start of the data: where awkward values are copied from."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """An array on the board: its offset in the data's region, and what it holds."""

    offset: int
    nbytes: int
    crc: int


@dataclass(slots=True)
class _Store:
    """The RAM that keeps arrays from trial to trial: `used` of `end` bytes; its arrays by key."""

    start: int
    end: int
    used: int = 0
    kept: dict[tuple[str, ...], _Kept] = field(default_factory=dict)

    def clear(self) -> None:
        self.used, self.kept = self.start, {}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a trial; `wrong`: what the host found in outputs that came back."""

    reply: Reply
    wrong: str = ""

    @property
    def ok(self) -> bool:
        return self.reply.status == STATUS.index("ok") and not self.wrong


class Loader:
    """Trials in the RAM of a board behind an open session; `client.info()` has FEATURE_LOAD.

    Raises BoardError for a board with too little memory to speak of.
    """

    def __init__(self, board: Board, client: RpcClient) -> None:
        self.board, self.client = board, client
        info = client.info()
        assert info.features & FEATURE_LOAD
        if info.clock_hz != board.clock_hz:
            raise BoardError(
                f"the board counts {info.clock_hz} ticks a second, board '{board.name}' "
                f"{board.clock_hz}: is it that board?"
            )
        self.quiet_s = QUIET_S if info.features & FEATURE_BEAT else None
        self.empty = board.from_ticks(info.empty_stop) - board.from_ticks(info.empty_start)
        regions = [client.region(i) for i in range(info.region_count)]
        self.code, self.code_bytes = regions[0], min(regions[0].nbytes // 2, _CODE_BYTES)
        # Data goes where most memory is, operands to its first half; code keeps the first region.
        self.data_index = max(range(len(regions)), key=lambda i: regions[i].nbytes)
        self.data: RegionReply = regions[self.data_index]
        first = 0 if self.data_index else self.code_bytes + -self.code_bytes % _ALIGN
        self.argument_at = first
        middle = first + (self.data.nbytes - first) // 2
        self.operand_bytes = middle - first
        self.store = _Store(middle + -middle % _ALIGN + _TABLE_BYTES, self.data.nbytes)
        self.store.clear()
        self.loaded: LoadedCode | None = None
        self.right: dict[tuple[str, str], set[int]] = {}  # CRCs of right answers, by task and name
        self.suspect = self.paused = False

    def pause(self) -> None:
        """Let others have the port until the next trial."""
        self.client.suspend()
        self.paused = True

    def close(self) -> None:
        """Let go of the port."""
        self.client.close()

    # Building

    def build(self, trials: Sequence[Trial], folder: Path) -> LoadedCode:
        """Link trials for the board's RAM; raises BoardError where they do not fit it."""
        needed = head_bytes(trials) + max(t.memory_bytes for t in trials)
        if needed > self.operand_bytes:
            raise BoardError(
                f"operands of {needed} bytes do not fit the {self.operand_bytes} bytes that board "
                f"'{self.board.name}' has for them"
            )
        for name, content in loaded_files(trials).items():
            (folder / name).write_bytes(content)
        linked = link_code(
            self.board, [folder / f"{NAME}.c"], [folder], f"{NAME}_entry", self.code.address,
            folder, ("-fno-ipa-icf",),
        )  # fmt: skip
        if len(linked.code) > self.code_bytes:
            raise BoardError(
                f"code of {len(linked.code)} bytes does not fit the {self.code_bytes} bytes of RAM "
                f"that board '{self.board.name}' has for it"
            )
        return linked

    # Running

    def start(self, code: LoadedCode) -> None:
        """Bring code onto the board."""
        self._ready()
        self.loaded = None
        self.client.load(code.code, 0)
        self.loaded = code

    def run(
        self, trials: Sequence[Trial], index: int, *, warm: int, limit_ms: int, timeout_s: float
    ) -> Answer:
        """Run one of the trials that were started.

        Raises BoardFault where it stopped the board, BoardError for a lost board, Unfit where its
        data does not fit.
        """
        self._ready()
        answer = self._once(trials, index, warm, limit_ms, timeout_s)
        if not answer.ok and self._restore():
            answer = self._once(trials, index, warm, limit_ms, timeout_s)
        return answer

    def cost(self, start: int, stop: int) -> int:
        """Return what passed between two readings of the clock, without the reading."""
        return self.board.from_ticks(stop) - self.board.from_ticks(start) - self.empty

    def _once(
        self, trials: Sequence[Trial], index: int, warm: int, limit_ms: int, timeout_s: float
    ) -> Answer:
        assert self.loaded is not None
        trial, at = trials[index], self.argument_at
        told = argument(index, warm, self._addresses(trial))
        try:
            self.client.write(told, at, region=self.data_index)
            self.client.call(
                self.loaded.entry, at, region=self.data_index, timeout_s=timeout_s,
                limit_ms=limit_ms, beat_ms=beat_ms(self.board), quiet_s=self.quiet_s,
            )  # fmt: skip
            reply = read_reply(self.client.read(REPLY_BYTES, at + REPLY_AT, region=self.data_index))
            wrong = ""
            if reply.status == STATUS.index("ok"):
                wrong = self._wrong(trial, at + head_bytes(trials))
        except BoardCrashed as crash:
            self.suspect = True
            if crash.fault is None:
                raise
            raise board_fault(self.board, crash.fault, self.loaded.elf) from None
        except (BoardSilent, PortLost):
            self.suspect = True
            raise
        return Answer(reply, wrong)

    def _wrong(self, trial: Trial, at: int) -> str:
        """Judge the outputs; say what is wrong with the first that is."""
        for o, place in zip(trial.printed.operands, operand_places(trial), strict=True):
            if o.role != "output":
                continue
            want = next(e for e in trial.state.expected if e.name == o.name)
            right = self.right.setdefault((trial.candidate.task.key, o.name), set())
            if not right and want.value.dtype.kind != "f":
                right.add(zlib.crc32(stored(want, o.type.dtype).tobytes()))
            crc = self.client.crc(o.type.nbytes, at + place, region=self.data_index)
            if crc in right:
                continue
            raw = self.client.read(o.type.nbytes, at + place, region=self.data_index)
            found = np.frombuffer(raw, o.type.dtype).reshape(o.type.shape)
            if why := first_wrong(found, want):
                return why
            right.add(zlib.crc32(raw))
        return ""

    # What lies on the board

    def _ready(self) -> None:
        """Have a session, and code and data as they should be."""
        if not (self.suspect or self.paused):
            return
        alone = self.client.recover()
        if self.suspect or not alone:
            self._restore()
        self.suspect = self.paused = False

    def _restore(self) -> bool:
        """Put right what is not as it was left; tell whether anything was not."""
        changed = False
        if self.loaded is not None:
            changed = not self.client.check(self.loaded.code)
            self.client.load(self.loaded.code, 0)
        for key, kept in list(self.store.kept.items()):
            found = self.client.crc(kept.nbytes, kept.offset, region=self.data_index)
            if found != kept.crc:
                changed = True
                del self.store.kept[key]
        return changed

    def _addresses(self, trial: Trial) -> list[int]:
        """Return where a trial's data lies, made or sent before if it was not there."""
        for again in (False, True):
            try:
                return self._place(trial)
            except _Full as full:
                if again:
                    raise Unfit(
                        Status.TOO_BIG,
                        f"data of {full.nbytes} bytes does not fit the RAM of board "
                        f"'{self.board.name}'",
                    ) from None
                self.store.clear()
        raise AssertionError

    def _place(self, trial: Trial) -> list[int]:
        values, task = trial.state.data, trial.candidate.task.key
        found: list[int] = []
        for o in trial.printed.operands:
            value = operand_value(trial.candidate, o, values.check)
            if value is None:
                found.append(0)
            elif o.role == "const" and o.layout:
                plain = (task, o.name), values.check[o.name], values.recipes.get(o.name)
                found.append(self._packed(trial, o, value, plain))
            else:
                recipe = values.recipes.get(o.name)
                found.append(self._array((task, o.name), value, recipe))
        return found

    def _packed(
        self,
        trial: Trial,
        o: Operand,
        value: np.ndarray,
        plain: tuple[tuple[str, ...], np.ndarray, Recipe | None],
    ) -> int:
        """Return where a constant lies in a candidate's own order: permuted on the board, or
        sent."""
        key, array, recipe = plain
        mine = (*key, o.layout)
        if mine in self.store.kept:
            return self.data.address + self.store.kept[mine].offset
        numbers = np.arange(array.size, dtype=np.int64).reshape(array.shape)
        order = operand_value(trial.candidate, o, {o.name: numbers})
        loops = None
        if order is not None and order.size == value.size and _is_order(order, array.size):
            same = np.array_equal(array.reshape(-1)[order.reshape(-1)], value.reshape(-1))
            loops = strided(order, array.itemsize) if same else None
        if loops is None:
            return self._array(mine, value, None)
        source = self._array(key, array, recipe) - self.data.address
        at = self._room(value.nbytes)
        self.client.permute(
            array.itemsize, loops, at, source,
            region=self.data_index, source_region=self.data_index,
        )  # fmt: skip
        return self._finish(mine, value.tobytes(), at)

    def _array(self, key: tuple[str, ...], value: np.ndarray, recipe: Recipe | None) -> int:
        """Return where an array lies, after making it by its recipe, or sending it."""
        if key not in self.store.kept:
            data = value.tobytes()
            at = self._room(len(data))
            if recipe is not None and value.dtype == recipe.dtype:
                self._make(recipe, value.size, at)
            return self._finish(key, data, at)
        return self.data.address + self.store.kept[key].offset

    def _make(self, recipe: Recipe, count: int, at: int) -> None:
        kind = FillKind.FLOAT32_POSITIVE if recipe.positive else KINDS[recipe.dtype]
        self.client.fill(
            kind, recipe.seed, count, at, region=self.data_index,
            low=recipe.low, span=recipe.span,
        )  # fmt: skip
        if not recipe.awkward:
            return
        table = recipe.awkward_values()
        size, source = table.itemsize, self.store.start - _TABLE_BYTES
        self.client.write(table.tobytes(), source, region=self.data_index)
        turns, rest = divmod(-(-count // AWKWARD_STEP), table.size)
        step = AWKWARD_STEP * size
        for extent, first, width in ((turns, 0, table.size), (1, turns, rest)):
            if extent and width:
                loops = [(extent, table.size * step, 0), (width, step, size)]
                self.client.permute(
                    size, loops, at + first * table.size * step, source,
                    region=self.data_index, source_region=self.data_index,
                )  # fmt: skip

    def _room(self, nbytes: int) -> int:
        at = self.store.used
        if at + nbytes > self.store.end:
            raise _Full(nbytes)
        self.store.used = at + nbytes + -nbytes % _ALIGN
        return at

    def _finish(self, key: tuple[str, ...], data: bytes, at: int) -> int:
        """Send what is not there yet, which is all, or nothing of what was made."""
        self.client.upload(data, at, region=self.data_index)
        self.store.kept[key] = _Kept(at, len(data), zlib.crc32(data))
        return self.data.address + at


class _Full(Exception):
    """There is no room for more data."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(nbytes)
        self.nbytes = nbytes


def _is_order(order: np.ndarray, count: int) -> bool:
    """Tell whether an array can be places among `count` elements."""
    return order.dtype.kind == "i" and bool(order.min() >= 0) and bool(order.max() < count)
