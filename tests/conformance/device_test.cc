// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws about a codec's twin on the device, run by its source on the host: bytes, residuals, means
// and verdicts are the CPU's, whatever the order of blocks and threads, and nothing races.
#include "conformance/codec_law.h"
#include "conformance/device_batch.h"
#include "kernels/sparse/sparse_elements.h"
#include "support/subset.h"

namespace laconic::conformance {
namespace {

using test::CheckedDevice;
using test::Order;
using test::weekly;

constexpr std::array kOrders{Order::forward, Order::backward, Order::scrambled};

void expect_no_faults(const CheckedDevice& gpu) {
  for (const std::string& fault : gpu.faults()) ADD_FAILURE() << fault;
}

/// Its parameter is longer: the unit begins where an owner's range may.
Task task_of(const Spec& spec, Data data, uint64_t n, uint64_t seed, bool remembers) {
  Task task{vector_unit(n), {7, 3, 1, 3, 0, 1.0F}, make(data, n, seed), {}, {}};
  task.unit.offset = round_up(1000 * seed, spec.contract().granule);
  if (remembers) task.residual = make(Data::gaussian, n, seed + 50);
  return task;
}

/// The same units where an exchange went before: ranges are known, and round 0 is left out.
void add_known(const Spec& spec, std::vector<Task>& tasks) {
  if (spec.codec().start == nullptr) return;
  for (std::size_t u = 0, size = tasks.size(); u < size; ++u) {
    Task task = tasks[u];
    task.state.resize(spec.codec().plan(spec.params(), task.unit, 1).state_floats);
    for (std::size_t k = 0; k < task.state.size(); ++k)
      task.state[k] = k % 4 == 3 ? 0.0F : 5.0F + 20.0F * static_cast<float>(k % 7);
    tasks.push_back(task);
  }
}

std::vector<Coded> expect_cpus(const Spec& spec, const std::vector<Task>& tasks,
                               CheckedDevice& gpu) {
  std::vector<Coded> coded = encode_on_device(spec, gpu, tasks);
  for (std::size_t u = 0; u < tasks.size(); ++u) {
    SCOPED_TRACE(std::to_string(tasks[u].unit.count) + " elements");
    const Coded cpu = encode_on_cpu(spec, tasks[u]);
    EXPECT_EQ(static_cast<int>(coded[u].verdict), static_cast<int>(cpu.verdict));
    if (coded[u].verdict != cpu.verdict) return coded;
    if (device::gives_payload(cpu.verdict)) {
      expect_same_bytes(coded[u].payload, cpu.payload, "payload");
      expect_same_bytes(coded[u].agreed, cpu.agreed, "payload of round 0");
      const Plan plan = spec.codec().plan(spec.params(), tasks[u].unit, tasks[u].place.world);
      const uint64_t maxima = plan.round[plan.rounds - 1].maxima * sizeof(uint16_t);
      expect_same_bytes(Bytes(coded[u].kept).first(maxima), Bytes(cpu.kept).first(maxima),
                        "maxima");
    }
    expect_same_bits(coded[u].residual, cpu.residual, "residual");
  }
  expect_no_faults(gpu);
  return coded;
}

class DeviceLaw : public CodecLaw {
 protected:
  [[nodiscard]] std::vector<bool> memories() const {
    return contract_.feedback == Feedback::never ? std::vector<bool>{false}
                                                 : std::vector<bool>{false, true};
  }
};

/// Twins run by their source: one instruction set of the CPU is enough. Without Highway, and with
/// sanitizers, whose work the checked device does, default settings are.
std::vector<Case> twins() {
  std::vector<Case> cases;
  const bool few = test::kSanitized || best_isa() == Isa::scalar;
  for (const Case& c : all_cases()) {
    const CodecTable& codec = Spec::parse(c.spec)->codec();
    if (codecs::find_twin(codec) == nullptr || c.isa != best_isa()) continue;
    if (c.spec.starts_with("thc:p=")) continue;  // the host alone looks at it
    if (!few || c.spec == codec.info.name) cases.push_back(c);
  }
  // Codes that reach into a second byte: neither end of the range has any.
  if (!few) cases.push_back({"thc:bits=3", best_isa()});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Twins, DeviceLaw, testing::ValuesIn(twins()), case_name);

TEST_P(DeviceLaw, EncodingEqualsCpu) {
  for (const bool remembers : memories()) {
    for (const Order order : kOrders) {
      if (test::kSanitized && order != Order::scrambled) continue;
      CheckedDevice gpu(order);
      std::vector<Task> tasks;
      for (const uint64_t n : {1U, 0U, 4U, 5U, 255U, 257U, 5000U, 0U})
        tasks.push_back(task_of(spec_, Data::laplace, n, n + 1, remembers));
      for (const Data data : kFiniteData) tasks.push_back(task_of(spec_, data, 1000, 9, remembers));
      if (remembers) {
        tasks.push_back(task_of(spec_, Data::tiny, 1000, 8, true));
        tasks.back().residual.assign(1000, 0.0F);
      }
      add_known(spec_, tasks);
      expect_cpus(spec_, tasks, gpu);
      if (HasFailure()) return;
    }
  }
}

TEST_P(DeviceLaw, LargeUnitsEqualCpu) {
  const uint64_t n = weekly() ? 1'000'003 : 40'961;
  for (const bool remembers : memories()) {
    CheckedDevice gpu(remembers ? Order::scrambled : Order::backward);
    std::vector<Task> tasks{task_of(spec_, Data::sparse, 40'961, 3, remembers)};
    add_known(spec_, tasks);
    tasks.push_back(task_of(spec_, Data::laplace, n, 2, remembers));
    expect_cpus(spec_, tasks, gpu);
  }
}

/// Units of which a sample is looked at, and what it does not show.
std::vector<std::pair<std::string, std::vector<float>>> misleading_units(uint64_t n) {
  const std::vector<float> quiet = make(Data::laplace, n, 5);
  std::vector<float> high = quiet, low = quiet, tied = quiet, joint = quiet, few(n);
  const uint64_t size = n / 8;  // kernels/sparse/radix_device.h
  for (uint64_t i = 0; i < 100; ++i)
    high[kernels::sample_position(i, n, size)] = 5.0F + static_cast<float>(i);
  for (float& x : low) x += 1.0F;
  for (uint64_t i = 0; i < size; ++i) low[kernels::sample_position(i, n, size)] = 1e-9F;
  std::fill_n(tied.begin() + 9000, 1500, -5.0F);
  std::fill_n(joint.begin() + 8000, 500, 5.0F);
  for (uint64_t i = 0; i < 100; ++i) few[n - 1 - 77 * i] = -1e-40F;
  few[3] = -0.0F;
  return {{"large ones are few", high}, {"most are large", low},
          {"ties fill a list", tied},   {"ties lie in two tiles", joint},
          {"zeros fill up", few},       {"ties", make(Data::ties, n, 6)}};
}

TEST_P(DeviceLaw, MisleadingSamplesChangeNothing) {
  if (contract_.merge != Merge::set_union) return;                 // takes no sample
  if (GetParam().spec.find("ratio") != std::string::npos) return;  // as the default
  if (GetParam().spec.find("sidco:") != std::string::npos) return;
  for (const auto& [what, gradient] : misleading_units(40'961)) {
    if (test::kSanitized && what != "ties fill a list") continue;
    for (const bool remembers : {false, true}) {
      SCOPED_TRACE(what);
      std::vector<Task> tasks{{vector_unit(gradient.size()), {}, gradient, {}}};
      if (remembers) tasks[0].residual.resize(gradient.size());
      if (remembers && what == "ties") {
        tasks[0].residual = make(Data::gaussian, gradient.size(), 7);
        tasks[0].residual[30'000] = NAN;  // is reset: the gradient alone
      }
      CheckedDevice gpu(remembers ? Order::scrambled : Order::backward);
      expect_cpus(spec_, tasks, gpu);
    }
  }
}

/// Elements that are not zero, this number of columns of 3lc apart.
TEST_P(DeviceLaw, RunsAcrossTilesEqualCpu) {
  if (spec_.codec().info.name != "3lc") return;  // no other has runs
  for (const std::vector<uint64_t>& runs :
       {std::vector<uint64_t>{13, 14, 15, 27, 28, 2047, 2048, 2049, 1, 2, 4096, 4095},
        std::vector<uint64_t>{8191, 8192, 8193}, std::vector<uint64_t>{2000, 30'000}}) {
    if (test::kSanitized && runs.size() < 12) continue;
    uint64_t columns = 0;
    for (const uint64_t run : runs) columns += run + 1;
    Task task{vector_unit(5 * columns - 2), {}, std::vector<float>(5 * columns - 2), {}, {}};
    uint64_t at = 0;
    for (const uint64_t run : runs) {
      task.gradient[at] = 1.0F;
      at += run + 1;
    }
    CheckedDevice gpu(Order::backward);
    expect_cpus(spec_, {task}, gpu);
    const Coded cpu = encode_on_cpu(spec_, task);
    const Term term{cpu.payload, 1.0F};
    expect_same_bits(decode_on_device(spec_, gpu, task.unit, {&term, 1}, {}),
                     decode_on_cpu(spec_, task.unit, {&term, 1}, {}), "decoded");
    expect_no_faults(gpu);
  }
}

/// Codecs with state: each step's state and residual are the CPU's, and begin the next one. Sizes
/// of gradients jump and drift, a batch mixes units that differ in both.
TEST_P(DeviceLaw, StepsWithStateEqualCpu) {
  const uint64_t floats = spec_.codec().plan(spec_.params(), vector_unit(1), 3).state_floats;
  if (floats == 0 || twin_of(spec_).commit == nullptr) return;
  constexpr float kScales[] = {1, 1.02F, 1.3F, 0.97F, 40, 40, 0.01F, 1, 1e20F, 1e20F, 1e-30F, 1};
  const bool few = test::kSanitized || spec_.canonical() != spec_.codec().info.name;
  for (const bool remembers : memories()) {
    if (few && remembers != memories().back()) continue;
    std::vector<Task> tasks;
    for (const uint64_t n : {70'001U, 17'000U, 0U, 3000U, 500U, 1U}) {
      if (few && n > 50'000) continue;
      tasks.push_back(task_of(spec_, Data::laplace, n, n + 1, remembers));
      Task& task = tasks.back();
      task.state.resize(floats);
      if (spec_.codec().init != nullptr)
        spec_.codec().init(spec_.params(), task.unit, task.place, task.state);
    }
    for (std::size_t step = 0; step < std::size(kScales); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      for (std::size_t u = 0; u < tasks.size(); ++u) {
        Task& task = tasks[u];
        task.place.step = step;
        const bool same = u % 2 == 1 && step % 3 == 2;  // all ties
        task.gradient = make(same     ? Data::constant
                             : u == 3 ? Data::sparse
                                      : Data::laplace,
                             task.unit.count, 10 * step + u);
        for (float& x : task.gradient) x *= kScales[(step + u) % std::size(kScales)];
        if (remembers && step == 4 && !task.residual.empty()) task.residual[0] = INFINITY;
        if (step == 7 && u == 4) task.gradient.back() = NAN;
        if (step == 8 && u == 1) task.gradient.assign(task.unit.count, 0.0F);
      }
      CheckedDevice gpu(kOrders[step % 3]);
      const std::vector<Coded> coded = expect_cpus(spec_, tasks, gpu);
      const auto states = commit_on_device(spec_, gpu, tasks, coded);
      for (std::size_t u = 0; u < tasks.size(); ++u) {
        expect_same_bits(states[u], commit_on_cpu(spec_, tasks[u], coded[u]), "state");
        tasks[u].state = states[u];
        tasks[u].residual = coded[u].residual;
      }
      expect_no_faults(gpu);
      if (HasFailure()) return;
    }
  }
}

TEST_P(DeviceLaw, BadStateIsRefusedAsOnCpu) {
  const uint64_t floats = spec_.codec().plan(spec_.params(), vector_unit(1), 3).state_floats;
  if (floats == 0 || twin_of(spec_).commit == nullptr) return;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Task task = task_of(spec_, Data::laplace, 300, 4, contract_.feedback != Feedback::never);
    task.state.assign(floats, 1e-3F);
    task.state.back() = bad;
    Task zero = task;
    zero.gradient.assign(300, 0.0F);
    CheckedDevice gpu(Order::forward);
    expect_cpus(spec_, {task, zero}, gpu);
  }
}

TEST_P(DeviceLaw, HalfGradientsEqualWidenedOnes) {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    Task task = task_of(spec_, Data::laplace, 1000, 1, contract_.feedback != Feedback::never);
    CheckedDevice gpu(Order::forward);
    const std::vector<Coded> coded = encode_on_device(spec_, gpu, {task}, dtype);
    for (float& x : task.gradient)
      x = dtype == DType::f16 ? f16_to_float(float_to_f16(x)) : bf16_to_float(float_to_bf16(x));
    const Coded cpu = encode_on_cpu(spec_, task);
    expect_same_bytes(coded[0].payload, cpu.payload, "payload");
    expect_same_bits(coded[0].residual, cpu.residual, "residual");
    expect_no_faults(gpu);
  }
}

TEST_P(DeviceLaw, BadNumbersEndAsOnCpu) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  for (const bool remembers : memories()) {
    std::vector<Task> tasks;
    for (const float bad : {NAN, INFINITY, -INFINITY, kHuge, 0.3F * kHuge, 65520.0F}) {
      for (const bool in_gradient : {false, true}) {
        if (!in_gradient && !remembers) continue;
        Task task = task_of(spec_, Data::laplace, 300, 4, remembers);
        (in_gradient ? task.gradient : task.residual)[271] = bad;
        tasks.push_back(task);
        if (remembers) (in_gradient ? task.residual : task.gradient)[271] = bad;
        tasks.push_back(task);
        task.gradient.assign(300, 0.0F);
        tasks.push_back(task);
      }
    }
    add_known(spec_, tasks);
    CheckedDevice gpu(Order::forward);
    expect_cpus(spec_, tasks, gpu);
  }
}

/// Codecs that send means.
TEST_P(DeviceLaw, SumsThatOverflowEndAsOnCpu) {
  const std::string_view name = spec_.codec().info.name;
  if (name != "onebit" && name != "efsignsgd") return;  // no other adds elements up
  constexpr float kLarge = 0.75F * std::numeric_limits<float>::max();
  for (const bool remembers : memories()) {
    struct Two {
      uint64_t apart;  // in one lane; in lanes of one chunk; in two chunks
      float first, other;
    };
    std::vector<Task> tasks;
    for (const Two& two :
         {Two{32, kLarge, kLarge}, Two{32, -kLarge, -kLarge}, Two{32, -kLarge, kLarge},
          Two{1, -kLarge, -kLarge}, Two{16'384, kLarge, kLarge}}) {
      for (const bool in_gradient : {true, false}) {
        if (!in_gradient && !remembers) continue;
        Task task = task_of(spec_, Data::laplace, 17'000, 4, remembers);
        std::vector<float>& in = in_gradient ? task.gradient : task.residual;
        in[100] = two.first;
        in[100 + two.apart] = two.other;
        tasks.push_back(task);
      }
    }
    CheckedDevice gpu(Order::backward);
    expect_cpus(spec_, tasks, gpu);
    uint64_t resets = 0, refused = 0;
    for (const Task& task : tasks) {
      const Verdict verdict = encode_on_cpu(spec_, task).verdict;
      resets += verdict == Verdict::reset ? 1 : 0;
      refused += verdict == Verdict::refused ? 1 : 0;
    }
    EXPECT_GT(refused, 0U);
    EXPECT_EQ(resets > 0, remembers);
  }
}

TEST_P(DeviceLaw, PayloadMayStartAnywhere) {
  const Task task = task_of(spec_, Data::laplace, 1000, 1, false);
  const Coded cpu = encode_on_cpu(spec_, task);
  for (const uint64_t shift : {1U, 2U, 3U}) {
    CheckedDevice gpu(Order::forward);
    expect_same_bytes(encode_on_device(spec_, gpu, {task}, DType::f32, shift)[0].payload,
                      cpu.payload, "payload");
    expect_no_faults(gpu);
  }
}

TEST_P(DeviceLaw, ScaledLanesEqualCpu) {
  if (contract_.merge != Merge::linear) return;  // no engine sums them
  Task task = task_of(spec_, Data::laplace, 1000, 1, true);
  task.place.prescale = 1.0F / 3;
  CheckedDevice gpu(Order::forward);
  expect_cpus(spec_, {task}, gpu);
}

/// Payloads of several ranks of one unit.
std::vector<Coded> payloads_of(const Spec& spec, const Unit& unit, uint32_t ranks) {
  std::vector<Coded> coded;
  for (uint32_t r = 0; r < ranks; ++r) {
    const Data data = r % 3 == 1                       ? Data::spike
                      : r % 3 == 2 && unit.count > 500 ? Data::sparse
                                                       : Data::laplace;
    Task task = task_of(spec, data, unit.count, r + 1, false);
    task.unit = unit;
    task.place.rank = r;
    coded.push_back(encode_on_cpu(spec, task));
  }
  return coded;
}

TEST_P(DeviceLaw, DecodingEqualsCpu) {
  for (const uint64_t n : {1U, 5U, 257U, 40'961U}) {
    const Unit unit = vector_unit(n);
    const std::vector<Coded> coded = payloads_of(spec_, unit, 8);
    for (const uint32_t ranks : {0U, 1U, 3U, 8U}) {
      if (n > 10'000 && ranks != 3) continue;
      for (const bool add : {false, true}) {
        SCOPED_TRACE(std::to_string(n) + " elements of " + std::to_string(ranks));
        std::vector<Term> terms;
        for (uint32_t r = 0; r < ranks; ++r)
          terms.push_back({coded[r].payload, r % 2 == 0 ? 1.0F / 3 : -1.0F});
        std::vector<float> base;
        if (add) base = make(Data::gaussian, n, 99);
        CheckedDevice gpu(kOrders[ranks % 3]);
        const Bytes kept = coded[0].kept;
        expect_same_bits(decode_on_device(spec_, gpu, unit, terms, base, kept),
                         decode_on_cpu(spec_, unit, terms, base, kept), "mean");
        expect_no_faults(gpu);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(DeviceLaw, FinishedSumsEqualCpu) {
  const Unit unit = vector_unit(10'001);
  std::vector<float> cpu = make(Data::ties, unit.count, 1);
  EXPECT_EQ(twin_of(spec_).finish == nullptr, spec_.codec().finish == nullptr);
  if (spec_.codec().finish == nullptr) return;  // sums are means
  CheckedDevice gpu(Order::scrambled);
  device::DecodeRow row;
  const uint64_t tiles = place_tiles(spec_, gpu, unit, row, &device::Layout::decode, 0);
  row.values = gpu.memory().allocate<float>("values", cpu);
  const auto* const rows = gpu.memory().allocate<device::DecodeRow>("rows", std::vector{row});
  twin_of(spec_).finish(spec_.params(), {rows, 1, tiles}, gpu);
  Work work;
  work.isa = best_isa();
  spec_.codec().finish({spec_.params(), {}, unit, {}, 0, work}, cpu);
  expect_same_bits({row.values, row.values + unit.count}, cpu, "finished");
  expect_no_faults(gpu);
}

/// Quantized values of a unit that three ranks encode, of which one has zeros.
struct Quantized {
  std::vector<Coded> coded;  ///< by the CPU
  std::vector<uint8_t> sum;  ///< of the device's lanes, as int32
  uint64_t lane_bytes = 0;
};

Quantized quantize(const Spec& spec, const Unit& unit) {
  Quantized all;
  const Plan plan = spec.codec().plan(spec.params(), unit, 3);
  const RoundPlan& last = plan.round[plan.rounds - 1];
  all.lane_bytes = dtype_size(last.lane);
  all.sum.resize(last.lanes * all.lane_bytes);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    Task task = task_of(spec, rank == 1 ? Data::zeros : Data::laplace, unit.count, rank + 1, false);
    task.unit = unit;
    task.place.rank = rank;
    if (rank == 2) task.residual = make(Data::gaussian, unit.count, 5);
    const uint64_t block = spec.contract().granule;  // of zeros: the second one
    if (rank == 0 && unit.count > 2 * block)
      std::fill_n(task.gradient.begin() + static_cast<int64_t>(block), block, 0.0F);
    all.coded.push_back(encode_on_cpu(spec, task));
    CheckedDevice gpu(kOrders[rank]);
    const std::vector<uint8_t> lanes =
        encode_on_device(spec, gpu, {task}, DType::f32, 1, static_cast<uint32_t>(all.lane_bytes))[0]
            .lanes;
    expect_no_faults(gpu);
    std::vector<uint8_t> expected(lanes.size());
    for (uint64_t i = 0; i < last.lanes && rank != 1; ++i)
      expected[i * all.lane_bytes] = spec.codec().table(
          spec.params())[test::code_at(all.coded[rank].payload, i, last.code_bits)];
    expect_same_bytes(lanes, expected, "lanes");
    for (uint64_t at = 0; at < lanes.size(); at += 4)
      store(all.sum.data() + at,
            load<uint32_t>(all.sum.data() + at) + load<uint32_t>(lanes.data() + at));
  }
  return all;
}

TEST_P(DeviceLaw, SummedQuantizedValuesEqualCpu) {
  if (spec_.codec().table == nullptr) return;  // it has none
  Spec spec = spec_;
  spec.prepare(3);
  for (const uint64_t n : {1U, 257U, 20'001U}) {
    const Unit unit = vector_unit(n);
    const Quantized all = quantize(spec, unit);
    const Bytes kept = all.coded[0].kept;
    std::vector<Contributors> by_block(ceil_div(n, contract_.granule), {2, 3});
    for (std::size_t k = 0; k < by_block.size(); k += 2) by_block[k] = {1, 2};
    std::vector<uint8_t> counts(by_block.size());
    for (std::size_t k = 0; k < counts.size(); ++k) counts[k] = k % 3 == 1 ? 1 : 0;
    const std::vector<float> base = make(Data::gaussian, n, 99);
    const Contributors for_all{2, 3};
    for (const Term& term : {Term{all.sum, 1.0F, {&for_all, 1}}, Term{all.sum, 0.5F, by_block},
                             Term{all.coded[0].payload, -1.0F, {}, counts}}) {
      for (const bool add : {false, true}) {
        CheckedDevice gpu(Order::scrambled);
        const std::vector<float> from = add ? base : std::vector<float>{};
        expect_same_bits(decode_on_device(spec, gpu, unit, {&term, 1}, from, kept),
                         decode_on_cpu(spec, unit, {&term, 1}, from, kept), "mean");
        expect_no_faults(gpu);
        if (HasFailure()) return;
      }
    }
  }
}

/// Payloads, with such that are damaged.
std::vector<std::vector<uint8_t>> damaged(const std::vector<std::vector<uint8_t>>& payloads,
                                          Random& random) {
  std::vector<std::vector<uint8_t>> all;
  for (const std::vector<uint8_t>& good : payloads) {
    all.push_back(good);
    if (good.empty()) {
      all.emplace_back(5);
      continue;
    }
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{3}, good.size() / 2, good.size() - 1, good.size() + 1}) {
      all.push_back(good);
      all.back().resize(length);
    }
    for (int i = 0; i < 24; ++i) {
      all.push_back(good);
      const uint64_t at =
          i < 12 ? random.below(std::min<uint64_t>(good.size(), 12)) : random.below(good.size());
      all.back()[at] = i % 3 == 0 ? 0x80 : i % 3 == 1 ? 0xFF : static_cast<uint8_t>(random.next());
    }
    all.emplace_back(good.size());
    for (uint8_t& byte : all.back()) byte = static_cast<uint8_t>(random.next());
  }
  return all;
}

TEST_P(DeviceLaw, CheckEqualsCpuForDamagedPayloads) {
  Random random(1);
  for (const uint64_t n : {0U, 1U, 19U, 1000U, 41'000U}) {
    if (test::kSanitized && n > 10'000) continue;
    Unit unit = vector_unit(n);
    std::array<std::vector<std::vector<uint8_t>>, kMaxRounds> good;
    const uint32_t rounds = spec_.codec().plan(spec_.params(), unit, 1).rounds;
    for (const Coded& coded : payloads_of(spec_, unit, n > 10'000 ? 1 : 3)) {
      good[rounds - 1].push_back(coded.payload);
      if (rounds > 1) good[rounds - 2].push_back(coded.agreed);
    }
    for (uint32_t round = 0; round < (rounds == 1 ? 1 : kMaxRounds); ++round) {  // one too many
      const auto payloads = damaged(good[std::min(round, rounds - 1)], random);
      for (const uint64_t offset : {0U, 1U}) {
        unit.offset = offset;
        CheckedDevice gpu(Order::scrambled);
        const std::vector<bool> passes = check_on_device(spec_, gpu, unit, payloads, round);
        for (std::size_t p = 0; p < payloads.size(); ++p) {
          EXPECT_EQ(passes[p],
                    spec_.codec().check(spec_.params(), unit, round, payloads[p]) == Errc::ok)
              << "payload " << p << " of " << n << " elements, round " << round;
        }
        expect_no_faults(gpu);
        if (contract_.granule == 1) break;  // any offset will do
      }
    }
  }
}

}  // namespace
}  // namespace laconic::conformance
