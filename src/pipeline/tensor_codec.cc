// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/tensor_codec.h"

#include <algorithm>
#include <new>
#include <optional>
#include <string>

#include "base/arena.h"
#include "kernels/cast.h"
#include "pipeline/unit_codec.h"

namespace laconic {

using pipeline::Outcome;
using pipeline::UnitCodec;
using pipeline::UnitSlot;

struct TensorCodec::Workspace {
  Arena kept, scratch, wide, merged;
  std::vector<Term> terms;
  std::vector<FrameView> views;
};

/// A workspace (and the pool, if free) for the length of one call.
class TensorCodec::Lease {
 public:
  explicit Lease(const TensorCodec& codec) : codec_(codec) {
    const std::lock_guard lock(codec.mutex_);
    if (!codec.free_.empty()) {
      space_ = std::move(codec.free_.back());
      codec.free_.pop_back();
    }
    has_pool_ = codec.pool_ != nullptr && !codec.pool_busy_;
    if (has_pool_) codec.pool_busy_ = true;
    if (space_ == nullptr) space_ = std::make_unique<Workspace>();
  }
  ~Lease() {
    const std::lock_guard lock(codec_.mutex_);
    if (has_pool_) codec_.pool_busy_ = false;
    codec_.free_.push_back(std::move(space_));
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  [[nodiscard]] ThreadPool* pool() const { return has_pool_ ? codec_.pool_.get() : nullptr; }
  [[nodiscard]] Workspace& space() const { return *space_; }

 private:
  const TensorCodec& codec_;
  std::unique_ptr<Workspace> space_;
  bool has_pool_ = false;
};

namespace {

Error no_memory() { return {Errc::out_of_memory, "no memory for a codec's work space", {}}; }

Result<Unit> unit_of(uint64_t rows, uint64_t cols, uint64_t parameter) {
  uint64_t count = 0;
  if (!checked_mul(rows, cols, &count) || count > kFrameMaxCount) {
    return Error{Errc::shape_unsupported,
                 std::to_string(rows) + " x " + std::to_string(cols) + " is too large",
                 "at most 2^40 elements in one tensor"};
  }
  return Unit{count, rows, cols, parameter, 0};
}

Result<void> check_tensor(const TensorRef& t) {
  if (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16) {
    return Error{Errc::dtype_unsupported,
                 "elements of type " + std::string(dtype_name(t.dtype)) + " are not supported",
                 "float32, float16 or bfloat16"};
  }
  if (t.data == nullptr && t.rows * t.cols != 0) {
    return Error{Errc::invalid_argument, "the tensor has elements but no data", {}};
  }
  return {};
}

uint64_t payload_bound(const Plan& plan) {
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < plan.rounds; ++r) bytes += plan.round[r].bytes;
  return bytes;
}

/// The tensor as float32: itself, or widened into `wide`.
float* as_float(const TensorRef& t, uint64_t n, Isa isa, Arena& wide) {
  if (t.dtype == DType::f32) return static_cast<float*>(t.data);
  if (!wide.reserve(std::max<uint64_t>(n, 1) * sizeof(float))) return nullptr;
  auto* out = reinterpret_cast<float*>(wide.bytes().data());
  kernels::widen(kernels::cast_kernels(isa), t.dtype, out, t.data, n);
  return out;
}

void store_narrow(const TensorRef& t, const float* values, uint64_t n, Isa isa) {
  const auto& casts = kernels::cast_kernels(isa);
  if (t.dtype == DType::bf16) casts.narrow_bf16(t.data, 1.0F, values, n);
  if (t.dtype == DType::f16) casts.narrow_f16(t.data, 1.0F, values, n, false);
}

/// Plain lanes carry NaN and infinity as they are; with a residual they would poison it.
bool carries_non_finite(const UnitCodec& codec, const UnitSlot& slot) {
  return codec.contract().merge == Merge::linear && slot.plan.rounds == 1 &&
         slot.residual == nullptr;
}

}  // namespace

Result<std::unique_ptr<Residual>> Residual::create(uint64_t count) {
  auto residual = std::make_unique<Residual>();
  try {
    residual->values_.assign(count, 0.0F);
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory,
                 "no memory for a residual of " + std::to_string(count) + " floats",
                 {}};
  } catch (const std::length_error&) {
    return Error{Errc::out_of_memory,
                 "no memory for a residual of " + std::to_string(count) + " floats",
                 {}};
  }
  return residual;
}

