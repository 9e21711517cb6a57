// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A model's compressed communication on one rank, over any engine: what a C++ program holds.
// docs/guide/cpp.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/engine.h"
#include "laconic/error.h"
#include "laconic/parameter.h"
#include "laconic/rule.h"

struct laconic_codec_table;  // laconic/laconic.h

namespace laconic {

/// The same on all ranks, but for threads.
struct SessionOptions {
  /// "auto", or the strategy: "native_sum", "gather_all", "two_shot". Which codec allows which:
  /// docs/algorithms.md.
  std::string plan = "auto";
  /// Spec of the means, which then come down by two_shot; "": that of the contributions. Not for
  /// parameters whose rule has a spec of its own. Refused: another plan than "auto" and "two_shot",
  /// and a codec that needs more than one round.
  std::string down{};
  /// Parameters that get another spec than the call's. At most 31.
  std::vector<Rule> rules{};
  /// A law that moves settings while training runs: "dc2", "aimd", "schedule:0=0.25,200=0.01".
  std::string control{};
  /// File in which rank 0 records what ranks report and laws decide; "": none. What it holds,
  /// control "replay:FILE" repeats. docs/format/RECORD.md.
  std::string record{};
  uint64_t seed = 0;               ///< of everything random
  uint64_t small_elements = 4096;  ///< parameters of at most so many elements go uncompressed
  uint32_t threads = 1;            ///< of this rank's codecs; no bit depends on them
  /// Exchanges in flight at a time, 1 to 8: with 2, one is encoded while another is on the wire.
  uint32_t window = 2;
  /// Buckets are cut between parameters into parts of at most so many bytes of float32, each an
  /// exchange of its own; 0: not at all. No parameter is cut for it.
  uint64_t part = uint64_t{8} << 20U;
  /// Codecs of the program's own, which specs may name. What their contexts point to outlives the
  /// session.
  std::vector<const laconic_codec_table*> codecs{};
  /// A batch of the engine's that takes longer has failed.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// Other settings; what is not given stays.
struct SettingsChange {
  std::optional<std::string> spec{};
  std::optional<std::vector<Rule>> rules{};
  std::optional<std::string> control{};  ///< "fixed": none
  std::optional<std::string> plan{};
  std::optional<std::string> down{};  ///< "": none
};

/// Gradients that are there: parameters, by their places in the list of create, whose gradients lie
/// back to back in `gradient`.
struct Bucket {
  std::span<float> gradient;
  std::span<const uint32_t> parameters;
};

/// Averages gradients over all ranks of an engine, compressed. One thread at a time; explain() and
/// stats() at any time from any thread. Of one rank gradients pass through as they are.
class Session {
 public:
  /// All ranks together: they compare spec, parameters and options first, and where one differs, or
  /// cannot make its session, all get the same Error. The engine outlives the session.
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options = {});
  /// After the engine has failed its buffers are left to the engine, which may still use them.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// The mean over all ranks, in place. gradient: all parameters back to back, in the order of
  /// create; every rank calls it with the same steps. After an Error the gradient may hold
  /// anything; what has not been delivered lies in the residuals. `ranks_disagree`, a peer's
  /// trouble and local trouble (a wrong length, no memory) are every rank's Error, and the next
  /// step may go on. An Error of the engine itself is that of every later call, too; the
  /// gradient then has to live as long as the engine.
  Result<void> average(uint64_t step, std::span<float> gradient);

  /// The same, bucket by bucket, as soon as gradients are there: `submit` begins an exchange and
  /// returns while it is on the wire. Every rank submits the same buckets in the same order,
  /// each parameter once in a step, and at the end of the step calls wait(), after which all means
  /// are there. Until then the buckets' memory stays where it is. submit gives the Error of the
  /// engine, or of a bucket that has no place (exchange_order, invalid_argument: nothing was sent);
  /// wait() gives the first of all others.
  Result<void> submit(uint64_t step, const Bucket& bucket);
  Result<void> wait();

  /// All ranks together, between two steps: other settings from the next step on. Residuals stay.
  /// Where ranks differ, or one cannot (no memory, an unknown spec), all go on with those that they
  /// have, and get the same Error. Settings that have no place for residuals wait: these go out
  /// with the gradients of the next steps, as many as they are larger than the gradients (10 where
  /// nobody reports), and the step behind them begins with the new settings, or has their Error and
  /// is averaged by the old ones. A parameter without a gradient keeps its residual: they wait for
  /// it.
  /// Needs memory for both as long as it runs. Not with an aggregation server.
  Result<void> set(const SettingsChange& change);

  /// What this rank must keep to continue bit for bit: residuals, codec state, flush. Between two
  /// steps, on every rank after the same one. docs/format/STATE.md.
  [[nodiscard]] Result<std::vector<uint8_t>> save() const;
  /// Continues what this rank has saved. State that is damaged, or of another rank, world, model,
  /// spec or version, is refused and changes nothing; under native_sum that of another `part`, too:
  /// there the place of an element decides the last bit of its sum.
  Result<void> load(std::span<const uint8_t> state);

  /// Residuals go out with the gradients, an equal part in each of `steps` steps (1 to 65535); the
  /// first is the second step from now. One rank's call is enough.
  Result<void> flush(uint32_t steps = 10);
  /// As JSON: strategy, reasons, what each parameter costs (the keys of the C ABI).
  [[nodiscard]] std::string explain() const;
  /// As JSON: counts since create (the keys of the C ABI).
  [[nodiscard]] std::string stats() const;

 private:
  friend class Sharded;  // whose owners have turns
  struct Inner;
  using Values = std::span<const std::span<float>>;  // of parameters
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options,
                                                 const Values* values);
  explicit Session(std::unique_ptr<Inner> inner);
  std::unique_ptr<Inner> inner_;
};

}  // namespace laconic
