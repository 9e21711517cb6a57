// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sidco/sidco.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "codecs/sidco/exceedances.h"
#include "codecs/sidco/sidco_fit.h"
#include "codecs/sidco/trace.h"
#include "codecs/sparse/sparse_erase.h"
#include "codecs/sparse/sparse_payload.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using sidco::Adaptation;
using sidco::Exceedances;
using sidco::in_band;
using sidco::Moments;
using sidco::Threshold;
using sidco::threshold_at;
using sidco::threshold_from;
using sidco::Trace;

// Payload: u32 elements sent, u32 elements above the fitted threshold, the set.
struct Header {
  uint32_t count;
  uint32_t fitted;
};
constexpr uint64_t kHeader = Sidco::kHeader;
static_assert(sizeof(Header) == kHeader);

SparseView set_of(Bytes payload, uint64_t n) {
  return sparse_view(payload.subspan(kHeader), load<Header>(payload.data()).count, n);
}

uint64_t most_sent(double ratio, uint64_t n) {
  const uint64_t k = kept_of(ratio, n);
  return std::min(n, k + ceil_div(k, Sidco::kSpare));
}

sidco::Mode mode_of(const Sidco::Params& p) { return static_cast<sidco::Mode>(p.mode); }

uint32_t stages_of(const Sidco::Params& p, std::span<const float> state) {
  if (p.stages != 0) return p.stages;
  if (!Sidco::adapts(p)) return sidco::fixed_stages(p.ratio);
  return Adaptation::read(state).stages_up_to(sidco::max_stages(p.ratio));
}

// The guard corrects thresholds, and where no number of stages is learnt from the fitted one, the
// next call begins with the last corrected one: one float of state, 0 while there is none.
constexpr uint64_t kLastThreshold = 1;
bool keeps_threshold(const Sidco::Params& p) { return p.guard && !Sidco::adapts(p); }

float smallest_sent(SparseView set) {
  float smallest = kInfinity;
  for (uint64_t i = 0; i < set.count; ++i) {
    smallest = std::min(smallest, std::fabs(load<float>(set.values + i * sizeof(float))));
  }
  return smallest;
}

// The multi-stage fit, section 3 of the format page: η in the unit's own scale. `delta` is the
// wanted part of the non-zero elements.
double fitted_threshold(Exceedances& unit, sidco::Law law, const Moments& all, double delta,
                        uint32_t stages, Trace& trace) {
  const auto count = static_cast<double>(all.count);
  if (stages == 1 || delta >= sidco::kFirstRatio) {
    const double eta = first_threshold(law, all, delta) * unit.unit();
    trace.add({all, 0, threshold_at(eta), count * delta});
    return eta;
  }
  const double step = kernels::sidco::later_ratio(delta, stages);
  double eta = first_threshold(law, all, sidco::kFirstRatio) * unit.unit();
  double expected = count * sidco::kFirstRatio;
  double wanted = expected;
  trace.add({all, 0, threshold_at(eta), wanted});
  for (uint32_t stage = 2; stage <= stages; ++stage) {
    const Threshold threshold = threshold_at(eta);
    unit.expect_only_above(threshold, expected);
    double low = 0;
    const Moments z = unit.above(threshold, &low);
    trace.last().selected = z.count;
    if (z.count < 2) break;  // nothing to fit: the last η stands
    eta = tail_threshold(law, low, z, step) * unit.unit();
    expected = static_cast<double>(z.count) * step;
    wanted *= step;
    trace.add({z, low, threshold_at(eta), wanted});
  }
  return eta;
}

struct Selection {
  Threshold eta;
  uint64_t count = 0;
};

// Guarded correction, section 8 of the reference.
Selection corrected(Exceedances& unit, Selection s, uint64_t k, uint64_t nonzero, Trace& trace) {
  kernels::sidco::Bracket bracket(unit.max_key(), nonzero, s.eta, k);
  for (uint32_t pass = 0; pass < kernels::sidco::kGuardPasses && !in_band(s.count, k); ++pass) {
    s.eta = bracket.next(s.count);
    s.count = unit.count(s.eta);
    ++trace.corrections;
  }
  return s;
}

// A fit reads the sums several times: they are written first.
Encoded encode_written_sums(const Call<Sidco::Params>& call, Source source, MutBytes out,
                            Trace& trace) {
  const uint64_t n = call.unit.count;
  if (!sums_within(source, n, std::numeric_limits<float>::max(), call.work)) return {0, false};
  leave_rest(source, n, {}, call.work);
  auto again = call;
  if (keeps_threshold(*call.params)) again.state = {};  // the last threshold was tried
  const Encoded sent = sidco::encode_traced(again, {source.residual, nullptr}, out, trace);
  take_out_sparse(set_of({out.data(), out.size()}, n), n, call.work, source.residual);
  return sent;
}

}  // namespace

Contract Sidco::contract(const Params&) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::set_union;
  c.feedback = Feedback::own;
  c.max_count = kMaxSparseCount;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::momentum);
  c.fused = true;
  c.exact_size = false;
  c.checks_finite = true;
  return c;
}

Plan Sidco::plan(const Params& p, const Unit& unit, uint32_t) {
  const uint64_t n = unit.count;
  Plan plan;
  plan.round[0].bytes = kHeader + sparse_bytes(most_sent(p.ratio, n), n);
  plan.round[0].expected = kHeader + sparse_bytes(kept_of(p.ratio, n), n);  // what is aimed at
  plan.state_floats = adapts(p) ? Adaptation::kFloats : keeps_threshold(p) ? kLastThreshold : 0;
  plan.state_may_lack = keeps_threshold(p);
  plan.scratch_bytes = Exceedances::scratch_bytes(n, kept_of(p.ratio, n));
  return plan;
}

