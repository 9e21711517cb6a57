// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "bench_device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

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
  bool residual = false;
  uint64_t payload_bytes = 0;
  uint32_t samples = 0;
  double copy_seconds = 0;  ///< of the gradient
  Share encode, check, decode;
};

MutBytes aligned(std::vector<uint8_t>& memory, uint64_t bytes) {
  memory.resize(bytes + 64);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  return {memory.data() + (64 - address % 64), bytes};
}

/// The payload and the sum that the CPU makes, with a residual of zeros if `residual`.
struct OfCpu {
  std::vector<uint8_t> payload;
  std::vector<float> sum;
};
OfCpu on_cpu(const Spec& spec, const Unit& unit, const Place& place,
             const std::vector<float>& values, bool residual) {
  const pipeline::UnitCodec codec(spec, best_isa(), nullptr);
  pipeline::UnitSlot slot{unit, codec.plan(unit, place.world), {}, {}};
  std::vector<float> memory(residual ? unit.count : 0);
  if (residual) slot.memory = {{MemoryKind::residual}, memory.data()};
  std::vector<uint8_t> kept, scratch;
  Work work{aligned(kept, slot.plan.kept_bytes), aligned(scratch, slot.plan.scratch_bytes),
            best_isa(), nullptr};
  OfCpu made;
  made.payload.resize(slot.plan.round[0].bytes);
  made.payload.resize(codec.encode(slot, place, values.data(), work, made.payload).bytes);
  made.sum.resize(unit.count);
  const Term term{made.payload, 1.0F};
  codec.decode(unit, place, {&term, 1}, work, {made.sum.data(), false});
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

Result<DevicePoint> measure(const Card& p, const Spec& spec, const std::vector<float>& values,
                            double seconds) {
  const Unit unit{values.size(), values.size(), 1, 0, 0};
  const Place place{1, 0, 0, 1, 0, 1.0F};
  const uint64_t bytes = values.size() * sizeof(float);
  DevicePoint point;
  point.spec = spec.canonical();
  point.elements = unit.count;
  point.residual = spec.memory().kind == MemoryKind::residual;
  auto batch = DeviceBatch::create(spec, p.program);
  if (!batch) return std::move(batch).error();
  auto pinned = allocate(p, Memory::Where::pinned, bytes);
  auto gradient = allocate(p, Memory::Where::device, bytes);
  auto residual = allocate(p, Memory::Where::device, point.residual ? bytes : 0);
  auto sum = allocate(p, Memory::Where::device, bytes);
  for (const auto* memory : {&pinned, &gradient, &residual, &sum}) {
    if (!*memory) return memory->error();
  }
  std::memcpy(pinned->at(), values.data(), bytes);
  if (auto r = p.stream.copy_in(gradient->at(), pinned->at(), bytes); !r)
    return std::move(r).error();
  if (auto r = p.stream.clear(residual->at(), residual->bytes()); !r) return std::move(r).error();
  if (auto r = p.stream.wait(); !r) return std::move(r).error();

  const DeviceUnit on_device{unit, place, gradient->at(), DType::f32,
                             reinterpret_cast<float*>(residual->at())};
  auto* const target = reinterpret_cast<float*>(sum->at());
  const OfCpu cpu = on_cpu(spec, unit, place, values, point.residual);
  std::vector<double> copies, encodes, checks, decodes;
  constexpr uint32_t kLeast = 5;
  const double start = now(Clock::wall);
  for (; point.samples < kLeast || now(Clock::wall) - start < seconds; ++point.samples) {
    auto copied = copy_seconds(p, sum->at(), gradient->at(), bytes);
    if (!copied) return std::move(copied).error();
    auto encoded = batch->encode({&on_device, 1});
    if (!encoded) return std::move(encoded).error();
    const double encode = batch->seconds();
    const std::vector<uint8_t>& payload = (*encoded)[0].bytes;
    if (point.samples == 0 && payload != cpu.payload) return different(spec, "payloads");
    const Bytes view(payload);
    auto good = batch->check(unit, {&view, 1});
    if (!good) return std::move(good).error();
    const double check = batch->seconds();
    if (!(*good)[0]) return different(spec, "verdicts");
    const Term term{view, 1.0F};
    if (auto r = batch->decode(unit, {&term, 1}, target, false); !r) return std::move(r).error();
    if (point.samples == 0) {  // and the first of each is a warm-up
      point.payload_bytes = payload.size();
      if (auto r = p.stream.copy_out(pinned->at(), sum->at(), bytes); !r)
        return std::move(r).error();
      if (auto r = p.stream.wait(); !r) return std::move(r).error();
      if (std::memcmp(pinned->at(), cpu.sum.data(), bytes) != 0) return different(spec, "sums");
      continue;
    }
    copies.push_back(*copied);
    encodes.push_back(encode);
    checks.push_back(check);
    decodes.push_back(batch->seconds());
  }
  const auto size = static_cast<double>(bytes), sent = static_cast<double>(point.payload_bytes);
  const double copy = point.copy_seconds = spread_of(copies).median;
  const double remembered = point.residual ? 2 * size : 0;
  point.encode = share_of(encodes, size + remembered + sent, size, copy);
  point.check = share_of(checks, sent, size, copy);
  point.decode = share_of(decodes, sent + size, size, copy);
  return point;
}

Json share_json(const Share& share) {
  return {{"share", share.share},
          {"seconds", share.seconds.median},
          {"low", share.seconds.low},
          {"high", share.seconds.high}};
}

Json point_json(const DevicePoint& point) {
  return {{"codec", point.spec},
          {"elements", point.elements},
          {"feedback", point.residual},
          {"payload_bytes", point.payload_bytes},
          {"samples", point.samples - 1},
          {"copy_s", point.copy_seconds},
          {"encode", share_json(point.encode)},
          {"check", share_json(point.check)},
          {"decode", share_json(point.decode)}};
}

void print_table(const std::vector<DevicePoint>& points, const device::Program& program) {
  using A = Table::Align;
  Table table({{"codec"},
               {"size"},
               {"ratio", A::right},
               {"encode", A::right},
               {"check", A::right},
               {"decode", A::right},
               {"enc us", A::right},
               {"chk us", A::right},
               {"dec us", A::right},
               {"copy us", A::right}});
  for (const DevicePoint& point : points) {
    const uint64_t bytes = point.elements * sizeof(float);
    const auto microseconds = [](double s) { return fmt::format("{:.1f}", 1e6 * s); };
    table.add(
        {point.spec + (point.residual ? " (ef)" : ""), bytes_text(bytes),
         fmt::format("{:.1f}", static_cast<double>(bytes) /
                                   static_cast<double>(std::max<uint64_t>(point.payload_bytes, 1))),
         fmt::format("{:.2f}", point.encode.share), fmt::format("{:.2f}", point.check.share),
         fmt::format("{:.2f}", point.decode.share), microseconds(point.encode.seconds.median),
         microseconds(point.check.seconds.median), microseconds(point.decode.seconds.median),
         microseconds(point.copy_seconds)});
  }
  table.print();
  fmt::print(
      "\n{} of {}. Medians of the kernels' time, without copies to and from the host.\n"
      "encode, check, decode: bytes that have to move at least (gradient or sum, payload, "
      "residual\n"
      "twice) per second, as a share of what a copy in the device's memory moves in the same run.\n"
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
      auto point = measure(*card, spec, values, options.seconds);
      if (!point) return fail(point.error(), options.json, kBadAnswer);
      points.push_back(*std::move(point));
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
