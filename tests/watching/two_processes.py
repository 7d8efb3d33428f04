"""Run by torchrun: two gloo processes train with DDP, with FSDP2, and with one that runs out of batches."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import uncollapse as uc
from tests.models.builders import batch, build
from tests.models.modules import build as build_plain
from tests.watching.loops import loss_of, sgd, train
from uncollapse.watching import processes


def wrapped(kind: str, model: torch.nn.Module, blocks) -> torch.nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(model)
    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


def family(kind: str, folder: Path) -> None:
    model = build("llama").train()
    outer = wrapped(kind, model, model.model.layers)
    optimizer = sgd(model)
    row = batch("llama", rows=2)["input_ids"][dist.get_rank()].unsqueeze(0)
    with uc.watch(outer, optimizer, every=1, log=folder / f"{kind}.jsonl") as watch:
        train(outer, optimizer, [{"input_ids": row}])
    for name in ("heads", "layers", "optimizer"):
        getattr(watch, name).to_pickle(folder / f"{kind}-{name}-{dist.get_rank()}.pkl")


def plain(kind: str, folder: Path) -> None:
    model, ids = build_plain("nanogpt")
    outer = wrapped(kind, model.train(), model.h)
    optimizer = sgd(model)
    with uc.watch(outer, optimizer, every=1) as watch:
        train(outer, optimizer, [ids[dist.get_rank()].unsqueeze(0)])
    watch.heads.to_pickle(folder / f"{kind}-nanogpt-{dist.get_rank()}.pkl")


def uneven(folder: Path) -> None:
    """The second process has one batch, the first has three."""
    processes.WAIT = 1.0
    model = build("llama").train()
    outer = DistributedDataParallel(model)
    optimizer = sgd(model)
    rows = batch("llama", rows=2)["input_ids"]
    with uc.watch(outer, optimizer, every=1) as watch, Join([outer]):
        for _ in range(3 if dist.get_rank() == 0 else 1):
            loss_of(outer(input_ids=rows[dist.get_rank()].unsqueeze(0))).backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.layers.to_pickle(folder / f"uneven-{dist.get_rank()}.pkl")


def without_data(folder: Path) -> None:
    """The second process takes part in the updates without a batch of its own."""
    model = build("llama").train()
    optimizer = sgd(model)
    with uc.watch(model, optimizer, every=1) as watch:
        if dist.get_rank() == 0:
            loss_of(model(**batch("llama"))).backward()
        optimizer.step()
    watch.heads.to_pickle(folder / f"without-{dist.get_rank()}.pkl")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in ("ddp", "fsdp2"):
        family(kind, folder)
        plain(kind, folder)
    without_data(folder)
    uneven(folder)
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


if __name__ == "__main__":
    main(Path(sys.argv[1]))
