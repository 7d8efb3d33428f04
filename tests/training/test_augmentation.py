"""Augmentation: right distributions, matching labels, and the same images again from the same state."""

from __future__ import annotations

import sys

import pytest
import scipy.stats
import torch

from uncollapse.training.augmentation import Augmentation, Mixup, augment_batch

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)


def images(count=6, size=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(count, 3, size, size, generator=generator)
    return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


def constant(count):
    """Images whose every pixel is their own number."""
    return torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 20, 20).contiguous()


def test_weights_of_mixup_follow_beta():
    torch.manual_seed(0)
    mixup = Mixup(classes=2, mixup_alpha=0.8)
    weights = []
    while len(weights) < 600:
        _, labels = mixup(torch.zeros(2, 1, 1, 1), torch.tensor([0, 1]))
        if labels[0, 1] > 0:  # mixed with the other, not with itself
            weights.append(float(labels[0, 0]))
    assert scipy.stats.kstest(weights, scipy.stats.beta(0.8, 0.8).cdf).pvalue > 0.01  # of a fixed seed
    assert scipy.stats.kstest(weights, "uniform").pvalue < 0.05  # what kornia's own would give


@pytest.mark.parametrize("kind", [{"mixup_alpha": 0.8}, {"mixup_alpha": 0.0, "cutmix_alpha": 1.0}])
def test_labels_are_mixed_as_the_pixels_are(kind):
    torch.manual_seed(1)
    mixup = Mixup(classes=8, **kind)
    for _ in range(5):
        mixed, labels = mixup(constant(8), torch.arange(8))
        # an image of constant pixels, mixed, has the mean that its label has
        torch.testing.assert_close(mixed.mean((1, 2, 3)), labels @ torch.arange(8.0), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(labels.sum(1), torch.ones(8))


def test_cutmix_pastes_a_rectangle_and_mixup_one_weight_a_batch():
    torch.manual_seed(2)
    pasted, _ = Mixup(8, mixup_alpha=0.0, cutmix_alpha=1.0)(constant(8), torch.arange(8))
    assert torch.equal(pasted, pasted.round())
    _, labels = Mixup(8)(constant(8), torch.arange(8))
    own = labels.diagonal()
    assert len(own[own < 1.0].unique()) == 1


def test_switch_is_the_share_of_cutmix():
    torch.manual_seed(3)
    mixup = Mixup(classes=4, cutmix_alpha=1.0, switch=0.5)
    cut = sum(
        torch.equal(mixed, mixed.round()) for mixed, _ in (mixup(constant(4), torch.arange(4)) for _ in range(100))
    )
    assert 30 <= cut <= 75  # 50 and some in which mixup paired each with itself; the seed is fixed


@pytest.mark.parametrize("crop", ["pad", "resized", "none"])
def test_the_same_state_of_the_generator_gives_the_same_batch(crop):
    augmentation = Augmentation(MEAN, STD, crop=crop, randaugment=(2, 9), erasing=0.25)
    mixup = Mixup(classes=10, cutmix_alpha=1.0)
    batch = {"pixel_values": images(), "labels": torch.arange(6)}
    torch.manual_seed(5)
    augment_batch(batch, augmentation, mixup)
    state = torch.get_rng_state()
    first = augment_batch(batch, augmentation, mixup)
    torch.set_rng_state(state)
    # new objects, as in a process that resumes
    again = augment_batch(
        batch, Augmentation(MEAN, STD, crop=crop, randaugment=(2, 9), erasing=0.25), Mixup(10, cutmix_alpha=1.0)
    )
    assert torch.equal(first["pixel_values"], again["pixel_values"])
    assert torch.equal(first["labels"], again["labels"])
    assert first["pixel_values"].shape == (6, 3, 16, 16)
    assert torch.isfinite(first["pixel_values"]).all()


def test_nothing_turned_on_changes_nothing():
    augmentation = Augmentation(MEAN, STD, crop="none", flip=False)
    torch.testing.assert_close(augmentation(images()), images(), rtol=1e-5, atol=1e-5)  # there and back in float32
    assert not augmentation.state_dict()


def test_flip_mirrors_about_half_and_crops_are_windows_of_the_padded_image():
    torch.manual_seed(0)
    flipped = Augmentation(MEAN, STD, crop="none")(images(64))
    mirrored = sum(torch.allclose(a, b.flip(-1), atol=1e-4) for a, b in zip(flipped, images(64), strict=True))
    assert 20 <= mirrored <= 44  # three deviations of a fair coin
    cropped = Augmentation((0.0,) * 3, (1.0,) * 3, flip=False)(torch.ones(64, 3, 16, 16))
    rows = cropped[:, 0].amax(2).sum(1)  # rows that are not border
    assert 12 <= int(rows.min()) < 16
    assert int(rows.max()) == 16


def test_erasing_hits_its_share_of_images():
    torch.manual_seed(0)
    ones = torch.ones(400, 3, 16, 16)
    erased = Augmentation((0.0,) * 3, (1.0,) * 3, crop="none", flip=False, erasing=0.25)(ones)
    assert 70 <= int((erased == 0).flatten(1).any(1).sum()) <= 130  # 100, three and a half deviations


def test_without_kornia_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "kornia.augmentation", None)
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(ImportError, match=r"needs the package kornia.*pip install 'uncollapse\[train\]'"):
        Augmentation(MEAN, STD)
    Mixup(classes=3)  # plain mixup needs none


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="crop must be one of pad, resized, none"):
        Augmentation(MEAN, STD, crop="centre")
    with pytest.raises(ValueError, match="needs images of 3 channels, got 1"):
        Augmentation((0.5,), (0.5,), randaugment=(2, 9))(torch.zeros(2, 1, 8, 8))
    with pytest.raises(ValueError, match="must not be negative"):
        Mixup(3, mixup_alpha=-1.0)
