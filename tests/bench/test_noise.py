"""Numbers of a busy machine are flagged wherever they are shown."""

import pandas as pd

from uncollapse.bench.measurement import FORWARD, TRAINING
from uncollapse.bench.noise import noise_sentences, noisy_parts
from uncollapse.bench.table import attention_table, findings


def table_of(itself):
    """Two lengths; SDPA's ratio to itself at the second, in training, is given."""
    rows = [
        {"name": name, "against": "SDPA", "shape": f"12 layers, B1 H12 T{length} D64, causal", "length": length}
        | {"work": work, "ratio": ratio, "group": "attention", "note": "", "peak_mb": 1.0, "causal": True}
        for length in (256, 1024)
        for work in (FORWARD, TRAINING)
        for name, ratio in (("SDPA", itself if (length, work) == (1024, TRAINING) else 1.0), ("carried, C++", 0.8))
    ]
    return pd.DataFrame(rows)


def test_a_quiet_machine_is_not_spoken_of():
    table = table_of(1.049)
    assert noisy_parts(table) == {}
    assert noise_sentences(table) == []
    assert findings(table) == [
        "carried, C++: forward and backward take 0.80 at 256 tokens, 0.80 at 1024 tokens, in units of SDPA's time."
    ]


def test_a_busy_machine_is_named_flagged_and_left_out_of_the_findings():
    table = table_of(0.93)
    first, last = noise_sentences(table)
    assert "T1024 D64, causal, forward + backward. There SDPA takes 0.93 of its own time" in first
    assert "more than 5 % off" in first
    assert "measure again on a quiet machine" in last
    assert list(attention_table(table).columns) == [
        *("attention", "T256 fwd", "T256 fwd+bwd", "T1024 fwd", "T1024 fwd+bwd (noisy)")
    ]
    assert findings(table) == ["carried, C++: forward and backward take 0.80 at 256 tokens, in units of SDPA's time."]
