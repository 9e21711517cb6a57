// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Any text gives a spec or an error with a message; a spec's canonical form gives the same spec
// again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "laconic/spec.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void same_again(const laconic::Spec& spec) {
  const auto again = laconic::Spec::parse(spec.canonical());
  require(again.ok());
  require(again->canonical() == spec.canonical() && again->hash() == spec.hash());
  require(&again->codec() == &spec.codec() && again->memory() == spec.memory());
  for (const laconic::Field& field : spec.codec().fields) {
    require(field.get(spec.params()) == field.get(again->params()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto spec = laconic::Spec::parse(text);
  if (spec) {
    same_again(*spec);
  } else {
    require(spec.error().code != laconic::Errc::ok && !spec.error().message.empty());
  }
  return 0;
}
