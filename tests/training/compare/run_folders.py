"""Run folders without training: curves that fall as they would, and diagnoses of tiny models."""

import functools
import json
import math
import random
from pathlib import Path

import torch
import transformers as hf
import yaml

import uncollapse as uc
from uncollapse.watching.callback import scalars

RECIPE = {
    "name": "quickstart",
    "task": "language",
    "data": "embedded",
    "tokenizer": "bytes",
    "vocab_size": 256,
    "length": 24,
    "layers": 3,
    "heads": 2,
    "rule": "self_attention",
    "alpha": 0.0,
    "alpha_hidden": 0.0,
    "kappa_scale": 0.0,
    "kappa_mean": 0.0,
    "learning_rate": 1e-3,
    "steps": 40,
    "seed": 0,
}


@functools.cache
def tiny_diagnosis(alpha: float, growth: float, seed: int = 0) -> uc.Diagnosis:
    """Of an untrained GPT-2 whose queries and keys are `growth` times as large as at the start."""
    torch.manual_seed(seed)
    config = {"n_layer": 3, "n_embd": 16, "n_head": 2, "vocab_size": 256, "n_positions": 32}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**config, bos_token_id=0, eos_token_id=0)).eval()
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight[:, :32] *= 20 * growth
    if alpha:
        uc.convert(model, alpha=alpha, alpha_hidden=alpha)
    ids = torch.randint(256, (4, 24), generator=torch.Generator().manual_seed(1))
    return uc.diagnose(model, {"input_ids": ids}, progress=False)


def write_run(
    folder: Path,
    *,
    floor: float = 2.0,
    noise: float = 0.02,
    status: str = "finished",
    until: int | None = None,
    diagnose_at: tuple[int, ...] = (),
    tokenizer: str | None = "aa",
    **recipe,
) -> Path:
    """A run of the contract: recipe.yaml, metrics.jsonl, status.json, diagnosis/step-*."""
    settings = RECIPE | recipe
    chance = random.Random(f"{settings['seed']} {floor}")
    shift = chance.uniform(-noise, noise)
    steps, end = settings["steps"], until or settings["steps"]
    images = settings["task"] != "language"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(yaml.safe_dump(settings))
    lines = []
    for step in range(2, end + 1, 2):
        line = {"step": step, "epoch": step / steps, "seconds": step * 0.25}
        loss = floor + shift + 3.5 * math.exp(-4 * step / steps)
        line |= {"loss": loss + chance.uniform(-0.05, 0.05), "learning_rate": 1e-3, "grad_norm": 1.0}
        if status == "diverged" and step == end:
            line["loss"] = None
        if step % 8 == 0:
            line["eval_loss"] = loss + 0.05
            if images:
                line["eval_accuracy"] = 1 - loss / 6
            else:
                line |= {"eval_perplexity": math.exp(loss), "eval_bits_per_byte": loss / math.log(2)}
        if settings["kappa_scale"]:
            line |= {"locater/penalty": 40 / step, "locater/trace": 1 - 1 / step, "locater/scale": 9 / step}
        if step in diagnose_at:
            report = tiny_diagnosis(settings["alpha"], 1 + step / steps, settings["seed"])
            line |= {k: v if math.isfinite(v) else None for k, v in scalars(report).items()}
            report.save(folder / "diagnosis" / f"step-{step:06d}")
        lines.append(json.dumps(line))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    reason = {"finished": "", "diverged": "the loss is not finite since step 20", "stopped": "interrupted"}
    about = {"status": status, "step": end, "steps": steps, "reason": reason.get(status, ""), "seconds": end * 0.25}
    about |= {"peak_memory_bytes": 120_000_000 + settings["seed"], "tokenizer_sha256": tokenizer, "parameters": 12345}
    (folder / "status.json").write_text(json.dumps(about | {"versions": {}}))
    (folder / "lock").touch()
    return folder
