"""A picture of one attention layer with the places where remedies act."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 980, 430
# name of a part -> its text, and x, y, width, height
PARTS: dict[str, tuple[str, int, int, int, int]] = {
    "tokens": ("X", 20, 180, 50, 44),
    "query": ("W_Q", 130, 90, 70, 44),
    "key": ("W_K", 130, 180, 70, 44),
    "value": ("W_V", 130, 290, 70, 44),
    "heads": ("Q, K", 280, 135, 80, 44),
    "scores": ("Q Kᵀ / √D", 430, 135, 110, 44),
    "softmax": ("softmax", 600, 135, 90, 44),
    "attended": ("A V", 740, 200, 70, 44),
    "output": ("W_O", 870, 200, 70, 44),
    "step": ("optimizer's step", 130, 20, 150, 36),
}
ARROWS = (
    ("tokens", "query"),
    ("tokens", "key"),
    ("tokens", "value"),
    ("query", "heads"),
    ("key", "heads"),
    ("heads", "scores"),
    ("scores", "softmax"),
    ("softmax", "attended"),
    ("value", "attended"),
    ("attended", "output"),
)
# where each remedy is written, and the part that it changes
PLACES: dict[str, tuple[int, int, str]] = {
    "qk_norm": (320, 112, "heads"),
    "soft_cap": (485, 112, "scores"),
    "hopfield": (485, 200, "scores"),
    "sink": (645, 112, "softmax"),
    "value_mixing": (775, 268, "attended"),
    "output_gate": (838, 190, "output"),
    "qk_clip": (330, 30, "step"),
    "qk_rate": (330, 50, "step"),
    "locater": (430, 30, "step"),
    "sigma_reparam": (165, 358, "value"),
}


def remedies_picture(entries: Sequence[Mapping[str, str]]) -> str:
    """An SVG of one layer; `entries` have a name and a place each, and every one of them is drawn."""
    missing = [entry["name"] for entry in entries if entry["name"] not in PLACES]
    if missing:
        raise ValueError(f"the picture has no place for {', '.join(missing)}.")
    lines = [_arrow(*pair) for pair in ARROWS] + [_part(*part) for part in PARTS.values()]
    lines += [_label(entry["name"], entry["place"]) for entry in entries]
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="15" role="img" '
        'aria-label="Where each remedy acts in an attention layer">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#8a8f98"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n'
        '<text x="20" y="415" font-size="13" fill="#5b616b">Orange: remedies, at what they change. sigma_reparam is in '
        "every linear map of the block; qk_clip, qk_rate and locater act on W_Q and W_K at a step.</text>\n</svg>\n"
    )


def _part(text: str, x: int, y: int, width: int, height: int) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#eef2f7" stroke="#5b7aa6"/>'
        f'<text x="{x + width / 2}" y="{y + height / 2 + 5}" text-anchor="middle" fill="#1d2733">{escape(text)}</text>'
    )


def _arrow(source: str, target: str) -> str:
    _, x, y, width, height = PARTS[source]
    _, to_x, to_y, _, to_height = PARTS[target]
    ends = f'x1="{x + width}" y1="{y + height / 2}" x2="{to_x - 2}" y2="{to_y + to_height / 2}"'
    return f'<line {ends} stroke="#8a8f98" stroke-width="1.5" marker-end="url(#tip)"/>'


def _label(name: str, place: str) -> str:
    x, y, _ = PLACES[name]
    return (
        f'<text x="{x}" y="{y}" text-anchor="middle" font-weight="bold" fill="#b3541e">{escape(name)}'
        f"<title>{escape(place)}</title></text>"
    )
