// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/device_frames.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "kernels/device_images.h"
#include "pipeline/host_batch.h"

namespace laconic::pipeline {

using device::Memory;

namespace {

Outcome outcome_of(device::Verdict verdict) {
  if (device::gives_payload(verdict)) return Outcome::payload;
  return verdict == device::Verdict::zero ? Outcome::zero : Outcome::non_finite;
}

}  // namespace

/// HostFrames where floats are on the host, once residuals are there, too.
class DeviceFrames final : public HostFrames {
 public:
  DeviceFrames(const DeviceBatches& batches, uint32_t world)
      : HostFrames(world), staging_(batches.staging_.get()), side_(batches.side_.get()) {}

  void restart() override {
    HostFrames::restart();
    coders_.clear();
  }
  [[nodiscard]] bool reserve() override;
  [[nodiscard]] UnitFloats lend(std::span<const uint64_t> at, uint64_t floats) override;
  Result<void> encode(Units units, UnitFloats gradients, PayloadSink& sink) override;
  void undo(Units units, UnitFloats gradients, Undo why) override;
  void keep(Units units, UnitFloats gradients) override;
  Result<void> mean(Units units, std::span<SlotCursor> bundles, UnitFloats means) override;

 private:
  [[nodiscard]] bool remembers(uint32_t i) const { return slot(i).memory.values != nullptr; }
  [[nodiscard]] feedback::Residence& home(uint32_t i) const { return *slot(i).memory.home; }
  [[nodiscard]] float* residual(uint32_t i) const {
    return remembers(i) ? home(i).there(slot(i).memory.values) : nullptr;
  }
  [[nodiscard]] uint64_t bytes_of(uint32_t i) const { return slot(i).unit.count * sizeof(float); }
  Result<DeviceBatch*> coder_of(const Spec& spec);
  Result<void> residuals_to_host(Units units);
  Result<void> save_residuals(Units units);
  Result<void> encode_there(Units units, UnitFloats gradients, PayloadSink& sink);
  Result<void> encode_some(std::span<const uint32_t> some, DeviceBatch& coder, UnitFloats gradients,
                           std::vector<DevicePayload>& made);
  Error give_back(Units units, UnitFloats gradients, bool saved, Error why);
  bool fetch(Units units, UnitFloats gradients);

