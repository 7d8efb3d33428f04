"""Run by torchrun: the gradients of two gloo processes, with DDP or FSDP2, are written for the test to compare."""

import os
import sys
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import uncollapse as uc
from tests.models.builders import batch, build

KINDS = ("ddp", "fsdp2")
CHECKPOINTING = ("plain", "checkpointing")
READINGS = ("stream", "normed", "replace", "learned")


def converted(reading: str) -> torch.nn.Module:
    """A model with one reading of the visible skip, or with learned coefficients."""
    if reading == "learned":
        return uc.convert(build("llama"), alpha="learned:0.4", alpha_hidden="learned:0.6").train()
    return uc.convert(build("llama"), alpha=0.4, alpha_hidden=0.6, skip=reading).train()


def gradients(kind: str, checkpointing: str, skip: str) -> dict[str, torch.Tensor]:
    model = converted(skip)
    if checkpointing == "checkpointing":
        model.gradient_checkpointing_enable()
    if kind == "ddp":
        wrapped = DistributedDataParallel(model)
    else:
        for block in model.model.layers:
            fully_shard(block)
        wrapped = fully_shard(model)
    row = batch("llama", rows=2)["input_ids"][dist.get_rank()].unsqueeze(0)
    wrapped(input_ids=row).logits.square().mean().backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in found.items()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in product(KINDS, CHECKPOINTING, READINGS):
        found = gradients(*case)
        if dist.get_rank() == 0:
            torch.save(found, folder / f"{'-'.join(case)}.pt")
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


if __name__ == "__main__":
    main(Path(sys.argv[1]))
