# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What compression does to training: quality without a network, and the models by network."""
