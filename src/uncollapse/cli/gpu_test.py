"""`uncollapse gpu-test`: are the Triton kernels right on this GPU, and how fast are they?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uncollapse import __version__

from .command import Command, UserError, option

if TYPE_CHECKING:
    import torch

    from uncollapse.attention.gpu_test import GpuOutcome


@dataclass(frozen=True)
class GpuTestOptions:
    """Options of `uncollapse gpu-test`."""

    device: int = option(0, "number of the GPU")
    no_measure: bool = option(False, "test only, measure nothing")


def run(settings: GpuTestOptions) -> int:
    """Test, keep the result, measure."""
    import torch

    from uncollapse.attention.gpu_test import identity, obstacle, save_result

    device = torch.device("cuda", settings.device) if torch.cuda.is_available() else None
    reason = obstacle(device)
    if device is None or reason is not None:
        raise UserError(
            f"there is nothing to test here: {reason}; the Triton kernels need a GPU of capability 8.0 or higher."
        )
    about = identity(device)
    print(f"uncollapse {__version__} gpu-test")
    print("\n".join(f"{name}: {value}" for name, value in about.items()) + "\n", flush=True)
    outcomes = test(device)
    failed = [outcome for outcome in outcomes if not outcome.passed]
    path = save_result(about, passed=not failed, outcomes=[str(outcome) for outcome in outcomes])
    print(f"\n{verdict(len(outcomes), len(failed))}")
    print(f"The result is kept in {path}.")
    if not settings.no_measure:
        measure(device)
    print("\nTo report, paste all lines from the first on into an issue.")
    return 1 if failed else 0


def test(device: torch.device) -> list[GpuOutcome]:
    """Every case, a line each."""
    from uncollapse.attention.gpu_test import CASES, run_case

    outcomes = []
    for case in CASES:
        outcomes.append(run_case(case, device))
        print(outcomes[-1], flush=True)
    return outcomes


def verdict(cases: int, failed: int) -> str:
    """What the outcomes mean for the user, in one sentence."""
    if failed:
        return f"{failed} of {cases} cases FAILED: torch operations go on running inherited scores on this GPU."
    return f"all {cases} cases passed: the Triton kernels run on this GPU from now on (UNCOLLAPSE_TRITON=0: never)."


def measure(device: torch.device) -> None:
    """Times of a layer; whatever goes wrong is said, and the result of the test stands."""
    from uncollapse.bench.gpu_timing import measure_layers

    print("\nforward and backward, measured:")
    try:
        for found in measure_layers(device):
            print(found, flush=True)
    except RuntimeError as error:  # such as too little memory
        print(f"measuring stopped: {str(error).splitlines()[0]}", file=sys.stderr)


COMMAND = Command(
    name="gpu-test",
    summary="Test the Triton kernels for inherited scores on this GPU, in about two minutes, and measure them. "
    "They are used by default only where this has passed.",
    example="uncollapse gpu-test",
    options=GpuTestOptions,
    run=run,
)
