"""A plan as a table for a notebook; plain HTML, which needs no extra."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._plan import Plan

HEAD = ("layer", "attends", "block", "x", "y", "W_O", "W_Q, W_K")
LACKING = "not found"


def plan_html(plan: Plan, titles: Sequence[str], rows: Sequence[Sequence[Sequence[str]]]) -> str:
    """One table a stack: `titles` above them, `rows` in them, a row for each layer; what was not found stands out."""
    parts = [f"<b>{escape(plan.model)}</b>"]
    for stack, title, layers in zip(plan.stacks, titles, rows, strict=True):
        refusal = f"<br>cannot inherit scores: {escape(stack.refusal)}" if stack.refusal else ""
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in layers)
        head = "".join(f'<th style="text-align:left">{escape(name)}</th>' for name in HEAD)
        parts.append(
            f"<p>{escape(title)}{refusal}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    if plan.left_out:
        items = "".join(
            f"<li><code>{escape(path or 'the model itself')}</code>: {escape(why)}</li>" for path, why in plan.left_out
        )
        parts.append(f"<p>Left out:</p><ul>{items}</ul>")
    return f"<div>{''.join(parts)}</div>"


def _cell(text: str) -> str:
    style = "text-align:left" + (";color:#c95000;font-weight:600" if text == LACKING else "")
    return f'<td style="{style}"><code>{escape(text)}</code></td>'
