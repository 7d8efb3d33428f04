"""LocaterCallback on a tiny float64 LLaMA; run by torchrun, the trained weights are written for the test.

DDP runs in the Trainer. accelerate shards on CPUs not at all, so that FSDP2 runs in a loop with the Trainer's order.
"""

import os
import sys

import torch
import torch.distributed as dist
import transformers as hf
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import uncollapse as uc
from tests.models.builders import build

KAPPAS = {"kappa_scale": 0.05, "kappa_mean": 0.4}
ROWS = 16  # of an update
STEPS = 3


def data() -> torch.Tensor:
    return torch.randint(3, 40, (ROWS * STEPS, 11), generator=torch.Generator().manual_seed(0))


def train(folder, rows, accumulation=1, callbacks=None, normalisation="update", example=None, **options) -> hf.Trainer:
    """A few steps of plain gradient descent; every gradient counts, none is rescaled."""
    model = build("llama").train()
    arguments = {"max_steps": STEPS, "logging_steps": 1, "optim": "sgd", "learning_rate": 0.01, "max_grad_norm": 0.5}
    arguments |= {"lr_scheduler_type": "constant", "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    trainer = hf.Trainer(
        model,
        hf.TrainingArguments(
            str(folder),
            per_device_train_batch_size=rows,
            gradient_accumulation_steps=accumulation,
            use_cpu=True,
            **arguments | options,
        ),
        train_dataset=[example(row) if example else {"input_ids": row, "labels": row} for row in data()],
        callbacks=[uc.LocaterCallback(**KAPPAS, normalisation=normalisation)] if callbacks is None else callbacks,
    )
    trainer.train()
    return trainer


def weights(model) -> dict[str, torch.Tensor]:
    """The weights, gathered where they are sharded."""
    whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in model.named_parameters()}
    return {name: tensor.detach().clone() for name, tensor in whole.items()}


def train_by_hand(model, rank=0, processes=1) -> None:
    """The Trainer's order: backward, clip, callback, step."""
    callback, optimizer = uc.LocaterCallback(**KAPPAS), torch.optim.SGD(model.parameters(), lr=0.01)
    share = ROWS // processes
    for rows in data().split(ROWS):
        own = rows[rank * share : (rank + 1) * share]
        model(input_ids=own, labels=own).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        callback.on_pre_optimizer_step(None, None, None, model=model, optimizer=optimizer)
        optimizer.step()
        optimizer.zero_grad()


def main(kind: str, folder: str) -> None:
    torch.set_num_threads(1)
    processes = int(os.environ["WORLD_SIZE"])
    if kind == "ddp":
        own = {"rows": ROWS // processes, "ddp_backend": "gloo"}
        found = {kind: weights(train(folder, **own, normalisation=kind).model) for kind in ("update", "tokens")}
    else:
        dist.init_process_group("gloo")
        model = build("llama").train()
        for block in model.model.layers:
            fully_shard(block)
        train_by_hand(fully_shard(model), dist.get_rank(), processes)
        assert isinstance(model.model.layers[0].self_attn.q_proj.weight, DTensor)
        found = {"update": weights(model)}
    if dist.get_rank() == 0:
        torch.save(found, f"{folder}/weights.pt")
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
