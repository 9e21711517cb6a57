# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Codecs as users hold them: one tensor to a frame and back, and codecs in Python. No torch in here."""
