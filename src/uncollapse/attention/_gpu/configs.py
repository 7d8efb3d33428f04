"""Sizes of tiles, warps and pipeline stages of each kernel: a fixed table, no search on the user's machine.

Every row was compiled for its generation: nothing spilled, shared memory within the device's limit
(`tests/attention/gpu`). A search would choose among rows that nobody has tested.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

SIZES = (16, 128)  # smallest and largest head size that is served
GENERATIONS = {  # name -> shared memory of a program in bytes, which the compiler does not check
    "sm_80": 166_912,  # A100
    "sm_86": 101_376,  # RTX 30 and 40, A10, L4, L40 (8.6, 8.9), RTX 50 (12.0): the least shared memory
    "sm_90": 232_448,  # H100, H200
    "sm_100": 232_448,  # B200
    "gfx942": 65_536,  # MI300
}


class Tiles(NamedTuple):
    """How one kernel cuts a score matrix."""

    rows: int
    columns: int
    warps: int
    stages: int


class Config(NamedTuple):
    """One row of the table: the tiles of every kernel."""

    forward: Tiles
    backward_keys: Tiles
    backward_queries: Tiles
    stacked_forward: Tiles
    stacked_values: Tiles
    stacked_products: Tiles


USUAL = {  # largest head size, bytes of an input number
    (64, 2): Config(
        forward=Tiles(64, 64, 4, 2),
        backward_keys=Tiles(32, 64, 8, 2),
        backward_queries=Tiles(64, 64, 4, 2),
        stacked_forward=Tiles(64, 64, 4, 2),
        stacked_values=Tiles(32, 32, 4, 2),
        stacked_products=Tiles(64, 64, 4, 2),
    ),
    (128, 2): Config(
        forward=Tiles(64, 32, 4, 2),
        backward_keys=Tiles(32, 64, 8, 2),
        backward_queries=Tiles(64, 64, 4, 2),
        stacked_forward=Tiles(64, 32, 4, 2),
        stacked_values=Tiles(64, 64, 8, 2),
        stacked_products=Tiles(64, 64, 4, 2),
    ),
    (64, 4): Config(
        forward=Tiles(64, 32, 4, 2),
        backward_keys=Tiles(32, 32, 4, 2),
        backward_queries=Tiles(64, 32, 4, 2),
        stacked_forward=Tiles(32, 32, 8, 2),
        stacked_values=Tiles(32, 32, 4, 2),
        stacked_products=Tiles(32, 32, 4, 2),
    ),
    (128, 4): Config(
        forward=Tiles(32, 32, 8, 1),
        backward_keys=Tiles(16, 32, 4, 1),
        backward_queries=Tiles(32, 32, 4, 2),
        stacked_forward=Tiles(16, 32, 8, 1),
        stacked_values=Tiles(16, 32, 4, 1),
        stacked_products=Tiles(32, 32, 4, 1),
    ),
}
OTHERWISE: dict[tuple[str, int, int], dict[str, Tiles]] = {  # where a generation has more registers, or needs more
    ("sm_90", 64, 2): {"stacked_values": Tiles(64, 64, 4, 2)},
    ("sm_90", 128, 4): {"stacked_values": Tiles(16, 32, 8, 1)},
    ("sm_100", 64, 2): {"stacked_values": Tiles(64, 64, 8, 2)},
    ("sm_100", 128, 2): {"stacked_values": Tiles(32, 64, 8, 2)},
    ("gfx942", 64, 2): {"backward_keys": Tiles(64, 64, 4, 2), "stacked_values": Tiles(64, 64, 4, 2)},
    ("gfx942", 128, 2): {"backward_keys": Tiles(32, 32, 4, 2), "stacked_values": Tiles(32, 32, 4, 2)},
    ("gfx942", 128, 4): {"forward": Tiles(32, 32, 4, 2), "stacked_forward": Tiles(32, 32, 8, 1)},
}
TABLE = {  # generation, largest head size, bytes of an input number
    (name, size, width): row._replace(**OTHERWISE.get((name, size, width), {}))
    for name in GENERATIONS
    for (size, width), row in USUAL.items()
}


def generation(device: torch.device) -> str | None:
    """The generation whose rows serve a device; None if the kernels do not serve it.

    A device that is unknown, or newer than the table, gets the rows with the least shared memory.
    """
    if device.type == "cpu":  # Triton's interpreter, which takes any tiles
        return "sm_80"
    if torch.version.hip is not None:
        return "gfx942"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return None
    return {(8, 0): "sm_80", (9, 0): "sm_90"}.get((major, minor), "sm_100" if major == 10 else "sm_86")


def config(device_generation: str, size: int, dtype: torch.dtype) -> Config:
    """The row for a generation, the larger of the two head sizes, and the dtype of the inputs."""
    return TABLE[device_generation, 64 if size <= 64 else 128, dtype.itemsize]


def precision(dtype: torch.dtype, device_generation: str) -> str:
    """How products of float32 are made: three products in TF32, where tensor cores have it."""
    return "tf32x3" if dtype == torch.float32 and device_generation.startswith("sm_") else "ieee"
