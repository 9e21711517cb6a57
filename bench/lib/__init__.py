# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What benchmarks and the demo share: models, training, a lab to run in, tables, charts."""
