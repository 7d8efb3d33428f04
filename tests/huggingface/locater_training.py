"""A Trainer with LocaterCallback on a tiny float64 LLaMA; run by torchrun, its weights are written for the test."""

import os
import sys

import torch
import torch.distributed as dist
import transformers as hf
from torch.distributed.tensor import DTensor

import uncollapse as uc
from tests.huggingface.models import build

KAPPAS = {"kappa_scale": 0.05, "kappa_mean": 0.4}
ROWS = 16  # of an update
STEPS = 3


def train(folder, rows, accumulation=1, callbacks=None, **options) -> hf.Trainer:
    """A few steps of plain gradient descent; every gradient counts, none is rescaled."""
    ids = torch.randint(3, 40, (ROWS * STEPS, 11), generator=torch.Generator().manual_seed(0))
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
        train_dataset=[{"input_ids": row, "labels": row} for row in ids],
        callbacks=[uc.LocaterCallback(**KAPPAS)] if callbacks is None else callbacks,
    )
    trainer.train()
    return trainer


def weights(model) -> dict[str, torch.Tensor]:
    """The weights, gathered where they are sharded."""
    whole = {n: p.full_tensor() if isinstance(p, DTensor) else p for n, p in model.named_parameters()}
    return {name: tensor.detach().clone() for name, tensor in whole.items()}


def main(kind: str, folder: str) -> None:
    torch.set_num_threads(1)
    options = {"ddp_backend": "gloo"}
    if kind == "fsdp2":
        config = {"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
        options |= {"fsdp": True, "fsdp_config": config | {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}}
    trainer = train(folder, ROWS // dist_size(), **options)
    sharded = any(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    assert sharded == (kind == "fsdp2")
    found = weights(trainer.model)
    if dist.get_rank() == 0:
        torch.save({"weights": found, "log": trainer.state.log_history}, f"{folder}/result.pt")
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


def dist_size() -> int:
    return int(os.environ["WORLD_SIZE"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
