// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The lab alone, for working on it without building the rest: the same as `laconic lab`.
#include "lab/lab.h"

int main(int argc, char** argv) { return laconic::lab::lab_main(argc - 1, argv + 1); }
