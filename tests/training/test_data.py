"""Data sets, raw files that lie, splits and what is done to inputs."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from PIL import Image
from refusals import refused

from kcalc.training import (
    Dataset,
    Preparation,
    fold,
    held_out,
    load,
    prepare,
)

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    """The bytes of an idx file, packed by hand."""
    return (
        struct.pack(">HBB", 0, 8, array.ndim)
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_mnist(folder: Path, train: int = 6, test: int = 3) -> dict[str, np.ndarray]:
    arrays = {
        "train-images-idx3-ubyte": RNG.integers(0, 256, (train, 5, 4), np.uint8),
        "train-labels-idx1-ubyte": np.arange(train, dtype=np.uint8) % 10,
        "t10k-images-idx3-ubyte": RNG.integers(0, 256, (test, 5, 4), np.uint8),
        "t10k-labels-idx1-ubyte": np.arange(test, dtype=np.uint8),
    }
    for name, array in arrays.items():
        (folder / name).write_bytes(idx(array))
    return arrays


def test_digits_are_those_of_the_library() -> None:
    digits = load("digits")
    assert (
        digits.images.shape == (1797, 8, 8, 1) and digits.classes == 10 and digits.held_out == 360
    )
    assert digits.images.min() == 0 and digits.images.max() == 1
    assert np.bincount(digits.labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_mnist_plain_and_gzipped(tmp_path: Path) -> None:
    arrays = write_mnist(tmp_path)
    packed = tmp_path / "train-images-idx3-ubyte"
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    data = load("mnist", tmp_path)
    assert data.images.shape == (9, 5, 4, 1) and data.held_out == 3
    assert np.array_equal(
        np.round(data.images[:6, :, :, 0] * 255), arrays["train-images-idx3-ubyte"]
    )
    assert data.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]


def damaged(name: str, good: bytes) -> bytes:
    return {
        "cut short": good[:-1],
        "only a magic number": good[:5],
        "longer than it says": good + b"\0",
        "another magic number": b"\0\0\x0d\x03" + good[4:],
        "rank of labels": b"\0\0\x08\x01" + good[4:],
        "huge extents": good[:4] + b"\xff" * 12 + good[16:],
        "no images": good[:4] + bytes(4) + good[8:16],
        "empty": b"",
        "a pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n",
    }[name]


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("cut short", "holds 119"),
        ("only a magic number", "too short"),
        ("longer than it says", "more"),
        ("empty", "too short"),
        ("another magic number", "starts with"),
        ("rank of labels", "starts with"),
        ("huge extents", "claims"),
        ("no images", "claims"),
        ("a pickle", "starts with"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_idx_files_are_refused_by_name(
    tmp_path: Path, name: str, match: str, packed: bool
) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    bytes_ = damaged(name, path.read_bytes())
    path.unlink()
    path = path.with_name(path.name + ".gz") if packed else path
    path.write_bytes(gzip.compress(bytes_) if packed else bytes_)
    with refused(match) as error:
        load("mnist", tmp_path)
    assert "train-images" in str(error.value)


def test_a_gzip_file_cut_short_or_not_gzip_at_all(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte"
    whole = gzip.compress(path.read_bytes())
    path.unlink()
    for data in (whole[:-9], b"not gzip"):
        path.with_name(path.name + ".gz").write_bytes(data)
        with refused("get it again"):
            load("mnist", tmp_path)


def test_a_gzip_bomb_is_not_unpacked_further_than_its_header_says(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    bomb = gzip.compress(path.read_bytes() + bytes(200 * 2**20))
    path.unlink()
    path.with_name(path.name + ".gz").write_bytes(bomb)
    with refused("more"):
        load("mnist", tmp_path)


def test_more_labels_than_images(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(7, np.uint8)))
    with refused("6 images.*7 labels"):
        load("mnist", tmp_path)


def test_labels_out_of_range(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.full(6, 10, np.uint8)))
    with refused(r"0\.\.9"):
        load("mnist", tmp_path)


def write_cifar(folder: Path, each: int = 2) -> list[bytes]:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    made = []
    for i, name in enumerate(names):
        data = b"".join(
            bytes([(i + j) % 10]) + RNG.integers(0, 256, 3072, np.uint8).tobytes()
            for j in range(each)
        )
        (folder / name).write_bytes(data)
        made.append(data)
    return made


def test_cifar_planes_become_channels(tmp_path: Path) -> None:
    made = write_cifar(tmp_path)
    data = load("cifar10", tmp_path)
    assert data.images.shape == (12, 32, 32, 3) and data.held_out == 2
    second = made[0][3073:]
    assert data.labels[1] == second[0]
    for row, column, channel in ((0, 0, 0), (3, 7, 1), (31, 31, 2)):
        assert (
            round(float(data.images[1, row, column, channel]) * 255)
            == second[1 + 1024 * channel + 32 * row + column]
        )


def test_cifar_in_its_own_folder_cut_short_mislabelled_or_pickled(tmp_path: Path) -> None:
    inner = tmp_path / "cifar-10-batches-bin"
    inner.mkdir()
    made = write_cifar(inner)
    assert len(load("cifar10", tmp_path)) == 12
    (inner / "data_batch_2.bin").write_bytes(made[1][:-1])
    with refused(r"data_batch_2\.bin.*multiple"):
        load("cifar10", tmp_path)
    (inner / "data_batch_2.bin").write_bytes(b"\x0a" + made[1][1:])
    with refused("label 10"):
        load("cifar10", tmp_path)
    (inner / "data_batch_2.bin").unlink()
    with refused(r"lacks data_batch_2\.bin"):
        load("cifar10", tmp_path)
    pickled = tmp_path / "python"
    pickled.mkdir()
    (pickled / "data_batch_1").write_bytes(b"\x80\x04.")
    with refused("pickled and never opened"):
        load("cifar10", pickled)


def write_folder(folder: Path) -> None:
    for part, count in (("train", 3), ("val", 1)):
        for label, colour in (("cat", (255, 0, 0)), ("dog", (0, 0, 255))):
            (folder / part / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (9 + i, 7), colour).save(folder / part / label / f"{i}.png")


def test_folders_of_images(tmp_path: Path) -> None:
    write_folder(tmp_path)
    data = load("folder", tmp_path, size=4)
    assert data.images.shape == (8, 4, 4, 3) and data.classes == 2 and data.held_out == 2
    assert data.labels.tolist() == [0, 0, 0, 1, 1, 1, 0, 1]
    assert np.allclose(data.images[0], [1, 0, 0]) and np.allclose(data.images[-1], [0, 0, 1])


def test_folders_of_images_that_are_not(tmp_path: Path) -> None:
    write_folder(tmp_path)
    bad = tmp_path / "train" / "cat" / "1.png"
    for content in (bad.read_bytes()[:40], b"", b"GIF89a" + bytes(50)):
        bad.write_bytes(content)
        with refused(r"1\.png.*image"):
            load("folder", tmp_path)
    bad.unlink()
    (tmp_path / "val" / "bird").mkdir()
    with refused("bird is a class"):
        load("folder", tmp_path)
    with refused("train and val"):
        load("folder", tmp_path / "train")
    with refused("size"):
        load("folder", tmp_path, size=0)


@pytest.mark.parametrize(
    ("name", "folder", "match"),
    [
        ("digit", None, "digits"),
        ("mnist", None, "put there the four files train-images"),
        ("mnist", "/nonexistent", "make it and put there"),
        ("cifar10", None, "binary version"),
        ("folder", None, "train/CLASS"),
        ("digits", ".", "need no folder"),
        (7, None, "data set"),
    ],
)
def test_what_is_missing_is_said(name, folder, match: str) -> None:
    with refused(match):
        load(name, folder)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with refused("lacks t10k-labels-idx1-ubyte"):
        load("mnist", tmp_path)


def test_size_limits_hold_before_anything_is_read(tmp_path: Path) -> None:
    """A head that claims 2048 images of 1024 x 1025 pixels, a little more than 2 GiB."""
    write_mnist(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    head = file.read_bytes()[:4] + struct.pack(">3I", 2048, 1024, 1025)
    file.write_bytes(head)
    with refused("2048 x 1024 x 1025 bytes, which no such file holds"):
        load("mnist", tmp_path)


# -- splits ----------------------------------------------------------------------------------------


def test_folds_are_stratified_disjoint_and_together_everything() -> None:
    digits = load("digits")
    folds = [fold(digits, i) for i in range(5)]
    assert np.array_equal(np.sort(np.concatenate([one.test for one in folds])), np.arange(1797))
    counts = np.array([np.bincount(digits.labels[one.test]) for one in folds])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1
    assert all(
        not set(one.train) & set(one.test) and len(one.train) + len(one.test) == 1797
        for one in folds
    )
    assert np.array_equal(fold(digits, 0).test, folds[0].test) and not np.array_equal(
        fold(digits, 0, seed=1).test, folds[0].test
    )


def test_the_last_writers_are_held_out() -> None:
    split = held_out(load("digits"))
    assert split.test.tolist() == list(range(1437, 1797)) and split.train.tolist() == list(
        range(1437)
    )


def test_preparation_is_the_formula_and_learns_from_training_examples_alone() -> None:
    digits = load("digits")
    split = fold(digits, 2)
    pixels = digits.images.reshape(1797, 64).astype(float)
    z = pixels - pixels[split.train].mean(axis=0)
    s = np.sqrt((z**2).sum(axis=1, keepdims=True) / 64)
    expected = np.sqrt(65) * np.hstack([z, s]) / np.sqrt((z**2).sum(axis=1, keepdims=True) + s**2)
    assert np.allclose(split.x, expected, atol=2e-6)
    assert np.allclose((split.x**2).mean(axis=1), 1, atol=1e-5)  # q = 1 for every example
    bare = fold(digits, 2, preparation=Preparation(normalisation=None, scale=100.0))
    assert np.allclose(bare.x, 100 * z, atol=2e-4)
    images = fold(digits, 2, preparation=Preparation(flat=False))
    assert images.x.shape == (1797, 8, 8, 2) and np.allclose(
        (images.x**2).mean(axis=-1), 1, atol=1e-5
    )


@pytest.mark.parametrize(
    "change",
    [
        {"index": 5},
        {"index": -1},
        {"index": 0, "count": 1},
        {"index": 0, "count": 10**6},
        {"index": 0, "count": True},
    ],
)
def test_folds_that_cannot_be(change: dict) -> None:
    with refused("fold"):
        fold(load("digits"), **change)


def test_splits_that_cannot_be() -> None:
    digits = load("digits")
    for count in (0, 1797, 2.5):
        with refused("held out"):
            held_out(digits, count)  # pyright: ignore[reportArgumentType]
    with refused("training.*tests"):
        prepare(digits, [0, 1, 2], [2, 3], "mine")
    with refused("row numbers"):
        prepare(digits, [0, 1], [1797], "mine")
    with refused("variant"):
        fold(digits, 0, preparation=Preparation(normalisation="typo"))
    with refused("not numbers"):
        Dataset("bad", np.full((1, 2, 2, 1), np.nan, np.float32), np.zeros(1, np.int32), 2, 0)


def png_head(width: int, height: int) -> bytes:
    """A PNG file that claims to be so large, without its pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    head = struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"")


