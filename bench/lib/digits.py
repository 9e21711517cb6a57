# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Images with labels: scikit-learn's digits, or CIFAR-10 from a file. The same split for everybody."""

from __future__ import annotations

import io

import torch

TEST_SAMPLES = 360


class Images:
    """Pixels in [0, 1], samples × channels × height × width, or samples × pixels. shift: in training, samples move by up to
    this number of pixels in each direction."""

    def __init__(self, train, train_labels, test, test_labels, shift: int = 0, classes: int = 10):
        self.train, self.test = train, test
        self.train_labels, self.test_labels = train_labels, test_labels
        self.shift, self.classes = shift, classes

    def batches(self, size: int, seed: int, rank: int, world: int):
        """This rank's samples of each step, without end: world * size indices of a fresh permutation per epoch, cut by rank."""
        generator, moves = torch.Generator().manual_seed(seed), torch.Generator().manual_seed((seed << 16) + rank)
        per_epoch = len(self.train) // (size * world)
        if per_epoch == 0:
            raise ValueError(f"{len(self.train)} samples are not enough for {world} workers with {size} each")
        while True:
            order = torch.randperm(len(self.train), generator=generator)
            for step in range(per_epoch):
                begin = (step * world + rank) * size
                chosen = order[begin : begin + size]
                images = self.train[chosen]
                yield (shifted(images, self.shift, moves) if self.shift else images), self.train_labels[chosen]

    @staticmethod
    def loss(model, batch) -> torch.Tensor:
        images, labels = batch
        return torch.nn.functional.cross_entropy(model(images), labels)

    def evaluate(self, model) -> float:
        """Accuracy on the test samples."""
        parts = zip(self.test.split(1000), self.test_labels.split(1000))
        return sum((model(x).argmax(1) == y).sum().item() for x, y in parts) / len(self.test)


def shifted(images: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Every image moved by up to `most` pixels; zeros follow."""
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, (most,) * 4)
    moves = torch.randint(2 * most + 1, (len(images), 2), generator=generator).tolist()
    return torch.stack([image[:, y : y + height, x : x + width] for image, (y, x) in zip(padded, moves)])


def digits(flat: bool = False, shift: int = 0) -> Images:
    """1797 handwritten digits, 8 × 8: what scikit-learn brings."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=TEST_SAMPLES, stratify=labels, random_state=0)
    train, test = (torch.tensor(x, dtype=torch.float32) for x in split[:2])
    train_labels, test_labels = (torch.tensor(y, dtype=torch.int64) for y in split[2:])
    if not flat:
        train, test = (x.view(-1, 1, 8, 8) for x in (train, test))
    return Images(train, train_labels, test, test_labels, shift)


def cifar10(path: str, shift: int = 0) -> Images:
    """From an .npz that has, for `train` and `test`: `*_labels`, and either `*_images` (N × 32 × 32 × 3, uint8) or JPEG files
    one after another in `*_jpeg` with their N + 1 `*_offsets`."""
    import numpy

    parts = []
    try:
        with numpy.load(path) as file:
            for name in ("train", "test"):
                labels = torch.from_numpy(file[f"{name}_labels"].astype("int64"))
                if f"{name}_images" in file:
                    images = torch.from_numpy(file[f"{name}_images"])
                else:
                    images = from_jpeg(file[f"{name}_jpeg"].tobytes(), file[f"{name}_offsets"].tolist())
                if images.ndim != 4 or len(images) != len(labels) or labels.min() < 0 or labels.max() > 9:
                    raise ValueError(f"{len(labels)} labels from {labels.min()} to {labels.max()}, images {tuple(images.shape)}")
                parts += [images.permute(0, 3, 1, 2).float().div_(255), labels]
    except ImportError:
        raise ValueError(f"the images of {path} are JPEG files, for which Pillow is needed: pip install pillow") from None
    except Exception as error:  # noqa: BLE001  whatever NumPy and Pillow make of such a file
        raise ValueError(f"{path} is not CIFAR-10 as .npz: {error}") from None
    return Images(*parts, shift)


def from_jpeg(data: bytes, offsets: list[int]) -> torch.Tensor:
    from PIL import Image

    images = []
    for begin, end in zip(offsets, offsets[1:]):
        with Image.open(io.BytesIO(data[begin:end])) as image:
            rgb = image.convert("RGB")
            images.append(torch.frombuffer(bytearray(rgb.tobytes()), dtype=torch.uint8).view(rgb.height, rgb.width, 3))
    return torch.stack(images)
