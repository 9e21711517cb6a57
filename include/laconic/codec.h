// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The codec concept. A codec is a set of pure static functions over explicit parameters, unit,
// place and spans; only `commit` writes state. It knows no frame, no network and no bucket.
// ARCHITECTURE.md, "the life of a codec".
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include "laconic/bytes.h"
#include "laconic/dtype.h"
#include "laconic/error.h"
#include "laconic/fields.h"
#include "laconic/isa.h"
#include "laconic/memory_kind.h"
#include "laconic/thread_pool.h"

namespace laconic {

/// How payloads of several contributors combine without decoding.
enum class Merge : uint8_t {
  none,       ///< decode each, add
  linear,     ///< lanes add element by element; an engine's sum is a merge
  set_union,  ///< (index, value) sets: union, values of equal indices added
  vote,       ///< signs are counted
};

/// The part that error feedback subtracts from the residual.
enum class Feedback : uint8_t {
  never,  ///< harmful or meaningless; +ef is refused
  own,    ///< this rank's decoded payload: e ← a − Q(a)
  /// The decoded mean: e_i ← a_i − mean (PowerSGD); conserved in the sum over ranks. Residuals of
  /// ranks balance each other: all ranks send if one has a gradient.
  aggregate,
};

/// The class of a method in GRACE's survey (Xu et al., ICDCS 2021, table 1); casts are ours.
enum class Method : uint8_t { none, cast, quantization, sparsification, hybrid, low_rank };

/// Maximum elements of a unit. Up to this number no size that a plan computes overflows.
inline constexpr uint64_t kMaxUnitCount = uint64_t{1} << 40;

/// The promises of a codec. Callers rely on them; the conformance suite tests them.
struct Contract {
  Merge merge = Merge::none;
  Feedback feedback = Feedback::never;
  MemoryKind memory_default = MemoryKind::none;  ///< default without a modifier
  float memory_factor = 0.9F;  ///< β of `ema` or μ of `momentum`, if it is the default
  uint8_t memories = memory_set(MemoryKind::none);  ///< supported kinds (memory_set)
  bool fused = false;          ///< encode updates Source::residual itself; requires Feedback::own
  bool checks_finite = false;  ///< encode detects non-finite input before it changes anything
  bool stochastic = false;     ///< draws from the rank's own random stream
  bool unbiased = false;       ///< E[decode(encode(x))] = x
  bool lossless = false;
  bool exact_values = true;  ///< erase leaves exactly zero at sent positions
  bool exact_size = true;    ///< every payload is exactly RoundPlan::bytes; else bytes is the bound
  bool whole_parameter = false;  ///< a parameter is never cut into owners' ranges (PowerSGD)
  /// A zero row of the matrix view decodes to zero, whatever the other rows are; in vectors and
  /// owners' ranges a row is one element.
  bool zero_stays_zero = false;
  float contraction = 0.0F;  ///< delta: |x − Q(x)|² ≤ (1 − delta)|x|² for every x; 0 = no promise
  uint32_t headroom = 0;               ///< contributors whose sum does not overflow; 0 = unlimited
  uint32_t granule = 1;                ///< owners' ranges start at multiples of it
  uint64_t max_count = kMaxUnitCount;  ///< maximum elements of a unit
};

/// A tensor to encode: a parameter, or one owner's range of it. Never a bucket.
struct Unit {
  uint64_t count = 0;      ///< elements
  uint64_t rows = 0;       ///< matrix view of a whole parameter: rows · cols == count
  uint64_t cols = 0;       ///< 1 for vectors and ranges (then rows == count)
  uint64_t parameter = 0;  ///< identity: hash of the parameter's name
  uint64_t offset = 0;     ///< first element inside the parameter: base of random counters
};

/// Rank, step and round of a call: the inputs of random streams and divisors.
struct Place {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint32_t hop = 0;       ///< 0: a rank's own gradient; 1: an owner's re-encoded mean
  float prescale = 1.0F;  ///< factor of output elements: 1/world before a 16-bit sum of an engine
};

enum class RoundKind : uint8_t {
  frame,      ///< bytes that peers decode
  lanes,      ///< elements of type `lane` that add, or quantized values of such
  agree_max,  ///< f32, gathered; their maximum is taken in rank order
};

struct RoundPlan {
  RoundKind kind = RoundKind::frame;
  DType lane = DType::f32;  ///< element type for `lanes`
  uint64_t bytes = 0;       ///< exact if Contract::exact_size or lanes, else the bound
  /// Expected size, at most `bytes`, and equal to it if the size is exact: within a quarter of the
  /// mean size for independent normal elements (at some scale of theirs if the size depends on
  /// that), after a warm-up. The same on every machine. 0 means `bytes`, which the table fills in.
  uint64_t expected = 0;
  /// For u8 or u16 elements in the last round: bits of a quantized value. encode packs `lanes`
  /// values without gaps, highest bit first, each block (granule) starting at a byte. Value c
  /// stands for CodecTable::table()[c]. The sum of Contract::headroom contributors does not
  /// overflow. 0: encode writes elements.
  uint8_t code_bits = 0;
  uint64_t lanes = 0;
  /// With code_bits: the number of 16-bit norms at the start of Work::kept. encode writes them;
  /// before decode and commit they hold the maximum over all contributors, 0 if there is none.
  uint64_t maxima = 0;
};

inline constexpr uint32_t kMaxRounds = 3;

/// Sizes of a unit's payload and memory: a pure function of (params, unit, world), known before any
/// data.
struct Plan {
  uint32_t rounds = 1;
  std::array<RoundPlan, kMaxRounds> round{};
  uint64_t state_floats = 0;  ///< state that outlives a step, saved with checkpoints
  /// An older release may have saved no such state: zeros are a fresh one.
  bool state_may_lack = false;
  uint64_t kept_bytes = 0;     ///< bytes lent from the first encode to commit (Work::kept)
  uint64_t scratch_bytes = 0;  ///< bytes lent for one call (Work::scratch)
  /// Magnitude of inputs up to which nothing overflows, whatever finite numbers the codec state
  /// holds: encode succeeds in every round; elements, the decoded payload and the new residual are
  /// finite. With feedback (unless fused) larger inputs are not passed to encode.
  float largest_input = std::numeric_limits<float>::max();
};

/// Memory and threads lent to a call. Both spans are 64-byte aligned and at least as large as
/// planned.
struct Work {
  MutBytes kept;
  MutBytes scratch;
  Isa isa = Isa::scalar;
  ThreadPool* pool = nullptr;  ///< null: calling thread only
};

/// Input of encode. `residual` null: encode `values`. Else (fused codecs only): encode a = values +
/// residual and set residual = a − decode(payload). The spans do not overlap.
struct Source {
  const float* values = nullptr;
  float* residual = nullptr;
};

struct Encoded {
  uint64_t bytes = 0;
  /// False if the input or an output is not finite (only with Contract::checks_finite, or in a
  /// later round). Nothing was changed, except a residual that itself exceeds Plan::largest_input.
  bool finite = true;
};

/// Number of contributors in a sum. One whose unit is all zero sends nothing and counts in the
/// divisor only.
struct Contributors {
  uint32_t added = 1;    ///< payloads in the sum
  uint32_t divisor = 1;  ///< contributors
};

/// One contributor's payload and its weight.
struct Term {
  Bytes payload;
  float weight = 1.0F;
  /// Not empty: `payload` is a sum of quantized values and decodes to the mean over the divisor.
  /// One entry per block (Contract::granule), or one for all.
  std::span<const Contributors> contributors{};
  /// Not empty: an entry per block of quantized values, 0 if the payload does not count there.
  std::span<const uint8_t> granules{};
  uint32_t rank = 0;  ///< rank that encoded the payload, for registered codecs
};

/// out_i = ((base_i + w0·d0_i) + w1·d1_i) + …, in the order given; base = out when `add`, else 0.
/// Each product and each sum is rounded to f32 on its own (no fused multiply-add).
struct Target {
  float* values = nullptr;
  bool add = false;
};

/// Identity of a codec. `id` is never reused; `version` counts payload formats.
struct CodecInfo {
  std::string_view name;
  uint16_t id = 0;
  uint8_t version = 1;
  std::string_view summary;
  std::string_view source;  ///< paper, equation
  Method method = Method::quantization;
};

/// Arguments of a codec's functions; `Params` is void where the codec's type is erased.
template <class Params = void>
struct Call {
  const Params* params;
  std::span<const float> state;  ///< state of the unit; empty in accept, decode, finish and erase
  const Unit& unit;
  const Place& place;
  uint32_t round = 0;  ///< round, for encode and accept
  Work& work;
};

/// A codec with its type erased: a constant table of function pointers, made by the registry.
struct CodecTable {
  CodecInfo info;
  std::span<const Field> fields;
  void (*defaults)(void* params);
  Contract (*contract)(const void* params);
  Plan (*plan)(const void* params, const Unit& unit, uint32_t world);
  /// Checks a payload; accepts any bytes. Precondition of decode.
  Errc (*check)(const void* params, const Unit& unit, uint32_t round, Bytes payload);
  /// Initial state of a unit. Null: zeros.
  void (*init)(const void* params, const Unit& unit, const Place& place, std::span<float> state);
  /// Derives constants from the parameters for exchanges among `world` ranks. Called before any
  /// other function. Null: nothing to derive.
  void (*prepare)(void* params, uint32_t world);
  /// Values of the quantized values in a sum, at most 16. Null if the codec has none.
  std::span<const uint8_t> (*table)(const void* params);

