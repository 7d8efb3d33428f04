"""Run by torchrun: models with remedies after one step of two gloo processes, with DDP or FSDP2."""

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
from tests.models import modules
from tests.models.builders import batch, build
from tests.remedies.formulas import shaken

KINDS = ("ddp", "fsdp2")
MODELS = {  # GPT-2 and nanoGPT have queries, keys and values in one parameter, the encoder has nn.MultiheadAttention
    "edits": ("gpt2", "llama", "bert", "vit", "nanogpt", "encoder_pre"),
    "sigma_reparam": ("gpt2", "llama", "nanogpt"),
    "qk_clip": ("gpt2", "llama", "nanogpt"),
    "qk_rate": ("gpt2", "llama", "nanogpt"),
}
CASES = [(remedy, name) for remedy, names in MODELS.items() for name in names]
EDITS = {"qk_norm": {}, "soft_cap": {"cap": 2.0}, "sink": {}, "output_gate": {}, "value_mixing": {"learned": True}}
AT_STEPS = {"qk_clip": {"threshold": 0.1}, "qk_rate": {"factor": 0.5}}


def built(name: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """A model for training, and a row for each process."""
    model, rows = modules.build(name) if name in modules.MODULES else (build(name), *batch(name).values())
    return model.train(), rows


def with_remedies(remedy: str, name: str) -> torch.nn.Module:
    """A model with what acts in its forward; what follows an optimizer comes later."""
    model, rows = built(name)
    example = rows if name in modules.MODULES else None
    if remedy == "sigma_reparam":
        return uc.apply(model, remedy, example=example)
    for edit, settings in EDITS.items() if remedy == "edits" else ():
        uc.apply(model, edit, **settings, example=example)
    return shaken(model)


def stepped(
    case: tuple[str, str], model: torch.nn.Module, wrapped: torch.nn.Module, rows: torch.Tensor
) -> dict[str, torch.Tensor]:
    """The weights after one step on these rows."""
    (remedy, name), plain = case, case[1] in modules.MODULES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if remedy in AT_STEPS:
        plan = uc.plan(built(name)[0], example=rows) if plain else None  # of the module before it is sharded
        uc.apply(model, remedy, optimizer=optimizer, **AT_STEPS[remedy], example=plan)
    result = wrapped(rows) if plain else wrapped(**dict.fromkeys(batch(name), rows)).logits
    modules.first(result).square().mean().backward()
    optimizer.step()
    found = dict(model.named_parameters())
    return {key: p.full_tensor().detach() if isinstance(p, DTensor) else p.detach() for key, p in found.items()}


def sharded(kind: str, model: torch.nn.Module, checkpointed: bool) -> torch.nn.Module:
    if checkpointed and hasattr(model, "config"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    elif checkpointed and hasattr(model, "checkpointing"):  # torch's encoder has no such switch
        model.checkpointing = {"use_reentrant": False}
    if kind == "ddp":
        return DistributedDataParallel(model)
    (blocks,) = (module for module in model.modules() if type(module) is torch.nn.ModuleList)
    for block in blocks:
        fully_shard(block)
    return fully_shard(model)


def refusal() -> str:
    """What is said to a module whose attention is looked for after it was sharded."""
    model, rows = built("nanogpt")
    sharded("fsdp2", model, checkpointed=False)
    try:
        uc.apply(model, "qk_clip", optimizer=torch.optim.SGD(model.parameters(), lr=0.1), example=rows)
    except ValueError as error:
        return str(error)
    return ""


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for kind, case in product(KINDS, CASES):
        model, rows = with_remedies(*case), built(case[1])[1]
        found = stepped(case, model, sharded(kind, model, case[0] == "edits"), rows[rank : rank + 1])
        if rank == 0:
            torch.save(found, folder / f"{kind}-{'-'.join(case)}.pt")
    words = refusal()
    if rank == 0:
        (folder / "refusal.txt").write_text(words)
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


if __name__ == "__main__":
    main(Path(sys.argv[1]))
