"""The papers' own words: each quotation is found in the text that it was read in."""

import os
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest

from uncollapse_studies.audit.registry import claims
from uncollapse_studies.charts.quotation import readable_quote

SEEDS = Path(os.environ.get("UNCOLLAPSE_DATA", "no-such-folder")).parent / "seeds"  # the papers' texts, beside the data
CLAIMS = claims()
QUOTED = [id for id, claim in CLAIMS.items() if claim.quote]
MARKS = re.compile(
    r"\\(?:mathbf|boldsymbol|mathbb|mathrm|text|operatorname|left|right|quad|begin\{aligned\}|end\{aligned\})"
    r"|[\s${}*&\\\u00ad]"
)


def normal(text: str) -> str:
    """Text without white space, hyphenation at line ends and the marks that the extraction left."""
    return MARKS.sub("", re.sub(r"-\n\s*", "", unicodedata.normalize("NFKC", text)))


@cache
def seed_text(name: str) -> str:
    return normal((SEEDS / name).read_text(encoding="utf-8"))


@pytest.mark.skipif(not SEEDS.is_dir(), reason="there are no texts of the papers in ../seeds of $UNCOLLAPSE_DATA")
@pytest.mark.parametrize("id", QUOTED)
def test_a_quotation_is_in_the_text(id):
    claim, position = CLAIMS[id], 0
    for passage in claim.quote.split(" ... "):
        found = seed_text(claim.seed).find(normal(passage), position)
        assert found >= 0, f"not in {claim.seed}: {passage}"
        position = found + len(normal(passage))


@pytest.mark.parametrize("id", CLAIMS)
def test_a_claim_has_the_words_or_says_what_was_read_instead(id):
    claim = CLAIMS[id]
    assert bool(claim.quote) == bool(claim.seed)
    assert claim.quote or claim.unverified


@pytest.mark.parametrize("id", QUOTED)
def test_a_quotation_is_short_and_readable(id):
    quote = CLAIMS[id].quote
    prose = re.sub(r"\b(?:al|Eq|Eqs|Fig|Figs|e\.g|i\.e)\.", "", quote.replace(" ... ", " "))
    assert len(re.findall(r"[.?!:]\s+[A-Z][a-z]", prose)) <= 2, "at most two sentences, and a caption's first words"
    assert not re.search(r"\\|\$", readable_quote(quote)), "LaTeX is left that the page would show"
