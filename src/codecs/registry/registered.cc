// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/registry/registered.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/concat.h"
#include "base/quoted.h"
#include "laconic/laconic.h"
#include "laconic/registry.h"

namespace laconic::codecs {
namespace {

constexpr uint64_t kMostName = 255;     // as in saved states
constexpr uint64_t kMost = 1ULL << 40;  // what is larger is refused where it is used
/// Follows a payload, so that an empty one is not absent.
constexpr uint8_t kEnd = 1;

/// The text of a callback's failure.
class Why {
 public:
  [[nodiscard]] char* data() noexcept { return text_.data(); }
  [[nodiscard]] static uint64_t room() noexcept { return LACONIC_WHY_BYTES; }
  [[nodiscard]] std::string_view text() const noexcept {
    return {text_.data(),
            static_cast<size_t>(std::find(text_.begin(), text_.end(), '\0') - text_.begin())};
  }

 private:
  std::array<char, LACONIC_WHY_BYTES> text_{};
};

laconic_codec_call call_of(const Call<>& call, uint32_t rank) {
  laconic_codec_call c{};
  c.struct_size = sizeof c;
  c.rank = rank;
  c.world = call.place.world;
  c.rows = call.unit.rows;
  c.cols = call.unit.cols;
  c.parameter = call.unit.parameter;
  c.seed = call.place.seed;
  c.step = call.place.step;
  c.state = call.state.data();
  c.state_floats = call.state.size();
  return c;
}

Error refused(std::string_view what) {
  return {Errc::invalid_argument, concat({"codec table: ", what}), "see laconic_codec_table"};
}

}  // namespace

Result<std::shared_ptr<const Registered>> Registered::create(const laconic_codec_table& table) {
  if (table.name == nullptr) return refused("it has no name");
  const std::string_view name = table.name;
  if (name.empty() || name.size() > kMostName || name.find_first_of("+|;") != name.npos)
    return refused(concat({"the name ", quoted(name), " is not valid in a spec"}));
  if (find_codec(name.substr(0, name.find(':'))) != nullptr)
    return refused(concat({quoted(name), " is a built-in codec"}));
  if (table.feedback > LACONIC_FEEDBACK_ON)
    return refused("feedback is not a LACONIC_FEEDBACK_ value");
  if (table.plan == nullptr || table.encode == nullptr || table.decode == nullptr)
    return refused("plan, encode or decode is null");
  return std::shared_ptr<const Registered>(new Registered(table));
}

Registered::Registered(const laconic_codec_table& table)
    : theirs_(std::make_unique<laconic_codec_table>(table)), name_(table.name) {
  codec_.info = {name_, 0, 1, "registered", ""};
  codec_.defaults = [](void*) {};
  codec_.contract = [](const void* p) { return of(p).contract(); };
  codec_.plan = [](const void* p, const Unit& unit, uint32_t world) {
    return of(p).plan(unit, world);
  };
  codec_.check = [](const void*, const Unit&, uint32_t, Bytes payload) {
    return !payload.empty() && payload.back() == kEnd ? Errc::ok : Errc::payload_malformed;
  };
  codec_.init = [](const void*, const Unit&, const Place&, std::span<float> state) {
    std::ranges::fill(state, 0.0F);
  };
  codec_.encode = [](const Call<>& call, Source source, MutBytes out) {
    return of(call.params).encode(call, source, out);
  };
  codec_.accept = [](const Call<>&, MutBytes, uint32_t) {};
  codec_.decode = [](const Call<>& call, std::span<const Term> terms, Target target) {
    of(call.params).decode(call, terms, target);
  };
  codec_.commit = [](const Call<>& call, std::span<float> state, Bytes sent, Bytes, uint32_t) {
    const laconic_codec_table& theirs = *of(call.params).theirs_;
    if (theirs.commit == nullptr || sent.empty()) return;
    const laconic_codec_call c = call_of(call, call.place.rank);
    theirs.commit(theirs.context, &c, state.data(), sent.data(), sent.size() - 1);
  };
}

Registered::~Registered() = default;

Registered::Size Registered::size_of(const Unit& unit, uint32_t world) const {
  const auto [at, first] = sizes_.try_emplace({unit.rows, unit.cols, world});
  if (!first) return at->second;
  Size& size = at->second;
  theirs_->plan(theirs_->context, unit.rows, unit.cols, world, &size.bytes, &size.state_floats);
  size = {std::min(size.bytes, kMost), std::min(size.state_floats, kMost)};
  return size;
}

Contract Registered::contract() const {
  Contract c;
  c.feedback = theirs_->feedback == LACONIC_FEEDBACK_NEVER ? Feedback::never : Feedback::own;
  if (theirs_->feedback != LACONIC_FEEDBACK_NEVER) c.memories = memory_set(MemoryKind::residual);
  if (theirs_->feedback == LACONIC_FEEDBACK_ON) c.memory_default = MemoryKind::residual;
  c.exact_size = false;
  c.whole_parameter = true;
  return c;
}

/// Work::kept is the pipeline's.
Plan Registered::plan(const Unit& unit, uint32_t world) const {
  const Size size = size_of(unit, world);
  Plan plan;
  plan.round[0].bytes = plan.round[0].expected = size.bytes + sizeof kEnd;
  plan.state_floats = size.state_floats;
  plan.kept_bytes = plan.scratch_bytes = unit.count * sizeof(float);
  return plan;
}

void Registered::fail(std::string what) const {
  failure_ = Error{Errc::invalid_argument, std::move(what), "check the registered codec"};
}

Encoded Registered::encode(const Call<>& call, Source source, MutBytes out) const {
  Why why;
  const laconic_codec_call c = call_of(call, call.place.rank);
  const uint64_t room = out.size() - sizeof kEnd;
  uint64_t bytes = 0;
  const int32_t code = theirs_->encode(theirs_->context, &c, source.values, out.data(), room,
                                       &bytes, why.data(), why.room());
  if (code != 0) {
    fail(why.text().empty() ? name_ + ": encode failed" : std::string(why.text()));
  } else if (bytes > room) {
    fail(concat({name_, ": encode returned ", std::to_string(bytes), " bytes, plan allows ",
                 std::to_string(room)}));
  }
  if (failure_) return {0, false};
  out[bytes] = kEnd;
  return {bytes + sizeof kEnd};
}

bool Registered::decode_one(const Call<>& call, const Term& term, float* out) const {
  Why why;
  const laconic_codec_call c = call_of(call, term.rank);
  std::fill_n(out, call.unit.count, 0.0F);
  const int32_t code =
      theirs_->decode(theirs_->context, &c, term.payload.data(), term.payload.size() - sizeof kEnd,
                      out, why.data(), why.room());
  std::string_view what = code != 0 ? why.text() : "decode left infinity or NaN";
  if (what.empty()) what = "decode failed";
  const auto finite = [](float x) { return std::isfinite(x); };
  if (code == 0 && std::all_of(out, out + call.unit.count, finite)) return true;
  fail(concat({"the payload of rank ", std::to_string(term.rank), ": ", what}));
  return false;
}

void Registered::decode(const Call<>& call, std::span<const Term> terms, Target target) const {
  auto* const one = reinterpret_cast<float*>(call.work.scratch.data());
  const uint64_t n = call.unit.count;
  if (!target.add) std::fill_n(target.values, n, 0.0F);
  for (const Term& term : terms) {
    if (failure_ || !decode_one(call, term, one)) return;
    for (uint64_t i = 0; i < n; ++i) target.values[i] += term.weight * one[i];
  }
}

}  // namespace laconic::codecs
