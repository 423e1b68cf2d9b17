"""Objects, their history, and the one thread that makes them durable.

The event loop decides what to write and gives every write its resource version; a writer thread puts all that have
gathered into one SQLite transaction (group commit) and only then are they seen, by their author, readers and watchers.
So nobody ever acts on something that kill -9 could take back. Writers of one object queue behind each other.

The history of changes lives in a bounded deque and in the same SQLite file, so that after a restart a watch resumes
from its resource version without a gap, or learns by 410 that it must list again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sqlite3
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

log = logging.getLogger("onward.local.api")
Json = dict[str, Any]
Key = tuple[str, str, str]
"""(storage key of the resource, namespace, name)"""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder().decode


T = TypeVar("T")


def clone(value: T) -> T:
    """A deep copy of plain JSON; several times faster than `copy`."""
    return cast(T, decode(encode(value)))


FORMAT = "1"
TABLES = """
CREATE TABLE IF NOT EXISTS objects (kind TEXT, namespace TEXT, name TEXT, rv INTEGER, body BLOB,
  PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (rv INTEGER PRIMARY KEY, type TEXT, kind TEXT, namespace TEXT, name TEXT, at REAL,
  body BLOB, before BLOB);
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
"""


class Item:
    """One version of one object. Never changed after it was made; share it freely.

    Current objects are kept decoded; those in the history only as bytes, which take a tenth of the memory.
    """

    __slots__ = ("_body", "raw", "rv")

    def __init__(self, rv: int, body: Json | None, raw: bytes | None = None) -> None:
        self.rv, self._body = rv, body
        self.raw = raw if raw is not None else encode(body)

    @property
    def body(self) -> Json:
        return cast(Json, decode(self.raw)) if self._body is None else self._body

    def forget(self) -> None:
        self._body = None


class _Meta(msgspec.Struct):
    resourceVersion: str


class _Head(msgspec.Struct):
    metadata: _Meta


_head = msgspec.json.Decoder(_Head)


@dataclass(frozen=True)
class Change:
    """What happened to one object. `before` is what a selector may have matched until now."""

    rv: int
    type: str
    key: Key
    item: Item
    before: Item | None
    at: float


@dataclass
class _Write:
    change: Change
    done: asyncio.Future[Item]


class StoreError(Exception):
    """SQLite refused a transaction (disk full, file gone). Nothing of it was applied."""


class Store:
    """See the module. All methods belong to the event loop that made it."""

    def __init__(
        self, path: Path, *, history: int = 20_000, history_bytes: int = 64 * 2**20, max_pages: int = 0
    ) -> None:
        self.path, self.history_limit, self.history_bytes = path, history, history_bytes
        self._history_bytes = 0
        self.address = 9
        """The service address given out last; see `defaults`."""
        self.node_port = 0
        self.objects: dict[str, dict[tuple[str, str], Item]] = {}
        self.changes: deque[Change] = deque()
        self.listeners: dict[str, list[Callable[[Change], None]]] = {}
        self._locks: dict[Key, tuple[asyncio.Lock, int]] = {}
        self._queue: queue.SimpleQueue[_Write | int | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._owned = _own(path)
        try:
            self._open(max_pages)
        except (sqlite3.Error, msgspec.DecodeError) as error:
            os.close(self._owned)
            raise StoreError(
                f"cannot use the database {path}: {error}; restore it, or choose another --state"
            ) from None
        self._thread = threading.Thread(target=self._write_forever, name="onward-store", daemon=True)
        self._thread.start()

    def _open(self, max_pages: int) -> None:
        self._sql = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        os.chmod(self.path, 0o600)
        self._sql.execute("PRAGMA journal_mode=WAL")
        self._sql.execute("PRAGMA synchronous=FULL")
        if max_pages:
            self._sql.execute(f"PRAGMA max_page_count={int(max_pages)}")
        self._sql.executescript(TABLES)
        self._sql.execute("INSERT OR IGNORE INTO facts VALUES ('format', ?)", (FORMAT,))
        (made,) = self._sql.execute("SELECT value FROM facts WHERE name = 'format'").fetchone()
        if made != FORMAT:
            raise sqlite3.Error(f"it has format {made}, this version of onward reads format {FORMAT}")
        self._load()

    # -- reading -------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Item | None:
        return self.objects.get(key[0], {}).get((key[1], key[2]))

    def all(self, kind: str) -> Iterable[tuple[tuple[str, str], Item]]:
        return self.objects.get(kind, {}).items()

    def at(self, kind: str, rv: int) -> dict[tuple[str, str], Item] | None:
        """The objects of a resource as they were at `rv`, undone from the history; None when that is compacted."""
        if rv < self.compacted or rv > self.rv:
            return None
        then = dict(self.objects.get(kind, {}))
        for change in reversed(self.changes):
            if change.rv <= rv:
                break
            if change.key[0] == kind:
                if change.before is None:
                    then.pop(change.key[1:], None)
                else:
                    then[change.key[1], change.key[2]] = change.before
        return then

    def since(self, kind: str, rv: int) -> list[Change]:
        found: list[Change] = []
        for change in reversed(self.changes):
            if change.rv <= rv:
                break
            if change.key[0] == kind:
                found.append(change)
        return found[::-1]

    # -- writing -------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def lock(self, key: Key) -> AsyncIterator[None]:
        """One writer at a time for one object. Locks exist only while someone holds or wants them."""
        lock, users = self._locks.get(key, (None, 0))
        lock = lock or asyncio.Lock()
        self._locks[key] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks[key]
            if users == 1:
                del self._locks[key]
            else:
                self._locks[key] = (lock, users - 1)

    def next_version(self) -> int:
        self._issued += 1
        return self._issued

    async def put(self, key: Key, body: Json) -> Item:
        """Writes an object; the caller holds its lock. The body's resourceVersion is set here."""
        before = self.get(key)
        rv = self.next_version()
        body["metadata"]["resourceVersion"] = str(rv)
        return await self._submit("MODIFIED" if before else "ADDED", rv, key, Item(rv, body), before)

    async def remove(self, key: Key, body: Json) -> Item:
        """Removes an object; `body` is what the DELETED event shows."""
        rv = self.next_version()
        body["metadata"]["resourceVersion"] = str(rv)
        return await self._submit("DELETED", rv, key, Item(rv, body), self.get(key))

    async def _submit(self, type_: str, rv: int, key: Key, item: Item, before: Item | None) -> Item:
        done: asyncio.Future[Item] = self._loop.create_future()
        self._queue.put(_Write(Change(rv, type_, key, item, before, time.time()), done))
        # A client that hangs up must not release the object's lock while the write is still on its way.
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait([done])
            raise

    def listen(self, kind: str, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Calls `listener` for every durable change of a resource ("" for all); returns how to stop."""
        found = self.listeners.setdefault(kind, [])
        found.append(listener)
        return lambda: found.remove(listener)

    async def close(self) -> None:
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join, 30)
        self._sql.close()
        os.close(self._owned)

    # -- on the loop, after the commit ---------------------------------------------------------------------------

    def _committed(self, writes: list[_Write]) -> None:
        for write in writes:
            change = write.change
            objects = self.objects.setdefault(change.key[0], {})
            if change.type == "DELETED":
                objects.pop(change.key[1:], None)
            else:
                objects[change.key[1], change.key[2]] = change.item
            self.rv = change.rv
            self.changes.append(change)
            self._history_bytes += len(change.item.raw)
            for kind in (change.key[0], ""):
                for listener in list(self.listeners.get(kind, ())):
                    try:
                        listener(change)
                    except Exception:  # who listens must not keep who writes from its answer
                        log.exception("a listener failed on %s", "/".join(change.key))
            if not write.done.done():
                write.done.set_result(change.item)
            if change.before is not None:
                change.before.forget()
        slack = 1.1  # so that old history goes in portions, not with every write
        if len(self.changes) > self.history_limit * slack or self._history_bytes > self.history_bytes * slack:
            while len(self.changes) > self.history_limit or self._history_bytes > self.history_bytes:
                self._drop_oldest()
            self._queue.put(self.compacted)

    def _drop_oldest(self) -> None:
        change = self.changes.popleft()
        self.compacted = change.rv
        self._history_bytes -= len(change.item.raw)

    def _failed(self, writes: list[_Write], why: str) -> None:
        for write in writes:
            if not write.done.done():
                write.done.set_exception(StoreError(why))

    def compact(self, rv: int) -> None:
        """Forgets the history up to `rv`; whoever still needs it gets 410."""
        while self.changes and self.changes[0].rv <= rv:
            self._drop_oldest()

    # -- the writer thread ---------------------------------------------------------------------------------------

    def _write_forever(self) -> None:
        ending = False
        while not ending:
            first = self._queue.get()
            batch = [first]
            with contextlib.suppress(queue.Empty):
                while len(batch) < 500:
                    batch.append(self._queue.get_nowait())
            ending = None in batch
            writes = [each for each in batch if isinstance(each, _Write)]
            compact = max((each for each in batch if isinstance(each, int)), default=0)
            try:
                self._commit(writes, compact)
            except sqlite3.Error as error:
                self._roll_back()
                if not ("full" in str(error) and self._retry_without_history(writes)):
                    self._tell(self._failed, writes, f"SQLite at {self.path}: {error}")
                    continue
            self._tell(self._committed, writes)

    def _roll_back(self) -> None:
        with contextlib.suppress(sqlite3.Error):
            self._sql.execute("ROLLBACK")

    def _retry_without_history(self, writes: list[_Write]) -> bool:
        """A full disk: the history goes first, so that at least deletions find room. Watches then resume by 410."""
        (last,) = self._sql.execute("SELECT max(rv) FROM log").fetchone()
        try:
            self._commit([], last or 0)
            self._tell(self.compact, last or 0)
            self._commit(writes, 0)
        except sqlite3.Error:
            self._roll_back()
            return False
        return True

    def _tell(self, what: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for the answer any more
            self._loop.call_soon_threadsafe(what, *args)

    def _commit(self, writes: list[_Write], compact: int) -> None:
        sql = self._sql
        sql.execute("BEGIN IMMEDIATE")
        for write in writes:
            change = write.change
            kind, namespace, name = change.key
            before = change.before.raw if change.before else None
            if change.type == "DELETED":
                sql.execute("DELETE FROM objects WHERE kind=? AND namespace=? AND name=?", change.key)
            else:
                row = (kind, namespace, name, change.rv, change.item.raw)
                sql.execute("INSERT OR REPLACE INTO objects VALUES (?,?,?,?,?)", row)
            entry = (change.rv, change.type, kind, namespace, name, change.at, change.item.raw, before)
            sql.execute("INSERT INTO log VALUES (?,?,?,?,?,?,?,?)", entry)
        if compact:
            sql.execute("DELETE FROM log WHERE rv <= ?", (compact,))
            sql.execute("INSERT OR REPLACE INTO facts VALUES ('compacted', ?)", (str(compact),))
        sql.execute("COMMIT")

    def _load(self) -> None:
        sql = self._sql
        facts = dict(sql.execute("SELECT name, value FROM facts").fetchall())
        self.compacted = int(facts.get("compacted", 0))
        self.rv = self.compacted
        for kind, namespace, name, rv, raw in sql.execute("SELECT kind, namespace, name, rv, body FROM objects"):
            self.objects.setdefault(kind, {})[namespace, name] = Item(rv, decode(raw), raw)
            self.rv = max(self.rv, rv)
        for rv, type_, kind, namespace, name, at, raw, before in sql.execute("SELECT * FROM log ORDER BY rv"):
            current = self.objects.get(kind, {}).get((namespace, name))
            item = current if current is not None and current.rv == rv else Item(rv, None, raw)
            self._history_bytes += len(raw)
            old = None
            if before is not None:
                old = Item(int(_head.decode(before).metadata.resourceVersion), None, before)
            self.changes.append(Change(rv, type_, (kind, namespace, name), item, old, at))
            self.rv = max(self.rv, rv)
        self._issued = self.rv


def _own(path: Path) -> int:
    """One server per state directory: a lock that ends with the process, however it ends."""
    import fcntl

    handle = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        text = f"another API server already runs on {path.parent}; stop it, or choose another --state"
        raise StoreError(text) from None
    return handle
