// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Any bytes give a frame or an error with a message; an accepted frame equals what our writer makes
// of its fields. Each input is tried a second time with a right checksum, so that the later checks
// are reached.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/hash.h"
#include "laconic/frame.h"

namespace {

using namespace laconic;

void require(bool condition) {
  if (!condition) std::abort();
}

void writes_again(Bytes frame, const FrameView& view) {
  std::vector<uint8_t> again(frame.size());
  const auto size = write_frame(view.info, view.payload, again);
  require(size.ok() && *size == frame.size());
  require(std::equal(frame.begin(), frame.end(), again.begin()));
}

void parse(Bytes frame) {
  const auto view = parse_frame(frame);
  if (view) {
    require(view->payload.data() + view->payload.size() == frame.data() + frame.size());
    writes_again(frame, *view);
  } else {
    require(view.error().code != Errc::ok && !view.error().message.empty());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes frame(data, size);
  parse(frame);
  if (size < kFrameFixedBytes) return 0;
  std::vector<uint8_t> sealed(frame.begin(), frame.end());
  store(sealed.data() + 8, hash64(Bytes(sealed).subspan(16), load<uint64_t>(sealed.data())));
  parse(sealed);
  return 0;
}
