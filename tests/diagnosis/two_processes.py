"""Run by torchrun: diagnoses of a LLaMA whose heads are divided between two gloo processes, stock and converted."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaForCausalLM

import uncollapse as uc
from tests.models.builders import batch


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    model = LlamaForCausalLM.from_pretrained(folder / "model", tp_plan="auto")
    for name in ("stock", "converted"):
        report = uc.diagnose(model, batch("llama"), progress=False)
        report.save(folder / f"{name}-{dist.get_rank()}")
        model = uc.convert(model, alpha=0.3, alpha_hidden=0.6)
    dist.barrier()
    os._exit(0)  # gloo's threads may wait for ever for tensors that are taken down with the interpreter


if __name__ == "__main__":
    main(Path(sys.argv[1]))
