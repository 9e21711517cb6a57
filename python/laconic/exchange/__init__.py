# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""A model's exchange on one rank: the session, its driver and worker, staging, and saved state."""
