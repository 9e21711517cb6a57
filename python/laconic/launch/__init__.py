# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""`python -m laconic.run`: attaching inside a process, and the states that it saves."""
