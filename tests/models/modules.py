"""Small modules as people write them outside transformers, each with the recursion written into it by hand.

The reference of a module shares nothing with the library: it calls the module's own parts in order, and attends with
`Recursion`, which is Eq. 54 and nothing else.
"""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, TOKENS, LAYERS, VOCABULARY = 12, 3, 7, 4, 11


class Recursion:
    """H_n = alpha' H_{n-1} + (1 - alpha') S_n with H_0 = 0; out = softmax(H_n) V."""

    def __init__(self, alpha, alpha_hidden, skip):
        self.alpha, self.alpha_hidden, self.skip, self.hidden = alpha, alpha_hidden, skip, None
        self.scores, self.streams = [], []  # as they enter each softmax; as they leave each block

    def attend(self, q, k, v, causal=False, bias=None, cap=None, scale=None):
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = (1 - self.alpha_hidden) * (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
        self.hidden = scores if self.hidden is None else self.alpha_hidden * self.hidden + scores
        seen = self.hidden
        if cap is not None:
            seen = cap * torch.tanh(seen / cap)
        if bias is not None:
            seen = seen + bias
        if causal:
            seen = seen.masked_fill(torch.ones(seen.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
        self.scores.append(seen.detach())
        return merge(seen.softmax(-1) @ v)

    def leave(self, x):
        self.streams.append(x.detach())
        return x

    def add(self, x, y, out, gate=1.0):
        """What the block's sum of its tokens x and the attention's output becomes; y is what entered the attention."""
        if self.skip == "replace":
            return self.alpha * x + (1 - self.alpha) * out
        skipped = x if self.skip == "stream" else y
        return x + gate * (self.alpha * skipped + (1 - self.alpha) * out)


def split(x, heads=HEADS):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


class CausalAttention(nn.Module):
    """As nanoGPT writes it: fused projections, SDPA or softmax written out."""

    def __init__(self, flash=True, dropout=0.0):
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.flash, self.dropout = flash, dropout

    def forward(self, x):
        q, k, v = (split(t) for t in self.c_attn(x).split(WIDTH, dim=2))
        if self.flash:
            rate = self.dropout if self.training else 0.0
            y = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        else:
            att = (q @ k.transpose(-2, -1)) * (1.0 / q.shape[-1] ** 0.5)
            att = att.masked_fill(torch.ones(att.shape[-2:], dtype=torch.bool).tril() == 0, float("-inf"))
            y = functional.dropout(functional.softmax(att, dim=-1), self.dropout, self.training) @ v
        return self.c_proj(merge(y))


class CausalBlock(nn.Module):
    def __init__(self, flash=True, dropout=0.0):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = CausalAttention(flash, dropout)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self, flash=True, dropout=0.0, layers=LAYERS):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(64, WIDTH)
        self.h = nn.ModuleList([CausalBlock(flash, dropout) for _ in range(layers)])
        self.ln_f, self.lm_head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.checkpointing = None  # arguments of torch.utils.checkpoint

    def forward(self, idx, targets=None):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            if self.checkpointing is not None:
                x = torch.utils.checkpoint.checkpoint(block, x, **self.checkpointing)
            else:
                x = block(x)
        logits = self.lm_head(self.ln_f(x))
        loss = None if targets is None else functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss

    def written_out(self, idx, recursion):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            y = block.ln_1(x)
            q, k, v = (split(t) for t in block.attn.c_attn(y).chunk(3, -1))
            x = recursion.add(x, y, block.attn.c_proj(recursion.attend(q, k, v, causal=True)))
            x = recursion.leave(x + block.mlp(block.ln_2(x)))
        return self.lm_head(self.ln_f(x))


class ImageAttention(nn.Module):
    """As timm writes it: queries and keys normalised or not, a switch for fused attention, dropout modules."""

    def __init__(self, fused, drop):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_drop, self.proj_drop, self.fused_attn = nn.Dropout(0.0), nn.Dropout(drop), fused

    def forward(self, x):
        batch, tokens, width = x.shape
        qkv = self.qkv(x).reshape(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused_attn:
            x = functional.scaled_dot_product_attention(q, k, v)
        else:
            q = q * (width // HEADS) ** -0.5
            x = self.attn_drop((q @ k.transpose(-2, -1)).softmax(dim=-1)) @ v
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(batch, tokens, width)))


class LayerScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x):
        return x * self.gamma


class ImageBlock(nn.Module):
    def __init__(self, fused, drop, scaled):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.ls1 = ImageAttention(fused, drop), LayerScale() if scaled else nn.Identity()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class ImageTransformer(nn.Module):
    def __init__(self, fused=True, drop=0.0, scaled=False):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, WIDTH, 4, 4)
        self.cls_token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.blocks = nn.Sequential(*[ImageBlock(fused, drop, scaled) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5)
        self.every = 0  # so many blocks are one checkpointed region

    def set_grad_checkpointing(self, enable=True, every=1):
        self.every = every if enable else 0

    def forward_features(self, images):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        if not self.every:
            return self.blocks(x)
        for start in range(0, LAYERS, self.every):
            x = torch.utils.checkpoint.checkpoint(self.blocks[start : start + self.every], x, use_reentrant=False)
        return x

    def forward(self, images):
        return self.head(self.norm(self.forward_features(images))[:, 0])

    def written_out(self, images, recursion):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        for block in self.blocks:
            y = block.norm1(x)
            q, k, v = (split(t) for t in block.attn.qkv(y).chunk(3, -1))
            out = block.attn.proj(recursion.attend(q, k, v))
            x = recursion.add(x, y, out, getattr(block.ls1, "gamma", 1.0))
            x = recursion.leave(x + block.mlp(block.norm2(x)))
        return self.head(self.norm(x)[:, 0])


class Encoder(nn.Module):
    """torch.nn.TransformerEncoder, with a head."""

    def __init__(self, norm_first=False, batch_first=True, dropout=0.0):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, dropout, norm_first=norm_first, batch_first=batch_first
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        for parameter in self.encoder.parameters():  # its layers start as copies of one
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        self.head, self.batch_first = nn.Linear(WIDTH, 5), batch_first

    def forward(self, x, padding=None):
        return self.head(self.encoder(x, src_key_padding_mask=padding))

    def written_out(self, x, recursion, padding=None):
        x = x if self.batch_first else x.transpose(0, 1)
        for layer in self.encoder.layers:
            y = layer.norm1(x) if layer.norm_first else x
            attention = layer.self_attn
            q, k, v = (
                split(t) for t in functional.linear(y, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
            )
            bias = (
                None if padding is None else torch.zeros(padding.shape).masked_fill(padding, -torch.inf)[:, None, None]
            )
            total = recursion.add(x, y, attention.out_proj(recursion.attend(q, k, v, bias=bias)))
            if layer.norm_first:
                x = total + layer.linear2(functional.relu(layer.linear1(layer.norm2(total))))
            else:
                total = layer.norm1(total)
                x = layer.norm2(total + layer.linear2(functional.relu(layer.linear1(total))))
            recursion.leave(x)
        return self.head(x if self.batch_first else x.transpose(0, 1))


class BiasedAttention(nn.Module):
    """Heads folded into the batch; scale and position bias go into one call with the product."""

    def __init__(self, beta):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.beta = beta

    def bias(self, x):
        return torch.linspace(-1, 1, x.shape[1] ** 2, dtype=x.dtype).view(x.shape[1], -1)

    def forward(self, x):
        q, k, v = (split(t).flatten(0, 1) for t in self.qkv(x).chunk(3, -1))
        bias = self.bias(x).expand(len(q), -1, -1)
        scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=self.beta, alpha=q.shape[-1] ** -0.5)
        return self.proj(merge(torch.bmm(scores.softmax(-1), v).unflatten(0, (-1, HEADS))))


class BiasedBlock(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.norm, self.attn = nn.LayerNorm(WIDTH), BiasedAttention(beta)

    def forward(self, x):
        return x + self.attn(self.norm(x))


class Biased(nn.Sequential):
    """Blocks whose product is a `baddbmm`, with an offset of what leaves each, outside of the block."""

    def __init__(self, beta=0.5):
        super().__init__(*[nn.Sequential(BiasedBlock(beta), Offset()) for _ in range(LAYERS)])

    def written_out(self, x, recursion):
        for block, offset in self:
            y, a = block.norm(x), block.attn
            q, k, v = (split(t) for t in a.qkv(y).chunk(3, -1))
            x = recursion.leave(recursion.add(x, y, a.proj(recursion.attend(q, k, v, bias=a.beta * a.bias(x)))))
            x = offset(x)
        return x


class Offset(nn.Module):
    def forward(self, x):
        return x + 1.0


class Attend(nn.Module):
    """The inner attention of x-transformers: einsum, a position bias, a cap."""

    def forward(self, q, k, v, bias):
        sim = torch.einsum("b h i d, b h j d -> b h i j", q, k) * q.shape[-1] ** -0.5
        sim = 5.0 * torch.tanh(sim / 5.0) + bias
        return torch.einsum("b h i j, b h j d -> b h i d", sim.softmax(dim=-1), v)


class GroupedAttention(nn.Module):
    """Separate projections, fewer key heads, no bias; the softmax is written out in a module of its own."""

    def __init__(self):
        super().__init__()
        self.to_q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH // HEADS, bias=False) for _ in range(2))
        self.to_out, self.attend = nn.Linear(WIDTH, WIDTH, bias=False), Attend()

    def forward(self, x, bias, context=None):
        context = x if context is None else context
        q, k, v = split(self.to_q(x)), split(self.to_k(context), 1), split(self.to_v(context), 1)
        k, v = (t.expand(-1, HEADS, -1, -1) for t in (k, v))
        return self.to_out(merge(self.attend(q, k, v, bias)))


class BranchedDecoder(nn.Module):
    """As x-transformers orders it: lists of norm and branch, the residual outside of every module."""

    def __init__(self):
        super().__init__()
        self.token_emb, self.to_logits = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.ModuleList()
        for _ in range(LAYERS):
            self.layers.append(nn.ModuleList([nn.LayerNorm(WIDTH), GroupedAttention()]))
            mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
            self.layers.append(nn.ModuleList([nn.LayerNorm(WIDTH), mlp]))

    def bias(self, tokens):
        distance = torch.arange(tokens) - torch.arange(tokens)[:, None]
        slopes = torch.tensor([0.5, 0.25, 0.125]).view(3, 1, 1)
        return (distance * slopes).masked_fill(distance > 0, -torch.inf)

    def forward(self, tokens):
        x, bias = self.token_emb(tokens), self.bias(tokens.shape[1])
        for norm, branch in self.layers:
            y = norm(x)
            x = (branch(y, bias) if isinstance(branch, GroupedAttention) else branch(y)) + x
        return self.to_logits(x)

    def written_out(self, tokens, recursion):
        x, bias = self.token_emb(tokens), self.bias(tokens.shape[1])
        for norm, branch in self.layers:
            y = norm(x)
            if isinstance(branch, GroupedAttention):
                q, k, v = split(branch.to_q(y)), split(branch.to_k(y), 1), split(branch.to_v(y), 1)
                x = recursion.add(x, y, branch.to_out(recursion.attend(q, k, v, bias=bias, cap=5.0)))
            else:
                x = recursion.leave(branch(y) + x)
        return self.to_logits(x)


def ids(rows=2, tokens=TOKENS):
    return torch.arange(rows * tokens).view(rows, tokens) * 5 % VOCABULARY


def images(rows=2):
    return torch.rand(rows, 3, 8, 12, generator=torch.Generator().manual_seed(3))


def vectors(rows=2, tokens=TOKENS):
    return torch.randn(rows, tokens, WIDTH, generator=torch.Generator().manual_seed(3))


MODULES = {  # name -> how it is built, and a batch for it
    "nanogpt": (NanoGPT, ids),
    "nanogpt_written_out": (lambda: NanoGPT(flash=False), ids),
    "timm": (ImageTransformer, images),
    "timm_written_out": (lambda: ImageTransformer(fused=False), images),
    "timm_layer_scale": (lambda: ImageTransformer(scaled=True), images),
    "encoder_post": (Encoder, vectors),
    "encoder_pre": (lambda: Encoder(norm_first=True), vectors),
    "encoder_tokens_first": (lambda: Encoder(norm_first=True, batch_first=False), lambda: vectors().transpose(0, 1)),
    "x_transformers": (BranchedDecoder, ids),
}


def build(name):
    """A module in float64 and evaluation mode, and a batch for it."""
    torch.manual_seed(1)
    make, batch = MODULES[name]
    example = batch()
    return make().double().eval(), example.double() if example.is_floating_point() else example


def first(result):
    return result[0] if isinstance(result, tuple) else result
