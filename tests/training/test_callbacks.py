"""The diagnosis of a training run: saved at each step, and a collapse announced once."""

import torch
import transformers as hf

from tests.models.builders import batch, build
from uncollapse.diagnosis import Diagnosis
from uncollapse.training.callbacks import RunDiagnosis
from uncollapse.training.run_folder import RunFolder


def test_a_collapse_is_printed_once_and_every_diagnosis_saved(tmp_path, capsys):
    model = build("gpt2")
    with torch.no_grad():
        for block in model.transformer.h:
            block.attn.c_attn.weight.mul_(100)  # scores so large that the softmax saturates
    callback = RunDiagnosis([batch("gpt2")], every=1, folder=RunFolder(tmp_path))
    arguments, control = hf.TrainingArguments(str(tmp_path), report_to=[]), hf.TrainerControl()
    for step in (1, 2, 3, 4):
        callback.on_step_end(arguments, hf.TrainerState(global_step=step, max_steps=4), control, model=model)
    said = capsys.readouterr().err
    assert said.count("entropy collapse in") == 1
    assert "step 3 (since step 1): " in said  # once it has lasted for three measurements
    for step in (1, 2, 3, 4):
        saved = Diagnosis.load(RunFolder(tmp_path).diagnosis / f"step-{step:06d}")
        assert "entropy collapse" in {verdict.kind for verdict in saved.verdicts}
