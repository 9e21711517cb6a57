// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The decoding half of TensorCodec: everything is verified before the first element of the output
// changes.
#include <algorithm>
#include <optional>
#include <string>

#include "laconic/tensor_codec.h"
#include "pipeline/tensor_devices.h"
#include "pipeline/unit_codec.h"
#include "pipeline/workspace.h"

namespace laconic {
namespace {

using pipeline::no_memory;
using pipeline::UnitCodec;

Unit unit_of(const FrameInfo& i) { return {i.count, i.rows, i.cols, i.parameter, i.offset}; }
Place place_of(const FrameInfo& i) { return {i.seed, i.step, i.rank, i.world, i.hop, 1.0F}; }

/// Frames that differ only in who sent them decode fused.
bool decode_together(const FrameInfo& a, const FrameInfo& b) {
  return a.seed == b.seed && a.step == b.step && a.parameter == b.parameter &&
         a.offset == b.offset && a.rows == b.rows && a.cols == b.cols && a.hop == b.hop;
}

Result<void> check_header(const FrameInfo& info, const Spec& spec, uint64_t count) {
  if (info.codec != spec.codec().info.id || info.payload_version != spec.codec().info.version) {
    return Error{Errc::frame_codec,
                 "the frame was made by '" + std::string(info.spec) + "', this codec is '" +
                     spec.canonical() + "'",
                 "decode it with a codec of the frame's spec (Frame.parse shows it)"};
  }
  if (info.count != count) {
    return Error{Errc::frame_count,
                 "the frame holds " + std::to_string(info.count) + " elements, the output " +
                     std::to_string(count),
                 "use an output of the frame's shape"};
  }
  if (info.flags.non_finite) {
    return Error{Errc::non_finite, "the frame marks its tensor as not finite and holds no values",
                 "skip that step"};
  }
  return {};
}

Result<void> check_payload(const Spec& spec, const Unit& unit, const Plan& plan, Bytes payload) {
  uint64_t at = 0;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    const bool last = round + 1 == plan.rounds;
    const uint64_t size = last ? payload.size() - at : plan.round[round].bytes;
    if (size > payload.size() - at)
      return Error{Errc::payload_malformed, "the payload ends inside a round",
                   "the frame is damaged or forged"};
    const Errc bad = spec.codec().check(spec.params(), unit, round, payload.subspan(at, size));
    if (bad != Errc::ok) {
      return Error{bad,
                   "the payload is not valid for '" + spec.canonical() + "' with " +
                       std::to_string(unit.count) + " elements",
                   "the frame is damaged or forged"};
    }
    at += size;
  }
  return {};
}

/// The parameters that the frames were made with: ours, or (once parsed into `other`) their own.
/// Rule 19 of FRAME.md.
Result<const Spec*> spec_of(const FrameInfo& info, const Spec& ours, std::optional<Spec>& other) {
  if (other && info.spec == other->canonical()) return &*other;
  if (!other && info.spec == ours.canonical()) return &ours;
  if (other)
    return Error{Errc::frame_codec, "the frames have different specs", "decode them separately"};
  auto parsed = Spec::parse(info.spec);
  if (!parsed) {
    return Error{Errc::frame_codec,
                 "the frame's spec '" + std::string(info.spec) +
                     "' is not supported by this build: " + parsed.error().message,
                 parsed.error().hint};
  }
  if (&parsed->codec() != &ours.codec() || parsed->canonical() != info.spec) {
    return Error{Errc::frame_codec,
                 "the frame's spec '" + std::string(info.spec) +
                     "' does not name its codec, or is not in canonical form",
                 "the program that wrote it is faulty: please report it"};
  }
  other = *std::move(parsed);
  return &*other;
}

/// Payloads that decode fused.
struct Group {
  Unit unit;
  std::span<const Term> terms;
};

std::vector<Group> groups_of(std::span<const FrameView> views, float weight,
                             std::vector<Term>& terms) {
  terms.clear();
  for (const FrameView& view : views)
    if (!view.info.flags.zero) terms.push_back({view.payload, weight});
  std::vector<Group> groups;
  std::span<const Term> left(terms);
  for (std::size_t i = 0; i < views.size();) {
    const FrameInfo& first = views[i].info;
    std::size_t own = 0;
    for (; i < views.size() && decode_together(first, views[i].info); ++i)
      if (!views[i].info.flags.zero) ++own;
    if (own != 0) groups.push_back({unit_of(first), left.first(own)});
    left = left.subspan(own);
  }
  return groups;
}

Result<bool> all_good(pipeline::DeviceBatch& batch, const Group& group) {
  std::vector<Bytes> payloads;
  for (const Term& term : group.terms) payloads.push_back(term.payload);
  auto good = batch.check(group.unit, payloads);
  if (!good) return std::move(good).error();
  return std::find(good->begin(), good->end(), false) == good->end();
}

}  // namespace

