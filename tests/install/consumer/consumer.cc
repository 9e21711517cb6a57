// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A C++ program against the installed package: every public header compiles, every codec's default
// spec is canonical.
#include <laconic/registry.h>
#include <laconic/spec.h>
#include <laconic/version.h>

#include <cstdio>

int main() {
  int wrong = 0;
  for (const laconic::CodecTable* codec : laconic::all_codecs()) {
    const auto defaults = laconic::Spec::defaults(*codec);
    const auto parsed = laconic::Spec::parse(defaults.canonical());
    if (!parsed || parsed->hash() != defaults.hash()) ++wrong;
  }
  std::printf("C++: laconic %s, %zu codecs, %d with a bad default spec\n", LACONIC_VERSION_STRING,
              laconic::all_codecs().size(), wrong);
  return laconic::all_codecs().empty() || wrong != 0 ? 1 : 0;
}
