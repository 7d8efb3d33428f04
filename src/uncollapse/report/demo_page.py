"""The page of the demo, in three acts: collapse by depth, a run going wrong, inherited scores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Protocol

import pandas as pd

from .chart import Chart
from .cosine_squares import CAPTION as SQUARES_CAPTION
from .cosine_squares import cosine_squares
from .depth_lines import depth_lines
from .depth_networks import depth_networks
from .head_map import extents
from .page import Section, bullet_list, document, table_html
from .picture import picture
from .step_lines import measured, update_line
from .step_map import step_maps, thinned

TITLE = "Attention going wrong, in three acts"
PURPOSE = (
    "Attention can fail in two ways. Tokens become alike, so that the network forgets which is which; or scores grow "
    "until every token stares at a single other one and nothing is learned any more. uncollapse sees both while you "
    "train, and knows what helps. Here it does so on networks that are small enough for your machine."
)
ALONE = (
    "Networks of attention layers and nothing else, with random weights, read a line of text. The first squares "
    "compare the tokens as they come in, the others as they are after that many layers."
)
WRONG = (
    "A small GPT learns to write. Each of its lines is a few letters from Python's help texts, over and over, so that "
    "it has to look back at what it wrote. After a good start its learning rate grows until it is too high, and "
    "uc.watch looks on. Then the same run once more, with one line of code added."
)
INHERITED = (
    "The same GPT at a rate that suits it, with plain attention and with Modern Hopfield Attention: every layer takes "
    "over half of the scores of the layer before it, and every token keeps half of itself beside what it attends to."
)
CAUTION = (
    "Small networks, short trainings, one seed each: this page shows how to look, not what is best. For that, train "
    "several seeds (uncollapse train --seeds 3) and compare them (uncollapse compare)."
)
MAP = "A row is a layer, a column a measurement; the colour is the largest attention score, on a logarithmic scale."
METRIC = "logit_max"
CHANGED = ("cosine_mean", "entropy_normalised")  # what the third act shows by layer


class WatchedTables(Protocol):
    """A run that was watched."""

    @property
    def heads(self) -> pd.DataFrame:
        """One row for each measurement and head."""

    @property
    def layers(self) -> pd.DataFrame:
        """One row for each measurement and layer."""

    @property
    def updates(self) -> pd.DataFrame:
        """One row for each update, with its loss."""


@dataclass(frozen=True)
class WatchedAct:
    """Two runs of an act, numbered from 1 in the order of `names`, and steps of the first one to mark."""

    names: Sequence[str]
    heads: Sequence[pd.DataFrame]
    layers: Sequence[pd.DataFrame]
    updates: Sequence[pd.DataFrame]
    events: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, runs: Iterable[tuple[str, WatchedTables]], events: Mapping[str, int] | None = None) -> WatchedAct:
        """From the names and the runs."""
        names, watched = zip(*runs, strict=True)
        return cls(
            names,
            [run.heads for run in watched],
            [run.layers for run in watched],
            [run.updates for run in watched],
            events or {},
        )


@dataclass(frozen=True)
class DemoContent:
    """The results of the demo."""

    findings: Sequence[Sequence[str]]  # of each act
    cosines: Mapping[str, pd.DataFrame]  # of each network, as `cosine_squares` takes it
    depth: pd.DataFrame  # as `depth_networks` takes it
    networks: Sequence[str]
    all_depths: pd.DataFrame
    wrong: WatchedAct
    warning: str  # the sentence of the first one, or nothing
    remedy: str
    evidence: str
    inherited: WatchedAct
    warnings: pd.DataFrame
    numbers: pd.DataFrame
    source: str


def demo_page(content: DemoContent) -> str:
    """The HTML of the demo."""
    lead = f'<p>{escape(PURPOSE)}</p>\n<p class="about">{escape(CAUTION)}</p>'
    choice = {"layer": 0, "head": 0, "metric": METRIC}  # no layer is chosen until the reader does
    rest = table_html(content.warnings, f"All warnings ({len(content.warnings)})") if len(content.warnings) else ""
    rest += table_html(content.numbers, "The four trainings in numbers")
    return document(TITLE, lead, _acts(content), choice, rest, content.source)


def demo_picture(content: DemoContent) -> bytes:
    """PNG of the run going wrong: the scores of every layer, and the loss with and without the remedy."""
    return picture([_map(content.wrong, 1), _losses(content.wrong, "loss-wrong")], [420, 420], 200)


def _acts(content: DemoContent) -> list[Section]:
    first, second, third = (bullet_list(sentences) for sentences in content.findings)
    wrong, inherited = content.wrong, content.inherited
    return [
        Section(
            "1. Collapse you can see",
            [
                *(
                    replace(cosine_squares(table, f"cosines-{number}", name), caption="")
                    for number, (name, table) in enumerate(content.cosines.items(), start=1)
                ),
                depth_networks(content.depth, content.networks, solid=len(content.networks) - 1),
            ],
            before=_words(ALONE) + first,
            caption=SQUARES_CAPTION,
            after=table_html(_depth_table(content.all_depths), "The numbers, with two more networks"),
        ),
        Section(
            "2. A run going wrong",
            [_map(wrong, 1), _map(wrong, 2), _losses(wrong, "loss-wrong")],
            before=_words(WRONG) + second + _warning(content.warning),
            caption=MAP,
            after=f'<p class="remedy">What was added: {escape(content.remedy)} {escape(content.evidence)}</p>',
        ),
        Section(
            "3. Inherited scores",
            [
                _losses(inherited, "loss-inherited"),
                *(depth_lines(_last(inherited), column, inherited.names) for column in CHANGED),
            ],
            layout="columns",
            before=_words(INHERITED) + third,
        ),
    ]


def _words(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _warning(sentence: str) -> str:
    """The first warning as the watch gave it; what helps is folded away, since it is long."""
    if not sentence:
        return ""
    told, _, helps = sentence.partition(" What helps: ")
    more = f"<details><summary>What helps, it says</summary><p>{escape(helps)}</p></details>" if helps else ""
    return f'<div class="verdict collapse"><p><b>▲ uc.watch:</b> {escape(told)}</p>{more}</div>'


def _ends(act: WatchedAct) -> dict[str, list[float]]:
    """The ends of the colours that the maps of an act share."""
    tables = [heads[["layer", "head", METRIC]] for heads in act.heads]
    return {METRIC: extents(tables)[METRIC]}


def _map(act: WatchedAct, number: int) -> Chart:
    """The largest score of every layer over a run."""
    heads = thinned(act.heads[number - 1])
    name = act.names[number - 1]
    chart = step_maps(heads, _ends(act), number, name, act.events.get("warning") if number == 1 else None)[0]
    return replace(chart, caption="")


def _losses(act: WatchedAct, name: str) -> Chart:
    return update_line(measured(act.updates, "loss"), name, "Training loss", act.names, act.events)


def _last(act: WatchedAct) -> pd.DataFrame:
    """The layers of every run at its last measurement."""
    return pd.concat(
        [table[table["step"] == table["step"].max()].assign(report=n) for n, table in enumerate(act.layers, start=1)],
        ignore_index=True,
    )


def _depth_table(depth: pd.DataFrame) -> pd.DataFrame:
    """The residual ratio: one column per network, one row per depth."""
    wide = depth.pivot(index="depth", columns="attention", values="mean")[list(depth["attention"].unique())]
    wide = wide.map(lambda ratio: f"{ratio:.2g}")
    return wide.rename_axis(index="layers", columns=None).reset_index()
