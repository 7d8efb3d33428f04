"""What each backend keeps and how exact it is, as `uncollapse bench --backends` writes it."""

import pandas as pd

from uncollapse.bench.backends import keeps_table, measure_errors
from uncollapse.cli import main


def test_backends_keep_less_in_the_order_in_which_auto_tries_them():
    wide = keeps_table().pivot(index="length", columns="name", values="gb")
    assert (wide["carried, C++"] > wide["carried, float16"]).all()
    long = wide.loc[2048:]
    assert (long["carried, float16"] > long["reversible"]).all()
    assert (long["reversible"] > long["stacked"]).all()


def test_errors_are_rounding_and_those_of_reversible_below_its_limit():
    table = pd.DataFrame(measure_errors(depths=(8,), keeps=(0.5, 1.0))).set_index(["name", "keep"])
    for keep in (0.5, 1.0):
        assert table.loc[("carried, C++", keep), "gradient"] < 1e-5
        assert table.loc[("stacked", keep), "gradient"] < 1e-5
        assert table.loc[("reversible", keep), "gradient"] < 1e-4
        assert 1e-5 < table.loc[("carried, float16", keep), "gradient"] < 2e-2  # roundings of 2^-11 and 2^-9


def test_the_command_draws_both_pictures(tmp_path, capsys):
    assert main(["bench", "--backends", "--quick", "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "keeps.png",
        "errors.png",
        "errors.csv",
        "keeps.csv",
    }
    assert "relative error of the gradients" in capsys.readouterr().out
