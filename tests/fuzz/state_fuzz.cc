// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Any bytes are a session's state or an error that has changed nothing. The checksum is corrected
// first, so that the later checks are reached, too.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/hash.h"
#include "session/saved_state.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

std::unique_ptr<laconic::session::Session> make() {
  laconic::collective::Options options;
  options.world = 2;
  options.small_elements = 4;
  auto session =
      laconic::session::Session::create("powersgd:rank=1", {{"w", 8, 6}, {"v", 12, 1}}, options);
  require(session.ok());
  return *std::move(session);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const std::unique_ptr<laconic::session::Session> session = make();
  static const std::vector<uint8_t> before = *laconic::session::save_state(*session);
  std::vector<uint8_t> state(data, data + size);
  for (const bool right : {false, true}) {
    if (right && size >= sizeof(uint64_t)) {
      const auto body = laconic::Bytes(state).first(size - sizeof(uint64_t));
      laconic::store(state.data() + body.size(), laconic::hash64(body));
    }
    if (const auto loaded = laconic::session::load_state(*session, state); loaded) {
      require(*laconic::session::save_state(*session, *loaded) == state);
      require(laconic::session::load_state(*session, before).ok());
    } else {
      require(!loaded.error().message.empty());
      require(*laconic::session::save_state(*session) == before);
    }
  }
  return 0;
}
