// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/tensor_codec.h"

#include <algorithm>
#include <new>
#include <stdexcept>
#include <string>

#include "pipeline/tensor_devices.h"
#include "pipeline/unit_codec.h"
#include "pipeline/workspace.h"

namespace laconic {

using pipeline::no_memory;
using pipeline::Outcome;
using pipeline::UnitCodec;
using pipeline::UnitSlot;

namespace pipeline {

Result<void> check_tensor(const TensorRef& t) {
  if (t.dtype != DType::f32 && t.dtype != DType::f16 && t.dtype != DType::bf16) {
    return Error{Errc::dtype_unsupported,
                 "elements of type " + std::string(dtype_name(t.dtype)) + " are not supported",
                 "float32, float16 or bfloat16"};
  }
  if (t.data == nullptr && t.rows != 0 && t.cols != 0) {
    return Error{Errc::invalid_argument, "tensor: expected data, found null",
                 "data may be null only for an empty tensor"};
  }
  return {};
}

Result<Unit> unit_of(const Spec& spec, const TensorRef& t, uint64_t parameter) {
  static_assert(kMaxUnitCount <= kFrameMaxCount);
  // Should the product wrap, check_unit refuses rows and cols.
  const Unit unit{t.rows * t.cols, t.rows, t.cols, parameter, 0};
  if (check_unit(spec, unit) == Errc::ok) return unit;
  return Error{Errc::shape_unsupported,
               std::to_string(t.rows) + " x " + std::to_string(t.cols) + " is too large for " +
                   spec.canonical(),
               "at most " + std::to_string(spec.contract().max_count) + " elements in one tensor"};
}

}  // namespace pipeline

namespace {

uint64_t payload_bound(const Plan& plan) {
  uint64_t bytes = 0;
  for (uint32_t r = 0; r < plan.rounds; ++r) bytes += plan.round[r].bytes;
  return bytes;
}

FrameInfo frame_info(const Spec& spec, const TensorRef& source, const Unit& unit,
                     const Place& place) {
  FrameInfo info;
  info.codec = spec.codec().info.id;
  info.payload_version = spec.codec().info.version;
  info.dtype = source.dtype;
  info.count = unit.count;
  info.rows = unit.rows;
  info.cols = unit.cols;
  info.step = place.step;
  info.seed = place.seed;
  info.parameter = unit.parameter;
  info.rank = place.rank;
  info.world = place.world;
  info.hop = static_cast<uint8_t>(place.hop);
  info.spec = spec.canonical();
  return info;
}

Error non_finite(const Spec& spec) {
  return {
      Errc::non_finite,
      "the tensor, or its sum with the residual, holds NaN, infinity or a value too large for " +
          spec.canonical() + "; nothing was encoded and the residual is untouched",
      "skip this step, or send it uncompressed (none)"};
}

/// Plain lanes carry NaN and infinity as they are; a residual they would poison.
bool carries_non_finite(const UnitCodec& codec, const UnitSlot& slot) {
  return codec.contract().merge == Merge::linear && slot.plan.rounds == 1 &&
         slot.memory.values == nullptr;
}

/// Binds the residual's memory to the slot; starts codec state that is not there yet.
Result<void> bind(const UnitCodec& codec, const Place& place, const std::span<float>* residual,
                  std::vector<float>& state, UnitSlot& slot) {
  if (residual != nullptr && residual->size() != slot.unit.count) {
    return Error{Errc::frame_count,
                 "the residual holds " + std::to_string(residual->size()) +
                     " elements, the tensor " + std::to_string(slot.unit.count),
                 "use one Residual per tensor"};
  }
  const MemorySettings settings = codec.spec().memory();
  const bool remembers = residual != nullptr && settings.kind != MemoryKind::none;
  const uint64_t momentum =
      remembers && settings.kind == MemoryKind::momentum ? slot.unit.count : 0;
  const uint64_t floats = slot.plan.state_floats + momentum;
  const auto of_codec = [&] { return std::span(state).first(slot.plan.state_floats); };
  if (slot.plan.state_may_lack && momentum != 0 && state.size() == momentum)
    state.insert(state.begin(), slot.plan.state_floats, 0.0F);
  if (state.empty() && floats != 0) {
    state.resize(floats);
    slot.state = of_codec();
    codec.init(slot, place);
  }
  if (state.size() != floats) {
    return Error{Errc::state_spec, "the residual carries state of another codec",
                 "use one Residual per spec"};
  }
  slot.state = of_codec();
  if (remembers) slot.memory = {settings, residual->data()};
  if (momentum != 0) slot.memory.momentum = state.data() + slot.plan.state_floats;
  return {};
}

}  // namespace

TensorCodec::Lease::Lease(const TensorCodec& codec) : codec_(codec) {
  const std::lock_guard lock(codec.mutex_);
  if (!codec.free_.empty()) {
    space_ = std::move(codec.free_.back());
    codec.free_.pop_back();
  }
  if (space_ == nullptr) space_ = std::make_unique<Workspace>();
  has_pool_ = codec.pool_ != nullptr && !codec.pool_busy_;
  if (has_pool_) codec.pool_busy_ = true;
}

TensorCodec::Lease::~Lease() {
  const std::lock_guard lock(codec_.mutex_);
  if (has_pool_) codec_.pool_busy_ = false;
  try {
    codec_.free_.push_back(std::move(space_));
  } catch (const std::bad_alloc&) {  // no memory to remember it: it is freed
  }
}

Result<std::unique_ptr<Residual>> Residual::create(uint64_t count) {
  const Error none{Errc::out_of_memory,
                   "not enough memory for a residual of " + std::to_string(count) + " floats",
                   "encode without feedback (+noef), or free memory first"};
  auto residual = std::make_unique<Residual>();
  try {
    residual->own_.assign(count, 0.0F);
  } catch (const std::bad_alloc&) {
    return none;
  } catch (const std::length_error&) {
    return none;
  }
  residual->values_ = residual->own_;
  return residual;
}

Result<std::unique_ptr<Residual>> Residual::over(const TensorRef& values) {
  if (auto ok = pipeline::check_tensor(values); !ok) return std::move(ok).error();
  uint64_t count = 0;
  if (values.dtype != DType::f32 || !checked_mul(values.rows, values.cols, &count) ||
      count > kMaxUnitCount) {
    return Error{Errc::invalid_argument, "a residual is an array of at most 2^40 float32 values",
                 "LACONIC_F32, with as many elements as the tensor"};
  }
  auto residual = std::make_unique<Residual>();
  residual->values_ = {static_cast<float*>(values.data), count};
  residual->memory_ = values.memory;
  return residual;
}

TensorCodec::TensorCodec(Spec spec, uint32_t threads)
    : spec_(std::move(spec)), devices_(std::make_unique<pipeline::TensorDevices>()) {
  if (threads > 1) pool_ = std::make_unique<ThreadPool>(threads);
}

TensorCodec::~TensorCodec() = default;

Result<std::unique_ptr<TensorCodec>> TensorCodec::create(std::string_view text, uint32_t threads) {
  auto spec = Spec::parse(text);
  if (!spec) return std::move(spec).error();
  return std::unique_ptr<TensorCodec>(new TensorCodec(*std::move(spec), threads));
}

Result<uint64_t> TensorCodec::max_frame_bytes(uint64_t rows, uint64_t cols) const {
  auto unit = pipeline::unit_of(spec_, {DType::f32, rows, cols, nullptr}, 0);
  if (!unit) return std::move(unit).error();
  const Plan plan = spec_.codec().plan(spec_.params(), *unit, 1);
  return frame_header_bytes(spec_.canonical().size()) + payload_bound(plan);
}

Result<uint64_t> TensorCodec::encode(const TensorRef& source, const Place& place,
                                     uint64_t parameter, Residual* residual, MutBytes out) const {
  if (auto ok = pipeline::check_tensor(source); !ok) return std::move(ok).error();
  auto unit = pipeline::unit_of(spec_, source, parameter);
  if (!unit) return std::move(unit).error();
  if (residual != nullptr && residual->memory() != source.memory) {
    return Error{Errc::invalid_argument, "one of tensor and residual is on the host, the other not",
                 "make the residual over an array in the tensor's memory"};
  }
  const bool on_device = source.memory == TensorMemory::cuda && unit->count != 0;
  std::optional<pipeline::TensorDevices::Lease> device;
  if (on_device) {
    if (!pipeline::DeviceBatch::encodes(spec_)) return pipeline::DeviceBatch::no_kernels(spec_);
    auto taken = devices_->take(spec_, source);
    if (!taken) return std::move(taken).error();
    device.emplace(*std::move(taken));
  }
  const Lease lease(*this);
  Workspace& space = lease.space();
  const UnitCodec codec(spec_, best_isa(), lease.pool());
  UnitSlot slot{*unit, codec.plan(*unit, place.world), {}, {}};
  std::vector<float> fresh;  // stateless codecs allocate nothing
  auto bound = bind(codec, place, residual == nullptr ? nullptr : &residual->values_,
                    residual == nullptr ? fresh : residual->state_, slot);
  if (!bound) return std::move(bound).error();
  if (device && slot.memory.values != nullptr) {
    auto same = devices_->check(device->gpu(), slot.memory.values);
    if (!same) return std::move(same).error();
  }
  const float* values = device ? nullptr : space.as_float(source, unit->count, codec.isa());
  const bool lacks = !device && values == nullptr && unit->count != 0;
  if (lacks || !space.reserve(slot.plan)) return no_memory();

  FrameInfo info = frame_info(spec_, source, *unit, place);
  auto room = begin_frame(info, out);
  if (!room) return std::move(room).error();
  if (room->size() < payload_bound(slot.plan)) {
    return Error{Errc::buffer_too_small,
                 "the frame may need " +
                     std::to_string(out.size() - room->size() + payload_bound(slot.plan)) +
                     " bytes, the buffer has " + std::to_string(out.size()),
                 "size the buffer with max_frame_bytes"};
  }
  auto bytes = device ? encode_on_device(codec, slot, place, source, device->batch(), space, *room)
                      : encode_payload(codec, slot, place, values, space, lease.pool(), *room);
  if (!bytes) return std::move(bytes).error();
  info.flags.zero = *bytes == kNothing;
  return finish_frame(info, out, info.flags.zero ? 0 : *bytes);
}

/// As encode_payload.
Result<uint64_t> TensorCodec::encode_on_device(const UnitCodec& codec, const UnitSlot& slot,
                                               const Place& place, const TensorRef& source,
                                               pipeline::DeviceBatch& batch, Workspace& space,
                                               MutBytes room) {
  const bool zeros = carries_non_finite(codec, slot);
  const pipeline::DeviceUnit unit{slot.unit,          place,      source.data, source.dtype,
                                  slot.memory.values, slot.state, zeros};
  auto encoded = batch.encode({&unit, 1});
  if (!encoded) return std::move(encoded).error();
  const auto& [verdict, payload] = encoded->front();
  if (verdict == device::Verdict::refused) return non_finite(codec.spec());
  if (verdict == device::Verdict::zero && !zeros) return kNothing;
  std::copy(payload.begin(), payload.end(), room.begin());
  Work work = space.work(codec.isa(), nullptr);
  codec.spec().codec().commit({codec.spec().params(), slot.state, slot.unit, place, 0, work},
                              slot.state, payload, payload, 1);
  return payload.size();
}

Result<uint64_t> TensorCodec::encode_payload(const UnitCodec& codec, const UnitSlot& slot,
                                             const Place& place, const float* values,
                                             Workspace& space, ThreadPool* pool, MutBytes room) {
  Work work = space.work(codec.isa(), pool);
  if (carries_non_finite(codec, slot)) {
    return codec.spec()
        .codec()
        .encode({codec.spec().params(), slot.state, slot.unit, place, 0, work}, {values, nullptr},
                room)
        .bytes;
  }
  // The memory of a single contributor does not balance others.
  if (!codec.kernels().any_nonzero(values, slot.unit.count)) return kNothing;
  const auto encoded = codec.encode(slot, place, values, work, room);
  if (encoded.outcome == Outcome::non_finite) {
    return non_finite(codec.spec());
  }
  // The rounds of a multi-round codec lie one after another, with this rank as the only
  // contributor.
  uint64_t bytes = encoded.bytes;
  MutBytes last = room.first(bytes);
  for (uint32_t round = 1; round < slot.plan.rounds; ++round) {
    auto merged = space.copy(last);
    if (!merged) return no_memory();
    codec.accept(slot, place, round - 1, *merged, 1, work);
    const MutBytes at = room.subspan(bytes);
    const auto next = codec.encode_round(slot, place, round, values, work, at);
    if (next.outcome == Outcome::non_finite) {
      codec.undo(slot, place, {}, values, pipeline::Undo::gradient_travels, work);
      return non_finite(codec.spec());
    }
    last = at.first(next.bytes);
    bytes += last.size();
  }
  codec.settle(slot, place, last, work);
  codec.spec().codec().commit({codec.spec().params(), slot.state, slot.unit, place, 0, work},
                              slot.state, last, last, 1);
  return bytes;
}

}  // namespace laconic
