// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "laconic/codec.h"

namespace laconic::codecs {

/// Turns a codec type into its table: the only place where types are erased.
template <Codec C>
struct TableOf {
  using P = typename C::Params;
  static_assert(std::is_trivially_copyable_v<P> && sizeof(P) <= sizeof(ParamBlock::bytes));

  static const P& as(const void* params) { return *static_cast<const P*>(params); }

  static void defaults(void* params) { *static_cast<P*>(params) = P{}; }
  static Contract contract(const void* params) { return C::contract(as(params)); }
  static Plan plan(const void* params, const Unit& unit, uint32_t world) {
    Plan plan = C::plan(as(params), unit, world);
    for (RoundPlan& round : plan.round) {
      if (round.expected == 0) round.expected = round.bytes;
    }
    return plan;
  }
  static void init(const void* params, const Unit& unit, const Place& place,
                   std::span<float> state) {
    if constexpr (requires { C::init(as(params), unit, place, state); }) {
      C::init(as(params), unit, place, state);
    } else {
      for (float& x : state) x = 0.0F;
    }
  }
  static Encoded encode(const void* params, std::span<const float> state, const Unit& unit,
                        const Place& place, uint32_t round, Source source, Work& work,
                        MutBytes out) {
    return C::encode(as(params), state, unit, place, round, source, work, out);
  }
  static void accept(const void* params, const Unit& unit, const Place& place, uint32_t round,
                     MutBytes merged, uint32_t contributors, Work& work) {
    if constexpr (requires {
                    C::accept(as(params), unit, place, round, merged, contributors, work);
                  }) {
      C::accept(as(params), unit, place, round, merged, contributors, work);
    }
  }
  static Errc check(const void* params, const Unit& unit, uint32_t round, Bytes payload) {
    return C::check(as(params), unit, round, payload);
  }
  static void decode(const void* params, const Unit& unit, const Place& place,
                     std::span<const Term> terms, Work& work, Target target) {
    C::decode(as(params), unit, place, terms, work, target);
  }
  static void commit(const void* params, std::span<float> state, const Unit& unit,
                     const Place& place, Bytes sent, Bytes merged, uint32_t contributors,
                     Work& work) {
    if constexpr (requires {
                    C::commit(as(params), state, unit, place, sent, merged, contributors, work);
                  }) {
      C::commit(as(params), state, unit, place, sent, merged, contributors, work);
    }
  }

  static void finish(const void* params, const Unit& unit, std::span<float> mean, Work& work) {
    if constexpr (requires { C::finish(as(params), unit, mean, work); }) {
      C::finish(as(params), unit, mean, work);
    }
  }
  static constexpr auto finish_or_null() {
    using F = decltype(&TableOf::finish);
    if constexpr (requires(const P& p, const Unit& unit, std::span<float> mean, Work& work) {
                    C::finish(p, unit, mean, work);
                  }) {
      return F{&TableOf::finish};
    } else {
      return F{nullptr};
    }
  }
  static void erase(const void* params, const Unit& unit, Bytes payload, float* values,
                    Work& work) {
    if constexpr (requires { C::erase(as(params), unit, payload, values, work); }) {
      C::erase(as(params), unit, payload, values, work);
    }
  }
  static constexpr auto erase_or_null() {
    using F = decltype(&TableOf::erase);
    if constexpr (requires(const P& p, const Unit& unit, Bytes payload, float* values, Work& work) {
                    C::erase(p, unit, payload, values, work);
                  }) {
      return F{&TableOf::erase};
    } else {
      return F{nullptr};
    }
  }

  static void prepare(void* params, uint32_t world) { C::prepare(*static_cast<P*>(params), world); }
  static uint32_t start(const void* params, std::span<const float> state, const Unit& unit,
                        Work& work) {
    return C::start(as(params), state, unit, work);
  }
  static std::span<const uint8_t> table(const void* params) { return C::table(as(params)); }

  static constexpr CodecTable make() {
    CodecTable made{.info = C::info,
                    .fields = C::fields,
                    .defaults = &defaults,
                    .contract = &contract,
                    .plan = &plan,
                    .prepare = nullptr,
                    .init = &init,
                    .encode = &encode,
                    .start = nullptr,
                    .table = nullptr,
                    .accept = &accept,
                    .check = &check,
                    .decode = &decode,
                    .commit = &commit,
                    .finish = finish_or_null(),
                    .erase = erase_or_null()};
    if constexpr (requires(P & p) { C::prepare(p, uint32_t{}); }) made.prepare = &prepare;
    if constexpr (requires(const P& p, std::span<const float> state, const Unit& u, Work& work) {
                    C::start(p, state, u, work);
                  }) {
      made.start = &start;
    }
    if constexpr (requires(const P& p) { C::table(p); }) made.table = &TableOf::table;
    return made;
  }
  static constexpr CodecTable value = make();
};

}  // namespace laconic::codecs
