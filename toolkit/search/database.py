"""One SQLite file that stays whole: how it is opened, changed in one piece, and refused.

Every change is one transaction in write-ahead mode: after `kill -9` the file is whole, and what is
lost is the transaction in flight.  What lies in the tables is the business of `records`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from toolkit.errors import RecordsError

APPLICATION_ID = 0x4E53544C
"""'NSTL' in the header of the file."""

MIGRATIONS = (
    """
CREATE TABLE tasks (
  key TEXT PRIMARY KEY, func_key TEXT NOT NULL, kind TEXT NOT NULL, target TEXT NOT NULL,
  name TEXT NOT NULL, weight REAL NOT NULL, nodes TEXT NOT NULL, inplace TEXT NOT NULL,
  extents TEXT NOT NULL, text TEXT NOT NULL, func TEXT);
CREATE INDEX tasks_by_func ON tasks (func_key, target);
CREATE INDEX tasks_by_kind ON tasks (kind, target);
CREATE TABLE runs (
  uid TEXT PRIMARY KEY, command TEXT NOT NULL, seed INTEGER NOT NULL, models TEXT NOT NULL,
  settings TEXT NOT NULL, started REAL NOT NULL, finished REAL, owner TEXT NOT NULL,
  state TEXT NOT NULL);
CREATE TABLE run_tasks (
  run TEXT NOT NULL REFERENCES runs, task TEXT NOT NULL, state TEXT NOT NULL,
  PRIMARY KEY (run, task));
CREATE TABLE sketches (key TEXT PRIMARY KEY, steps TEXT NOT NULL);
CREATE TABLE candidates (
  task TEXT NOT NULL REFERENCES tasks, key TEXT NOT NULL,
  sketch TEXT NOT NULL REFERENCES sketches, decisions TEXT NOT NULL, trace TEXT NOT NULL,
  PRIMARY KEY (task, key));
CREATE TABLE trials (
  id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, task TEXT NOT NULL REFERENCES tasks,
  candidate TEXT NOT NULL, status TEXT NOT NULL, unit TEXT NOT NULL, samples TEXT NOT NULL,
  cost REAL, flash_bytes INTEGER, ram_bytes INTEGER, detail TEXT NOT NULL, device TEXT NOT NULL,
  confident INTEGER NOT NULL, origin TEXT NOT NULL, run TEXT, round INTEGER NOT NULL,
  time REAL NOT NULL);
CREATE INDEX trials_by_task ON trials (task, status, candidate);
CREATE INDEX trials_by_run ON trials (run);
CREATE TABLE choices (
  task TEXT NOT NULL REFERENCES tasks, unit TEXT NOT NULL, candidate TEXT NOT NULL,
  detail TEXT NOT NULL, time REAL NOT NULL, PRIMARY KEY (task, unit));