/// Parses and verifies all frames into space.views and takes all memory that decoding them needs;
/// gives the spec that they share. Without their payloads if these are unchecked.
Result<const Spec*> TensorCodec::verify(std::span<const Bytes> frames, uint64_t count,
                                        Payloads payloads, Workspace& space,
                                        std::optional<Spec>& other) const {
  space.views.clear();
  const Spec* spec = &spec_;
  Plan largest;
  uint64_t merged = 0;  // the largest round that is copied before it is taken in
  for (const Bytes bytes : frames) {
    auto view = parse_frame(bytes);
    if (!view) return std::move(view).error();
    if (auto ok = check_header(view->info, spec_, count); !ok) return std::move(ok).error();
    auto own = spec_of(view->info, spec_, other);
    if (!own) return std::move(own).error();
    if (!space.views.empty() && *own != spec) {
      return Error{Errc::frame_codec, "the frames have different specs", "decode them separately"};
    }
    spec = *own;
    const Unit unit = unit_of(view->info);
    const Plan plan = spec->codec().plan(spec->params(), unit, 1);
    largest.kept_bytes = std::max(largest.kept_bytes, plan.kept_bytes);
    largest.scratch_bytes = std::max(largest.scratch_bytes, plan.scratch_bytes);
    for (uint32_t round = 0; round + 1 < plan.rounds; ++round)
      merged = std::max(merged, plan.round[round].bytes);
    if (!view->info.flags.zero && payloads == Payloads::checked) {
      if (auto ok = check_payload(*spec, unit, plan, view->payload); !ok)
        return std::move(ok).error();
    }
    space.views.push_back(*view);
  }
  space.terms.reserve(frames.size());
  if (payloads == Payloads::unchecked) return spec;
  if (!space.reserve(largest) || !space.merged.reserve(merged + 1)) return no_memory();
  return spec;
}

Result<void> TensorCodec::decode(std::span<const Bytes> frames, float weight, bool add,
                                 const TensorRef& out) const {
  if (auto ok = pipeline::check_tensor(out); !ok) return ok;
  auto shape = pipeline::unit_of(spec_, out, 0);
  if (!shape) return std::move(shape).error();
  const Lease lease(*this);
  Workspace& space = lease.space();
  if (out.memory == TensorMemory::cuda && shape->count != 0)
    return decode_on_device(frames, weight, add, out, space);
  std::optional<Spec> other;
  auto spec = verify(frames, shape->count, Payloads::checked, space, other);
  if (!spec) return std::move(spec).error();
  const UnitCodec codec(**spec, best_isa(), lease.pool());
  Work work = space.work(codec.isa(), lease.pool());
  float* values = space.as_float(out, shape->count, codec.isa());
  if (values == nullptr && shape->count != 0) return no_memory();

  bool base = add;
  for (size_t i = 0; i < space.views.size();) {
    const FrameInfo& first = space.views[i].info;
    const Plan plan = codec.plan(unit_of(first), 1);
    space.terms.clear();
    do {
      if (!space.views[i].info.flags.zero) space.terms.push_back({space.views[i].payload, weight});
      ++i;
    } while (plan.rounds == 1 && i < space.views.size() &&
             decode_together(first, space.views[i].info));
    if (space.terms.empty()) continue;
    for (uint32_t round = 0; round + 1 < plan.rounds;
         ++round) {  // all rounds but the last are taken in first
      Bytes& payload = space.terms[0].payload;
      auto merged = space.copy(payload.first(plan.round[round].bytes));
      if (!merged) return no_memory();
      codec.accept({unit_of(first), plan, {}, {}}, place_of(first), round, *merged,
                   first.contributors, work);
      payload = payload.subspan(plan.round[round].bytes);
    }
    codec.decode(unit_of(first), place_of(first), space.terms, work, {values, base});
    base = true;
  }
  if (!base) std::fill_n(values, shape->count, 0.0F);
  const auto& casts = kernels::cast_kernels(codec.isa());
  if (out.dtype == DType::bf16) casts.narrow_bf16(out.data, 1.0F, values, shape->count);
  if (out.dtype == DType::f16) casts.narrow_f16(out.data, 1.0F, values, shape->count, false);
  return {};
}

/// Payloads are checked on the device, and the CPU says what is wrong with one.
Result<void> TensorCodec::decode_on_device(std::span<const Bytes> frames, float weight, bool add,
                                           const TensorRef& out, Workspace& space) const {
  const uint64_t count = out.rows * out.cols;
  std::optional<Spec> other;
  const auto refused = [&]() -> Result<void> {
    other.reset();
    auto why = verify(frames, count, Payloads::checked, space, other);
    if (!why) return std::move(why).error();
    return Error{Errc::internal, "a GPU refuses a payload that the CPU takes", "report this"};
  };
  auto spec = verify(frames, count, Payloads::unchecked, space, other);
  if (!spec) return refused();
  const auto device = devices_->take(**spec, out);
  if (!device) return device.error();
  pipeline::DeviceBatch& batch = device->batch();
  const std::vector<Group> groups = groups_of(space.views, weight, space.terms);
  for (const Group& group : groups) {
    auto good = all_good(batch, group);
    if (!good) return std::move(good).error();
    if (!*good) return refused();
    if (auto r = batch.reserve_decode(group.unit, group.terms); !r) return r;
  }
  const bool halves = out.dtype != DType::f32;
  auto lent = batch.lend(halves ? count : 0);
  if (!lent) return std::move(lent).error();
  // Only now the first element changes.
  if (groups.empty() && !add)
    return batch.clear(out.data, count * (halves ? sizeof(uint16_t) : sizeof(float)));
  float* const values = halves ? *lent : static_cast<float*>(out.data);
  if (halves && add) {
    if (auto r = batch.widen(values, out.data, out.dtype, count); !r) return r;
  }
  for (const Group& group : groups) {
    if (auto r = batch.decode(group.unit, group.terms, values, add); !r) return r;
    add = true;
  }
  return halves ? batch.narrow(out.data, out.dtype, values, count) : Result<void>();
}

}  // namespace laconic
