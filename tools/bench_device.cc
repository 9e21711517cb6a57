// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "bench_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>

#include "command.h"
#include "kernels/device_images.h"
#include "laconic/isa.h"
#include "machine.h"
#include "output.h"
#include "pipeline/device_batch.h"
#include "pipeline/unit_codec.h"
#include "samples.h"

namespace laconic::tools {
namespace {

using device::Memory;
using pipeline::DeviceBatch;
using pipeline::DeviceUnit;

struct Card {
  std::shared_ptr<const device::Program> program;
  device::Stream stream;
  device::Event begin, end;
};

/// Time, and bandwidth over that of a copy in the device's memory, by the bytes that have to move.
struct Share {
  Spread seconds;
  double share = 0;
};

struct DevicePoint {
  std::string spec;
  uint64_t elements = 0;
  uint32_t units = 1;
  bool residual = false;
  uint64_t payload_bytes = 0;
  uint32_t samples = 0;
  double copy_seconds = 0;  ///< of the gradient
  Share encode, check, decode;
  double encode_over_one = 0;  ///< its time over that of the whole as one unit; 0: it is one
};

MutBytes aligned(std::vector<uint8_t>& memory, uint64_t bytes) {
  memory.resize(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return {memory.data() + (64 - address % 64), bytes};
}

/// Parameters of `count` elements together, as equal as whole numbers can be.
std::vector<Unit> cut(uint64_t count, uint32_t units) {
  std::vector<Unit> made;
  for (uint64_t u = 0; u < units; ++u) {
    const uint64_t size = count * (u + 1) / units - count * u / units;
    made.push_back({size, size, 1, u, 0});
  }
  return made;
}

/// The payloads and the sums that the CPU makes, with a residual of zeros if `residual`.
struct OfCpu {
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<float> sums;
};
OfCpu on_cpu(const Spec& spec, std::span<const Unit> units, const Place& place,
             const std::vector<float>& values, bool residual) {
  const pipeline::UnitCodec codec(spec, best_isa(), nullptr);
  OfCpu made;
  made.sums.resize(values.size());
  uint64_t at = 0;
  for (const Unit& unit : units) {
    pipeline::UnitSlot slot{unit, codec.plan(unit, place.world), {}, {}};
    std::vector<float> memory(residual ? unit.count : 0);
    if (residual) slot.memory = {{MemoryKind::residual}, memory.data()};
    std::vector<uint8_t> kept, scratch;
    Work work{aligned(kept, slot.plan.kept_bytes), aligned(scratch, slot.plan.scratch_bytes),
              best_isa(), nullptr};
    std::vector<uint8_t> payload(slot.plan.round[0].bytes);
    payload.resize(codec.encode(slot, place, values.data() + at, work, payload).bytes);
    const Term term{payload, 1.0F};
    codec.decode(unit, place, {&term, 1}, work, {made.sums.data() + at, false});
    made.payloads.push_back(std::move(payload));
    at += unit.count;
  }
  return made;
}

Error different(const Spec& spec, std::string_view what) {
  return {Errc::internal,
          fmt::format("{}: {} of the GPU and of the CPU differ", spec.canonical(), what),
          "please report this, with the GPU and the driver"};
}

Result<Memory> allocate(const Card& p, Memory::Where where, uint64_t bytes) {
  return Memory::allocate(p.program->gpu(), where, bytes);
}

Result<double> copy_seconds(const Card& p, void* to, const void* from, uint64_t bytes) {
  if (auto r = p.begin.record(p.stream.handle()); !r) return std::move(r).error();
  if (auto r = p.stream.copy(to, from, bytes); !r) return std::move(r).error();
  if (auto r = p.end.record(p.stream.handle()); !r) return std::move(r).error();
  if (auto r = p.stream.wait(); !r) return std::move(r).error();
  return p.end.seconds_since(p.begin);
}

/// `moved`: bytes; a copy of `bytes` reads and writes that number in `copy` seconds.
Share share_of(const std::vector<double>& seconds, double moved, double bytes, double copy) {
  Share share{spread_of(seconds), 0};
  if (share.seconds.median > 0) share.share = moved / (2 * bytes) * copy / share.seconds.median;
  return share;
}

/// Arrays of a tensor's size.
struct Arrays {
  Memory pinned, gradient, residual, sum;
};
Result<Arrays> arrays_of(const Card& p, const std::vector<float>& values, bool residual) {
  const uint64_t bytes = values.size() * sizeof(float);
  auto pinned = allocate(p, Memory::Where::pinned, bytes);
  auto gradient = allocate(p, Memory::Where::device, bytes);
  auto remembered = allocate(p, Memory::Where::device, residual ? bytes : 0);
  auto sum = allocate(p, Memory::Where::device, bytes);
  for (const auto* memory : {&pinned, &gradient, &remembered, &sum}) {
    if (!*memory) return memory->error();
  }
  std::memcpy(pinned->at(), values.data(), bytes);
  if (auto r = p.stream.copy_in(gradient->at(), pinned->at(), bytes); !r)
    return std::move(r).error();
  if (auto r = p.stream.clear(remembered->at(), remembered->bytes()); !r)
    return std::move(r).error();
  if (auto r = p.stream.wait(); !r) return std::move(r).error();
  return Arrays{*std::move(pinned), *std::move(gradient), *std::move(remembered), *std::move(sum)};
}

float* floats(const Memory& memory, uint64_t at) {
  return memory.at() == nullptr ? nullptr : reinterpret_cast<float*>(memory.at()) + at;
}

/// Seconds that kernels take.
struct Times {
  double encode = 0, check = 0, decode = 0;
};

/// One batch encodes the units, as in sessions; each is checked and decoded by itself. Payloads are
/// held against `cpu` unless that is null.
Result<Times> time_units(DeviceBatch& batch, std::span<const DeviceUnit> units, const Memory& sum,
                         const OfCpu* cpu) {
  auto encoded = batch.encode(units);
  if (!encoded) return std::move(encoded).error();
  Times times{batch.seconds(), 0, 0};
  for (std::size_t u = 0; cpu != nullptr && u < units.size(); ++u) {
    if ((*encoded)[u].bytes != cpu->payloads[u]) return different(batch.spec(), "payloads");
  }
  uint64_t at = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    const Bytes view((*encoded)[u].bytes);
    const Unit& unit = units[u].unit;
    auto good = batch.check(unit, {&view, 1});
    if (!good) return std::move(good).error();
    times.check += batch.seconds();
    if (!(*good)[0]) return different(batch.spec(), "verdicts");
    const Term term{view, 1.0F};
    if (auto r = batch.decode(unit, {&term, 1}, floats(sum, at), false); !r)
      return std::move(r).error();
    times.decode += batch.seconds();
    at += unit.count;
  }
  return times;
}

Result<DevicePoint> measure(const Card& p, const Spec& spec, const std::vector<float>& values,
                            uint32_t units, double seconds) {
  const Place place{1, 0, 0, 1, 0, 1.0F};
  const uint64_t bytes = values.size() * sizeof(float);
  DevicePoint point;
  point.spec = spec.canonical();
  point.elements = values.size();
  point.units = units;
  point.residual = spec.memory().kind == MemoryKind::residual;
  auto batch = DeviceBatch::create(spec, p.program);
  if (!batch) return std::move(batch).error();
  auto arrays = arrays_of(p, values, point.residual);
  if (!arrays) return std::move(arrays).error();
  const std::vector<Unit> pieces = cut(values.size(), units);
  std::vector<DeviceUnit> there;
  for (uint64_t at = 0; const Unit& unit : pieces) {
    there.push_back(
        {unit, place, floats(arrays->gradient, at), DType::f32, floats(arrays->residual, at)});
    at += unit.count;
  }
  const OfCpu cpu = on_cpu(spec, pieces, place, values, point.residual);
  for (const auto& payload : cpu.payloads) point.payload_bytes += payload.size();
  std::vector<double> copies, encodes, checks, decodes;
  constexpr uint32_t kLeast = 5;
  const double start = now(Clock::wall);
  for (; point.samples < kLeast || now(Clock::wall) - start < seconds; ++point.samples) {
    const bool first = point.samples == 0;  // which is a warm-up, too
    auto copied = copy_seconds(p, arrays->sum.at(), arrays->gradient.at(), bytes);
    if (!copied) return std::move(copied).error();
    auto times = time_units(*batch, there, arrays->sum, first ? &cpu : nullptr);
    if (!times) return std::move(times).error();
    if (first) {
      if (auto r = p.stream.copy_out(arrays->pinned.at(), arrays->sum.at(), bytes); !r)
        return std::move(r).error();
      if (auto r = p.stream.wait(); !r) return std::move(r).error();
      if (std::memcmp(arrays->pinned.at(), cpu.sums.data(), bytes) != 0)
        return different(spec, "sums");
      continue;
    }
    copies.push_back(*copied);
    encodes.push_back(times->encode);
    checks.push_back(times->check);
    decodes.push_back(times->decode);
  }
  const auto size = static_cast<double>(bytes), sent = static_cast<double>(point.payload_bytes);
  const double copy = point.copy_seconds = spread_of(copies).median;
  const double remembered = point.residual ? 2 * size : 0;
  point.encode = share_of(encodes, size + remembered + sent, size, copy);
  point.check = share_of(checks, sent, size, copy);
  point.decode = share_of(decodes, sent + size, size, copy);
  return point;
}

/// As one unit, and cut into `units`, which a batch encodes.
Result<void> measure_all(const Card& p, const Spec& spec, const std::vector<float>& values,
                         const DeviceBench& options, std::vector<DevicePoint>& points) {
  auto one = measure(p, spec, values, 1, options.seconds);
  if (!one) return std::move(one).error();
  const double whole = one->encode.seconds.median;
  points.push_back(*std::move(one));
  if (options.units == 1) return {};
  auto point = measure(p, spec, values, options.units, options.seconds);
  if (!point) return std::move(point).error();
  point->encode_over_one = point->encode.seconds.median / whole;
  points.push_back(*std::move(point));
  return {};
}

Json share_json(const Share& share) {
  return {{"share", share.share},
          {"seconds", share.seconds.median},
          {"low", share.seconds.low},
          {"high", share.seconds.high}};
}

Json point_json(const DevicePoint& point) {
  Json json{{"codec", point.spec},
            {"elements", point.elements},
            {"units", point.units},
            {"feedback", point.residual},
            {"payload_bytes", point.payload_bytes},
            {"samples", point.samples - 1},
            {"copy_s", point.copy_seconds},
            {"encode", share_json(point.encode)},
            {"check", share_json(point.check)},
            {"decode", share_json(point.decode)}};
  if (point.units > 1) json["encode_over_one"] = point.encode_over_one;
  return json;
}

void print_table(const std::vector<DevicePoint>& points, const device::Program& program) {
  using A = Table::Align;
  Table table({{"codec"},
               {"size"},
               {"units", A::right},
               {"ratio", A::right},
               {"encode", A::right},
               {"check", A::right},
               {"decode", A::right},
               {"enc us", A::right},
               {"chk us", A::right},
               {"dec us", A::right},
               {"copy us", A::right},
               {"enc x one", A::right}});
  for (const DevicePoint& point : points) {
    const uint64_t bytes = point.elements * sizeof(float);
    const auto microseconds = [](double s) { return fmt::format("{:.1f}", 1e6 * s); };
    table.add(
        {point.spec + (point.residual ? " (ef)" : ""), bytes_text(bytes),
         std::to_string(point.units),
         fmt::format("{:.1f}", static_cast<double>(bytes) /
                                   static_cast<double>(std::max<uint64_t>(point.payload_bytes, 1))),
         fmt::format("{:.2f}", point.encode.share), fmt::format("{:.2f}", point.check.share),
         fmt::format("{:.2f}", point.decode.share), microseconds(point.encode.seconds.median),
         microseconds(point.check.seconds.median), microseconds(point.decode.seconds.median),
         microseconds(point.copy_seconds),
         point.units > 1 ? fmt::format("{:.2f}", point.encode_over_one) : ""});
  }
  table.print();
  fmt::print(
      "\n{} of {}. Medians of the kernels' time, without copies to and from the host.\n"
      "encode, check, decode: bytes that have to move at least (gradient or sum, payload, "
      "residual\n"
      "twice) per second, as a share of what a copy in the device's memory moves in the same run.\n"
      "Units: one batch encodes them all, each is checked and decoded by itself.\n"
      "enc x one: time to encode, over that of the same elements as one unit.\n"
      "Payloads and sums equal the CPU's, bit for bit.\n",
      program.image(), program.gpu()->card());
}

Result<Card> open_card() {
  auto gpu = device::Gpu::open(device::kCudaLibrary, 0);
  if (!gpu) return std::move(gpu).error();
  auto program = kernels::load_kernels(*gpu);
  if (!program) return std::move(program).error();
  auto stream = device::Stream::create(*gpu);
  if (!stream) return std::move(stream).error();
  auto begin = device::Event::create(*gpu), end = device::Event::create(*gpu);
  if (!begin) return std::move(begin).error();
  if (!end) return std::move(end).error();
  return Card{*std::move(program), *std::move(stream), *std::move(begin), *std::move(end)};
}

}  // namespace

int bench_device(const DeviceBench& options) {
  const auto card = open_card();
  if (!card) return fail(card.error(), options.json, kBadAnswer);
  std::vector<DevicePoint> points;
  for (const std::vector<float>& values : options.inputs) {
    for (const Spec& spec : options.specs) {
      auto r = measure_all(*card, spec, values, options, points);
      if (!r) return fail(r.error(), options.json, kBadAnswer);
    }
  }
  if (!options.json) {
    print_table(points, *card->program);
    return kFine;
  }
  Json results = Json::array();
  for (const DevicePoint& point : points) results.push_back(point_json(point));
  print_json({{"machine", machine_json()},
              {"gpu", card->program->gpu()->card()},
              {"image", card->program->image()},
              {"results", results}});
  return kFine;
}

}  // namespace laconic::tools
