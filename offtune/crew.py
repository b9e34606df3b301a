"""The workers of one study: who lives, whose turn it is, which devices are taken.

Covered: several processes on one study of a PostgreSQL server, through locks that the server gives back when
our connection ends; and the one process that a study in a file, or on another server, can have. A trial runs
outside of turns, everything written about a study inside of one. Not covered: what is done in a turn
(`search.py`, `study.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from hashlib import sha256
from types import TracebackType
from typing import Protocol

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from offtune import database
from offtune.lock import Owner, current_owner, is_other_alive, is_same_machine
from offtune.trouble import trouble

# First half of the two-part key of our advisory locks: which of PostgreSQL's 2^32 drawers is ours.
_WORKER_LOCKS = 0x0FF7
_PING_S = 5.0
# A worker that lost its connection has this long to be back before its trial is taken over.
GRACE_S = 30.0
# A turn is an ask or a tell; half a second with the slowest sampler (GP, 100 trials).
_TURN_WAIT_S = 120.0
# The server tells a silent host from a dead one after 20 + 3 * 10 s; its default is over two hours.
_SETTINGS = {
    "tcp_keepalives_idle": "20",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "idle_session_timeout": "0",
}


class Crew(Protocol):
    """The workers of a study, as one of them sees them. `shared`: whether there may be others."""

    shared: bool
    owner: Owner

    def turn(self) -> AbstractContextManager[None]:
        """Hold off every other worker while something is asked, claimed or written."""

    def is_alive(self, owner: Owner) -> bool:
        """Whether this process or another worker runs what it owns."""

    def others(self) -> int:
        """How many other workers are connected."""


class Alone:
    """The only worker, which holds the study's lock."""

    shared = False

    def __init__(self) -> None:
        self.owner = current_owner()

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    def is_alive(self, owner: Owner) -> bool:
        return is_other_alive(owner)

    def others(self) -> int:
        return 0


class ServerCrew:
    """A place among the workers of a PostgreSQL server; a context manager.

    A lock of our own on a connection of its own says that we live. A thread asks for it every few seconds, so
    that a restart of the server, or a broken line, costs us the place only when it lasts.
    """

    shared = True

    def __init__(self, engine: Engine, *, ping_s: float = _PING_S, grace_s: float = GRACE_S) -> None:
        self._engine = engine
        self.owner = current_owner()
        self._key = self.key_of(self.owner)
        self._ping_s, self._grace_s = ping_s, grace_s
        self._connection: Connection | None = None
        self._missing_since: dict[int, float] = {}
        self._leaving = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="offtune-crew", daemon=True)

    def __enter__(self) -> ServerCrew:
        with trouble(database.name_of(self._engine)):
            self._connect()
        self._keeper.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving.set()
        self._keeper.join(timeout=self._ping_s)
        if not self._keeper.is_alive():  # else it waits for a server that is gone
            self._disconnect()

    @contextmanager
    def turn(self) -> Iterator[None]:
        # One for the whole database, since workers of several studies may want the same device.
        with database.server_lock(self._engine, "turn", "The database", wait_s=_TURN_WAIT_S):
            yield

    def is_alive(self, owner: Owner) -> bool:
        """By its lock, or as a process of this machine; one that was here and is gone is dead at once."""
        key = self.key_of(owner)
        if key == self._key or key in self._locked():
            self._missing_since.pop(key, None)
            return True
        if is_same_machine(owner):
            return is_other_alive(owner)
        since = self._missing_since.setdefault(key, time.monotonic())
        return time.monotonic() - since < self._grace_s

    def others(self) -> int:
        return len(self._locked() - {self._key})

    @staticmethod
    def key_of(owner: Owner) -> int:
        """A number for a process, the same for all who compute it."""
        name = f"{owner.pid} {owner.hostname} {owner.boot_id} {owner.start_time!r}"
        return _signed(int.from_bytes(sha256(name.encode()).digest()[:4], "big"))

    def _locked(self) -> set[int]:
        """The keys of the workers whose connection stands."""
        query = (
            "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
            f" AND classid = {_WORKER_LOCKS}"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        with trouble(database.name_of(self._engine)), self._engine.connect() as connection:
            # objid is unsigned, the key it was locked by is not.
            return {_signed(int(objid)) for objid in connection.exec_driver_sql(query).scalars()}

    def _keep(self) -> None:
        """Stay connected; a server that does not answer is asked again until it does."""
        while not self._leaving.wait(self._ping_s):
            try:
                if self._connection is None:
                    self._connect()
                else:
                    self._connection.exec_driver_sql("SELECT 1")
            except SQLAlchemyError:
                self._disconnect()

    def _connect(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._connection = connection
        for name, value in _SETTINGS.items():  # only those this server knows
            connection.exec_driver_sql(
                f"SELECT set_config(name, '{value}', false) FROM pg_settings WHERE name = '{name}'"
            )
        # Waits for nothing: where our own broken connection still has it, the next ping tries again.
        lock = f"SELECT pg_try_advisory_lock({_WORKER_LOCKS}, {self._key})"
        if not connection.exec_driver_sql(lock).scalar_one():
            self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            database.give_back(self._connection)
            self._connection = None


def _signed(number: int) -> int:
    """A 32-bit pattern as the signed integer PostgreSQL takes."""
    return number - 2**32 if number >= 2**31 else number
