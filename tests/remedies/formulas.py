"""The remedies' formulas in plain torch, as an attention function of transformers and for the modules of tests/models.

Shares no code with src/: it reads the remedies' parameters from a model, and computes everything else itself.
"""

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import uncollapse as uc
from uncollapse.models.families import family_of, layers_of

NAME = "written_out"


def numbers_of(model):
    """The parameters of each layer's remedies as leaves of their own: [{"sink.logits": tensor, ...}, ...]."""
    layers = {}
    for path, parameter in model.named_parameters():
        if ".uncollapse_" in path:
            attention, _, key = path.partition(".uncollapse_")
            layers.setdefault(attention, {})[key] = parameter.detach().clone().requires_grad_()
    return list(layers.values())


class Formulas:
    """What each layer computes with remedies."""

    def __init__(self, model):
        self.settings = {remedy.name: remedy for remedy in uc.remedies.applied(model)}
        self.numbers = numbers_of(model)
        self.first, self.scores = None, []
        self.rotates = False  # queries and keys were normalised where they left W_Q and W_K

    def number(self, n, key):
        return self.numbers[n - 1][key]

    def normed(self, n, x, key, eps):
        x = x / (x.square().mean(-1, keepdim=True) + eps).sqrt()
        gain = self.numbers[n - 1].get(f"qk_norm.{key}") if self.numbers else None
        if gain is None:
            return x
        return x * (gain if gain.dim() == 1 else gain.unsqueeze(1))  # (D,), or (H, 1, D)

    def attend(self, n, q, k, v, visible, scale, y=None, eps=1e-6):
        """(B, H, Q, D): n from 1; visible is broadcast to (B, H, Q, K); y is what entered the attention."""
        group = q.shape[1] // k.shape[1]
        if "qk_norm" in self.settings and not self.rotates:
            q, k = self.normed(n, q, "query", eps), self.normed(n, k, "key", eps)
        k, v = (torch.stack([t[:, h // group] for h in range(q.shape[1])], 1) for t in (k, v))
        if n == 1:
            self.first = v
        s = torch.einsum("bhqd,bhkd->bhqk", q, k) * scale
        self.scores.append(s.detach().masked_fill(~visible, -torch.inf))
        if "soft_cap" in self.settings:
            s = self.settings["soft_cap"].cap * torch.tanh(s / self.settings["soft_cap"].cap)
        above = torch.exp(s) * visible
        below = above.sum(-1, keepdim=True)
        if "sink" in self.settings:
            below = below + torch.exp(self.number(n, "sink.logits")).view(-1, 1, 1)
        weights = above / below
        out = weights @ v
        if "value_mixing" in self.settings:
            out = self.mixed(n, weights, v, visible)
        if "output_gate" in self.settings:
            gate = 2 / (1 + torch.exp(-(y @ self.number(n, "output_gate.weight").T)))
            out = out * torch.stack(gate.chunk(out.shape[1], -1), 1)
        return out

    def mixed(self, n, weights, v, visible):
        remedy = self.settings["value_mixing"]

        def coefficient(key):
            return self.number(n, f"value_mixing.{key}").view(-1, 1, 1) if remedy.learned else getattr(remedy, key)

        uniform = visible.expand_as(weights).to(v.dtype)
        uniform = uniform / uniform.sum(-1, keepdim=True)
        a, b, c, e, f = map(coefficient, ("attended", "own", "mean", "first", "attended_first"))
        return weights @ (a * v + f * self.first) + b * v + c * (uniform @ v) + e * self.first


def attention(module, query, key, value, mask, scaling=None, is_causal=None, **kwargs):
    """As transformers calls it; the formulas hang on the module."""
    formulas, n, y = module.formulas
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    visible = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool)
    if mask is not None:
        visible = mask
    elif causal and query.shape[2] > 1:
        visible = visible.tril()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = formulas.attend(n, query, key, value, visible, scale, y[0])
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


def written_out(stock, formulas):
    """A stock transformers model that attends by the formulas."""
    formulas.rotates = hasattr(stock.config, "rope_parameters")
    for n, layer in enumerate(layers_of(stock, family_of(stock)), start=1):
        if formulas.rotates and "qk_norm" in formulas.settings:
            norm_before_rotation(layer.attention, formulas, n)
        entering = [None]

        def note(module, args, kwargs, entering=entering):
            entering[0] = args[0] if args else kwargs["hidden_states"]

        layer.attention.formulas = (formulas, n, entering)
        layer.attention.register_forward_pre_hook(note, with_kwargs=True)
    stock.set_attn_implementation(NAME)
    return stock


def norm_before_rotation(attention, formulas, n):
    def of(side):
        def hook(module, args, result):
            heads = result.unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
            return formulas.normed(n, heads, side, attention.config.rms_norm_eps).transpose(1, 2).flatten(2)

        return hook

    attention.q_proj.register_forward_hook(of("query"))
    attention.k_proj.register_forward_hook(of("key"))


class Recursion:
    """For the modules of tests/models/modules.py: `written_out(batch, recursion)` attends through it."""

    def __init__(self, formulas, module):
        self.formulas, self.n, self.y = formulas, 0, None
        for name, norm in module.named_modules():
            if name.endswith(("ln_1", "norm1")):
                norm.register_forward_hook(self.note)

    def note(self, module, args, result):
        self.y = result

    def attend(self, q, k, v, causal=False, bias=None):
        self.n += 1
        visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool)
        visible = visible.tril() if causal else visible
        visible = visible if bias is None else visible & torch.isfinite(bias)
        out = self.formulas.attend(self.n, q, k, v, visible, q.shape[-1] ** -0.5, self.y)
        return out.transpose(1, 2).flatten(2)

    def add(self, x, y, out, gate=1.0):
        return x + gate * out

    def leave(self, x):
        return x


def shaken(model, seed=0):
    """The model with its remedies' parameters moved away from where they start."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if ".uncollapse_" in path:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model
