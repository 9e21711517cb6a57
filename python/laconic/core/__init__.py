# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""What all rooms stand on: the library, errors, arrays, checked arguments, the environment, threads. No torch in here."""
