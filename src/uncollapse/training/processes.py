"""Distributed processes: which one is first, what they agree on, and how they reconnect after a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, TypeVar

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # one process may tokenise the data while the others wait
_turns = count()


class SharedError(ValueError):
    """What is raised in all processes in the same sentence; the command line prints it once."""

    shared = True


def process_count() -> int:
    """The number of processes of this run."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def first_process() -> bool:
    """Whether this is the only process or the one of rank 0."""
    return _rank() == 0


def in_all_processes(call: Callable[[], T]) -> T:
    """What `call` gives; if it fails in any process, all raise the same sentence, and none waits for one that is gone.

    In a single process an error is raised as it is.
    """
    if process_count() == 1:
        return call()
    problem: str | None = None
    try:
        result = call()
    except (ValueError, OSError) as error:
        problem = str(error)
    told = next((told for told in exchanged(problem) if told is not None), None)
    if told is not None:
        raise SharedError(told)
    return result


def check_agreement(about: Mapping[str, Any]) -> None:
    """Raise, in all processes and in the same sentence, if they hold different values of anything in `about`."""
    held = exchanged(dict(about))
    for name, ours in held[0].items():
        for rank, theirs in enumerate(held):
            if theirs.get(name) != ours:
                raise SharedError(
                    f"the processes of this run differ: {name} is {ours} in process 0 and {theirs.get(name)} in "
                    f"process {rank}; start all of them with the same options and the same data."
                )


def shared(value: Any) -> Any:
    """The value of the first process, in all of them."""
    return exchanged(value)[0]


def exchanged(value: Any) -> list[Any]:
    """The values of all processes in the order of their ranks; each waits for all others.

    They are sent as JSON through the key-value store by which the processes find each other, so this works before
    there is a process group, and on any device.
    """
    processes = process_count()
    if processes == 1:
        return [value]
    turn = next(_turns)
    try:
        store = _store()
        store.set(f"{turn}/{_rank()}", json.dumps(value))
        values = [json.loads(store.get(f"{turn}/{rank}")) for rank in range(processes)]
        store.set(f"{turn}/{_rank()}/read", "")
        if first_process():  # which may hold the store, and end it with itself
            store.wait([f"{turn}/{rank}/read" for rank in range(processes)], TIMEOUT)
    except RuntimeError as error:
        raise OSError(
            f"the {processes} processes of this run could not reach each other ({str(error).splitlines()[0]}); "
            "check that all of them were started."
        ) from None
    return values


def join_after_restart() -> None:
    """Create the process group under a prefix of this restart.

    torchrun keeps its key-value store when it restarts workers, and with it the addresses of those that died.
    accelerate finds the group initialised and uses it.
    """
    if _attempt() == "0" or distributed.is_initialized():
        return
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    distributed.init_process_group(
        distributed.get_default_backend_for_device(device),
        store=_store(),
        rank=_rank(),
        world_size=int(os.environ["WORLD_SIZE"]),
    )


@cache
def _store() -> PrefixStore:
    """The key-value store of the processes, under a prefix of this restart."""
    hosting = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and first_process()
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    processes = int(os.environ["WORLD_SIZE"])
    store = TCPStore(address, port, processes, is_master=hosting, timeout=TIMEOUT, multi_tenant=True)
    return PrefixStore(f"attempt-{_attempt()}", store)


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _attempt() -> str:
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
