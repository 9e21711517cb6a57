// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Law: after warm-up no call of a codec allocates. This binary's operator new counts.
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>

#include "conformance/codec_law.h"
#include "laconic/thread_pool.h"

namespace {

std::atomic<uint64_t> allocations{0};

void* counted(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes > 0 ? bytes : 1);
}
void* counted_or_throw(std::size_t bytes) {
  if (void* p = counted(bytes)) return p;
  throw std::bad_alloc();
}
void* counted_aligned(std::size_t bytes, std::align_val_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const auto a = static_cast<std::size_t>(alignment);
  if (void* p = std::aligned_alloc(a, (bytes + a) / a * a)) return p;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) { return counted_or_throw(bytes); }
void* operator new[](std::size_t bytes) { return counted_or_throw(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return counted(bytes); }
void* operator new(std::size_t bytes, std::align_val_t a) { return counted_aligned(bytes, a); }
void* operator new[](std::size_t bytes, std::align_val_t a) { return counted_aligned(bytes, a); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }

namespace laconic::conformance {
namespace {

/// One whole exchange of one rank, with direct calls only: the driver of the other laws allocates.
void exchange_once(const Spec& spec, const Conditions& conditions, const Plan& plan,
                   const Guarded (&memory)[3], std::span<const Guarded> out, const float* values,
                   float* target) {
  const CodecTable& codec = spec.codec();
  const Place place{conditions.seed, conditions.step, 0, 1, 0, 1.0F};
  Work work{memory[0].bytes(), memory[1].bytes(), conditions.isa, conditions.pool};
  uint64_t bytes = 0;
  for (uint32_t round = 0; round < plan.rounds; ++round) {
    bytes = codec
                .encode({spec.params(), memory[2].floats(), conditions.unit, place, round, work},
                        {values, nullptr}, out[round].bytes())
                .bytes;
    if (round + 1 < plan.rounds) {
      codec.accept({spec.params(), {}, conditions.unit, place, round, work},
                   MutBytes(out[round].data(), bytes), 1);
    }
  }
  const Bytes sent(out[plan.rounds - 1].data(), bytes);
  const bool lanes = plan.round[plan.rounds - 1].kind == RoundKind::lanes;
  const std::array<Term, 2> terms{{{sent, 0.5F}, {sent, 0.5F}}};
  if (codec.check(spec.params(), conditions.unit, plan.rounds - 1, sent) != Errc::ok) return;
  codec.decode({spec.params(), {}, conditions.unit, place, 0, work}, {terms.data(), 1},
               {target, false});
  codec.decode({spec.params(), {}, conditions.unit, place, 0, work}, terms, {target, true});
  codec.commit({spec.params(), memory[2].floats(), conditions.unit, place, 0, work},
               memory[2].floats(), sent, lanes ? sent : Bytes(), 1);
}

uint64_t allocations_of(const Spec& spec, const Conditions& conditions) {
  const Plan plan = spec.codec().plan(spec.params(), conditions.unit, 1);
  const Guarded memory[3] = {Guarded(plan.kept_bytes), Guarded(plan.scratch_bytes),
                             Guarded(plan.state_floats * sizeof(float))};
  spec.codec().init(spec.params(), conditions.unit,
                    {conditions.seed, conditions.step, 0, 1, 0, 1.0F}, memory[2].floats());
  std::vector<Guarded> out;
  for (uint32_t i = 0; i < plan.rounds; ++i) out.emplace_back(plan.round[i].bytes);
  const std::vector<float> values = make(Data::laplace, conditions.unit.count);
  std::vector<float> target(conditions.unit.count);
  exchange_once(spec, conditions, plan, memory, out, values.data(), target.data());
  const uint64_t before = allocations.load();
  for (int i = 0; i < 3; ++i)
    exchange_once(spec, conditions, plan, memory, out, values.data(), target.data());
  return allocations.load() - before;
}

TEST(Allocations, EveryAllocationIsCounted) {
  const uint64_t before = allocations.load();
  const std::vector<int> something(1000);
  EXPECT_EQ(allocations.load(), before + 1);
}

TEST_P(CodecLaw, NoAllocationAfterWarmUp) {
  for (const Unit& unit : {vector_unit(1000), vector_unit(50021), matrix_unit(65, 33)}) {
    SCOPED_TRACE(describe(unit, Data::laplace));
    EXPECT_EQ(allocations_of(spec_, conditions(unit)), 0U);
    ThreadPool pool(2);
    Conditions threaded = conditions(unit);
    threaded.pool = &pool;
    EXPECT_EQ(allocations_of(spec_, threaded), 0U) << "with two threads";
  }
}

}  // namespace
}  // namespace laconic::conformance
