// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/registry.h"

#include <array>
#include <cstddef>

#include "codecs/registry/codec_list.h"
#include "codecs/registry/table.h"
#include "codecs/registry/twin.h"

namespace laconic {
namespace {

template <class... C>
constexpr std::array<const CodecTable*, sizeof...(C)> tables_of(codecs::TypeList<C...>) {
  return {&codecs::TableOf<C>::value...};
}
constexpr auto kCodecs = tables_of(codecs::CodecList{});

template <class... C>
constexpr std::array<const device::Codec*, sizeof...(C)> twins_of(codecs::TypeList<C...>) {
  return {codecs::twin_of_type<C>()...};
}
constexpr auto kTwins = twins_of(codecs::CodecList{});

/// Names are what people type and ids are what travels: neither may be shared.
constexpr bool all_distinct() {
  for (std::size_t i = 0; i < kCodecs.size(); ++i) {
    for (std::size_t j = i + 1; j < kCodecs.size(); ++j) {
      if (kCodecs[i]->info.id == kCodecs[j]->info.id) return false;
      if (kCodecs[i]->info.name == kCodecs[j]->info.name) return false;
    }
  }
  return true;
}
static_assert(all_distinct(), "two codecs share a name or an id");

}  // namespace

std::span<const CodecTable* const> all_codecs() noexcept { return kCodecs; }

const CodecTable* find_codec(std::string_view name) noexcept {
  for (const CodecTable* codec : kCodecs) {
    if (codec->info.name == name) return codec;
  }
  return nullptr;
}

const CodecTable* find_codec(uint16_t id) noexcept {
  for (const CodecTable* codec : kCodecs) {
    if (codec->info.id == id) return codec;
  }
  return nullptr;
}

const device::Codec* codecs::find_twin(const CodecTable& codec) noexcept {
  for (std::size_t i = 0; i < kCodecs.size(); ++i) {
    if (kCodecs[i] == &codec) return kTwins[i];
  }
  return nullptr;
}

}  // namespace laconic
