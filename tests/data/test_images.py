"""Images are found where the user said, and become batches that a model takes."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from tests.data.datasets_here import needs_data
from uncollapse.data.images import ImageCollator, load_images, normalisation


@pytest.fixture(autouse=True)
def _own_datasets_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))


def arrays(count=20, classes=4, size=6):
    pixels = np.random.default_rng(0).integers(0, 256, (count, size, size, 3), dtype=np.uint8)
    return {"images": pixels, "labels": (np.arange(count) % classes).astype(np.uint8)}


def test_digits_are_split_and_their_constants_are_theirs():
    data = load_images("digits")
    assert data.class_names == tuple("0123456789")
    batch = ImageCollator(8, data.mean, data.std, channels=1)([data.train[number] for number in range(1617)])
    assert abs(float(batch["pixel_values"].mean())) < 0.02  # the constants are of all 1,797 images, rounded
    assert float(batch["pixel_values"].std()) == pytest.approx(1.0, abs=0.02)
    assert set(batch["labels"].tolist()) == set(range(10))


def test_arrays_of_a_folder(tmp_path):
    train, test = arrays(), arrays(8)
    np.savez(tmp_path / "train5k.npz", **train, class_names=np.array(list("abcd")))
    np.savez(tmp_path / "test.npz", **test)
    data = load_images(str(tmp_path))
    assert (len(data.train), len(data.valid), data.class_names, data.size) == (20, 8, tuple("abcd"), 6)
    item = data.train[3]
    assert item["pixel_values"].dtype == torch.uint8
    assert np.array_equal(item["pixel_values"].permute(1, 2, 0).numpy(), train["images"][3])
    assert item["labels"] == 3


def test_arrays_without_a_test_file_hold_out_a_tenth(tmp_path):
    np.savez(tmp_path / "train.npz", **arrays())
    data = load_images(str(tmp_path))
    assert (len(data.train), len(data.valid), data.class_names) == (18, 2, ("0", "1", "2", "3"))


def test_a_folder_of_pictures_a_class(tmp_path):
    sizes = {"cat": (9, 7), "dog": (7, 12)}  # width, height
    for split in ("train", "test"):
        for number, (name, size) in enumerate(sizes.items()):
            folder = tmp_path / "pets" / split / name
            folder.mkdir(parents=True)
            Image.new("RGB", size, (100 * number, 50, 0)).save(folder / "one.png")
    data = load_images(str(tmp_path / "pets"))
    assert data.class_names == ("cat", "dog")
    assert data.size is None
    batch = ImageCollator(6, (0.0,) * 3, (1.0,) * 3)([data.train[0], data.train[1]])
    assert batch["pixel_values"].shape == (2, 3, 6, 6)
    assert batch["labels"].tolist() == [0, 1]
    expected = torch.tensor([[0.0, 50.0, 0.0], [100.0, 50.0, 0.0]]) / 255.0
    torch.testing.assert_close(batch["pixel_values"].mean((2, 3)), expected)


def test_collating_at_the_size_of_the_images_is_exact_and_resizing_keeps_the_centre():
    image = torch.arange(3 * 4 * 4, dtype=torch.uint8).view(3, 4, 4)
    same = ImageCollator(4, (0.0,) * 3, (1.0,) * 3)([{"pixel_values": image, "labels": 1}])
    assert torch.equal(same["pixel_values"][0], image.float() / 255.0)
    wide = torch.zeros(3, 4, 12, dtype=torch.uint8)
    wide[..., 4:8] = 255
    batch = ImageCollator(8, (0.0,) * 3, (1.0,) * 3)([{"pixel_values": wide, "labels": 0}])
    assert batch["pixel_values"].shape == (1, 3, 8, 8)
    assert float(batch["pixel_values"][..., 2:6].min()) == 1.0


def test_refusals_are_one_sentence(tmp_path, monkeypatch):
    np.savez(tmp_path / "other.npz", **arrays())
    with pytest.raises(ValueError, match=r"holds other.npz; a file train\*.npz"):
        load_images(str(tmp_path))
    np.savez(tmp_path / "train.npz", images=arrays()["images"].astype(float), labels=arrays()["labels"])
    with pytest.raises(ValueError, match="expected images as uint8"):
        load_images(str(tmp_path))
    np.savez(tmp_path / "train.npz", images=np.array([{}], dtype=object), labels=np.zeros(1))
    with pytest.raises(ValueError, match=r"train.npz cannot be read as .npz"):
        load_images(str(tmp_path))
    (tmp_path / "cifar").mkdir()
    (tmp_path / "cifar" / "data_batch_1").touch()
    with pytest.raises(ValueError, match="pickles, which are not read"):
        load_images(str(tmp_path / "cifar"))

    def no_network(*args, **kwargs):
        raise ConnectionError("Couldn't reach the hub")

    monkeypatch.setattr(datasets, "load_dataset", no_network)
    monkeypatch.delenv("UNCOLLAPSE_DATA", raising=False)
    with pytest.raises(ValueError, match=r"cifar-100 .*Couldn't reach the hub.*give the path of a folder"):
        load_images("cifar-100")


def test_constants_follow_the_name_also_of_a_path():
    assert normalisation("/data/cifar-10") == normalisation("cifar-10")
    assert normalisation("something", channels=1) == ((0.5,), (0.5,))


@needs_data
def test_cifar_10():
    data = load_images("cifar-10")
    assert (len(data.train), len(data.valid), data.size, len(data.class_names)) == (10_000, 10_000, 32, 10)
    assert data.class_names[0] == "airplane"
    pixels = data.train.images.float() / 255.0
    # 10,000 of the 50,000 images that the constants are of
    torch.testing.assert_close(pixels.mean((0, 2, 3)), torch.tensor(data.mean), rtol=0.0, atol=0.01)
    torch.testing.assert_close(pixels.std((0, 2, 3)), torch.tensor(data.std), rtol=0.0, atol=0.01)
    assert data.train.labels.bincount().tolist() == [1000] * 10
