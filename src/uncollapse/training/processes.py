"""Distributed processes: which one is first, and how they reconnect after a restart."""

from __future__ import annotations

import os

import torch
from torch import distributed
from torch._C._distributed_c10d import PrefixStore, TCPStore


def first_process() -> bool:
    """Whether this is the only process or the one of rank 0."""
    return os.environ.get("RANK", "0") == "0"


def join_after_restart() -> None:
    """Create the process group under a prefix of this restart.

    torchrun keeps its key-value store when it restarts workers, and with it the addresses of those that died.
    accelerate finds the group initialised and uses it.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt == "0" or distributed.is_initialized():
        return
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hosting = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    store = TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), processes, is_master=hosting, multi_tenant=True
    )
    device = torch.accelerator.current_accelerator() or torch.device("cpu")
    distributed.init_process_group(
        distributed.get_default_backend_for_device(device),
        store=PrefixStore(f"attempt-{attempt}", store),
        rank=rank,
        world_size=processes,
    )
