// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <type_traits>

#include "device/codec.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Turns a codec type into its table: the only place where types are erased.
template <Codec C>
struct TableOf {
  using P = typename C::Params;
  static_assert(std::is_trivially_copyable_v<P> && sizeof(P) <= sizeof(ParamBlock::bytes));

  static const P& as(const void* params) { return *static_cast<const P*>(params); }
  static Call<P> typed(const Call<>& c) {
    return {static_cast<const P*>(c.params), c.state, c.unit, c.place, c.round, c.work};
  }
  static Plan plan(const void* params, const Unit& unit, uint32_t world) {
    Plan plan = C::plan(as(params), unit, world);
    for (RoundPlan& round : plan.round) {
      if (round.expected == 0) round.expected = round.bytes;
    }
    return plan;
  }

  static constexpr CodecTable make() {
    CodecTable made{};
    made.info = C::info;
    made.fields = C::fields;
    made.defaults = [](void* params) { *static_cast<P*>(params) = P{}; };
    made.contract = [](const void* params) { return C::contract(as(params)); };
    made.plan = &plan;
    made.check = [](const void* params, const Unit& unit, uint32_t round, Bytes payload) {
      return C::check(as(params), unit, round, payload);
    };
    made.encode = [](const Call<>& call, Source source, MutBytes out) {
      return C::encode(typed(call), source, out);
    };
    made.decode = [](const Call<>& call, std::span<const Term> terms, Target target) {
      C::decode(typed(call), terms, target);
    };
    made.init = [](const void* params, const Unit& unit, const Place& place,
                   std::span<float> state) {
      if constexpr (requires { C::init(as(params), unit, place, state); }) {
        C::init(as(params), unit, place, state);
      } else {
        for (float& x : state) x = 0.0F;
      }
    };
    made.accept = [](const Call<>& call, MutBytes merged, uint32_t contributors) {
      if constexpr (requires { C::accept(typed(call), merged, contributors); }) {
        C::accept(typed(call), merged, contributors);
      }
    };
    made.commit = [](const Call<>& call, std::span<float> state, Bytes sent, Bytes merged,
                     uint32_t contributors) {
      if constexpr (requires { C::commit(typed(call), state, sent, merged, contributors); }) {
        C::commit(typed(call), state, sent, merged, contributors);
      }
    };
    if constexpr (requires { &C::prepare; }) {
      made.prepare = [](void* params, uint32_t world) {
        C::prepare(*static_cast<P*>(params), world);
      };
    }
    if constexpr (requires { &C::table; }) {
      made.table = [](const void* params) { return C::table(as(params)); };
    }
    if constexpr (requires { &C::start; }) {
      made.start = [](const Call<>& call) { return C::start(typed(call)); };
    }
    if constexpr (requires { &C::finish; }) {
      made.finish = [](const Call<>& call, std::span<float> mean) { C::finish(typed(call), mean); };
    }
    if constexpr (requires { &C::erase; }) {
      made.erase = [](const Call<>& call, Bytes payload, float* values) {
        C::erase(typed(call), payload, values);
      };
    }
    return made;
  }
  static constexpr CodecTable value = make();
};

/// The codec's kernels for GPUs; null if it has none.
template <Codec C>
constexpr const device::Codec* twin_of_type() {
  if constexpr (requires { &C::twin; }) return &C::twin;
  return nullptr;
}

}  // namespace laconic::codecs