TensorCodec::TensorCodec(Spec spec, uint32_t threads) : spec_(std::move(spec)) {
  if (threads > 1) pool_ = std::make_unique<ThreadPool>(threads);
}

TensorCodec::~TensorCodec() = default;

Result<std::unique_ptr<TensorCodec>> TensorCodec::create(std::string_view text, uint32_t threads) {
  auto spec = Spec::parse(text);
  if (!spec) return std::move(spec).error();
  return std::unique_ptr<TensorCodec>(new TensorCodec(*std::move(spec), threads));
}

Result<uint64_t> TensorCodec::max_frame_bytes(uint64_t rows, uint64_t cols) const {
  auto unit = unit_of(rows, cols, 0);
  if (!unit) return std::move(unit).error();
  const Plan plan = spec_.codec().plan(spec_.params(), *unit, 1);
  return frame_header_bytes(spec_.canonical().size()) + payload_bound(plan);
}

Result<uint64_t> TensorCodec::encode(const TensorRef& source, const Place& place,
                                     uint64_t parameter, Residual* residual, MutBytes out) const {
  if (auto ok = check_tensor(source); !ok) return std::move(ok).error();
  auto unit = unit_of(source.rows, source.cols, parameter);
  if (!unit) return std::move(unit).error();
  const Lease lease(*this);
  Workspace& space = lease.space();
  const UnitCodec codec(spec_, best_isa(), lease.pool());
  UnitSlot slot{*unit, codec.plan(*unit, place.world), nullptr, {}};
  std::vector<float> fresh;  // stateless codecs allocate nothing
  if (residual != nullptr) {
    if (residual->values_.size() != unit->count) {
      return Error{Errc::frame_count,
                   "the residual holds " + std::to_string(residual->values_.size()) +
                       " elements, the tensor " + std::to_string(unit->count),
                   "one Residual for each tensor"};
    }
    if (spec_.feedback()) slot.residual = residual->values_.data();
  }
  std::vector<float>& state = residual != nullptr ? residual->state_ : fresh;
  if (state.empty() && slot.plan.state_floats != 0) {
    state.resize(slot.plan.state_floats);
    slot.state = state;
    codec.init(slot, place);
  }
  slot.state = state;
  if (state.size() != slot.plan.state_floats) {
    return Error{Errc::state_spec, "the residual carries state of another codec",
                 "one Residual for each spec"};
  }
  float* values = as_float(source, unit->count, codec.isa(), space.wide);
  if (values == nullptr && unit->count != 0) return no_memory();
  if (!space.kept.reserve(slot.plan.kept_bytes + 1) ||
      !space.scratch.reserve(slot.plan.scratch_bytes + 1)) {
    return no_memory();
  }
  Work work{space.kept.bytes(), space.scratch.bytes(), codec.isa(), lease.pool()};

  FrameInfo info;
  info.codec = spec_.codec().info.id;
  info.payload_version = spec_.codec().info.version;
  info.dtype = source.dtype;
  info.count = unit->count;
  info.rows = unit->rows;
  info.cols = unit->cols;
  info.step = place.step;
  info.seed = place.seed;
  info.parameter = parameter;
  info.rank = place.rank;
  info.world = place.world;
  info.hop = static_cast<uint8_t>(place.hop);
  info.spec = spec_.canonical();
  auto room = begin_frame(info, out);
  if (!room) return std::move(room).error();
  if (room->size() < payload_bound(slot.plan)) {
    return Error{Errc::buffer_too_small,
                 "the frame may take " +
                     std::to_string(out.size() - room->size() + payload_bound(slot.plan)) +
                     " bytes, there is room for " + std::to_string(out.size()),
                 "ask max_frame_bytes first"};
  }

  uint64_t bytes = 0;
  if (carries_non_finite(codec, slot)) {
    bytes =
        spec_.codec()
            .encode(spec_.params(), slot.state, slot.unit, place, 0, {values, nullptr}, work, *room)
            .bytes;
    return finish_frame(info, out, bytes);
  }
  const auto encoded = codec.encode(slot, place, values, work, *room);
  if (encoded.outcome == Outcome::non_finite) {
    return Error{
        Errc::non_finite,
        "the tensor holds NaN or infinity; nothing was encoded and the residual is untouched",
        "skip this step, or send it uncompressed (none)"};
  }
  info.flags.zero = encoded.outcome == Outcome::zero;
  if (info.flags.zero) return finish_frame(info, out, 0);
  // The rounds of a multi-round codec lie one after another, with this rank as the only
  // contributor.
  bytes = encoded.bytes;
  MutBytes last = room->first(bytes);
  for (uint32_t round = 1; round < slot.plan.rounds; ++round) {
    if (!space.merged.reserve(last.size() + 1)) return no_memory();
    const MutBytes merged = space.merged.bytes().first(last.size());
    std::copy(last.begin(), last.end(), merged.begin());
    codec.accept(slot, place, round - 1, merged, 1, work);
    const MutBytes at = room->subspan(bytes);
    last = at.first(codec.encode_round(slot, place, round, values, work, at));
    bytes += last.size();
  }
  if (codec.contract().feedback == Feedback::aggregate && slot.residual != nullptr) {
    const Term own{last, -1.0F};
    codec.decode(slot.unit, place, {&own, 1}, work, {slot.residual, true});
  }
  spec_.codec().commit(spec_.params(), slot.state, slot.unit, place, last, last, 1, work);
  return finish_frame(info, out, bytes);
}

