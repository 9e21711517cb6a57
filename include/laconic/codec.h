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

/// Which part of an exchange error feedback takes out of the residual.
enum class Feedback : uint8_t {
  never,  ///< harmful or meaningless; +ef is refused
  own,    ///< the rank's own decoded payload: e ← a − Q(a)
  /// The decoded mean: e_i ← a_i − mean (PowerSGD); conserved in the sum over ranks. What one rank
  /// holds is balanced by what others hold: all ranks send if any of them has a gradient.
  aggregate,
};

/// The class of a method in GRACE's survey (Xu et al., ICDCS 2021, table 1); casts are ours.
enum class Method : uint8_t { none, cast, quantization, sparsification, hybrid, low_rank };

/// Elements of the largest unit. Up to here no size that a plan computes wraps.
inline constexpr uint64_t kMaxUnitCount = uint64_t{1} << 40;

/// What a codec promises. Everything else reads it; the conformance suite holds the codec to it.
struct Contract {
  Merge merge = Merge::none;
  Feedback feedback = Feedback::never;
  MemoryKind memory_default = MemoryKind::none;  ///< unless the spec has a modifier
  float memory_factor = 0.9F;  ///< β of `ema`, μ of `momentum` where memory_default is one of them
  uint8_t memories = memory_set(MemoryKind::none);  ///< those that it may have (memory_set)
  bool fused = false;          ///< encode updates Source::residual itself; requires Feedback::own
  bool checks_finite = false;  ///< encode detects non-finite input before it changes anything
  bool stochastic = false;     ///< draws from the rank's own random stream
  bool unbiased = false;       ///< E[decode(encode(x))] = x
  bool lossless = false;
  bool exact_values = true;  ///< with erase: of a place that was sent nothing stays behind
  bool exact_size = true;    ///< every payload is exactly RoundPlan::bytes; else bytes is the bound
  bool whole_parameter = false;  ///< a parameter is never cut into owners' ranges (PowerSGD)
  /// A row of the matrix view whose input is zero decodes to zero, whatever the other rows hold: of
  /// a vector, or of an owner's range, that is an element.
  bool zero_stays_zero = false;
  float contraction = 0.0F;  ///< delta: |x − Q(x)|² ≤ (1 − delta)|x|² for every x; 0 = no promise
  uint32_t headroom = 0;               ///< contributors before lanes overflow; 0 = unlimited
  uint32_t granule = 1;                ///< owners' cuts fall on multiples of it
  uint64_t max_count = kMaxUnitCount;  ///< elements of the largest unit that it can index
};

/// What is encoded as one tensor: a parameter, or one owner's range of it. Never a bucket.
struct Unit {
  uint64_t count = 0;      ///< elements
  uint64_t rows = 0;       ///< matrix view of a whole parameter: rows · cols == count
  uint64_t cols = 0;       ///< 1 for vectors and ranges (then rows == count)
  uint64_t parameter = 0;  ///< identity: hash of the parameter's name
  uint64_t offset = 0;     ///< first element inside the parameter: base of random counters
};

/// Where and when: everything that a random stream or a divisor may depend on.
struct Place {
  uint64_t seed = 0;
  uint64_t step = 0;
  uint32_t rank = 0;
  uint32_t world = 1;
  uint32_t hop = 0;       ///< 0: a rank's own gradient; 1: an owner's re-encoded mean
  float prescale = 1.0F;  ///< of output lanes: 1/world when an engine's 16-bit sum follows
};

enum class RoundKind : uint8_t {
  frame,      ///< bytes that peers decode
  lanes,      ///< elements of type `lane` that an engine (or we) may add, or codes of such
  agree_max,  ///< f32 gathered and reduced by us in rank order
};

struct RoundPlan {
  RoundKind kind = RoundKind::frame;
  DType lane = DType::f32;  ///< for lanes
  uint64_t bytes = 0;  ///< exact size when Contract::exact_size (always for lanes), else the bound
  /// What to reckon with, at most `bytes` and equal to it where the size is exact: to a quarter,
  /// the mean size for independent normal elements, at some scale of theirs if it depends on that,
  /// and after a warm-up. The same on every machine. A codec that leaves it at 0 means `bytes`: the
  /// table fills it in.
  uint64_t expected = 0;
  /// For lanes of u8 or u16 in the last round: encode writes `lanes` codes of so many bits, the
  /// highest bit first, without gaps, a granule's from a byte's start on. Code c stands for the
  /// lane CodecTable::table()[c]. The sum of Contract::headroom contributors does not overflow.
  /// 0: encode writes lanes.
  uint8_t code_bits = 0;
  uint64_t lanes = 0;
  /// With code_bits: so many 16-bit numbers, which encode leaves at the start of Work::kept and
  /// finds there (before decode and commit) as their largest over all contributors, 0 for none.
  uint64_t maxima = 0;
};

inline constexpr uint32_t kMaxRounds = 3;

/// Pure function of (params, unit, world): known before any data.
struct Plan {
  uint32_t rounds = 1;
  std::array<RoundPlan, kMaxRounds> round{};
  uint64_t state_floats = 0;  ///< state that outlives a step, saved with checkpoints
  /// Zeros are a fresh state, and what an older release saved without it loads, too.
  bool state_may_lack = false;
  uint64_t kept_bytes = 0;     ///< lent to this unit from the first encode to commit (Work::kept)
  uint64_t scratch_bytes = 0;  ///< lent for one call (Work::scratch)
  /// Up to this magnitude of its inputs nothing overflows, whatever finite numbers the codec state
  /// holds: every round's encode succeeds; lanes, the decoded payload and what feedback leaves are
  /// finite. With feedback (unless it is fused) larger inputs are not given to encode.
  float largest_input = std::numeric_limits<float>::max();
};

