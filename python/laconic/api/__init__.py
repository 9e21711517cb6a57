# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`laconic.attach`, which takes DistributedDataParallel and models of FSDP2."""
