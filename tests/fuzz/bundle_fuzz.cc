// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Any bytes give a bundle or an error with a message; an accepted bundle lies inside the capacity
// and equals what our writer makes of it. The first 8 bytes select what the receiver expects; the
// rest is the peer's, tried once unchanged and once with a right checksum.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "base/hash.h"
#include "wire/bundle.h"

namespace {

using namespace laconic;

constexpr std::size_t kPrefix = 8;

void require(bool condition) {
  if (!condition) std::abort();
}

bool inside(Bytes part, Bytes whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

void writes_again(Bytes capacity, const BundleView& view, const BundleExpect& expect) {
  std::vector<uint8_t> again(view.bytes);
  BundleWriter writer(again, view.shape);
  std::copy(view.lanes.begin(), view.lanes.end(), writer.lanes().begin());
  if (view.shape.seen != 0) {
    require(view.seen() <= expect.seen_bound);
    writer.set_seen(view.seen());
  }
  if (view.non_finite) writer.mark_non_finite();
  if (view.incomplete) writer.mark_incomplete();
  writer.set_flush(view.flush);
  writer.set_report(view.report);
  for (SlotCursor slots = view.slots(); slots.left() > 0;) {
    const Slot slot = slots.next();
    require(inside(slot.payload, capacity.first(view.bytes)));
    if (slot.kind == SlotKind::payload) writer.put(slot.payload);
    if (slot.kind == SlotKind::zero) writer.put_zero();
    if (slot.kind == SlotKind::non_finite) writer.put_non_finite();
  }
  require(writer.finish(expect.id, view.bytes).bytes == view.bytes);
  require(std::equal(again.begin(), again.end(), capacity.begin()));
}

void failure_again(Bytes capacity, const BundleView& view, const BundleExpect& expect) {
  std::array<uint8_t, kMinCapacity> again{};
  require(write_failure_bundle(expect.id, view.failure, again) == view.bytes);
  // Step, sequence, agreement, kind and round of a failure are free, so only the body is compared.
  require(std::equal(again.begin() + kBundleHeaderBytes,
                     again.begin() + static_cast<std::ptrdiff_t>(view.bytes),
                     capacity.begin() + kBundleHeaderBytes));
}

void parse(Bytes capacity, const BundleExpect& expect) {
  const auto view = parse_bundle(capacity, expect);
  if (!view) {
    require(view.error().code != Errc::ok && !view.error().message.empty());
    return;
  }
  if (view->failed) return failure_again(capacity, *view, expect);
  if (view->overflow) return require(view->bytes > capacity.size() && view->shape.slots == 0);
  require(view->bytes <= capacity.size() && inside(view->lanes, capacity));
  writes_again(capacity, *view, expect);
}

// Fields that the header gives, so that the fuzzer need not guess hashes and step numbers.
BundleId id_of(const uint8_t* p) {
  BundleId id;
  id.kind = static_cast<BundleKind>(p[5]);
  id.round = p[7];
  id.rank = load<uint16_t>(p + 44);
  id.world = load<uint16_t>(p + 46);
  id.step = load<uint64_t>(p + 16);
  id.sequence = load<uint32_t>(p + 40);
  id.agreement = load<uint64_t>(p + 24);
  return id;
}

void seal(std::vector<uint8_t>& bundle) {
  const bool overflow = (bundle[6] & 2U) != 0;
  const auto said = load<uint64_t>(bundle.data() + 32);
  const uint64_t end =
      overflow ? kBundleHeaderBytes : std::clamp<uint64_t>(said, kBundleHeaderBytes, bundle.size());
  store(bundle.data() + 8,
        hash64(Bytes(bundle).subspan(16, end - 16), load<uint64_t>(bundle.data())));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kPrefix + kBundleHeaderBytes) {
    parse({data, size}, {});
    return 0;
  }
  std::vector<uint8_t> capacity(data + kPrefix, data + size);
  BundleExpect expect;
  if ((data[0] & 1U) == 0) expect.id = id_of(capacity.data());
  const std::vector<uint32_t> bounds(data[1] % 32U, load<uint16_t>(data + 2));
  expect.slot_bounds = bounds;
  expect.shape.slots = static_cast<uint32_t>(bounds.size());
  expect.shape.seen = (data[0] & 2U) != 0 ? 1U : 0U;
  expect.shape.lane_bytes = 4U * (data[4] % 16U);
  expect.seen_bound = load<uint16_t>(data + 5);
  parse(capacity, expect);
  seal(capacity);
  parse(capacity, expect);
  return 0;
}