void Sidco::init(const Params& p, const Unit&, const Place&, std::span<float> state) {
  if (adapts(p)) return Adaptation{}.write(state);
  std::fill(state.begin(), state.end(), 0.0F);
}

Encoded Sidco::encode(const Call<Params>& call, Source source, MutBytes out) {
  Trace trace;
  return sidco::encode_traced(call, source, out, trace);
}

Encoded sidco::encode_traced(const Call<Sidco::Params>& call, Source source, MutBytes out,
                             Trace& trace) {
  const Sidco::Params& p = *call.params;
  const uint64_t n = call.unit.count;
  const uint64_t k = kept_of(p.ratio, n);
  const uint64_t most = most_sent(p.ratio, n);
  const auto law = static_cast<Law>(p.law);
  const auto send = [&](uint64_t count, auto&& write) -> Encoded {
    trace.sent = count;
    store(out.data(), Header{static_cast<uint32_t>(count), static_cast<uint32_t>(trace.fitted)});
    SparseWriter writer(out.data() + kHeader, count, n);
    write(writer);
    writer.finish();
    return {kHeader + sparse_bytes(count, n)};
  };
  if (n == 0) return send(0, [](SparseWriter&) {});

  trace.wanted = k;
  Exceedances exceedances(source, n, k, law, call.work);
  const auto send_above = [&](Threshold eta, uint64_t count) {
    const Encoded sent = send(count, [&](SparseWriter& w) { exceedances.write_above(eta, w); });
    trace.memory_passes = exceedances.passes();
    return sent;
  };
  const auto send_largest = [&](uint64_t count) {
    trace.exact = true;
    const Encoded sent = send(count, [&](SparseWriter& w) { exceedances.write_largest(count, w); });
    trace.memory_passes = exceedances.passes();
    return sent;
  };
  if (keeps_threshold(p) && !call.state.empty() && call.state[0] > 0) {
    const Threshold last = threshold_from(call.state[0]);
    const uint64_t count = exceedances.count(last);
    if (kernels::sidco::serves(count, n, k)) {
      trace.eta = last;
      trace.fitted = count;
      Encoded sent = in_band(count, k) ? send_above(last, count) : send_largest(k);
      // As integers, NaN and infinity are the largest magnitudes: any of them was selected.
      const SparseView set = set_of({out.data(), out.size()}, n);
      sent.finite = values_finite(set);
      if (source.residual != nullptr && sent.finite) leave_rest(source, n, set, call.work);
      return sent;
    }
  }
  if (source.residual != nullptr) return encode_written_sums(call, source, out, trace);
  const Moments all = exceedances.all();
  if (exceedances.max_key() >= kernels::magnitude_key(kInfinity)) return {0, false};
  trace.unit = exceedances.unit();
  trace.nonzero = all.count;
  if (all.count <= k) {  // all that there is; says nothing about the fit
    trace.fitted = k;
    return send_above({}, all.count);
  }
  const double delta = static_cast<double>(k) / static_cast<double>(all.count);
  Selection s;
  s.eta =
      threshold_at(fitted_threshold(exceedances, law, all, delta, stages_of(p, call.state), trace));
  s.count = exceedances.count(s.eta);
  trace.last().selected = s.count;
  trace.fitted = s.count;
  if (p.guard && !in_band(s.count, k)) {
    exceedances.expect_about(k);
    s = corrected(exceedances, s, k, all.count, trace);
  }
  trace.eta = s.eta;
  const bool fits = p.guard ? in_band(s.count, k) : s.count >= 1 && s.count <= most;
  if (fits) return send_above(s.eta, s.count);
  return send_largest(p.guard ? k : s.count == 0 ? 1 : most);
}

Errc Sidco::check(const Params& p, const Unit& unit, uint32_t, Bytes payload) {
  const uint64_t n = unit.count;
  if (n > kMaxSparseCount) return Errc::shape_unsupported;
  if (payload.size() < kHeader) return Errc::payload_malformed;
  const uint64_t count = load<Header>(payload.data()).count;
  if (count > most_sent(p.ratio, n)) return Errc::bound_exceeded;
  if (payload.size() != kHeader + sparse_bytes(count, n)) return Errc::payload_malformed;
  return check_sparse(sparse_view(payload.subspan(kHeader), count, n), n);
}

void Sidco::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const uint64_t n = call.unit.count;
  decode_sparse(terms, n, call.work, target, [n](Bytes payload) { return set_of(payload, n); });
}

void Sidco::erase(const Call<Params>& call, Bytes payload, float* values) {
  erase_sparse(set_of(payload, call.unit.count), call.unit.count, call.work, values);
}

void Sidco::commit(const Call<Params>& call, std::span<float> state, Bytes sent, Bytes, uint32_t) {
  const uint64_t k = kept_of(call.params->ratio, call.unit.count);
  if (state.empty() || k == 0 || sent.size() < kHeader) return;
  if (keeps_threshold(*call.params)) {
    const float smallest = smallest_sent(set_of(sent, call.unit.count));
    if (smallest > 0 && smallest < kInfinity) state[0] = smallest;
    return;
  }
  Adaptation adaptation = Adaptation::read(state);
  const double ratio =
      static_cast<double>(load<Header>(sent.data()).fitted) / static_cast<double>(k);
  adaptation.observe(mode_of(*call.params), ratio, sidco::max_stages(call.params->ratio));
  adaptation.write(state);
}

}  // namespace laconic::codecs
