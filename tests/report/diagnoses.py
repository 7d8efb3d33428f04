"""Diagnoses of any size, made without a model: random tokens, queries, keys and weights fed to an observer."""

import torch

import uncollapse as uc

HOSTILE = "<img src=x onerror=\"document.title='owned'\"></script><script>document.title='owned'</script>&amp;'\",\n"


def diagnosis(layers: int = 3, heads: int = 4, size: int = 8, name: str = "a model", collapsed: bool = False):
    """Tokens that differ, or become alike from layer to layer; the last layer's first head looks at one key."""
    torch.manual_seed(layers * heads + size)
    with uc.Observer(name) as observer:
        observer.sample = "random tokens"
        for layer in range(1, layers + 1):
            x = torch.randn(2, 24, heads * size)
            if collapsed:
                x = x * 10.0 ** (-layer) + torch.randn(1, 1, heads * size)
            observer.tokens(layer, x)
            q, k = torch.randn(2, 2, heads, 24, size)
            if layer == layers:
                q[:, 0], k[:, 0] = 0.0, 0.0
                q[:, 0, :, 0], k[:, 0, 5, 0] = 40.0, 40.0  # every query of head 1 finds key 5
            observer.attention(layer, q, k)
            observer.weights(layer, *torch.randn(2, heads, size, heads * size), size**-0.5)
    return observer.diagnosis