  const device::Staging* staging_;
  DeviceBatches::Side* side_;
  std::vector<DeviceBatch*> coders_;  // by unit
  Memory lent_;
  std::optional<Error> failure_;  // of undo() or keep(), reported by the next encode()
};

Result<DeviceBatch*> DeviceFrames::coder_of(const Spec& spec) {
  std::deque<DeviceBatch>& all = side_->codecs;
  const auto known = std::ranges::find_if(
      all, [&](const DeviceBatch& one) { return one.spec().canonical() == spec.canonical(); });
  if (known != all.end()) return &*known;
  auto made = DeviceBatch::create(spec, staging_->program());
  if (!made) return std::move(made).error();
  all.push_back(*std::move(made));
  return &all.back();
}

bool DeviceFrames::reserve() {
  coders_.clear();
  for (const uint32_t i : all_) {
    auto coder = coder_of(codec(i).spec());
    if (!coder) return false;
    coders_.push_back(*coder);
  }
  return HostFrames::reserve();
}

UnitFloats DeviceFrames::lend(std::span<const uint64_t> at, uint64_t floats) {
  UnitFloats lent = HostFrames::lend(at, floats);
  const uint64_t bytes = std::max<uint64_t>(floats, 1) * sizeof(float);
  if (!lent_.grow(staging_->gpu(), Memory::Where::device, bytes)) return {};
  lent.there = reinterpret_cast<float*>(lent_.at());
  return lent;
}

Result<void> DeviceFrames::residuals_to_host(Units units) {
  Result<void> first;
  for (const uint32_t i : units) {
    if (!remembers(i)) continue;
    if (auto moved = home(i).to_host(); !moved && first) first = std::move(moved);
  }
  return first;
}

/// Kernels change residuals in place, and of one that fails nobody knows how far it came.
Result<void> DeviceFrames::save_residuals(Units units) {
  uint64_t bytes = 0;
  for (const uint32_t i : units) bytes += remembers(i) ? bytes_of(i) : 0;
  auto grown = side_->saved.grow(staging_->gpu(), Memory::Where::device, bytes);
  if (!grown) return grown;
  uint8_t* at = side_->saved.at();
  for (const uint32_t i : units) {
    if (!remembers(i)) continue;
    if (auto moved = home(i).to_device(*staging_); !moved) return moved;
    if (auto copied = staging_->copy(at, residual(i), bytes_of(i)); !copied) return copied;
    at += bytes_of(i);
  }
  return {};
}

/// Units that one codec encodes, all with a residual or all without.
Result<void> DeviceFrames::encode_some(std::span<const uint32_t> some, DeviceBatch& coder,
                                       UnitFloats gradients, std::vector<DevicePayload>& made) {
  std::vector<DeviceUnit> rows;
  for (const uint32_t i : some) {
    rows.push_back(
        {slot(i).unit, place_, gradients.there_of(i), DType::f32, residual(i), slot(i).state});
  }
  auto payloads = coder.encode(rows);
  if (!payloads) return std::move(payloads).error();
  for (size_t k = 0; k < some.size(); ++k) made[some[k]] = std::move((*payloads)[k]);
  return {};
}

Result<void> DeviceFrames::encode_there(Units units, UnitFloats gradients, PayloadSink& sink) {
  std::vector<DevicePayload> made(all_.size());
  std::vector<uint32_t> some;
  for (DeviceBatch& coder : side_->codecs) {
    for (const bool remembered : {false, true}) {
      some.clear();
      std::ranges::copy_if(units, std::back_inserter(some), [&](uint32_t i) {
        return coders_[i] == &coder && remembers(i) == remembered;
      });
      if (some.empty()) continue;
      if (auto r = encode_some(some, coder, gradients, made); !r) return r;
    }
  }
  for (const uint32_t i : units) {
    const DevicePayload& one = made[i];
    std::ranges::copy(one.bytes, sink.room(i).begin());
    side_->staged += one.bytes.size();
    own_[i].outcome = outcome_of(one.verdict);
    own_[i].payload =
        sink.put(i, {own_[i].outcome, one.bytes.size(), one.verdict == device::Verdict::reset});
  }
  return {};
}

Result<void> DeviceFrames::encode(Units units, UnitFloats gradients, PayloadSink& sink) {
  if (failure_) return *failure_;
  if (gradients.there == nullptr) {
    if (auto moved = residuals_to_host(units); !moved) return moved;
    return HostFrames::encode(units, gradients, sink);
  }
  bool saved = false;
  const auto run = [&]() -> Result<void> {
    try {
      if (auto r = save_residuals(units); !r) return r;
      saved = true;
      return encode_there(units, gradients, sink);
    } catch (const std::bad_alloc&) {
      return Error{Errc::out_of_memory, "out of memory", {}};
    }
  };
  if (auto done = run(); !done) return give_back(units, gradients, saved, std::move(done).error());
  return {};
}

/// Moves residuals, as they were, and gradients to the host. The Error says what is lost.
Error DeviceFrames::give_back(Units units, UnitFloats gradients, bool saved, Error why) {
  const uint8_t* at = side_->saved.at();
  for (const uint32_t i : units) {
    own_[i] = {};
    if (!remembers(i) || !saved) continue;
    if (!staging_->copy(residual(i), at, bytes_of(i))) home(i).lose(why);
    at += bytes_of(i);
  }
  const auto lost =
      std::ranges::count_if(units, [&](uint32_t i) { return remembers(i) && !home(i).to_host(); });
  if (lost != 0)
    why.message = concat({why.message, "; residuals of ", std::to_string(lost), " units are lost"});
  if (!fetch(units, gradients)) why.message += "; the gradients of this bucket are lost";
  return why;
}

/// Copies these gradients to the host, without memory of its own. Zeros, which change no residual,
/// take the place of one that does not come.
bool DeviceFrames::fetch(Units units, UnitFloats gradients) {
  if (gradients.there == nullptr) return true;
  bool came = true;
  for (const uint32_t i : units) {
    auto copied = staging_->down(gradients.of(i), gradients.there_of(i), bytes_of(i));
    if (copied) continue;
    if (!failure_) failure_ = std::move(copied).error();
    std::fill_n(gradients.of(i), slot(i).unit.count, 0.0F);
    came = false;
  }
  return came;
}

void DeviceFrames::undo(Units units, UnitFloats gradients, Undo why) {
  const auto sent = [&](uint32_t i) { return own_[i].outcome == Outcome::payload; };
  if (std::ranges::none_of(units, sent)) return;
  (void)fetch(units, gradients);
  if (auto moved = residuals_to_host(units); !moved && !failure_)
    failure_ = std::move(moved).error();
  HostFrames::undo(units, gradients, why);
}

void DeviceFrames::keep(Units units, UnitFloats gradients) {
  (void)fetch(units, gradients);
  if (auto moved = residuals_to_host(units); !moved && !failure_)
    failure_ = std::move(moved).error();
  HostFrames::keep(units, gradients);
}

Result<void> DeviceFrames::mean(Units units, std::span<SlotCursor> bundles, UnitFloats means) {
  if (means.there == nullptr) return HostFrames::mean(units, bundles, means);
  for (const uint32_t i : units) {
    const bool votes = codec(i).spec().codec().finish != nullptr;
    const float weight = votes ? 1.0F : 1.0F / static_cast<float>(bundles.size());
    size_t used = 0;
    for (SlotCursor& from : bundles) {
      const Slot next = from.next();
      if (next.kind != SlotKind::payload) continue;
      terms_[used++] = {next.payload, weight};
      side_->staged += next.payload.size();
    }
    float* const out = means.there_of(i);
    if (used == 0) {
      if (auto r = staging_->clear(out, bytes_of(i)); !r) return r;
      continue;
    }
    const Unit& unit = slot(i).unit;
    auto decoded = coders_[i]->decode(unit, std::span(terms_).first(used), out, false);
    if (decoded && votes) decoded = coders_[i]->finish(unit, out);
    if (!decoded) return decoded;
  }
  return {};
}

Result<void> DeviceBatches::check(const Spec& spec) {
  if (DeviceBatch::encodes(spec) && spec.contract().feedback != Feedback::aggregate) return {};
  return Error{Errc::unsupported, concat({"codecs=device: ", spec.canonical(), " needs the host"}),
               "codecs=host, or a spec with kernels for GPUs (docs/guide/gpu.md)"};
}

Result<std::shared_ptr<const device::Staging>> DeviceBatches::open(
    uint32_t gpu, const device::DeviceAllocator& allocator) {
  auto program = kernels::open_kernels(gpu, allocator);
  if (!program) return std::move(program).error();
  auto staging = device::Staging::create(*std::move(program));
  if (!staging) return std::move(staging).error();
  return std::shared_ptr<const device::Staging>(*std::move(staging));
}

Result<std::unique_ptr<DeviceBatches>> DeviceBatches::create(
    std::shared_ptr<const device::Staging> staging) {
  auto cast = Spec::parse("bf16");
  if (!cast) return std::move(cast).error();
  auto casts = DeviceBatch::create(*cast, staging->program());
  if (!casts) return std::move(casts).error();
  return std::unique_ptr<DeviceBatches>(new DeviceBatches(std::move(staging), *std::move(casts)));
}

std::unique_ptr<FrameBatch> DeviceBatches::frames(uint32_t world) const {
  return std::make_unique<DeviceFrames>(*this, world);
}

}  // namespace laconic::pipeline
