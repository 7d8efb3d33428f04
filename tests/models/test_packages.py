"""The real packages, where they are installed: the recursion written out over their own parts.

None of them is a dependency. To run these: pip install timm vit-pytorch open_clip_torch diffusers litgpt x-transformers
"""

import pytest
import torch
from torch.nn import functional

import uncollapse as uc
from tests.models.modules import Recursion, split
from tests.models.stubs import stub_torchvision

ALPHA, ALPHA_HIDDEN = 0.3, 0.6
EXACT = {"rtol": 1e-11, "atol": 1e-11}  # float64
OWN_FLOAT32 = {"rtol": 1e-5, "atol": 1e-5}  # of the package: embeddings of time or positions, or the softmax


def package(name):
    stub_torchvision()
    return pytest.importorskip(name, reason=f"{name} is not installed; it is no dependency")


def picture(size=16):
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def ids():
    return torch.arange(14).view(2, 7) * 5 % 32


def attended(recursion, attention, y):
    q, k, v = (split(t) for t in attention.qkv(y).chunk(3, -1))
    return attention.proj(recursion.attend(q, k, v))


def timm(fused):
    library = package("timm")
    model = library.create_model("vit_tiny_patch16_224", img_size=16, patch_size=4, embed_dim=12, depth=3, num_heads=3)
    for block in model.blocks:
        block.attn.fused_attn = fused

    def written_out(images, recursion):
        x = model.patch_embed(images)
        x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1) + model.pos_embed
        for block in model.blocks:
            y = block.norm1(x)
            x = recursion.add(x, y, attended(recursion, block.attn, y))
            x = x + block.mlp(block.norm2(x))
        return model.head(model.norm(x)[:, 0])

    return model, picture(), written_out, EXACT


def vit_pytorch():
    library = package("vit_pytorch")
    model = library.ViT(image_size=16, patch_size=4, num_classes=5, dim=12, depth=3, heads=3, mlp_dim=24, dim_head=4)

    def written_out(images, recursion):
        x = model.to_patch_embedding(images)
        token = model.cls_token if model.cls_token.dim() == 3 else model.cls_token[None]
        x = torch.cat([token.expand(len(x), -1, -1), x], 1)
        x = x + model.pos_embedding[..., : x.shape[1], :]
        for attention, mlp in model.transformer.layers:
            y = attention.norm(x)
            q, k, v = (split(t) for t in attention.to_qkv(y).chunk(3, -1))
            x = recursion.add(x, y, attention.to_out(recursion.attend(q, k, v)))
            x = x + mlp(x)
        return model.mlp_head(model.to_latent(model.transformer.norm(x)[:, 0]))

    return model, picture(), written_out, EXACT


def x_transformers(flash):
    library = package("x_transformers")
    decoder = library.Decoder(dim=12, depth=3, heads=3, attn_dim_head=4, attn_flash=flash)
    model = library.TransformerWrapper(num_tokens=32, max_seq_len=16, attn_layers=decoder)

    def written_out(tokens, recursion):
        x = model.token_emb(tokens) + model.pos_emb(tokens)
        layers = list(model.attn_layers.layers)
        for (norms, attention, _), (mlp_norms, mlp, _) in zip(layers[::2], layers[1::2], strict=True):
            y = norms[0](x)
            q, k, v = split(attention.to_q(y)), split(attention.to_k(y)), split(attention.to_v(y))
            x = recursion.add(x, y, attention.to_out(recursion.attend(q, k, v, causal=True)))
            x = x + mlp(mlp_norms[0](x))
        return model.to_logits(model.attn_layers.final_norm(x))

    return model, ids(), written_out, EXACT if flash else OWN_FLOAT32


def open_clip():
    model = package("open_clip").transformer.VisionTransformer(16, 4, 12, 3, 3, 2.0, output_dim=8)

    def written_out(images, recursion):
        x = model.conv1(images).flatten(2).transpose(1, 2)
        x = torch.cat([model.class_embedding.view(1, 1, -1).expand(len(x), -1, -1), x], 1)
        x = model.ln_pre(x + model.positional_embedding)
        for block in model.transformer.resblocks:
            y, attention = block.ln_1(x), block.attn
            packed = functional.linear(y, attention.in_proj_weight, attention.in_proj_bias)
            q, k, v = (split(t) for t in packed.chunk(3, -1))
            x = recursion.add(x, y, attention.out_proj(recursion.attend(q, k, v)))
            x = x + block.mlp(block.ln_2(x))
        return model.ln_post(x)[:, 0] @ model.proj

    return model, picture(), written_out, EXACT


