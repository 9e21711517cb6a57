# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Codecs, the C ABI and threads on one machine."""