  Encoded (*encode)(const Call<>& call, Source source, MutBytes out);
  /// Called before the first round of summed elements, also if this rank's unit is all zero:
  /// returns the first round needed, given the codec state, the same on all ranks, and writes to
  /// Work::kept what skipped rounds would have. Null: 0.
  uint32_t (*start)(const Call<>& call);
  /// Called after every round but the last with its merged (summed, not yet divided) elements; may
  /// change `merged`. `contributors`: number of payloads in the sum.
  void (*accept)(const Call<>& call, MutBytes merged, uint32_t contributors);
  /// Decodes checked payloads of the last round. Cannot fail.
  void (*decode)(const Call<>& call, std::span<const Term> terms, Target target);
  /// Called after delivery. `sent`: this rank's payload of the last round; `merged`: that round's
  /// sum (empty for frames). The only function that writes state.
  void (*commit)(const Call<>& call, std::span<float> state, Bytes sent, Bytes merged,
                 uint32_t contributors);
  /// Turns the decoded sum of several contributors, each with weight 1, into the mean (votes).
  /// Called if a rank sent something. Null: the mean is linear, and contributors have weight 1/n.
  void (*finish)(const Call<>& call, std::span<float> mean);
  /// Sets the elements of a checked sparse payload to +0 in `values`, as decoding with weight −1
  /// would. Without Contract::exact_values used for momentum only. Null: by decode.
  void (*erase)(const Call<>& call, Bytes payload, float* values);
};

/// The requirements of a codec type; init, start, accept, commit, finish, erase, prepare and table
/// are optional. `Params` is trivially copyable and fits ParamBlock.
template <class C>
concept Codec = requires(typename C::Params params, const Call<typename C::Params>& call, Unit unit,
                         Source source, Target target, MutBytes out, Bytes in,
                         std::span<const Term> terms) {
  { C::info } -> std::convertible_to<CodecInfo>;
  {std::span<const Field>(C::fields)};
  { C::contract(params) } -> std::same_as<Contract>;
  { C::plan(params, unit, uint32_t{}) } -> std::same_as<Plan>;
  { C::encode(call, source, out) } -> std::same_as<Encoded>;
  { C::check(params, unit, uint32_t{}, in) } -> std::same_as<Errc>;
  {C::decode(call, terms, target)};
};

}  // namespace laconic
