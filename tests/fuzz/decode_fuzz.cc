// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every codec of the list, with settings and shape taken from the input: any payload gives an error
// from check, or decodes inside its target. The target and all lent memory lie between canaries;
// the payload has its own allocation, so that a sanitizer sees a read beyond it. Kernels for GPUs,
// on the host's device, which reports every stray access, come to the same verdict and sum.
//
// Input: codec (1), fields (1 each, 4), rows (2), cols (1), instruction set (1), flags (1), then
// the rounds' bytes.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/field_text.h"
#include "conformance/device_batch.h"
#include "conformance/guarded.h"
#include "laconic/registry.h"
#include "laconic/spec.h"

namespace {

using namespace laconic;
using conformance::Guarded;

void require(bool condition) {
  if (!condition) std::abort();
}

/// Takes bytes from the front of the input; zeros when there are none left.
class Input {
 public:
  explicit Input(Bytes bytes) : left_(bytes) {}
  uint8_t byte() { return take(1)[0]; }
  std::vector<uint8_t> take(uint64_t n) {
    const uint64_t there = std::min<uint64_t>(n, left_.size());
    std::vector<uint8_t> out(left_.begin(), left_.begin() + static_cast<std::ptrdiff_t>(there));
    out.resize(n, 0);
    left_ = left_.subspan(there);
    return out;
  }
  std::vector<uint8_t> rest() { return take(left_.size()); }

 private:
  Bytes left_;
};

double value_of(const Field& field, uint8_t byte) {
  if (field.type == FieldType::word) return static_cast<double>(byte % field.words.size());
  if (field.type == FieldType::flag) return byte % 2;
  const double value = field.min + (byte / 255.0) * (field.max - field.min);
  return field.type == FieldType::integer ? static_cast<double>(static_cast<int64_t>(value))
                                          : value;
}

// Settings that the spec refuses are left at their defaults.
Spec spec_of(Input& in) {
  const auto all = all_codecs();
  const CodecTable& codec = *all[in.byte() % all.size()];
  std::string text(codec.info.name);
  char separator = ':';
  for (std::size_t i = 0; i < 4; ++i) {
    const uint8_t byte = in.byte();
    if (i >= codec.fields.size() || byte == 0) continue;
    const std::string value = value_text(codec.fields[i], value_of(codec.fields[i], byte));
    const std::string longer = text + separator + std::string(codec.fields[i].name) + "=" + value;
    if (!Spec::parse(longer)) continue;
    text = longer;
    separator = ',';
  }
  return *Spec::parse(text);
}

Unit unit_of(Input& in) {
  const uint64_t rows = load<uint16_t>(in.take(2).data()) % 20000U;
  const uint64_t cols = 1U + in.byte() % 40U;
  const bool vector = rows > 2000;
  Unit unit{vector ? rows : rows * cols, rows, vector ? 1 : cols, 0x1234, 0};
  return unit;
}

// Every round but the last is lanes or an agreement that a peer may have sent as it likes.
bool accept_rounds(const Spec& spec, const Unit& unit, const Place& place, const Plan& plan,
                   Work& work, Input& in) {
  for (uint32_t round = 0; round + 1 < plan.rounds; ++round) {
    std::vector<uint8_t> lanes = in.take(plan.round[round].bytes);
    if (spec.codec().check(spec.params(), unit, round, lanes) != Errc::ok) return false;
    spec.codec().accept({spec.params(), {}, unit, place, round, work}, lanes, 1);
  }
  return true;
}

/// Elements of units that the host's device decodes in time: more than a tile of default settings.
constexpr uint64_t kDeviceCount = 17'000;

void require_clean(const test::CheckedDevice& gpu) {
  for (const std::string& fault : gpu.faults()) std::fprintf(stderr, "%s\n", fault.c_str());
  require(gpu.faults().empty());
}

void device_checks(const Spec& spec, const Unit& unit, uint32_t round,
                   const std::vector<uint8_t>& payload, Errc answer) {
  test::CheckedDevice gpu(test::Order::scrambled);
  const bool good = conformance::check_on_device(spec, gpu, unit, {payload}, round)[0];
  require_clean(gpu);
  require(good == (answer == Errc::ok));
}

/// `sum`: the CPU's. Of a NaN only that it is one is promised.
void device_decodes(const Spec& spec, const Unit& unit, std::span<const Term> terms,
                    const std::vector<float>& base, std::span<const float> sum) {
  test::CheckedDevice gpu(test::Order::scrambled);
  const std::vector<float> made = conformance::decode_on_device(spec, gpu, unit, terms, base);
  require_clean(gpu);
  for (std::size_t i = 0; i < made.size(); ++i)
    require(float_bits(made[i]) == float_bits(sum[i]) ||
            (std::isnan(made[i]) && std::isnan(sum[i])));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (all_codecs().empty()) return 0;
  Input in({data, size});
  const Spec spec = spec_of(in);
  const Unit unit = unit_of(in);
  const auto isas = available_isas();
  const Isa isa = isas[in.byte() % isas.size()];
  const uint8_t flags = in.byte();
  const Place place{7, 3, 0, 1, 0, 1.0F};
  const Plan plan = spec.codec().plan(spec.params(), unit, 1);
  if (plan.kept_bytes > (uint64_t{1} << 26) || plan.scratch_bytes > (uint64_t{1} << 26)) return 0;

  const Guarded kept(plan.kept_bytes);
  const Guarded scratch(plan.scratch_bytes);
  Work work{kept.bytes(), scratch.bytes(), isa, nullptr};
  if (!accept_rounds(spec, unit, place, plan, work, in)) return 0;
  std::vector<uint8_t> payload = in.rest();
  const RoundPlan& last = plan.round[plan.rounds - 1];
  if ((flags & 2U) != 0) payload.resize(last.bytes, 0);  // the length that most codecs ask for
  payload.shrink_to_fit();
  const bool on_device =
      (flags & 8U) == 0 && unit.count <= kDeviceCount && codecs::find_twin(spec.codec()) != nullptr;
  const Errc answer = spec.codec().check(spec.params(), unit, plan.rounds - 1, payload);
  if (on_device) device_checks(spec, unit, plan.rounds - 1, payload, answer);
  if (answer != Errc::ok) return 0;
  require(payload.size() <= last.bytes);

  const Guarded out(unit.count * sizeof(float), 0, (flags & 4U) != 0 ? 4 : 0);
  const std::vector<Term> terms(1 + (flags >> 6), Term{payload, 0.5F});
  std::vector<float> base;
  if ((flags & 1U) != 0) base.assign(out.floats().begin(), out.floats().end());
  spec.codec().decode({spec.params(), {}, unit, place, 0, work}, terms,
                      {out.floats().data(), (flags & 1U) != 0});
  require(out.intact() && kept.intact() && scratch.intact());
  if (on_device && spec.codec().start == nullptr)
    device_decodes(spec, unit, terms, base, out.floats());
  return 0;
}
