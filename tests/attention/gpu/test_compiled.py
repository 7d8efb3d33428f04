"""The kernels compiled for GPUs that are not here: nothing spills, shared memory fits, products use tensor cores."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: the kernels cannot be compiled")

from tests.attention.gpu.compiling import compiled, launches_of, resources, uses_tensor_cores
from uncollapse.attention._gpu.configs import GENERATIONS, TABLE

DTYPES = {2: torch.bfloat16, 4: torch.float32}
WITHOUT_PRODUCT = {"output_row_sums"}


def check(generation, size, width, backend, only=None, **arguments):
    launches = launches_of(generation, size, DTYPES[width], backend, **arguments)
    assert only is None or only in launches
    for name, launch in launches.items():
        if only in (None, name):
            kernel = compiled(launch, generation)
            need = resources(kernel)
            assert need.spilled == 0, f"{name} spills {need.spilled} bytes"
            assert need.shared <= GENERATIONS[generation], f"{name} needs {need.shared} bytes of shared memory"
            assert name in WITHOUT_PRODUCT or uses_tensor_cores(kernel), f"{name} multiplies number by number"


@pytest.mark.parametrize(
    ("generation", "backend", "kernel"),
    [
        ("sm_80", "carried", "carried_forward"),
        ("sm_90", "carried", "carried_backward_keys"),
        ("sm_100", "stacked", "stacked_forward"),
        ("gfx942", "carried", "carried_backward_queries"),
    ],
)
def test_a_kernel_of_each_generation_fits(generation, backend, kernel):
    check(generation, 64, 2, backend, kernel, is_causal=True)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["carried", "stacked"])
@pytest.mark.parametrize("row", TABLE, ids=lambda row: " ".join(map(str, row)))
def test_every_row_of_the_table_fits(row, backend):
    check(*row, backend, is_causal=True)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["carried", "stacked"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_masks_and_dropout_fit(generation, backend):
    mask = torch.zeros(128, 128)
    check(generation, 64, 2, backend, attn_mask=mask, dropout_p=0.1)
