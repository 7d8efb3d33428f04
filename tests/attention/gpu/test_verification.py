"""The kernels are off by default until the test has passed on this device, driver, torch and Triton."""

import pytest
import torch

from uncollapse.attention._gpu import verification
from uncollapse.attention._gpu.availability import serves
from uncollapse.attention._gpu.configs import generation
from uncollapse.attention._gpu.verification import identity, is_verified, result_file, save_result

CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def an_a100(monkeypatch, tmp_path):
    """Torch says there is an A100; the cache is empty."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "NVIDIA A100")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setenv("UNCOLLAPSE_CACHE", str(tmp_path))
    monkeypatch.delenv("UNCOLLAPSE_TRITON", raising=False)
    is_verified.cache_clear()
    yield
    is_verified.cache_clear()


def test_only_a_result_that_passed_counts():
    assert not is_verified(CUDA)
    save_result(identity(CUDA), passed=False)
    assert not is_verified(CUDA)
    save_result(identity(CUDA), passed=True)
    assert is_verified(CUDA)


@pytest.mark.parametrize("changed", ["device", "driver", "torch", "triton", "kernels"])
def test_another_value_of_anything_needs_another_test(changed):
    about = identity(CUDA)
    save_result({**about, changed: "another"}, passed=True)
    assert not is_verified(CUDA)
    save_result(about, passed=True)
    assert is_verified(CUDA)


def test_a_damaged_result_counts_as_none():
    path = save_result(identity(CUDA), passed=True)
    assert path == result_file(identity(CUDA))
    path.write_text('{"passed": tr')
    is_verified.cache_clear()
    assert not is_verified(CUDA)


def test_off_by_default_on_after_the_test_and_never_if_switched_off(monkeypatch):
    pytest.importorskip("triton", reason="Triton is not installed: its engine is never chosen")
    with torch._subclasses.FakeTensorMode():
        q = torch.empty(1, 2, 70, 64, device="cuda")
        assert not serves(q, None, q)
        save_result(identity(CUDA), passed=True)
        assert serves(q, None, q)
        monkeypatch.setenv("UNCOLLAPSE_TRITON", "0")
        assert not serves(q, None, q)
        monkeypatch.setattr(verification, "identity", None)  # the switch alone decides: nothing is looked up
        monkeypatch.setenv("UNCOLLAPSE_TRITON", "1")
        assert serves(q, None, q)


@pytest.mark.parametrize(
    ("capability", "name"),
    [((7, 5), None), ((8, 0), "sm_80"), ((8, 9), "sm_86"), ((9, 0), "sm_90"), ((10, 3), "sm_100"), ((12, 0), "sm_86")],
)
def test_each_capability_has_its_rows(capability, name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    assert generation(CUDA) == name