namespace {

Result<void> check_view(const FrameView& view, const Spec& spec, uint64_t count) {
  const FrameInfo& info = view.info;
  if (info.codec != spec.codec().info.id || info.payload_version != spec.codec().info.version) {
    return Error{Errc::frame_codec,
                 "the frame was made by '" + std::string(info.spec) + "', this codec is '" +
                     spec.canonical() + "'",
                 "decode it with a codec of its own spec (Frame.parse shows it)"};
  }
  if (info.count != count) {
    return Error{Errc::frame_count,
                 "the frame holds " + std::to_string(info.count) + " elements, the output " +
                     std::to_string(count),
                 "an output of the frame's shape"};
  }
  if (info.flags.non_finite) {
    return Error{
        Errc::non_finite, "the frame says that its tensor was not finite; it holds no values", {}};
  }
  return {};
}

Result<void> check_payload(const Spec& spec, const Unit& unit, const Plan& plan, Bytes payload) {
  uint64_t at = 0;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    const bool last = round + 1 == plan.rounds;
    const uint64_t size = last ? payload.size() - at : plan.round[round].bytes;
    if (size > payload.size() - at)
      return Error{Errc::payload_malformed, "the payload ends inside a round", {}};
    const Errc bad = spec.codec().check(spec.params(), unit, round, payload.subspan(at, size));
    if (bad != Errc::ok) {
      return Error{bad,
                   "the payload is not one of '" + spec.canonical() + "' for " +
                       std::to_string(unit.count) + " elements",
                   "the frame is damaged or forged"};
    }
    at += size;
  }
  return {};
}

}  // namespace

