// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The one place where the version is written: CMake and pyproject.toml read it from here.
// Plain C, so that laconic.h may include it.
#ifndef LACONIC_VERSION_H_
#define LACONIC_VERSION_H_

#define LACONIC_VERSION_MAJOR 0
#define LACONIC_VERSION_MINOR 1
#define LACONIC_VERSION_PATCH 0
#define LACONIC_VERSION_STRING "0.1.0"

#endif  // LACONIC_VERSION_H_
