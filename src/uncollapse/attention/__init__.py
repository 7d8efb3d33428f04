"""The mechanism: attention whose scores are inherited from layer to layer. Tensors in and out; torch only."""

from ._engine import tile_engine
from ._native import compiler
from .functional import BACKENDS, hopfield_attention
from .layer import HopfieldAttention
from .memory import release_memory
from .network import AttentionOnly
from .rule import ScoreRule
from .state import HiddenState

__all__ = [
    "BACKENDS",
    "AttentionOnly",
    "HiddenState",
    "HopfieldAttention",
    "ScoreRule",
    "compiler",
    "hopfield_attention",
    "release_memory",
    "tile_engine",
]
