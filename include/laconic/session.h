// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A model's compressed communication on one rank, over any engine: what a C++ program holds.
// docs/guide/cpp.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/engine.h"
#include "laconic/error.h"
#include "laconic/parameter.h"

namespace laconic {

/// The same on all ranks, but for threads.
struct SessionOptions {
  /// "auto", or the strategy: "native_sum", "gather_all", "two_shot". Which codec allows which:
  /// docs/algorithms.md.
  std::string plan = "auto";
  uint64_t seed = 0;               ///< of everything random
  uint64_t small_elements = 4096;  ///< parameters of at most so many elements go uncompressed
  uint32_t threads = 1;            ///< of this rank's codecs; no bit depends on them
  /// A batch of the engine's that takes longer has failed.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// Averages gradients over all ranks of an engine, compressed. One thread at a time; explain() and
/// stats() at any time from any thread.
class Session {
 public:
  /// All ranks together: they compare spec, parameters and options first, and where one differs, or
  /// cannot make its session, all get the same Error. The engine outlives the session.
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options = {});
  /// After a batch has timed out its buffers are left to the engine, which may still use them.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The mean over all ranks, in place. gradient: all parameters back to back, in the order of
  /// create; every rank calls it with the same steps. After an Error the gradient may hold
  /// anything; what has not been delivered lies in the residuals. `ranks_disagree`, a peer's
  /// trouble and local trouble (a wrong length, no memory) are every rank's Error, and the next
  /// step may go on. An Error of the engine itself is that of every later call, too; after
  /// `timed_out` the gradient has to live as long as the engine.
  Result<void> average(uint64_t step, std::span<float> gradient);

  /// Residuals go out with the gradients, an equal part in each of `steps` steps (1 to 65535); the
  /// first is the second step from now. One rank's call is enough.
  Result<void> flush(uint32_t steps = 10);
  /// As JSON: strategy, reasons, what each parameter costs (the keys of the C ABI).
  [[nodiscard]] std::string explain() const;
  /// As JSON: counts since create (the keys of the C ABI).
  [[nodiscard]] std::string stats() const;

 private:
  struct Inner;
  explicit Session(std::unique_ptr<Inner> inner);
  std::unique_ptr<Inner> inner_;
};

}  // namespace laconic
