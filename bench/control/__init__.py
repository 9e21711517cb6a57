# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Control policies in a lab."""
