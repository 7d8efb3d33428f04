"""What a user is told when a part of a run cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

PEERS = ("gloo", "nccl", "connection closed by peer")  # in messages about another process that died


class NotSavedError(OSError):
    """Raised when a part of a run could not be written; earlier checkpoints are intact."""


@contextmanager
def naming_failure(what: str) -> Iterator[None]:
    """Turn an error of the disk into a `NotSavedError` that names `what` could not be written."""
    try:
        yield
    except NotSavedError:
        raise
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have their own kinds
        if is_lost_process(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise NotSavedError(
            f"the {what} could not be written ({reason}); "
            "earlier checkpoints are intact: make room and run again with --resume."
        ) from error


def is_lost_process(error: BaseException) -> bool:
    """Whether an error means that another process of the run died; no file is at fault then."""
    return isinstance(error, RuntimeError) and any(name in str(error).lower() for name in PEERS)
