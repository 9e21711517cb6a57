// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "wire/bundle.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/hash.h"
#include "wire/utf8.h"

namespace laconic {
namespace {

using Buffer = std::vector<uint8_t>;

BundleId example_id() {
  BundleId id;
  id.kind = BundleKind::mean;
  id.round = 1;
  id.rank = 2;
  id.world = 3;
  id.step = 77;
  id.sequence = 9;
  id.agreement = 0xABCDEF0123456789U;
  return id;
}

// Five units: 7 bytes, zero, non-finite, 8 bytes, 1 byte; a seen length; two lanes.
struct Example {
  BundleId id = example_id();
  BundleShape shape{5, 1, 8};
  std::vector<uint32_t> bounds{7, 100, 100, 8, 20};
  Buffer out = Buffer(1000, 0xEE);
  BundleSize size;

  explicit Example(uint64_t capacity = 1000) {
    BundleWriter writer = write();
    size = writer.finish(id, capacity);
  }

  BundleWriter write() {
    BundleWriter writer(out, shape);
    store(writer.lanes().data(), 1.5F);
    store(writer.lanes().data() + 4, -2.5F);
    writer.set_seen(300);
    writer.set_flush(10);
    writer.set_report({{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 76});
    writer.put(Buffer{1, 2, 3, 4, 5, 6, 7});
    writer.put_zero();
    writer.put_non_finite();
    std::fill_n(writer.room().begin(), 8, uint8_t{9});
    writer.put(8);
    writer.put(Buffer{42});
    return writer;
  }

  BundleExpect expect() const { return {id, shape, bounds, 300}; }
  Buffer used() const {
    return {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(size.bytes)};
  }
};

Errc code_of(const Buffer& bytes, const BundleExpect& expect) {
  const auto view = parse_bundle(bytes, expect);
  return view ? Errc::ok : view.error().code;
}

// A number at a place, and the checksum over the first `valid` bytes made right again.
template <class T>
Buffer with(Buffer bytes, std::size_t at, T value, std::size_t valid) {
  store(bytes.data() + at, value);
  store(bytes.data() + 8,
        hash64(Bytes(bytes).subspan(16, valid - 16), load<uint64_t>(bytes.data())));
  return bytes;
}

TEST(Bundle, RoundTrips) {
  Example e;
  EXPECT_FALSE(e.size.overflow);
  EXPECT_EQ(e.size.bytes, 76 + 5 * 4 + 4 + 8 + 8 + 8 + 4U);
  EXPECT_EQ(e.size.needed, e.size.bytes);
  EXPECT_EQ(e.out[e.size.bytes], 0xEE);
  const auto view = parse_bundle(e.out, e.expect());
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_TRUE(view->non_finite);
  EXPECT_FALSE(view->overflow);
  EXPECT_FALSE(view->failed);
  EXPECT_EQ(view->bytes, e.size.bytes);
  EXPECT_EQ(load<float>(view->lanes.data()), 1.5F);
  EXPECT_EQ(view->seen(), 300U);
  SlotCursor slots = view->slots();
  ASSERT_EQ(slots.left(), 5U);
  Slot s = slots.next();
  EXPECT_EQ(s.kind, SlotKind::payload);
  EXPECT_EQ(Buffer(s.payload.begin(), s.payload.end()), (Buffer{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(slots.next().kind, SlotKind::zero);
  EXPECT_EQ(slots.next().kind, SlotKind::non_finite);
  s = slots.next();
  EXPECT_EQ(Buffer(s.payload.begin(), s.payload.end()), Buffer(8, 9));
  EXPECT_EQ((s.payload.data() - e.out.data()) % 4, 0);
  s = slots.next();
  EXPECT_EQ(Buffer(s.payload.begin(), s.payload.end()), Buffer{42});
  EXPECT_EQ(slots.left(), 0U);
}

/// Whatever a peer says about its step, its gradients are worth as much.
TEST(Bundle, AnyReportIsAccepted) {
  const Example e;
  const auto view = parse_bundle(e.out, e.expect());
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_EQ(view->report.bytes, (std::array<uint8_t, 12>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
  EXPECT_EQ(view->report.step, 76U);
  const Buffer used = e.used();
  for (std::size_t at = 60; at < 76; ++at) {
    const Buffer lies = with<uint8_t>(used, at, 0xFF, used.size());
    const auto other = parse_bundle(lies, e.expect());
    ASSERT_TRUE(other) << other.error().message;
    EXPECT_EQ(at < 72 ? other->report.bytes[at - 60] : other->report.step >> 8 * (at - 72) & 0xFF,
              0xFFU);
  }
  Example small(90);
  ASSERT_TRUE(small.size.overflow);
  small.out.resize(90);
  const auto cut = parse_bundle(small.out, small.expect());
  ASSERT_TRUE(cut) << cut.error().message;
  EXPECT_EQ(cut->report.bytes, view->report.bytes);
  EXPECT_EQ(cut->report.step, 76U);
}

TEST(Bundle, HeaderMayBeEmpty) {
  BundleId id;
  Buffer out(kBundleHeaderBytes);
  BundleWriter writer(out, {});
  EXPECT_EQ(writer.finish(id, kMinCapacity).bytes, kBundleHeaderBytes);
  EXPECT_EQ(code_of(out, {id, {}, {}}), Errc::ok);
}

TEST(Bundle, OverflowIsValueAndCanBeCompleted) {
  Example e;
  const uint64_t needed = e.size.needed;
  Example small(needed - 1);
  ASSERT_TRUE(small.size.overflow);
  EXPECT_EQ(small.size.bytes, kBundleHeaderBytes);
  EXPECT_EQ(small.size.needed, needed);
  Buffer moved = small.used();
  // what a transport delivers: the capacity, with arbitrary bytes at its end
  moved.resize(needed - 1, 0x77);
  const auto view = parse_bundle(moved, small.expect());
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_TRUE(view->overflow);
  EXPECT_EQ(view->bytes, needed);
  EXPECT_EQ(view->slots().left(), 0U);
  // Overflowing although it would have fitted; and asking for more than the plan's bounds.
  moved.resize(needed);
  EXPECT_EQ(code_of(moved, small.expect()), Errc::frame_field);
  EXPECT_EQ(code_of(with<uint64_t>(moved, 32, 1 << 20, 76), small.expect()), Errc::bound_exceeded);
  // The repeat round.
  BundleWriter writer = small.write();
  writer.finish(small.id, 80);
  small.size = writer.finish(small.id, needed);
  EXPECT_FALSE(small.size.overflow);
  EXPECT_EQ(small.used(), e.used());
}

TEST(Bundle, EveryTruncationIsAnError) {
  const Example e;
  const Buffer used = e.used();
  for (std::size_t length = 0; length < used.size(); ++length) {
    EXPECT_EQ(code_of(Buffer(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(length)),
                      e.expect()),
              Errc::frame_truncated)
        << length;
  }
}

TEST(Bundle, EveryBitFlipIsAnError) {
  const Example e;
  const Buffer used = e.used();
  for (bool with_slack : {false, true}) {
    for (std::size_t bit = 0; bit < 8 * used.size(); ++bit) {
      Buffer bad = used;
      if (with_slack) bad.resize(1000, 0xEE);
      bad[bit / 8] = static_cast<uint8_t>(bad[bit / 8] ^ (1U << (bit % 8)));
      ASSERT_NE(code_of(bad, e.expect()), Errc::ok) << bit;
    }
  }
}

TEST(Bundle, FlippedBitsInOverflowAndFailureHeadersAreErrors) {
  const Example e(100);
  Buffer failure(kMinCapacity, 0xEE);
  const uint64_t length = write_failure_bundle(e.id, {Errc::non_finite, 2, 1, 0, "NaN"}, failure);
  for (const auto& [bytes, valid] :
       {std::pair{e.out, kBundleHeaderBytes}, std::pair{failure, length}}) {
    Buffer sent(bytes.begin(), bytes.begin() + 100);
    ASSERT_EQ(code_of(sent, e.expect()), Errc::ok);
    for (std::size_t bit = 0; bit < 8 * valid; ++bit) {
      Buffer bad = sent;
      bad[bit / 8] = static_cast<uint8_t>(bad[bit / 8] ^ (1U << (bit % 8)));
      ASSERT_NE(code_of(bad, e.expect()), Errc::ok) << bit;
    }
  }
}

TEST(Bundle, DisagreementsOfRanksAreNamed) {
  const Example e;
  const auto changed = [&](auto change) {
    BundleExpect expect = e.expect();
    change(expect);
    return code_of(e.out, expect);
  };
  EXPECT_EQ(changed([](BundleExpect& x) { x.id.world = 4; }), Errc::ranks_disagree);
  EXPECT_EQ(changed([](BundleExpect& x) { x.id.rank = 1; }), Errc::ranks_disagree);
  EXPECT_EQ(changed([](BundleExpect& x) { x.id.agreement ^= 1; }), Errc::ranks_disagree);
  EXPECT_EQ(changed([](BundleExpect& x) { ++x.id.step; }), Errc::exchange_order);
  EXPECT_EQ(changed([](BundleExpect& x) { ++x.id.sequence; }), Errc::exchange_order);
  EXPECT_EQ(changed([](BundleExpect& x) { x.id.kind = BundleKind::contribution; }),
            Errc::exchange_order);
  EXPECT_EQ(changed([](BundleExpect& x) { x.id.round = 0; }), Errc::exchange_order);
  EXPECT_EQ(changed([](BundleExpect& x) {
              x.shape.slots = 4;
              x.slot_bounds = x.slot_bounds.first(4);
            }),
            Errc::frame_count);
  EXPECT_EQ(changed([](BundleExpect& x) { x.shape.seen = 0; }), Errc::frame_count);
  EXPECT_EQ(changed([](BundleExpect& x) { x.shape.lane_bytes = 4; }), Errc::frame_count);
  EXPECT_EQ(changed([](BundleExpect& x) { x.shape.slots = 4; }), Errc::invalid_argument);
  EXPECT_EQ(changed([](BundleExpect& x) { x.id.rank = 3; }), Errc::invalid_argument);
  const std::vector<uint32_t> tight{7, 100, 100, 7, 20};
  EXPECT_EQ(changed([&](BundleExpect& x) { x.slot_bounds = tight; }), Errc::bound_exceeded);
}

TEST(Bundle, BodiesAreCheckedUnderValidChecksum) {
  const Example e;
  const Buffer b = e.used();
  const std::size_t n = b.size();
  const auto code = [&](const Buffer& bytes) { return code_of(bytes, e.expect()); };
  EXPECT_EQ(code(with<uint8_t>(b, 6, 8, n)), Errc::frame_field);      // non-finite slot, no flag
  EXPECT_EQ(code(with<uint8_t>(b, 6, 0x29, n)), Errc::frame_field);   // unknown flag
  EXPECT_EQ(code(with<uint8_t>(b, 6, 4 | 8, n)), Errc::frame_field);  // failed and more
  EXPECT_EQ(code(with<uint8_t>(b, 6, 1 | 8 | 16, n)), Errc::ok);      // an owner's, incomplete
  EXPECT_EQ(code(with<uint32_t>(b, 56, kMaxFlushSteps, n)), Errc::ok);
  EXPECT_EQ(code(with<uint32_t>(b, 56, kMaxFlushSteps + 1, n)), Errc::frame_field);
  EXPECT_EQ(code(with<uint8_t>(b, 6, 1, n)), Errc::frame_count);    // no seen lengths
  EXPECT_EQ(code(with<uint32_t>(b, 76, 3, n)), Errc::frame_field);  // padding not zero
  EXPECT_EQ(code(with<uint32_t>(b, 76, 8, n)), Errc::bound_exceeded);
  EXPECT_EQ(code(with<uint32_t>(b, 76, 0xFFFFFFFEU, n)), Errc::bound_exceeded);
  EXPECT_EQ(code(with<uint32_t>(b, 92, 0, n)), Errc::frame_extended);
  EXPECT_EQ(code(with<uint32_t>(b, 80, 100, n)), Errc::frame_truncated);
  EXPECT_EQ(code(with<uint64_t>(b, 32, n - 4, n - 4)), Errc::frame_truncated);
  EXPECT_EQ(code(with<uint64_t>(b, 32, n - 1, n - 1)), Errc::frame_field);
  EXPECT_EQ(code(with<uint64_t>(b, 32, 72, 72)), Errc::frame_field);
  EXPECT_EQ(code(with<uint64_t>(b, 32, 80, 80)), Errc::frame_truncated);
  EXPECT_EQ(code(with<uint64_t>(b, 32, UINT64_MAX - 3, n)), Errc::frame_truncated);
  EXPECT_EQ(code(with<uint32_t>(b, 48, 0xFFFFFFFFU, n)), Errc::frame_count);
  EXPECT_EQ(code(with<uint32_t>(b, 0, 0, n)), Errc::frame_magic);
  EXPECT_EQ(code(with<uint8_t>(b, 4, 2, n)), Errc::frame_version);
}

/// A size that an owner reports becomes a capacity of this rank: an honest rank once had to send 1
/// GiB from a buffer of 60 kB.
TEST(Bundle, SeenLengthIsBounded) {
  Example e;
  EXPECT_EQ(code_of(e.used(), e.expect()), Errc::ok);
  BundleExpect expect = e.expect();
  expect.seen_bound = 299;
  EXPECT_EQ(code_of(e.used(), expect), Errc::bound_exceeded);
  BundleWriter writer = e.write();
  writer.set_seen(uint64_t{1} << 30);
  e.size = writer.finish(e.id, 1000);
  EXPECT_EQ(code_of(e.used(), e.expect()), Errc::bound_exceeded);
}

TEST(Bundle, OnlyMeansOfOwnersCanBeIncomplete) {
  Example e;
  BundleWriter writer = e.write();
  writer.mark_incomplete();
  e.size = writer.finish(e.id, 1000);
  const Buffer bytes = e.used();
  const auto view = parse_bundle(bytes, e.expect());
  ASSERT_TRUE(view) << view.error().message;
  EXPECT_TRUE(view->incomplete);
  EXPECT_EQ(view->flush, 10U);
  e.id.kind = BundleKind::contribution;
  e.size = e.write().finish(e.id, 1000);
  EXPECT_EQ(code_of(e.used(), e.expect()), Errc::ok);
  EXPECT_EQ(code_of(with<uint8_t>(e.used(), 6, 1 | 8 | 16, e.used().size()), e.expect()),
            Errc::frame_field);
}

TEST(Bundle, BitsAfterEndDoNotMatter) {
  Example e;
  std::fill(e.out.begin() + static_cast<std::ptrdiff_t>(e.size.bytes), e.out.end(), uint8_t{0});
  EXPECT_EQ(code_of(e.out, e.expect()), Errc::ok);
}

BundleFailure failure_back(const BundleFailure& sent, Buffer* out) {
  const Example e;
  out->assign(kMinCapacity, 0xEE);
  BundleId id = e.id;
  id.step = 1;  // a failed rank may be anywhere
  id.agreement = 0;
  const uint64_t size = write_failure_bundle(id, sent, *out);
  EXPECT_LE(size, kMinCapacity);
  const auto view = parse_bundle(*out, e.expect());
  EXPECT_TRUE(view) << view.error().message;
  if (!view) return {};
  EXPECT_TRUE(view->failed);
  EXPECT_EQ(view->bytes, size);
  return view->failure;
}

TEST(Failure, FailureArrivesWithSameMessage) {
  Buffer out;
  const BundleFailure back =
      failure_back({Errc::out_of_memory, 2, 5, 17, "not enough memory for 4 GiB · völlig"}, &out);
  EXPECT_EQ(back.code, Errc::out_of_memory);
  EXPECT_EQ(back.text, "not enough memory for 4 GiB · völlig");
  EXPECT_EQ(to_error(back).code, Errc::peer_failed);
  EXPECT_EQ(to_error(back).message,
            "rank 2 failed in bucket 5, parameter 17 (out_of_memory): not enough memory for 4 GiB "
            "· völlig");
  const BundleFailure nowhere =
      failure_back({Errc::internal, 2, 5, BundleFailure::kNoParameter, {}}, &out);
  EXPECT_EQ(to_error(nowhere).message, "rank 2 failed in bucket 5 (internal): ");
}

TEST(Failure, TextIsCutAtACharacterAndMadePrintable) {
  Buffer out;
  std::string text(511, 'x');
  EXPECT_EQ(failure_back({Errc::internal, 0, 0, 0, text + "yz"}, &out).text, text + "y");
  EXPECT_EQ(failure_back({Errc::internal, 0, 0, 0, text + "ü"}, &out).text, text);
  EXPECT_EQ(failure_back({Errc::internal, 0, 0, 0, "a\xFF\x1B[2J\nb"}, &out).text, "a??[2J?b");
}

TEST(Failure, BodiesAreChecked) {
  const Example e;
  Buffer out(kMinCapacity);
  const uint64_t n = write_failure_bundle(e.id, {Errc::internal, 2, 0, 0, "text"}, out);
  out.resize(n);
  const auto code = [&](const Buffer& bytes) { return code_of(bytes, e.expect()); };
  ASSERT_EQ(code(out), Errc::ok);
  EXPECT_EQ(code(with<int32_t>(out, 76, 0, n)), Errc::frame_field);
  EXPECT_EQ(code(with<int32_t>(out, 76, 12345, n)), Errc::frame_field);
  EXPECT_EQ(code(with<uint32_t>(out, 92, 5, n)), Errc::frame_field);
  EXPECT_EQ(code(with<uint32_t>(out, 92, 0xFFFFFFFFU, n)), Errc::frame_field);
  EXPECT_EQ(code(with<uint8_t>(out, 96, 0xFF, n)), Errc::frame_field);
  EXPECT_EQ(code(with<uint64_t>(out, 32, 80, 80)), Errc::frame_field);
  EXPECT_EQ(code(with<uint32_t>(out, 92, 3, n)), Errc::frame_field);  // padding is not zero
  EXPECT_EQ(code(with<uint32_t>(out, 48, 1, n)), Errc::frame_field);
  EXPECT_EQ(code(with<uint32_t>(out, 52, 4, n)), Errc::frame_field);
  BundleExpect other = e.expect();
  other.id.rank = 0;
  EXPECT_EQ(code_of(out, other), Errc::ranks_disagree);
}

bool is_utf8(std::string_view text) {
  return wire::is_utf8({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

TEST(Utf8, DecoderFollowsUnicodeTable3Dash7) {
  for (std::string_view good :
       {"", "a", "ü", "€", "𝄞", "\xED\x9F\xBF", "\xF4\x8F\xBF\xBF", "\xC2\xA0"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (std::string_view bad : {"\x1F", "\x7F", "\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xC2\x9F",
                               "\xE0\x9F\xBF", "\xED\xA0\x80", "\xE2\x82", "\xF0\x8F\xBF\xBF",
                               "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x28\xA1", "\xFF"}) {
    EXPECT_FALSE(is_utf8(bad)) << testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace laconic