def litgpt():
    library = package("litgpt")
    config = library.Config(
        block_size=16,
        vocab_size=32,
        padded_vocab_size=32,
        n_layer=3,
        n_head=4,
        n_embd=32,
        n_query_groups=2,
        intermediate_size=32,
    )
    model = library.GPT(config)

    def written_out(tokens, recursion):
        x, cos, sin = model.transformer.wte(tokens), *(t[: tokens.shape[1]].double() for t in (model.cos, model.sin))

        def rotated(t):
            part, size = t[..., : config.rope_n_elem], config.rope_n_elem // 2
            turned = torch.cat([-part[..., size:], part[..., :size]], -1)
            return torch.cat([part * cos + turned * sin, t[..., config.rope_n_elem :]], -1)

        for block in model.transformer.h:
            y, attention = block.norm_1(x), block.attn
            q, k, v = attention.qkv(y).split((32, 16, 16), -1)
            q, k, v = rotated(split(q, 4)), rotated(split(k, 2)), split(v, 2)
            out = attention.proj(recursion.attend(q, k, v, causal=True))
            if config.parallel_residual:
                x = block.mlp(block.norm_2(x)) + recursion.add(x, y, out)
            else:
                x = recursion.add(x, y, out)
                x = x + block.mlp(block.norm_2(x))
        return model.lm_head(model.transformer.ln_f(x))

    return model, ids(), written_out, OWN_FLOAT32


def diffusers():
    library = package("diffusers")
    model = library.DiTTransformer2DModel(
        num_attention_heads=3,
        attention_head_dim=4,
        in_channels=4,
        num_layers=3,
        sample_size=8,
        patch_size=2,
        num_embeds_ada_norm=10,
    )
    batch = {
        "hidden_states": torch.rand(2, 4, 8, 8, dtype=torch.float64),
        "timestep": torch.tensor([1, 5]),
        "class_labels": torch.tensor([3, 4]),
        "return_dict": False,
    }

    def written_out(batch, recursion):
        x = model.pos_embed(batch["hidden_states"])
        condition = (batch["timestep"], batch["class_labels"])
        for block in model.transformer_blocks:
            y, gate, shift, scale, mlp_gate = block.norm1(x, *condition, hidden_dtype=x.dtype)
            attention = block.attn1
            q, k, v = (split(part(y)) for part in (attention.to_q, attention.to_k, attention.to_v))
            x = recursion.add(x, y, attention.to_out[0](recursion.attend(q, k, v)), gate.unsqueeze(1))
            x = x + mlp_gate.unsqueeze(1) * block.ff(block.norm3(x) * (1 + scale[:, None]) + shift[:, None])
        embedded = model.transformer_blocks[0].norm1.emb(*condition, hidden_dtype=x.dtype)
        shift, scale = model.proj_out_1(functional.silu(embedded)).chunk(2, dim=1)
        x = model.proj_out_2(model.norm_out(x) * (1 + scale[:, None]) + shift[:, None]).view(2, 4, 4, 2, 2, -1)
        return torch.einsum("nhwpqc->nchpwq", x).reshape(2, -1, 8, 8)

    return model, batch, written_out, OWN_FLOAT32


PACKAGES = {
    "timm": lambda: timm(True),
    "timm written out": lambda: timm(False),
    "vit-pytorch": vit_pytorch,
    "x-transformers flash": lambda: x_transformers(True),
    "x-transformers": lambda: x_transformers(False),
    "open_clip": open_clip,
    "litgpt": litgpt,
    "diffusers": diffusers,
}


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def first(result):
    return result[0] if isinstance(result, tuple) else result


@pytest.mark.parametrize("skip", ["stream", "normed"])
@pytest.mark.parametrize("name", PACKAGES)
def test_a_model_of_a_package_equals_the_recursion(name, skip):
    torch.manual_seed(0)
    model, batch, written_out, close = PACKAGES[name]()
    model.double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():  # some start at 0, where nothing would be seen
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    call = (lambda: model(**batch)) if isinstance(batch, dict) else (lambda: model(batch))
    stock = first(call()).detach()
    wanted = written_out(batch, Recursion(ALPHA, ALPHA_HIDDEN, skip))
    wanted_gradients = gradients(model, wanted.square().sum())
    uc.convert(model, alpha=ALPHA, alpha_hidden=ALPHA_HIDDEN, skip=skip, example=batch)
    got = first(call())
    torch.testing.assert_close(got, wanted, **close)
    size = max(gradient.abs().max() for gradient in wanted_gradients.values())
    for key, gradient in gradients(model, got.square().sum()).items():
        assert (gradient - wanted_gradients[key]).abs().max() <= close["rtol"] * size, key
    report = uc.diagnose(model, batch, progress=False)
    assert len(report.layers) == 3
    assert report.layers["residual_ratio"].notna().all()
    assert torch.equal(first(uc.restore(model) and call()), stock)
