# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The effect of compression on training: quality without a network, and the models by network."""
