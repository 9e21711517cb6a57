// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/device_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "codecs/registry/twin.h"
#include "kernels/cast/cast_device.h"

namespace laconic::pipeline {

using device::Memory;
using device::Stream;

namespace {

constexpr uint64_t kAlignment = 256;

/// The terms of one launch.
std::span<const Term> first_of(std::span<const Term> terms) {
  return terms.first(std::min<std::size_t>(terms.size(), device::kTerms));
}

}  // namespace

/// Pieces one after another.
class DeviceBatch::Cut {
 public:
  uint64_t take(uint64_t bytes) { return std::exchange(end_, end_ + round_up(bytes, kAlignment)); }
  [[nodiscard]] uint64_t end() const noexcept { return end_; }

 private:
  uint64_t end_ = 0;
};

DeviceBatch::DeviceBatch(const Spec& spec, const device::Codec& twin,
                         std::shared_ptr<const device::Program> program, Stream stream,
                         device::Event begin, device::Event end)
    : spec_(spec),
      twin_(&twin),
      program_(std::move(program)),
      begin_(std::move(begin)),
      end_(std::move(end)),
      stream_(std::move(stream)) {}

Error DeviceBatch::no_kernels(const Spec& spec) {
  return {Errc::unsupported, concat({"no kernels for GPUs: ", spec.canonical()}),
          "copy the tensor to the host; laconic bench --device measures all that have them"};
}

bool DeviceBatch::decodes(const Spec& spec) {
  return codecs::find_twin(spec.codec()) != nullptr && spec.codec().start == nullptr;
}

bool DeviceBatch::encodes(const Spec& spec) {
  const MemorySettings& memory = spec.memory();
  return decodes(spec) && (memory.kind == MemoryKind::none ||
                           (memory.kind == MemoryKind::residual && memory.decay == 1.0F));
}

Result<DeviceBatch> DeviceBatch::create(const Spec& spec,
                                        std::shared_ptr<const device::Program> program) {
  if (!decodes(spec)) return no_kernels(spec);
  auto stream = Stream::create(program->gpu());
  if (!stream) return std::move(stream).error();
  auto begin = device::Event::create(program->gpu());
  if (!begin) return std::move(begin).error();
  auto end = device::Event::create(program->gpu());
  if (!end) return std::move(end).error();
  return DeviceBatch(spec, *codecs::find_twin(spec.codec()), std::move(program), *std::move(stream),
                     *std::move(begin), *std::move(end));
}

Error DeviceBatch::failed(Error error) {
  (void)stream_.wait();
  return error;
}

Result<void> DeviceBatch::follow(device::CudaStream stream) {
  if (auto r = end_.record(stream); !r) return r;
  return stream_.follow(end_);
}

Result<void> DeviceBatch::reserve(uint64_t device, uint64_t pinned) {
  const device::GpuRef& gpu = program_->gpu();
  if (auto r = memory_.grow(gpu, Memory::Where::device, device); !r) return r;
  return pinned_.grow(gpu, Memory::Where::pinned, pinned);
}

template <class Launches>
Result<void> DeviceBatch::run(uint64_t bytes, uint64_t back, uint64_t back_bytes,
                              Launches&& launches) {
  const auto queue_all = [&]() -> Result<void> {
    if (auto r = stream_.copy_in(memory_.at(), pinned_.at(), bytes); !r) return r;
    if (auto r = begin_.record(stream_.handle()); !r) return r;
    device::LaunchQueue queue(*program_, stream_);
    launches(queue);
    if (!queue.result()) return queue.result();
    if (auto r = end_.record(stream_.handle()); !r) return r;
    if (auto r = stream_.copy_out(pinned_.at() + back, memory_.at() + back, back_bytes); !r)
      return r;
    return stream_.wait();
  };
  if (auto r = queue_all(); !r) return failed(std::move(r).error());
  auto seconds = end_.seconds_since(begin_);
  if (!seconds) return failed(std::move(seconds).error());
  seconds_ = *seconds;
  return {};
}

Result<std::vector<DevicePayload>> DeviceBatch::encode(std::span<const DeviceUnit> units) {
  if (!encodes(spec_)) return no_kernels(spec_);
  const auto count = static_cast<uint32_t>(units.size());
  if (count == 0) return std::vector<DevicePayload>();
  Cut cut;
  std::vector<device::EncodeRow> rows(count);
  std::vector<uint64_t> out(count), states(count);
  std::vector<Plan> plans;
  const uint64_t rows_at = cut.take(count * sizeof(device::EncodeRow));
  const uint64_t measured_at = cut.take(count * sizeof(device::Measured));
  for (uint32_t u = 0; u < count; ++u) states[u] = cut.take(units[u].state.size_bytes());
  const uint64_t in_bytes = cut.end();
  for (uint32_t u = 0; u < count; ++u) {
    plans.push_back(spec_.codec().plan(spec_.params(), units[u].unit, units[u].place.world));
    out[u] = cut.take(plans[u].round[0].bytes);
  }
  const uint64_t pinned = cut.end();
  uint64_t tiles = 0;
  std::vector<uint64_t> scratch(count);
  for (uint32_t u = 0; u < count; ++u) {
    const device::Layout layout = twin_->layout(spec_.params(), units[u].unit);
    scratch[u] = cut.take(layout.encode);
    rows[u].first_tile = tiles;
    tiles += ceil_div(units[u].unit.count, layout.tile);
  }
  if (auto r = reserve(cut.end(), pinned); !r) return failed(std::move(r).error());
  for (uint32_t u = 0; u < count; ++u) {
    const Unit& unit = units[u].unit;
    const Place& place = units[u].place;
    device::EncodeRow& row = rows[u];
    row.values = units[u].values;
    row.residual = units[u].residual;
    if (!units[u].state.empty()) row.state = there<float>(states[u]);
    row.out = there<uint8_t>(out[u]);
    row.scratch = there<uint8_t>(scratch[u]);
    row.measured = there<device::Measured>(measured_at) + u;
    row.count = unit.count;
    row.offset = unit.offset;
    row.key = own_key(place.seed, place.step, unit.parameter, place.rank, place.hop);
    row.prescale = place.prescale;
    row.own_weight = place.prescale == 1.0F ? 1.0F : static_cast<float>(place.world);
    row.limit = float_bits(plans[u].largest_input);
    row.dtype = units[u].dtype;
  }
  std::memset(static_cast<void*>(pinned_.at()), 0, in_bytes);
  for (uint32_t u = 0; u < count; ++u)
    std::copy(units[u].state.begin(), units[u].state.end(), host<float>(states[u]));
  std::copy(rows.begin(), rows.end(), host<device::EncodeRow>(rows_at));
  const bool residual = units[0].residual != nullptr;
  const auto launches = [&](device::Queue& queue) {
    twin_->encode(spec_.params(), {there<device::EncodeRow>(rows_at), count, tiles, residual},
                  queue);
  };
  if (auto r = run(in_bytes, measured_at, count * sizeof(device::Measured), launches); !r)
    return std::move(r).error();

  std::vector<DevicePayload> payloads(count);
  for (uint32_t u = 0; u < count; ++u) {
    const device::Measured& measured = host<device::Measured>(measured_at)[u];
    payloads[u].verdict = twin_->verdict(spec_.params(), measured, units[u].residual != nullptr,
                                         float_bits(plans[u].largest_input));
    const bool zeros = payloads[u].verdict == device::Verdict::zero && units[u].sends_zeros;
    if (!zeros && !device::gives_payload(payloads[u].verdict)) continue;
    const uint64_t bound = plans[u].round[0].bytes;
    payloads[u].bytes.resize(spec_.contract().exact_size ? bound : std::min(measured.bytes, bound));
    auto r =
        stream_.copy_out(host<uint8_t>(out[u]), there<uint8_t>(out[u]), payloads[u].bytes.size());
    if (!r) return failed(std::move(r).error());
  }
  if (auto r = stream_.wait(); !r) return failed(std::move(r).error());
  for (uint32_t u = 0; u < count; ++u)
    std::copy_n(host<uint8_t>(out[u]), payloads[u].bytes.size(), payloads[u].bytes.begin());
  return payloads;
}

Result<std::vector<bool>> DeviceBatch::check(const Unit& unit, std::span<const Bytes> payloads) {
  const auto count = static_cast<uint32_t>(payloads.size());
  if (count == 0) return std::vector<bool>();
  const device::Layout layout = twin_->layout(spec_.params(), unit);
  Cut cut;
  const uint64_t rows_at = cut.take(count * sizeof(device::CheckRow));
  const uint64_t malformed_at = cut.take(count * sizeof(uint32_t));
  std::vector<uint64_t> at(count), scratch(count);
  for (uint32_t p = 0; p < count; ++p) at[p] = cut.take(payloads[p].size());
  const uint64_t in_bytes = cut.end();
  for (uint32_t p = 0; p < count; ++p) scratch[p] = cut.take(layout.check);
  if (auto r = reserve(cut.end(), in_bytes); !r) return failed(std::move(r).error());
  std::memset(static_cast<void*>(pinned_.at()), 0, in_bytes);
  uint64_t tiles = 0;
  for (uint32_t p = 0; p < count; ++p) {
    std::copy(payloads[p].begin(), payloads[p].end(), host<uint8_t>(at[p]));
    device::CheckRow& row = host<device::CheckRow>(rows_at)[p];
    row.payload = there<uint8_t>(at[p]);
    row.scratch = there<uint8_t>(scratch[p]);
    row.malformed = there<uint32_t>(malformed_at) + p;
    row.bytes = payloads[p].size();
    row.count = unit.count;
    row.offset = unit.offset;
    row.first_tile = tiles;
    tiles += ceil_div(std::max<uint64_t>(unit.count, 1), layout.tile);
  }
  auto r = run(in_bytes, malformed_at, count * sizeof(uint32_t), [&](device::Queue& queue) {
    twin_->check(spec_.params(), {there<device::CheckRow>(rows_at), count, tiles}, queue);
  });
  if (!r) return std::move(r).error();
  std::vector<bool> good(count);
  for (uint32_t p = 0; p < count; ++p) good[p] = host<uint32_t>(malformed_at)[p] == 0;
  return good;
}

Result<void> DeviceBatch::decode(const Unit& unit, std::span<const Term> terms, float* values,
                                 bool add) {
  do {
    const auto some = first_of(terms);
    if (auto r = decode_some(unit, some, values, add); !r) return r;
    terms = terms.subspan(some.size());
    add = true;
  } while (!terms.empty());
  return {};
}

/// Memory of decode_some: the row, payloads, scratch.
struct DeviceBatch::DecodeCut {
  DecodeCut(std::span<const Term> terms, uint64_t scratch_bytes) {
    Cut cut;
    row = cut.take(sizeof(device::DecodeRow));
    for (std::size_t k = 0; k < terms.size(); ++k) payload[k] = cut.take(terms[k].payload.size());
    in_bytes = cut.end();
    scratch = cut.take(scratch_bytes);
    end = cut.end();
  }
  uint64_t row = 0, payload[device::kTerms] = {}, in_bytes = 0, scratch = 0, end = 0;
};

Result<void> DeviceBatch::reserve_decode(const Unit& unit, std::span<const Term> terms) {
  const device::Layout layout = twin_->layout(spec_.params(), unit);
  uint64_t device = 0, pinned = 0;
  do {
    const DecodeCut cut(first_of(terms), layout.decode);
    device = std::max(device, cut.end);
    pinned = std::max(pinned, cut.in_bytes);
    terms = terms.subspan(first_of(terms).size());
  } while (!terms.empty());
  if (auto r = reserve(device, pinned); !r) return failed(std::move(r).error());
  return {};
}

Result<void> DeviceBatch::decode_some(const Unit& unit, std::span<const Term> terms, float* values,
                                      bool add) {
  const device::Layout layout = twin_->layout(spec_.params(), unit);
  const DecodeCut cut(terms, layout.decode);
  if (auto r = reserve(cut.end, cut.in_bytes); !r) return failed(std::move(r).error());
  device::DecodeRow row;
  row.values = values;
  row.scratch = there<uint8_t>(cut.scratch);
  row.count = unit.count;
  row.terms = static_cast<uint32_t>(terms.size());
  row.add = add;
  for (std::size_t k = 0; k < terms.size(); ++k) {
    std::copy(terms[k].payload.begin(), terms[k].payload.end(), host<uint8_t>(cut.payload[k]));
    row.payload[k] = there<uint8_t>(cut.payload[k]);
    row.bytes[k] = terms[k].payload.size();
    row.weight[k] = terms[k].weight;
  }
  *host<device::DecodeRow>(cut.row) = row;
  const uint64_t tiles = ceil_div(unit.count, layout.tile);
  return run(cut.in_bytes, 0, 0, [&](device::Queue& queue) {
    twin_->decode(spec_.params(), {there<device::DecodeRow>(cut.row), 1, tiles}, queue);
  });
}

template <class Row, class Launches>
Result<void> DeviceBatch::run_row(const Row& row, Launches&& launches) {
  if (auto r = reserve(sizeof row, sizeof row); !r) return failed(std::move(r).error());
  *host<Row>(0) = row;
  return run(sizeof row, 0, 0, [&](device::Queue& queue) { launches(queue, there<Row>(0)); });
}

Result<void> DeviceBatch::finish(const Unit& unit, float* values) {
  if (twin_->finish == nullptr) return {};
  device::DecodeRow row;
  row.values = values;
  row.count = unit.count;
  const uint64_t tiles = ceil_div(unit.count, twin_->layout(spec_.params(), unit).tile);
  return run_row(row, [&](device::Queue& queue, const device::DecodeRow* there) {
    twin_->finish(spec_.params(), {there, 1, tiles}, queue);
  });
}

Result<void> DeviceBatch::clear(void* at, uint64_t bytes) {
  auto r = stream_.clear(at, bytes);
  if (r) r = stream_.wait();
  if (!r) return failed(std::move(r).error());
  return {};
}

Result<float*> DeviceBatch::lend(uint64_t count) {
  if (auto r = lent_.grow(program_->gpu(), Memory::Where::device, count * sizeof(float)); !r)
    return failed(std::move(r).error());
  return reinterpret_cast<float*>(lent_.at());
}

Result<void> DeviceBatch::widen(float* floats, const void* halves, DType dtype, uint64_t count) {
  device::DecodeRow row;
  row.values = floats;
  row.count = count;
  row.payload[0] = static_cast<const uint8_t*>(halves);
  row.bytes[0] = 2 * count;
  row.weight[0] = 1.0F;
  row.terms = 1;
  const uint64_t tiles = ceil_div(count, kernels::kCastTile);
  return run_row(row, [&](device::Queue& queue, const device::DecodeRow* there) {
    queue.launch<kernels::CastDecode>(tiles, {{there, 1, tiles}, dtype == DType::f16});
  });
}

Result<void> DeviceBatch::narrow(void* halves, DType dtype, const float* floats, uint64_t count) {
  struct Row {
    device::EncodeRow encode;
    device::Measured measured;
  };
  Row row;
  row.encode.values = floats;
  row.encode.count = count;
  row.encode.out = static_cast<uint8_t*>(halves);
  if (auto r = reserve(sizeof row, sizeof row); !r) return failed(std::move(r).error());
  row.encode.measured = &there<Row>(0)->measured;
  const uint64_t tiles = ceil_div(count, kernels::kCastTile);
  return run_row(row, [&](device::Queue& queue, const Row* there) {
    queue.launch<kernels::CastEncode>(
        tiles, {{&there->encode, 1, tiles}, {dtype == DType::f16, false}, true});
  });
}

}  // namespace laconic::pipeline
