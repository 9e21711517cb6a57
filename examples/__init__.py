# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Programs for users: `python -m examples.NAME`, from the root of a checkout."""
