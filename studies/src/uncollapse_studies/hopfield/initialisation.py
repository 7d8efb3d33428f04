"""What alpha multiplies, before any training: size of the stream, what blocks write into it, residual and entropy."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

import uncollapse as uc
from uncollapse.models.families import blocks_of, family_of
from uncollapse.theory import stream_sizes
from uncollapse.training.model import build_model
from uncollapse.training.recipe import resolve

from ..cells.hopfield import RECIPES
from ..cells.readings import COMPARISONS, ID, PLAIN, READINGS, methods
from ..figure import Result, Size

NETWORKS = {"gpt2": "GPT", "vit": "ViT"}
QUANTITIES = {
    "size": "size of the stream",
    "block_share": "share of the stream that blocks wrote",
    "residual_ratio": "residual ratio",
    "entropy_normalised": "entropy over its largest value",
}
MEASURED, COMPUTED = "measured", "computed"
SEQUENCES = 8


def figure(size: Size, tick: Callable[[], object]) -> Result:
    """All readings in the GPT and the ViT of the fair comparison."""
    from ..charts.initialisation_chart import initialisation_chart

    seeds = 3 if size == "full" else 1
    table = initialisation_table(seeds, 1 if size == "smallest" else None, tick)
    mean = table.groupby(["network", "method", "source", "layer"], as_index=False, sort=False)[[*QUANTITIES]].mean()
    return Result(
        table=table,
        chart=initialisation_chart(mean, QUANTITIES, "What alpha multiplies, at initialisation"),
        sentences=_sentences(mean),
        reading_aid="Dots are measured, lines computed by the recursion of docs/theory.md. A size is the standard "
        "deviation of a component; layer 0 is the embedding.",
        summary=_summary(mean),
        settings={
            "seeds": seeds,
            "sequences": SEQUENCES,
            **{f"alpha = alpha', {network}": COMPARISONS[model].share for model, network in NETWORKS.items()},
        },
        verdict="not in the paper",
        finding=" ".join(_sentences(mean)[:1]),
    )


def initialisation_table(seeds: int, layers: int | None, tick: Callable[[], object]) -> pd.DataFrame:
    """One row per network, method, source, seed and layer."""
    rows = []
    with torch.random.fork_rng():
        for model, network in NETWORKS.items():
            for name in (PLAIN, *(f"hopfield-{skip}" for skip in READINGS)):
                for seed in range(seeds):
                    torch.manual_seed(seed)
                    found = _measured(model, name, layers)
                    rows.append(found.assign(network=network, method=name, seed=seed))
                    tick()
    return pd.concat(rows, ignore_index=True)


def _measured(model: str, name: str, layers: int | None) -> pd.DataFrame:
    """One network: what is measured, and what the recursion makes of the sizes of its first block."""
    recipe = resolve(RECIPES[model]["laptop"], **COMPARISONS[model].keys, **methods(f"{ID}{model}")[name])
    recipe = recipe if layers is None else replace(recipe, layers=layers)
    built = build_model(recipe, vocabulary=recipe.vocab_size or 0, classes=10).train(False)
    batch = _batch(built, recipe.length, recipe.image_size)
    report = uc.diagnose(built, [batch])
    streams, attention, feed_forward = _streams(built, batch)
    start = streams[0]
    measured = pd.DataFrame(
        {
            "layer": range(len(streams)),
            "source": MEASURED,
            "size": [_size(stream) for stream in streams],
            "block_share": [_written(stream, start) for stream in streams],
            "residual_ratio": [float("nan"), *report.layers["residual_ratio"]],
            "entropy_normalised": [float("nan"), *report.layers["entropy_normalised"]],
        }
    )
    skip = methods(f"{ID}{model}")[name].get("skip", "none")
    computed = stream_sizes(skip, COMPARISONS[model].share, len(streams) - 1, _size(start), attention, feed_forward)
    theory = pd.DataFrame({"layer": range(len(streams)), "source": COMPUTED, **computed._asdict()})
    return pd.concat([measured, theory], ignore_index=True)


def _batch(model: PreTrainedModel, length: int, pixels: int) -> dict[str, Tensor]:
    """Random tokens, or normal pixels: what data would add is correlation between tokens."""
    if model.main_input_name == "pixel_values":
        return {"pixel_values": torch.randn(SEQUENCES, 3, pixels, pixels)}
    return {"input_ids": torch.randint(model.config.vocab_size, (SEQUENCES, length))}


def _streams(model: PreTrainedModel, batch: dict[str, Tensor]) -> tuple[list[Tensor], float, float]:
    """The stream before the first and after every block; sizes of the first block's attention and feed-forward net.

    A skip changes what W_O gives back, so the attention output is read from a stock copy of the first block.
    """
    family = family_of(model)
    assert family is not None
    blocks, streams, written = blocks_of(model, family), [], {}

    def entering(block: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        streams.append((args[0] if args else kwargs["hidden_states"]).detach())

    def leaving(block: nn.Module, args: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> None:
        streams.append((output[0] if isinstance(output, tuple) else output).detach())

    def writing(kind: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Tensor, ...], output: Tensor | tuple[Tensor, ...]) -> None:
            written[kind] = _size(output[0] if isinstance(output, tuple) else output)

        return hook

    stock = uc.restore(deepcopy(model)) if hasattr(model.config, "uncollapse") else model
    first = blocks_of(stock, family)[0]
    parts = {"attention": _part(first, ("attn", "attention")), "feed_forward": _part(first, ("mlp",))}
    handles = [part.register_forward_hook(writing(kind)) for kind, part in parts.items()]
    handles += [blocks[0].register_forward_pre_hook(entering, with_kwargs=True)]
    handles += [block.register_forward_hook(leaving) for block in blocks]
    with torch.no_grad():
        model(**batch)
        if stock is not model:
            stock(**batch)
    for handle in handles:
        handle.remove()
    return streams, written["attention"], written["feed_forward"]


def _part(block: nn.Module, names: tuple[str, ...]) -> nn.Module:
    return next(module for name in names if isinstance(module := getattr(block, name, None), nn.Module))


def _size(stream: Tensor) -> float:
    return float(stream.double().square().mean().sqrt())


def _written(stream: Tensor, start: Tensor) -> float:
    """The share of a stream that is not along its token's embedding, both centred as LayerNorm centres them."""
    now, before = (tokens.double() - tokens.double().mean(-1, keepdim=True) for tokens in (stream, start))
    return float(1.0 - nn.functional.cosine_similarity(now, before, dim=-1).square().mean())


