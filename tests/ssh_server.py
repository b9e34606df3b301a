"""A real ssh server on the loopback addresses, with a key and a port of its own, for launchers."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from processes import wait_for

_SSHD = Path("/usr/sbin/sshd")


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


def _write_settings(folder: Path, port: int) -> None:
    _make_key(folder / "host_key")
    _make_key(folder / "user_key")
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nListenAddress 127.0.0.2\nHostKey {folder}/host_key\n"
        f"AuthorizedKeysFile {folder}/user_key.pub\nStrictModes no\nUsePAM no\nPidFile none\n"
        "PermitRootLogin yes\nPasswordAuthentication no\n"
    )
    (folder / "config").write_text(
        f"Host *\n  Port {port}\n  User {getpass.getuser()}\n  IdentityFile {folder}/user_key\n"
        "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n"
    )
    (folder / "bin").mkdir()
    # Launchers call `ssh`; this one knows the server's port and key.
    wrapper = folder / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    wrapper.chmod(0o755)


@pytest.fixture
def ssh_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """While it runs, `ssh 127.0.0.1 COMMAND` and `ssh 127.0.0.2 COMMAND` work."""
    if not _SSHD.exists() or not shutil.which("ssh"):
        pytest.skip("no ssh server is installed")
    folder = tmp_path / "ssh"
    folder.mkdir()
    _write_settings(folder, free_port())
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd shuts itself in before anybody has logged in
    monkeypatch.setenv("PATH", f"{folder}/bin{os.pathsep}{os.environ['PATH']}")
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([_SSHD, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        wait_for(lambda: _answers() or server.poll() is not None)
        assert _answers(), (folder / "log").read_text()
        yield
    finally:
        server.terminate()
        server.wait()


def _answers() -> bool:
    return subprocess.run(["ssh", "127.0.0.2", "true"], check=False, capture_output=True).returncode == 0