def test_folders_of_images_that_hold_too_few_or_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path)
    (tmp_path / "train" / "notes.txt").write_text("no class")
    (tmp_path / "val" / "notes.txt").write_text("no class")
    # files beside the folders are passed over
    assert load("folder", tmp_path, size=4).labels.tolist() == [
        0,
        0,
        0,
        1,
        1,
        1,
        0,
        1,
    ]
    (picture, *_) = (tmp_path / "train" / "cat").glob("*.png")
    copies = [picture.with_name(f"copy{number}.png") for number in range(35)]
    for copy in copies:
        copy.write_bytes(picture.read_bytes())
    with refused("43.*4096.*4096.*size=4080"):  # 12 bytes a pixel, 8 GiB
        load("folder", tmp_path, size=4096)
    for copy in copies:
        copy.unlink()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # the bound of Pillow's own
    large = tmp_path / "train" / "cat" / "large.png"
    large.write_bytes(png_head(10_001, 10_000))
    with refused(r"large\.png.*10001.*10000.*100000000"):
        load("folder", tmp_path, size=4)
    large.unlink()
    for file in (tmp_path / "val").rglob("*.png"):
        file.unlink()
    with refused(r"val holds no images \(.*png"):
        load("folder", tmp_path, size=4)
    for file in (*(tmp_path / "train" / "dog").iterdir(), tmp_path / "train" / "dog"):
        file.rmdir() if file.is_dir() else file.unlink()
    with refused(r"\['cat'\]"):
        load("folder", tmp_path, size=4)


def test_data_sets_whose_parts_do_not_fit_together(tmp_path: Path) -> None:
    images = np.zeros((2, 4, 4, 1))
    with refused(r"0\.\.1.*float64"):
        Dataset("mine", images, np.array([0.0, 1.0]), 2, 1)
    for part, side in (("train", 4), ("t10k", 5)):
        pixels, labels = np.zeros((2, side, side), np.uint8), np.zeros(2, np.uint8)
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    with refused(r"\(4.*4.*1\).*\(5.*5.*1\)"):
        load("mnist", tmp_path)


def test_pixels_that_are_not_centred_are_only_scaled() -> None:
    digits = load("digits")
    rows = np.arange(20), np.arange(20, 30)
    split = prepare(digits, *rows, "some", Preparation(centre=False, scale=3.0, normalisation=None))
    assert np.array_equal(split.x, 3 * digits.images.reshape(len(digits), -1).astype(np.float32))