Result<void> TensorCodec::decode(std::span<const Bytes> frames, float weight, bool add,
                                 const TensorRef& out) const {
  if (auto ok = check_tensor(out); !ok) return ok;
  auto shape = unit_of(out.rows, out.cols, 0);
  if (!shape) return std::move(shape).error();
  const Lease lease(*this);
  Workspace& space = lease.space();
  space.views.clear();
  space.terms.clear();
  std::optional<Spec> other;  // the frames' parameters, when they are not ours
  for (const Bytes bytes : frames) {
    auto view = parse_frame(bytes);
    if (!view) return std::move(view).error();
    if (auto ok = check_view(*view, spec_, shape->count); !ok) return ok;
    const std::string_view text =
        other ? std::string_view(other->canonical()) : std::string_view(spec_.canonical());
    if (view->info.spec != text) {
      if (!space.views.empty()) {
        return Error{Errc::frame_codec, "the frames have different specs",
                     "decode them one by one"};
      }
      auto parsed = Spec::parse(view->info.spec);
      if (!parsed) return std::move(parsed).error();
      if (&parsed->codec() != &spec_.codec())
        return Error{Errc::frame_field, "the frame's spec is not its codec's", {}};
      other = *std::move(parsed);
    }
    space.views.push_back(*view);
  }
  const Spec& spec = other ? *other : spec_;
  const UnitCodec codec(spec, best_isa(), lease.pool());
  const auto unit_for = [&](const FrameInfo& info) {
    return Unit{info.count, info.rows, info.cols, info.parameter, info.offset};
  };
  Plan largest;
  for (const FrameView& view : space.views) {
    const Unit unit = unit_for(view.info);
    const Plan plan = codec.plan(unit, 1);
    largest.kept_bytes = std::max(largest.kept_bytes, plan.kept_bytes);
    largest.scratch_bytes = std::max(largest.scratch_bytes, plan.scratch_bytes);
    if (view.info.flags.zero) continue;
    if (auto ok = check_payload(spec, unit, plan, view.payload); !ok) return ok;
  }
  if (!space.kept.reserve(largest.kept_bytes + 1) ||
      !space.scratch.reserve(largest.scratch_bytes + 1)) {
    return no_memory();
  }
  Work work{space.kept.bytes(), space.scratch.bytes(), codec.isa(), lease.pool()};
  float* values = as_float(out, shape->count, codec.isa(), space.wide);
  if (values == nullptr && shape->count != 0) return no_memory();

  // Frames that differ only in who sent them decode fused; all others one by one.
  const auto place_of = [](const FrameInfo& i) {
    return Place{i.seed, i.step, i.rank, i.world, i.hop, 1.0F};
  };
  const auto alike = [&](const FrameInfo& a, const FrameInfo& b) {
    return a.seed == b.seed && a.step == b.step && a.parameter == b.parameter &&
           a.offset == b.offset && a.rows == b.rows && a.cols == b.cols && a.hop == b.hop;
  };
  bool base = add;
  for (size_t i = 0; i < space.views.size();) {
    const FrameView& first = space.views[i];
    const Unit unit = unit_for(first.info);
    const Plan plan = codec.plan(unit, 1);
    space.terms.clear();
    do {
      if (!space.views[i].info.flags.zero) space.terms.push_back({space.views[i].payload, weight});
      ++i;
    } while (plan.rounds == 1 && i < space.views.size() && alike(first.info, space.views[i].info));
    if (space.terms.empty()) continue;
    const Place place = place_of(first.info);
    Bytes payload = space.terms[0].payload;
    const UnitSlot slot{unit, plan, nullptr, {}};
    for (uint32_t round = 0; round + 1 < plan.rounds; ++round) {
      const uint64_t size = plan.round[round].bytes;
      if (!space.merged.reserve(size + 1)) return no_memory();
      const MutBytes merged = space.merged.bytes().first(size);
      std::copy_n(payload.begin(), size, merged.begin());
      codec.accept(slot, place, round, merged, first.info.contributors, work);
      payload = payload.subspan(size);
      space.terms[0].payload = payload;
    }
    codec.decode(unit, place, space.terms, work, {values, base});
    base = true;
  }
  if (!base) std::fill_n(values, shape->count, 0.0F);
  store_narrow(out, values, shape->count, codec.isa());
  return {};
}

}  // namespace laconic
