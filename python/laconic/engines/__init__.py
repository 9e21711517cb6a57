# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What moves bytes between ranks: torch.distributed, plug-ins, aggregation servers; process groups, and what fails in them."""
