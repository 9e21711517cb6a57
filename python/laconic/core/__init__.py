# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Shared by all packages: the library, errors, arrays, checked arguments, the environment, threads. Does not import torch."""
