"""Databases that are missing, locked, read-only, damaged, foreign, newer, older, or on a full disk."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from study_samples import result, run, start_python, study_record

from offtune import database, migrate, schema, trouble
from offtune.errors import OfftuneError, StoreError, UsageError
from offtune.store import Store
from offtune.trial import Status

NOBODY = 65534  # the kernel's overflow user id; for root, permission bits mean nothing


MLFLOW_REVISION = (
    "CREATE TABLE alembic_version (version_num); INSERT INTO alembic_version VALUES ('451aebb31d03')"
)


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permission bits hold inside, also for a test run by root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can reach, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="offtune-test-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def make(path: Path, runs: int = 1) -> Path:
    with Store.open(str(path), write=True) as store:
        store.add_study(study_record())
        for number in range(runs):
            store.add_run(run(number))
            store.finish_run("study-1", number, result())
    return path


def refusal(location: object, *, write: bool) -> OfftuneError:
    with pytest.raises(OfftuneError) as caught:
        Store.open(str(location), write=write, busy_timeout_s=0.05)
    assert caught.value.hint
    return caught.value


def test_reading_makes_no_file_and_names_the_command_that_does(tmp_path: Path) -> None:
    error = refusal(tmp_path / "studies.db", write=False)
    assert isinstance(error, UsageError)
    assert error.message == f"There is no studies.db in {tmp_path}."
    assert "offtune search" in error.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("write", [False, True])
def test_a_missing_folder_is_named(tmp_path: Path, write: bool) -> None:
    assert f"no folder {tmp_path}/none" in refusal(tmp_path / "none" / "studies.db", write=write).message


@pytest.mark.parametrize("write", [False, True])
def test_a_folder_is_not_a_database(tmp_path: Path, write: bool) -> None:
    assert "is a folder" in refusal(tmp_path, write=write).message


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("content", [b"hello", b"\x00" * 5000, b"SQLite format 3\0" + b"junk" * 500])
def test_something_else_is_not_a_database(tmp_path: Path, content: bytes, write: bool) -> None:
    path = tmp_path / "studies.db"
    path.write_bytes(content)
    message = refusal(path, write=write).message
    assert "is not a SQLite database" in message or "is damaged" in message
    assert path.read_bytes() == content


def test_an_empty_file_is_new_to_a_writer_and_empty_to_a_reader(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    path.touch()
    assert "no study" in refusal(path, write=False).message
    make(path)
    assert [each.name for each in tmp_path.iterdir()] == ["studies.db"]


def test_a_truncated_file_is_damaged(tmp_path: Path) -> None:
    path = make(tmp_path / "studies.db", runs=50)
    os.truncate(path, path.stat().st_size // 2)
    error = refusal(path, write=True)
    assert "is damaged" in error.message
    assert ".recover" in error.hint


def test_random_bytes_in_the_middle_are_found_before_writing(tmp_path: Path) -> None:
    path = make(tmp_path / "studies.db", runs=50)
    content = bytearray(path.read_bytes())
    content[8192:] = random.Random(1).randbytes(len(content) - 8192)
    path.write_bytes(content)
    assert "is damaged" in refusal(path, write=True).message


def test_reading_a_damaged_file_fails_with_words(tmp_path: Path) -> None:
    path = make(tmp_path / "studies.db", runs=50)
    content = bytearray(path.read_bytes())
    content[8192:] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"), Store.open(str(path), write=False) as store:
        store.runs("study-1")


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE customers (id INTEGER)",
        "CREATE TABLE runs (id INTEGER); CREATE TABLE studies (a); CREATE TABLE version_info (a)",
        f"CREATE TABLE experiments (a); {MLFLOW_REVISION}",
        "PRAGMA user_version = 7",
    ],
    ids=["other tables", "a table of our name", "another's alembic", "another's version"],
)
def test_a_foreign_database_is_left_alone(tmp_path: Path, sql: str, write: bool) -> None:
    path = tmp_path / "studies.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(sql)
    before = path.read_bytes()
    assert "belongs to another application" in refusal(path, write=write).message
    assert path.read_bytes() == before


def test_our_tables_with_another_applications_alembic_are_refused_before_optuna_trips(tmp_path: Path) -> None:
    path = make(tmp_path / "studies.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(MLFLOW_REVISION)
    assert "belongs to another application" in refusal(path, write=True).message


@pytest.mark.parametrize("write", [False, True])
def test_a_newer_schema_asks_for_a_newer_offtune(tmp_path: Path, write: bool) -> None:
    path = make(tmp_path / "studies.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    error = refusal(path, write=write)
    assert "newer offtune (schema 99" in error.message
    assert "pip install --upgrade offtune" in error.hint


VERSION = len(schema.MIGRATIONS)


def one_more_for_this_test(connection: Connection) -> None:
    connection.execute(text("ALTER TABLE runs ADD COLUMN colour TEXT"))


def another_that_fails(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE half (a INTEGER)"))
    raise sqlite3.OperationalError("database or disk is full")


def test_an_older_file_is_read_as_it_is_and_copied_then_migrated_on_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "studies.db")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, one_more_for_this_test])
    before = path.read_bytes()
    with Store.open(str(path), write=False) as store:
        assert store.run("study-1", 0).status is Status.OK
    assert path.read_bytes() == before
    assert not (tmp_path / f"studies.db.bak-v{VERSION}").exists()
    with Store.open(str(path), write=True):
        pass
    assert columns(path)[-1] == "colour"
    assert columns(tmp_path / f"studies.db.bak-v{VERSION}")[-1] == "token"


def test_a_migration_that_fails_changes_nothing_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "studies.db")
    good = schema.MIGRATIONS
    monkeypatch.setattr(schema, "MIGRATIONS", [*good, one_more_for_this_test, another_that_fails])
    assert "disk is full" in refusal(path, write=True).message
    assert columns(path)[-1] == "token"
    monkeypatch.setattr(schema, "MIGRATIONS", [*good, one_more_for_this_test])
    with Store.open(str(path), write=True) as store:
        assert store.measured_count("study-1") == 1
    assert columns(path)[-1] == "colour"
    assert (tmp_path / f"studies.db.bak-v{VERSION}.2").exists()  # the second attempt kept the first copy


def test_tables_for_queries_and_tables_in_the_file_have_the_same_columns(tmp_path: Path) -> None:
    path = make(tmp_path / "studies.db")
    for table in schema.OUR_TABLES:
        assert columns(path, table.name) == [column.name for column in table.columns]


def columns(path: Path, table: str = "runs") -> list[str]:
    with closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def test_a_users_own_optuna_file_is_taken_and_copied_first(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE studies (a); CREATE TABLE version_info (a)")
    make(path)
    assert (tmp_path / "studies.db.bak-v0").exists()


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield connection


def test_a_locked_database_is_said(tmp_path: Path) -> None:
    path = make(tmp_path / "studies.db")
    with locked(path):
        error = refusal(path, write=True)
        assert "is locked by another program" in error.message
        assert "is locked by another program" in refusal(path, write=False).message


def test_a_result_that_met_a_lock_is_written_after_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "studies.db"
    pauses = []
    with Store.open(str(path), write=True, busy_timeout_s=0.05) as store:
        store.add_run(run(0))
        with locked(path) as other:

            def let_go(seconds: float) -> None:
                pauses.append(seconds)
                other.execute("ROLLBACK")

            monkeypatch.setattr(trouble.time, "sleep", let_go)
            store.finish_run("study-1", 0, result())
        assert store.run("study-1", 0).status is Status.OK
    assert pauses == [trouble.RETRY_PAUSES_S[0]]


def test_a_result_that_cannot_be_written_can_be_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trouble.time, "sleep", lambda seconds: None)
    path = tmp_path / "studies.db"
    with Store.open(str(path), write=True, busy_timeout_s=0.05) as store:
        store.add_run(run(0))
        with locked(path), pytest.raises(StoreError, match="is locked"):
            store.finish_run("study-1", 0, result())
        assert store.run("study-1", 0).status is None
        store.finish_run("study-1", 0, result())
        assert store.run("study-1", 0).status is Status.OK


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 600 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(folder)]
    if (
        shutil.which("mount") is None
        or subprocess.run(mount, capture_output=True, check=False).returncode != 0
    ):
        pytest.skip("mounting a small tmpfs needs root and mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(store: Store, first: int) -> tuple[int, StoreError]:
    """Add runs until the disk is full: the number of the run that failed, and the error."""
    for number in range(first, 10_000):
        try:
            store.add_run(run(number))
            store.finish_run("study-1", number, result(log_tail="x" * 4000))
        except StoreError as error:
            return number, error
    raise AssertionError("the disk never filled")


def check_full_disk(store: Store, make_room: Callable[[], None]) -> None:
    store.add_study(study_record())
    number, error = fill(store, 0)
    assert "the disk is full. Every trial already stored is kept." in error.message
    assert "offtune resume" in error.hint
    assert store.measured_count("study-1") == number  # all before are there
    make_room()
    if store.find_run("study-1", number) is None:
        store.add_run(run(number))
    store.finish_run("study-1", number, result(log_tail="x" * 4000))
    assert store.measured_count("study-1") == number + 1


def test_a_full_disk_loses_no_finished_trial(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 200_000)
    with Store.open(str(small_disk / "studies.db"), write=True) as store:
        check_full_disk(store, ballast.unlink)
    with Store.open(str(small_disk / "studies.db"), write=True) as store:
        assert store.studies()


def test_a_file_that_cannot_grow_loses_no_finished_trial(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "studies.db"), write=True) as store:

        def limit(pages: int) -> None:
            with store._engine.connect() as connection:  # the pool's one connection
                connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

        limit(100)
        check_full_disk(store, lambda: limit(1000))


def test_a_disk_without_room_for_a_new_database_is_full(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 590_000)
    message = refusal(small_disk / "studies.db", write=True).message
    assert "is full" in message


def test_a_read_only_file_can_be_read_and_says_why_it_cannot_be_written(open_folder: Path) -> None:
    path = make(open_folder / "studies.db")
    path.chmod(0o444)
    open_folder.chmod(0o777)
    with unprivileged():
        assert "read-only" in refusal(path, write=True).message
        with Store.open(str(path), write=False) as store:
            assert store.measured_count("study-1") == 1


def test_a_read_only_folder_can_be_read_and_says_why_it_cannot_be_written(open_folder: Path) -> None:
    path = make(open_folder / "studies.db")
    path.chmod(0o666)
    open_folder.chmod(0o555)
    with unprivileged():
        assert "Permission denied" in refusal(path, write=True).message
        with Store.open(str(path), write=False) as store:
            assert store.measured_count("study-1") == 1


def test_a_file_left_in_wal_mode_can_be_read_in_a_read_only_folder(open_folder: Path) -> None:
    path = make(open_folder / "studies.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE runs SET label = 'x'")
        connection.commit()
    open_folder.chmod(0o555)
    with unprivileged(), Store.open(str(path), write=False) as store:
        assert store.measured_count("study-1") == 1


def test_a_wal_that_cannot_be_read_is_said_rather_than_left_out(open_folder: Path) -> None:
    path = make(open_folder / "other.db")
    copy = open_folder / "studies.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE runs SET label = 'x'")
        connection.commit()
        shutil.copy(path, copy)
        shutil.copy(f"{path}-wal", f"{copy}-wal")
    open_folder.chmod(0o555)
    with unprivileged():
        error = refusal(copy, write=False)
    assert "cannot be opened" in error.message
    assert "-wal" in error.hint


def test_an_unreadable_file_is_said(open_folder: Path) -> None:
    path = make(open_folder / "studies.db")
    path.chmod(0o000)
    with unprivileged():
        refusal(path, write=False)
        refusal(path, write=True)


WRITE_AND_DIE = """
import os, signal, sys
from study_samples import result, run, study_record
from offtune.store import Store
store = Store.open(sys.argv[1], write=True)
store.add_study(study_record())
for number in range(10):
    store.add_run(run(number))
    store.finish_run("study-1", number, result())
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A database as a killed writer leaves it: everything still in the -wal file."""
    path = tmp_path / "killed" / "studies.db"
    path.parent.mkdir()
    with start_python(WRITE_AND_DIE, str(path)) as process:
        process.wait(timeout=300)
    assert path.with_name("studies.db-wal").stat().st_size > 0
    return path


def test_after_kill_9_everything_written_is_there(killed: Path) -> None:
    with Store.open(str(killed), write=False) as store:
        assert store.measured_count("study-1") == 10
    with Store.open(str(killed), write=True) as store:
        assert store.measured_count("study-1") == 10
    assert [each.name for each in killed.parent.iterdir()] == ["studies.db"]


@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_a_power_cut_in_a_write_costs_only_the_last_transactions(killed: Path, damage: str) -> None:
    wal = killed.with_name("studies.db-wal")
    content = wal.read_bytes()
    kept = len(content) - 6000
    wal.write_bytes(content[:kept] + (random.Random(2).randbytes(6000) if damage == "garbled" else b""))
    killed.with_name("studies.db-shm").unlink(missing_ok=True)
    with Store.open(str(killed), write=True) as store:
        runs = store.runs("study-1")
        assert [each.number for each in runs] == list(range(len(runs)))
        assert 1 <= len(runs) <= 10
        assert all(each.result == result() for each in runs[:-1])
        if len(runs) < 10:
            store.add_run(run(len(runs)))


def test_a_power_cut_loses_something_in_the_test_above(killed: Path) -> None:
    """The guard of the test above: without the end of the -wal file the last run is not finished."""
    wal = killed.with_name("studies.db-wal")
    os.truncate(wal, wal.stat().st_size - 6000)
    with Store.open(str(killed), write=True) as store:
        assert store.measured_count("study-1") < 10


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("oracle://host/name", "no use for 'oracle'"),
        ("postgresql+nosuch://host/name", "postgresql+nosuch"),
        ("://", "not a database URL"),
        ("sqlite://", "in memory would be lost"),
        ("sqlite:///:memory:", "in memory would be lost"),
    ],
)
def test_a_storage_offtune_cannot_use_is_a_usage_error(location: str, words: str) -> None:
    error = refusal(location, write=True)
    assert isinstance(error, UsageError)
    assert words in error.message


def test_a_missing_driver_is_named_and_no_password_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_driver(*arguments: object, **options: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg2'", name="psycopg2")

    monkeypatch.setattr(database, "create_engine", without_driver)
    error = refusal("postgresql://me:secret@host/name", write=True)
    assert "needs the Python package psycopg2" in error.message
    assert "secret" not in error.message
    assert error.hint == "Install it: pip install psycopg2-binary"


def test_the_file_systems_errors_have_the_same_words() -> None:
    full = trouble.explain(OSError(errno.ENOSPC, "No space left on device"), "x.db")
    assert "the disk is full" in full.message
    assert "read-only" in trouble.explain(OSError(errno.EROFS, "Read-only file system"), "x.db").message


def test_an_error_with_nothing_of_the_database_behind_it_passes_unchanged() -> None:
    with pytest.raises(AssertionError, match="ours"), trouble.trouble("x.db", AssertionError):
        raise AssertionError("ours")


def test_the_real_error_is_found_behind_a_wrapper() -> None:
    wrapper = AssertionError("Should not reach.")
    wrapper.__context__ = sqlite3.OperationalError("database or disk is full")
    with pytest.raises(StoreError, match="the disk is full"), trouble.trouble("x.db", AssertionError):
        raise wrapper


def test_the_version_of_a_server_is_kept_in_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite stands in for the server: the statements are standard SQL."""
    place = database.locate(str(tmp_path / "s.db"))
    engine = database.connect(place, write=True, busy_timeout_s=1)
    monkeypatch.setattr(engine.dialect, "name", "standard")
    with engine.begin() as connection:
        assert migrate.read_version(connection) == 0
        migrate._write_version(connection, 1)
        migrate._write_version(connection, 2)
        assert migrate.read_version(connection) == 2
    engine.dispose()
