# Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#
# Sourced in the root of the checkout by what compiles: with ccache, where it is and no other launcher is named. Every
# checkout of this machine has the same objects, and so do a build and the wheel.
if [[ -z ${CMAKE_CXX_COMPILER_LAUNCHER-} ]] && command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
export CCACHE_BASEDIR=${CCACHE_BASEDIR-$PWD} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}
# Without these ccache would compile each file that uses the precompiled header of the tests.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS-pch_defines,time_macros,include_file_mtime,include_file_ctime}