/// Memory and means lent to a call. Both spans are 64-byte aligned and no smaller than planned.
struct Work {
  MutBytes kept;
  MutBytes scratch;
  Isa isa = Isa::scalar;
  ThreadPool* pool = nullptr;  ///< null: calling thread only
};

/// Input of encode. `residual` null: encode `values` as they are. Else (fused codecs only) encode
/// a = values + residual and leave residual = a − decode(payload). The spans do not overlap.
struct Source {
  const float* values = nullptr;
  float* residual = nullptr;
};

struct Encoded {
  uint64_t bytes = 0;
  /// False (only with Contract::checks_finite, or in a later round): the input or an output is not
  /// finite. Nothing was changed, but for a residual that itself holds something beyond
  /// Plan::largest_input.
  bool finite = true;
};

/// Who is in summed lanes. A contributor whose unit is all zero sends nothing: it counts in the
/// divisor only.
struct Contributors {
  uint32_t added = 1;    ///< payloads in the sum
  uint32_t divisor = 1;  ///< contributors
};

/// One contributor's payload and its weight.
struct Term {
  Bytes payload;
  float weight = 1.0F;
  /// Not empty: `payload` is the sum of lanes that codes stand for, and decodes to the mean
  /// over the divisor. By granule (Contract::granule), or one for all.
  std::span<const Contributors> contributors{};
  /// Of codes; not empty: by granule, 0 where the payload is to be left out of the output.
  std::span<const uint8_t> granules{};
  uint32_t rank = 0;  ///< whose payload it is, for registered codecs
};

/// out_i = ((base_i + w0·d0_i) + w1·d1_i) + …, in the order given; base = out when `add`, else 0.
/// Each product and each sum is rounded to f32 on its own (no fused multiply-add).
struct Target {
  float* values = nullptr;
  bool add = false;
};

/// Name card of a codec. `id` is never reused; `version` counts payload formats.
struct CodecInfo {
  std::string_view name;
  uint16_t id = 0;
  uint8_t version = 1;
  std::string_view summary;
  std::string_view source;  ///< paper, equation
  Method method = Method::quantization;
};

/// What a codec's functions are called with; `Params` is void where the codec's type is erased.
template <class Params = void>
struct Call {
  const Params* params;
  std::span<const float> state;  ///< the unit's; empty in accept, decode, finish and erase
  const Unit& unit;
  const Place& place;
  uint32_t round = 0;  ///< of encode and accept
  Work& work;
};

/// A codec behind one constant table of function pointers, which the registry makes of a type.
struct CodecTable {
  CodecInfo info;
  std::span<const Field> fields;
  void (*defaults)(void* params);
  Contract (*contract)(const void* params);
  Plan (*plan)(const void* params, const Unit& unit, uint32_t world);
  /// Total: every byte string gives an answer. decode's precondition.
  Errc (*check)(const void* params, const Unit& unit, uint32_t round, Bytes payload);
  /// Starting state of a unit; zeros for a codec that has no init.
  void (*init)(const void* params, const Unit& unit, const Place& place, std::span<float> state);
  /// Derives from the parameters what the other functions need, for exchanges among `world` ranks.
  /// Called before any of them. Null: nothing to derive.
  void (*prepare)(void* params, uint32_t world);
  /// The value that a code stands for in a sum, by code, at most 16. Null where there are no codes.
  std::span<const uint8_t> (*table)(const void* params);

  Encoded (*encode)(const Call<>& call, Source source, MutBytes out);
  /// Before the first round of an exchange by lanes, also where this rank's unit is all zero: the
  /// first round that is needed, given what earlier exchanges left in the codec state, the same on
  /// all ranks. Puts into Work::kept what the rounds before it would have. Null: 0.
  uint32_t (*start)(const Call<>& call);
  /// After every round but the last: takes in the merged (summed, not yet divided) lanes of that
  /// round. May change `merged` in place. `contributors` is how many payloads were added.
  void (*accept)(const Call<>& call, MutBytes merged, uint32_t contributors);
  /// Decodes payloads of the last round (all checked). Cannot fail.
  void (*decode)(const Call<>& call, std::span<const Term> terms, Target target);
  /// After delivery. `sent`: the rank's own payload of the last round; `merged`: that round's
  /// summed lanes (empty for frames). The only function that writes state.
  void (*commit)(const Call<>& call, std::span<float> state, Bytes sent, Bytes merged,
                 uint32_t contributors);
  /// Makes a mean of what the decoded sum of several contributors, each with weight 1, is: a vote.
  /// Called when anybody sent. Null: the mean is linear, contributors have weight 1/n.
  void (*finish)(const Call<>& call, std::span<float> mean);
  /// Sets the elements that a sparse payload (checked) holds to +0 in `values`, the unit's: what
  /// decoding with weight −1 would do to what was encoded. Without Contract::exact_values this is
  /// for a momentum alone. Null: by decode.
  void (*erase)(const Call<>& call, Bytes payload, float* values);
};

/// What a codec type has to have; init, start, accept, commit, finish, erase, prepare and table
/// where it needs them. `Params` is trivially copyable and fits ParamBlock.
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
