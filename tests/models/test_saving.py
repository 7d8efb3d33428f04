"""save() and load(): the weights, the settings and the plan of a plain module."""

import json

import pytest
import torch
import transformers as hf

import uncollapse as uc
from tests.models.modules import MODULES, NanoGPT, build, first, ids


@pytest.mark.parametrize("name", ["nanogpt", "encoder_post", "x_transformers"])
def test_a_loaded_module_is_the_saved_one(name, tmp_path):
    model, batch = build(name)
    uc.convert(model, alpha=0.3, alpha_hidden=0.6, skip="normed", example=batch)
    folder = uc.save(model, tmp_path / "model")
    loaded = uc.load(lambda: MODULES[name][0]().double().eval(), folder)
    assert torch.equal(first(loaded(batch)), first(model(batch)))
    assert uc.plan(loaded) == uc.plan(model)


def test_a_stock_module_stays_stock(tmp_path):
    model = NanoGPT()
    loaded = uc.load(NanoGPT, uc.save(model, tmp_path / "model"))
    assert torch.equal(loaded(ids())[0], model(ids())[0])
    assert not any(m._forward_hooks for m in loaded.modules())


def test_what_does_not_fit_gets_a_sentence(tmp_path):
    model = uc.convert(NanoGPT(), example=ids())
    folder = uc.save(model, tmp_path / "model")
    with pytest.raises(FileExistsError):
        uc.save(model, folder)
    with pytest.raises(ValueError, match=r"the plan names h\.2, which NanoGPT does not have"):
        uc.load(lambda: NanoGPT(layers=2), folder)
    stock = uc.save(NanoGPT(), tmp_path / "stock")
    with pytest.raises(ValueError, match="does not fit the module that build makes"):
        uc.load(lambda: NanoGPT(layers=2), stock)
    with pytest.raises(ValueError, match=r"build must make a torch\.nn\.Module, and made a int"):
        uc.load(lambda: 3, folder)
    with pytest.raises(FileNotFoundError, match="holds no saved module"):
        uc.load(NanoGPT, tmp_path)
    file = folder / "uncollapse.json"
    about = json.loads(file.read_text())
    about["conversion"]["plan"]["stacks"][0]["layers"][0]["name"] = "h.9.attn"
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"the plan names h\.9\.attn, which NanoGPT does not have"):
        uc.load(NanoGPT, folder)
    del about["conversion"]["plan"]["stacks"]
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match="the saved plan is damaged"):
        uc.load(NanoGPT, folder)
    (stock / "weights.pt").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="is damaged, or holds more than weights"):
        uc.load(NanoGPT, stock)


def test_a_transformers_model_is_sent_to_its_own_call(tmp_path):
    config = hf.GPT2Config(n_layer=1, n_embd=8, n_head=2, vocab_size=16, n_positions=8)
    with pytest.raises(ValueError, match=r"call model\.save_pretrained\(folder\)"):
        uc.save(hf.GPT2Model(config), tmp_path / "model")
