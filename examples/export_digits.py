# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Scikit-learn's digits as a text file for programs in other languages: a line per image, `train` or `test`, its label and 64
pixels from 0 to 16. The split is that of bench/lib/digits.py.

usage: python examples/export_digits.py FILE
"""

import sys

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def lines():
    images, labels = load_digits(return_X_y=True)
    train, test, train_labels, test_labels = train_test_split(images, labels, test_size=360, stratify=labels, random_state=0)
    for part, rows, names in (("train", train, train_labels), ("test", test, test_labels)):
        for pixels, label in zip(rows, names):
            yield f"{part} {label} {' '.join(str(int(x)) for x in pixels)}\n"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.strip())
    with open(sys.argv[1], "w", encoding="ascii") as file:
        file.writelines(lines())
