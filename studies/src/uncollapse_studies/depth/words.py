"""The findings in sentences, for the page and for the table of remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from uncollapse.statistics import FEWEST, Estimate

from .findings import AIM_LAYERS, DepthFinding, DepthFindings, MethodFinding
from .plan import GROUPS, INHERITING, LONGER, NORM_FREE, PLAIN, RESIDUAL, SKIP_FREE, PlanSize

OF_REMEDY = {"hopfield": (INHERITING,), "value_mixing": ("shaped attention", "shaped attention, started")}


def sentences(found: DepthFindings, size: PlanSize, planned: int) -> list[str]:
    """What it comes to, the finding first."""
    told = [_aim(found), *(_depth(one) for one in found.by_depth.values()), _inheriting(found)]
    return [*(one for one in (*told, *_norm_free(found)) if one), *_setting(found, size, planned)]


def _aim(found: DepthFindings) -> str:
    deepest = found.by_depth.get(AIM_LAYERS)
    if deepest is None:
        return f"Pending: no net of {AIM_LAYERS} layers is trained yet."
    reference, most = deepest.methods[RESIDUAL], LONGER * deepest.updates
    others = {name: own for name, own in deepest.methods.items() if name != RESIDUAL}
    there = [f"{name} ({_updates(own)})" for name, own in others.items() if own.always]
    rest = [f"{name} ({own.accuracy.mean:.1f} %)" for name, own in others.items() if not own.always]
    return (
        f"{AIM_LAYERS} layers without residual connections are to reach in at most {LONGER} times the updates what the "
        f"same net with them has at its end, {reference.accuracy.mean:.1f} % of held-out images after "
        f"{deepest.updates} updates. With every seed it is reached by {_listed(there)}; not by {_listed(rest)}, with "
        f"what they have after {most} updates. The aim is {'reached' if there else 'not reached'}."
    )


def _updates(own: MethodFinding) -> str:
    known = sorted(update for update in own.reached if update is not None)
    return f"{known[0]} updates" if known[0] == known[-1] else f"{known[0]} to {known[-1]} updates"


def _depth(found: DepthFinding) -> str:
    reference = found.methods[RESIDUAL]
    if PLAIN not in found.methods:
        return ""
    there = [f"{name} ({_updates(own)})" for name, own in found.methods.items() if name != RESIDUAL and own.always]
    reached = (
        f" What the net with them has after {found.updates} ({reference.accuracy.mean:.1f} %) is reached by "
        f"{_listed(there)}."
        if found.layers != AIM_LAYERS
        else ""
    )
    plain = [f"{name} {found.methods[name].accuracy.mean:.1f} %" for name, *_ in GROUPS if name in found.methods]
    return (
        f"{found.layers} layers without residual connections, after {LONGER * found.updates} updates: "
        f"{', '.join(plain)}. {_judged(found.against, 'points')}{reached}"
    )


def _judged(gaps: Mapping[str, Estimate], unit: str, better: str = "higher") -> str:
    """Which differences are beyond doubt, and how large those would have to be that are not."""
    words = {better: "Better", ("lower" if better == "higher" else "higher"): "Worse"}
    told = []
    for verdict, word in words.items():
        names = [f"{name} ({gap.value:+.2g})" for name, gap in gaps.items() if gap.verdict == verdict]
        told += [f"{word}, in {unit}: {', '.join(names)}."] if names else []
    alike = [name for name, gap in gaps.items() if gap.value == 0.0 and gap.error == 0.0]
    told += [f"As little as the plain net: {', '.join(alike)}."] if alike else []
    open_ = {name: gap for name, gap in gaps.items() if gap.verdict == "undecided" and name not in alike}
    if open_ and all(gap.seeds < FEWEST for gap in open_.values()):
        values = ", ".join(f"{name} {gap.value:+.2g}" for name, gap in open_.items())
        told.append(f"One seed decides nothing; differences in {unit}: {values}.")
    elif open_:
        values = ", ".join(f"{n} {gap.value:+.2g}, below {gap.detectable:.2g} unseen" for n, gap in open_.items())
        told.append(f"Undecided, in {unit}: {values}.")
    return " ".join(told)


def _inheriting(found: DepthFindings) -> str:
    """What inherited scores add to the visible skip."""
    gaps = {layers: gap for layers, one in found.by_depth.items() if (gap := one.inheriting) is not None}
    told = [
        f"{layers} layers {gap.value:+.1f}"
        + (f" ({gap.low:+.1f} to {gap.high:+.1f})" if gap.seeds >= FEWEST else " (one seed)")
        for layers, gap in gaps.items()
    ]
    return f"What alpha' = 0.5 adds to alpha = 0.5 alone, in points: {'; '.join(told)}." if told else ""


def _norm_free(found: DepthFindings) -> list[str]:
    methods = found.norm_free
    if PLAIN not in methods:
        return [f"Pending: nothing is trained {NORM_FREE} yet."]
    all_train = [name for name, own in methods.items() if own.training == len(own.runs)]
    rest = [name for name in methods if name not in all_train]
    plain = methods[PLAIN]
    spread = {name: f"{name} ({own.loss.mean:.2f})" for name, own in methods.items()}
    return [
        f"{plain.runs[0].layers} layers {NORM_FREE}, without warm-up, under plain SGD, each at its best rate: "
        f"{len(all_train)} of {len(methods)} train, with held-out losses of "
        f"{_listed([spread[name] for name in all_train])}; not: {_listed([spread[name] for name in rest])}. A guess "
        f"has {plain.runs[0].guess.loss:.2f}. {_judged(found.norm_free_against, 'loss', better='lower')}".rstrip()
    ]


def _setting(found: DepthFindings, size: PlanSize, planned: int) -> list[str]:
    net = size.network
    rates, slow = (", ".join(f"{rate:g}" for rate in own) for own in (size.rates, size.norm_free_rates))
    return [
        f"{len(found.runs)} of {planned} runs are made. ViT of width {net.width}, MLP "
        f"{net.mlp_width}, {net.heads} heads, patches of "
        f"{net.patch} pixels, {net.images:,} images of CIFAR-10, batches of {net.batch}, {net.held_out:,} held-out "
        f"images every {net.every} updates. Without residual connections: AdamW, {size.warmup} updates of warm-up, "
        f"then a constant rate, gradients clipped at 1; of the rates {rates} the best, for each method and depth. "
        f"{NORM_FREE.capitalize()}: SGD without momentum, decay, clipping or warm-up, {size.norm_free_updates} "
        f"updates, residual connections stay; of the rates {slow} the best, for each remedy, which is given as the "
        "library's table does, value mixing as shaped attention. The best rate is that of seed 0" + _at_the_end(found),
        "alpha = 0.5, and alpha' = 0.5 in hopfield. The reading `replace` is refused for such a net: there is no "
        "residual connection that alpha could replace. Shaped attention adds each token's own value less the mean of "
        "all values. No remedy gives the MLP a skip; *started*: the MLP starts as the identity, in shaped attention "
        "W_O W_V as well, and the plain net that starts so is what they are held against (alpha as in `normed`).",
    ]


def _at_the_end(found: DepthFindings) -> str:
    """How many methods might do better at a rate lower than any that was tried."""
    tried = {run.rate for run in found.runs if run.part == SKIP_FREE}
    best = [method.rate for own in found.by_depth.values() for name, method in own.methods.items() if name != RESIDUAL]
    lowest = sum(rate == min(tried) for rate in best) if len(tried) > 1 else 0
    return f"; without residual connections it is the lowest in {lowest} of {len(best)} cases." if lowest else "."


def evidence(found: DepthFindings) -> dict[str, str]:
    """One sentence for each remedy with several seeds."""
    told: dict[str, list[str]] = {}
    for remedy, names in OF_REMEDY.items():
        told[remedy] = [text for name in names for text in _skip_free_evidence(found, name)]
    for name, gap in found.norm_free_against.items():
        if gap.seeds >= FEWEST:
            own, plain = found.norm_free[name], found.norm_free[PLAIN]
            told.setdefault(name, []).append(
                f"{NORM_FREE} under SGD it trains with {own.training} of {len(own.runs)} seeds, loss "
                f"{own.loss.mean:.2f} against {plain.loss.mean:.2f} without it ({_verdict(gap, 'lower')})"
            )
    return {name: f"{'; '.join(texts)}; ViT on CIFAR-10" for name, texts in told.items() if texts}


def _skip_free_evidence(found: DepthFindings, name: str) -> list[str]:
    deepest = max((one for one in found.by_depth.values() if name in one.against), key=_layers, default=None)
    if deepest is None or deepest.against[name].seeds < FEWEST:
        return []
    own = deepest.methods[name]
    plain = next(deepest.methods[plain] for plain, *others in GROUPS if name in others)
    return [
        f"{deepest.layers} layers without residual connections, {name}: {own.accuracy.mean:.1f} % against "
        f"{plain.accuracy.mean:.1f} % without it ({_verdict(deepest.against[name], 'higher')}), "
        f"{deepest.methods[RESIDUAL].accuracy.mean:.1f} % with residual connections and half the updates, "
        f"{own.accuracy.seeds} seeds"
    ]


def _layers(found: DepthFinding) -> int:
    return found.layers


def _verdict(gap: Estimate, better: str) -> str:
    return "undecided" if gap.verdict == "undecided" else "better" if gap.verdict == better else "worse"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"