""",
)
"""Entry n brings the schema from version n to n + 1, which `PRAGMA user_version` holds."""

_REASONS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_IOERR": "the disk refused",
    "SQLITE_READONLY": "it is read-only",
    "SQLITE_CANTOPEN": "it cannot be opened",
    "SQLITE_NOTADB": "it is not a database",
    "SQLITE_CORRUPT": "it is damaged",
    "SQLITE_BUSY": "another process is writing it",
    "SQLITE_PERM": "access is denied",
}
_NOT_WRITABLE = ("SQLITE_CANTOPEN", "SQLITE_READONLY")
_BUSY_S = 30.0


class Database:
    """The database at `path`, made if it is not there unless `readonly`.  A context manager.

    Raises `RecordsError` for what cannot be opened, is no database of ours, or was made by a newer
    nestling; nothing is changed then.  `clock`: seconds since 1970.
    """

    def __init__(
        self, path: Path | str, *, readonly: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        self.path, self.readonly, self._clock = Path(path), readonly, clock
        with self._refusals("opened"):
            self._db = self._open_readonly() if readonly else self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the last to do so leaves one file alone."""
        self._db.close()

    # -- opening -----------------------------------------------------------------------------

    def _connect(self, query: str) -> sqlite3.Connection:
        uri = f"{self.path.absolute().as_uri()}?{query}"
        return sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)

    def _open(self) -> sqlite3.Connection:
        db = self._connect("mode=rwc")
        try:
            version = self._version(db)
            if db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("PRAGMA foreign_keys=ON")
            if version < len(MIGRATIONS):
                db.execute("BEGIN IMMEDIATE")
                _migrate(db, self._version(db))  # asked again: another process may have been here
                db.execute("COMMIT")
        except BaseException:
            db.close()
            raise
        return db

    def _open_readonly(self) -> sqlite3.Connection:
        if self.path.is_dir():
            raise RecordsError(f"records {self.path}: cannot be opened: it is a folder.")
        if not self.path.is_file():
            raise RecordsError(f"records {self.path}: no such file.")
        # Not "mode=ro": that leaves behind the files beside a database in write-ahead mode.
        db = self._connect("mode=rw")
        try:
            db.execute("PRAGMA query_only=ON")
            try:
                version = self._version(db)
            except sqlite3.OperationalError as error:
                # In a folder that may not be written, the files beside a database in write-ahead
                # mode cannot be made; where there are none, nobody else can be writing either.
                beside = self.path.with_name(f"{self.path.name}-wal")
                left = beside.exists() and beside.stat().st_size
                if left or not error.sqlite_errorname.startswith(_NOT_WRITABLE):
                    raise
                db.close()
                db = self._connect("mode=ro&immutable=1")
                version = self._version(db)
            if version == len(MIGRATIONS):
                return db
            with closing(db):  # an empty file, or an older schema: brought up to date in memory
                copy = sqlite3.connect(":memory:", isolation_level=None)
                db.backup(copy)
            _migrate(copy, version)
            copy.execute("PRAGMA query_only=ON")
            return copy
        except BaseException:
            db.close()
            raise

    def _version(self, db: sqlite3.Connection) -> int:
        """Return the version of the schema, 0 for an empty file; refuse what is not ours."""
        inside = db.in_transaction
        if not inside:
            db.execute("BEGIN")  # one state: another process may be making the tables
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            if not inside and db.in_transaction:
                db.execute("ROLLBACK")
        if (tables or version) and application != APPLICATION_ID:
            raise RecordsError(f"records {self.path}: this database is not one of nestling.")
        if version > len(MIGRATIONS):
            raise RecordsError(
                f"records {self.path}: made by a newer nestling (schema {version}; this one "
                f"reads up to {len(MIGRATIONS)}).",
                hint="upgrade nestling, or give another file with --records",
            )
        return int(version)

    @contextmanager
    def _refusals(self, what: str) -> Iterator[None]:
        """Turn what SQLite refuses into one clear error."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: sqlite3.Error) -> RecordsError:
        name = getattr(error, "sqlite_errorname", None) or ""
        reason = next((r for code, r in _REASONS.items() if name.startswith(code)), str(error))
        hint = None
        if what == "written":
            hint = "what was there before is whole; only this batch was not kept"
        elif name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT", *_NOT_WRITABLE)):
            hint = "give another file; commands that only read records also take --no-records"
        if name.startswith("SQLITE_CANTOPEN"):
            if self.path.is_dir():
                reason = "it is a folder"
            elif not self.path.absolute().parent.is_dir():
                reason = "its folder is not there"
        return RecordsError(f"records {self.path}: cannot be {what}: {reason}.", hint=hint)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all or nothing."""
        with self._refusals("written"):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite itself rolls back after some errors
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one state of the database, whoever writes meanwhile."""
        with self._refusals("read"):
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with self._refusals("read"):
            return self._db.execute(sql, values).fetchall()


def _migrate(db: sqlite3.Connection, version: int) -> None:
    """Bring the schema up to date; part of the caller's transaction."""
    for script in MIGRATIONS[version:]:
        for statement in script.split(";"):
            db.execute(statement)
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    db.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
