"""TCP ports for servers of tests: free ones, below those the kernel gives to connections that go out."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 15_000, 29_999  # Linux gives 32,768 and above to outgoing connections


def free_port() -> int:
    """A port nobody listens on; another each time, so that two runs of the tests do not meet."""
    for port in random.SystemRandom().sample(range(_FIRST, _LAST + 1), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("none of 100 ports is free")