def _last(mean: pd.DataFrame, network: str, method: str, quantity: str, source: str = MEASURED) -> float:
    rows = mean[(mean["network"] == network) & (mean["method"] == method) & (mean["source"] == source)]
    return float(rows.sort_values("layer")[quantity].iloc[-1])


def _sentences(mean: pd.DataFrame) -> list[str]:
    """Why the same reading is not the same in the two networks."""
    start = {
        network: float(mean[(mean["network"] == network) & (mean["layer"] == 0)]["size"].iloc[0])
        for network in NETWORKS.values()
    }
    told = [
        f"{network}: {_last(mean, network, PLAIN, 'block_share'):.2g} with self-attention, "
        + ", ".join(f"{_last(mean, network, f'hopfield-{skip}', 'block_share'):.2g} with {skip}" for skip in READINGS)
        for network in NETWORKS.values()
    ]
    sizes = [
        f"{network} from {start[network]:.2g} to {_last(mean, network, 'hopfield-normed', 'size'):.2g} "
        f"(self-attention {_last(mean, network, PLAIN, 'size'):.2g}, "
        f"stream {_last(mean, network, 'hopfield-stream', 'size'):.2g}, "
        f"replace {_last(mean, network, 'hopfield-replace', 'size'):.2g})"
        for network in NETWORKS.values()
    ]
    both = mean.pivot_table(index=["network", "method", "layer"], columns="source", values="size")
    off = (both[COMPUTED] / both[MEASURED] - 1.0).abs().groupby("method").max()
    fit = ", ".join(f"{off[name]:.1%} ({name})" for name in dict.fromkeys(mean["method"]))
    return [
        f"With normed, alpha LN(x) has a size of {COMPARISONS['gpt2'].share:g} in the GPT and "
        f"{COMPARISONS['vit'].share:g} in the ViT whatever the stream's, which starts at {start['GPT']:.2g} and "
        f"{start['ViT']:.2g}. So the stream becomes a large copy of the embedding: "
        f"{'; '.join(sizes)}.",
        f"Share of the last stream that blocks have written: {'; '.join(told)}. A block has to outgrow the copy "
        "before it counts, which may cost a GPT the start of its training: it predicts another token than the one it "
        "reads, with the embedding as its output weights, so that the copy stands for a wrong answer. A ViT reads its "
        "answer from a token of its own. These numbers do not prove that; hopfield-readings-gpt2 and "
        "hopfield-readings-vit tell how the losses differ over training.",
        f"The recursion gives the measured sizes within {fit}: with replace, blocks soon read what other blocks "
        "wrote, and the recursion takes all that is written as independent. Entropies are within "
        f"{1.0 - float(mean['entropy_normalised'].min()):.2g} of the largest in every reading: at initialisation no "
        "reading changes where attention looks.",
    ]


def _summary(mean: pd.DataFrame) -> pd.DataFrame:
    """After the last layer: one row per network and method."""
    rows = []
    for network in NETWORKS.values():
        for method in dict.fromkeys(mean["method"]):
            row: dict[str, object] = {"network": network, "method": method}
            for quantity, words in QUANTITIES.items():
                row[words] = f"{_last(mean, network, method, quantity):.3g}"
            row["size, computed"] = f"{_last(mean, network, method, 'size', COMPUTED):.3g}"
            rows.append(row)
    return pd.DataFrame(rows)
