"""The Hugging Face hub: one small file of a repository, from the local cache or the network.

Covered: config.json. Not covered: weights and code, which are never fetched.
"""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from offtune.errors import UsageError

_ANSWER_S = 10.0  # how long the hub may take to answer; a person is waiting


def config_file(repo: str) -> Path:
    """config.json of `repo`, cached or downloaded. Raises UsageError saying which failed and why."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(repo, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        if not _reachable():
            raise UsageError(f"'{repo}' is not in the local cache, and the hub cannot be reached.")
        return Path(hf_hub_download(repo, "config.json", etag_timeout=_ANSWER_S))
    except HFValidationError as error:
        raise UsageError(f"'{repo}' is not a valid hub id: {error}") from error
    except OSError as error:
        raise _explained(repo, error) from error


def _explained(repo: str, error: OSError) -> UsageError:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        hint = "Accept its conditions on the hub and run 'hf auth login'."
        return UsageError(f"'{repo}' is gated, and this machine has no access to it.", hint)
    if isinstance(error, errors.RepositoryNotFoundError):
        return UsageError(f"the hub has no model '{repo}', or it is private.")
    if isinstance(error, errors.LocalEntryNotFoundError):
        return UsageError(f"'{repo}' is not in the local cache, and the hub cannot be reached.")
    if isinstance(error, errors.EntryNotFoundError):
        return UsageError(f"'{repo}' has no config.json on the hub.")
    return UsageError(f"'{repo}' could not be fetched from the hub: {error}")


def _reachable() -> bool:
    """False in offline mode, or when the hub's name cannot be resolved and no proxy would do it for us.

    huggingface_hub retries such a failure for 24 s (measured, 2.4.0); a person who is offline hears at once.
    """
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)
    except OSError:
        return False
    return True
