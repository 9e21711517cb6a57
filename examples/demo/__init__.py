# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""The comparison that `make demo` runs."""
