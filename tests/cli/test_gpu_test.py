"""`uncollapse gpu-test` where there is no GPU, and where there is one that cannot be used."""

import pytest
import torch

from uncollapse.attention.gpu_test import CASES, GpuCase, GpuOutcome
from uncollapse.cli import main
from uncollapse.cli.gpu_test import verdict


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_is_one_sentence_and_exit_code_two(capsys):
    assert main(["gpu-test"]) == 2
    said = capsys.readouterr().err
    assert "there is nothing to test here: torch sees no GPU" in said
    assert said.count("\n") == 1


@pytest.fixture
def a_gpu_that_fails(monkeypatch):
    """Torch says there is an A100, and raises when it is used."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    pytest.importorskip("triton", reason="Triton is not installed")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))


def test_what_fails_is_named_and_the_kernels_stay_off(a_gpu_that_fails, capsys):
    assert main(["gpu-test", "--no-measure"]) == 1
    said = capsys.readouterr().out
    assert "device: NVIDIA A100\ncapability: 8.0\n" in said
    assert said.count("FAILED carried") + said.count("FAILED stacked") == len(CASES)
    assert f"{len(CASES)} of {len(CASES)} cases FAILED: torch operations go on" in said
    assert "not compiled with CUDA" in said


def test_a_gpu_that_is_too_old_is_refused(a_gpu_that_fails, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 0))
    assert main(["gpu-test"]) == 2
    assert "NVIDIA A100 has a capability below 8.0" in capsys.readouterr().err


def test_an_outcome_says_what_was_allowed():
    case = GpuCase(torch.bfloat16)
    assert str(GpuOutcome(case, 0.01)).startswith(
        "ok     carried, bfloat16, causal, B2 H4 G4 Q256 K256 D64: error 1.0e-02"
    )
    assert not GpuOutcome(case, float("nan")).passed
    assert not GpuOutcome(case, 0.0, "RuntimeError: no").passed
    assert "all 17 cases passed" in verdict(17, 0)


def test_the_cases_cover_what_is_served():
    assert {case.dtype for case in CASES} == {torch.float32, torch.float16, torch.bfloat16}
    assert {case.mask for case in CASES} == {"causal", "none", "bool", "additive"}
    assert {case.backend for case in CASES} == {"carried", "stacked"}
    for name in ("dropout_p", "two_bytes", "learned"):
        assert any(getattr(case, name) for case in CASES)
    assert any(case.heads != case.groups for case in CASES)
    assert any(case.queries != case.keys for case in CASES)
