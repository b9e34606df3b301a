"""A real PostgreSQL server for tests: the one OFFTUNE_TEST_POSTGRES names, else one of our own.

Our own is made from the installed binaries in a new folder, listens on a socket in it and nowhere else, and
ends with the tests, however they end.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import OperationalError

_ACCOUNT = "postgres"  # the server refuses to run as root
_START_S = 300.0
_numbers = count()


class PostgresServer:
    """A server and its URLs. `process` is None for a server that is not ours."""

    def __init__(self, url: str, folder: Path | None = None, binaries: Path | None = None) -> None:
        self.url = make_url(url)
        self.folder, self.binaries = folder, binaries
        self.process: subprocess.Popen[bytes] | None = None

    def new_database(self) -> str:
        """The URL of a new, empty database."""
        name = f"offtune_test_{os.getpid()}_{next(_numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url.set(database=name).render_as_string(hide_password=False)

    def execute(self, statement: str) -> None:
        engine = create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    def start(self) -> None:
        assert self.folder is not None and self.binaries is not None
        options = {"fsync": "off", "listen_addresses": "", "unix_socket_directories": str(self.folder)}
        settings = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.binaries / "postgres", "-D", self.folder / "data", *settings],
                stdout=log, stderr=log, preexec_fn=_quit_with_parent, **_account(),
            )  # fmt: skip
        self._wait()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End our server, by default at once but in order ("fast shutdown")."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()

    def _wait(self) -> None:
        give_up = time.monotonic() + _START_S
        while True:
            try:
                return self.execute("SELECT 1")
            except OperationalError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.05)


def _quit_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)  # PR_SET_PDEATHSIG


def _account() -> dict[str, Any]:
    """Whom to run the server as."""
    return {"user": _ACCOUNT, "group": _ACCOUNT, "extra_groups": []} if os.getuid() == 0 else {}


def _binaries() -> Path | None:
    """The folder of initdb and postgres; distributions keep it out of PATH."""
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    on_path = shutil.which("initdb")
    candidates = [*versions[::-1], *([Path(on_path).parent] if on_path else [])]
    return next((path for path in candidates if (path / "initdb").exists()), None)


def _own_server() -> PostgresServer:
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server is installed, and OFFTUNE_TEST_POSTGRES names none")
    folder = Path(tempfile.mkdtemp(prefix="offtune-postgres-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(folder, _ACCOUNT, _ACCOUNT)
    initdb = [binaries / "initdb", "--username=offtune", "--auth=trust", "--no-sync", "-D", folder / "data"]
    subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **_account())
    server = PostgresServer(f"postgresql+psycopg://offtune@/postgres?host={folder}", folder, binaries)
    server.start()
    return server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole run of the tests."""
    pytest.importorskip("psycopg", reason="the Python package psycopg is not installed")
    if url := os.environ.get("OFFTUNE_TEST_POSTGRES"):
        yield PostgresServer(url)
        return
    server = _own_server()
    yield server
    server.stop()
    assert server.folder is not None
    shutil.rmtree(server.folder)


@pytest.fixture
def postgres(postgres_server: PostgresServer) -> str:
    """The URL of a new, empty database."""
    return postgres_server.new_database()
