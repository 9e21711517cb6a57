// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A strategy is an exchange as a state machine without I/O: it names collectives and says what
// their results mean. The same objects are driven by threads in one process, by torch.distributed
// from Python, later by a simulator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "collective/exchange/rank_state.h"
#include "laconic/error.h"
#include "transport/step.h"

namespace laconic::collective {

/// Which parameters lie where in a bucket. Only transport: no value depends on it, except
/// engine-added float sums.
struct Layout {
  std::vector<uint32_t> parameters;
  std::vector<uint64_t> offsets;  ///< in elements, by position in `parameters`
  uint64_t elements = 0;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// One exchange's input. `gradient` is float32 (widened if the bucket is not) and takes the mean at
/// the end.
struct Input {
  float* gradient = nullptr;
  uint64_t step = 0;
  uint32_t sequence = 0;           ///< exchanges since attach: the same on all ranks
  uint32_t bucket = 0;             ///< for messages
  const Error* failure = nullptr;  ///< this rank has failed already: tell the others
};

enum class Verdict : uint8_t {
  steps,     ///< execute the batch, then ask again
  done,      ///< the mean is in the gradient buffer, state is committed
  take_raw,  ///< some rank's gradient is not finite: undone on every rank, the bucket has to go out
             ///< uncompressed
};

struct Next {
  Verdict verdict = Verdict::done;
  uint32_t steps = 0;
};

/// Counted by strategies, read by the session.
struct Counters {
  uint64_t wire_bytes = 0;  ///< sent to other ranks; a ring is assumed for engine sums
  uint64_t rounds = 0;      ///< collectives issued
  uint64_t overflow_repeats =
      0;  ///< rounds repeated because a payload outgrew its predicted capacity
  uint64_t zero_units = 0;
  uint64_t non_finite_units = 0;
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Encodes. Never fails: what fails locally is told to the others by next().
  virtual void begin(const Input& input) = 0;
  /// Errors (a peer's failure, hostile bytes) come after everything undelivered was put back.
  virtual Result<Next> next(std::span<transport::Step> batch) = 0;
  /// The engine failed, or a peer did: residuals take back the own payloads. Idempotent.
  virtual void put_back() = 0;
};

std::unique_ptr<Strategy> make_native_sum(RankState& state, const Layout& layout,
                                          Counters& counters);
std::unique_ptr<Strategy> make_gather_all(RankState& state, const Layout& layout,
                                          Counters& counters);
std::unique_ptr<Strategy> make_two_shot(RankState& state, const Layout& layout, Counters& counters);

}  // namespace laconic::collective
