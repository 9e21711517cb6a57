# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
"""Behind `python -m laconic.run`: what attaches inside of a process, and the states that it keeps."""
