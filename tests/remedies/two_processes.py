"""Run by torchrun: a model with remedies after one step of two gloo processes, with DDP or FSDP2."""

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
from tests.remedies.formulas import shaken

KINDS = ("ddp", "fsdp2")
CASES = {  # what is applied, and to which model; GPT-2 has queries, keys and values in one parameter
    "edits": "llama",
    "sigma_reparam": "llama",
    "qk_clip": "llama",
    "qk_clip fused": "gpt2",
    "qk_rate": "llama",
    "qk_rate fused": "gpt2",
}
EDITS = {"qk_norm": {}, "soft_cap": {"cap": 2.0}, "sink": {}, "output_gate": {}, "value_mixing": {"learned": True}}


def with_remedies(case: str) -> torch.nn.Module:
    """A model with what acts in its forward; what follows an optimizer comes later."""
    model = build(CASES[case]).train()
    if case == "sigma_reparam":
        return uc.apply(model, case)
    for name, settings in EDITS.items() if case == "edits" else ():
        uc.apply(model, name, **settings)
    return shaken(model)


def stepped(case: str, model: torch.nn.Module, wrapped: torch.nn.Module, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The weights after one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    remedy = case.partition(" ")[0]
    if remedy in ("qk_clip", "qk_rate"):
        uc.apply(model, remedy, optimizer=optimizer, **({"threshold": 1.0} if remedy == "qk_clip" else {"factor": 0.5}))
    wrapped(input_ids=ids).logits.square().mean().backward()
    optimizer.step()
    found = dict(model.named_parameters())
    return {name: p.full_tensor().detach() if isinstance(p, DTensor) else p.detach() for name, p in found.items()}


def sharded(kind: str, model: torch.nn.Module, checkpointed: bool) -> torch.nn.Module:
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if kind == "ddp":
        return DistributedDataParallel(model)
    for block in model.base_model.layers if hasattr(model.base_model, "layers") else model.base_model.h:
        fully_shard(block)
    return fully_shard(model)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    row = batch("llama", rows=2)["input_ids"][dist.get_rank()].unsqueeze(0)
    for kind, case in product(KINDS, CASES):
        model = with_remedies(case)
        found = stepped(case, model, sharded(kind, model, case == "edits"), row)
        if dist.get_rank() == 0:
            torch.save(found, folder / f"{kind}-{case}.pt")
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


if __name__ == "__main__":
    main(Path(sys.argv[1]))
