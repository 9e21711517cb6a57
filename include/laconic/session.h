// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Session: a model's compressed gradient exchange on one rank, over any engine. docs/guide/cpp.md.
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

/// Must be the same on all ranks, except `threads`, `codecs` and `inside`.
struct SessionOptions {
  /// Strategy: "auto", "native_sum", "gather_all" or "two_shot". docs/algorithms.md lists the
  /// strategies that each codec supports.
  std::string plan = "auto";
  /// Spec of the means that owners send; implies two_shot. "": as for contributions. Does not apply
  /// to parameters whose rule has its own spec. Error `unsupported`: another plan than "auto" and
  /// "two_shot", or a codec that needs several rounds.
  std::string down{};
  /// Parameters with another spec or control. At most 31.
  std::vector<Rule> rules{};
  /// Control policy that changes settings during training: "dc2", "aimd",
  /// "schedule:0=0.25,200=0.01". "": none.
  std::string control{};
  /// File in which rank 0 records reports and decisions; "": none. Control "replay:FILE" repeats
  /// its decisions. docs/format/RECORD.md.
  std::string record{};
  /// Ranks behind one port to the network: those of the host that has the most. The plan "auto"
  /// counts the bytes that leave a host. The number of ranks: all are on one host, and nothing
  /// leaves it.
  uint32_t ranks_per_host = 1;
  /// An engine over the ranks of this rank's node, where hosts have several ranks each; the engine
  /// of create is then that of the ranks with the same place in their nodes. Ranks of a node make
  /// the mean of their gradients, each of one shard; only shards travel between nodes. Every node
  /// has as many ranks. Must outlive the session. Null, or of one rank: every rank exchanges the
  /// whole gradient. Error `unsupported`: aggregation servers, `codecs`, Sharded.
  Engine* inside = nullptr;
  /// Buckets, codecs and residuals are in the memory of this GPU, an index of CUDA's; gradients
  /// must be complete there when they are given. Ranks may differ. Error `unsupported`: no driver,
  /// a spec without kernels, a plan that adds lanes, control, record, inside, Sharded.
  std::optional<uint32_t> gpu{};
  uint64_t seed = 0;               ///< seed for all random streams
  uint64_t small_elements = 4096;  ///< parameters of at most this size are sent uncompressed
  uint32_t threads = 1;            ///< for encoding and decoding; results do not depend on it
  /// Exchanges in flight at a time, 1 to 8: with 2, one is encoded while another is sent.
  uint32_t window = 2;
  /// Maximum bytes of float32 per exchange: larger buckets are cut between parameters, never inside
  /// one. 0: not cut.
  uint64_t part = uint64_t{8} << 20U;
  /// Codecs of the program, which specs may name. Their contexts must outlive the session.
  std::vector<const laconic_codec_table*> codecs{};
  /// Timeout of one batch of the engine.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// New settings; empty members are unchanged.
struct SettingsChange {
  std::optional<std::string> spec{};
  std::optional<std::vector<Rule>> rules{};
  std::optional<std::string> control{};  ///< "fixed": none
  std::optional<std::string> plan{};
  std::optional<std::string> down{};  ///< "": none
};

/// Available gradients: indices into the parameter list of create, and their gradients, contiguous
/// in `gradient` in that order.
struct Bucket {
  std::span<float> gradient;
  std::span<const uint32_t> parameters;
};

/// Averages gradients over all ranks of an engine, compressed. Use it from one thread at a time;
/// explain() and stats() may be called from any thread at any time. With one rank gradients stay as
/// they are.
class Session {
 public:
  /// Collective. Errors: if spec, parameters or options differ, or one rank cannot create its
  /// session, all ranks get the same Error. The engine must outlive the session.
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options = {});
  /// After a failure of the engine its buffers are not freed: the engine may still use them.
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  /// Replaces `gradient` by its mean over all ranks. gradient: all parameters, contiguous, in the
  /// order of create. Every rank calls it with the same step.
  ///
  /// Errors: on every rank for `ranks_disagree`, a peer's failure and a local failure (a wrong
  /// length, out of memory); the next step may run. After an Error the contents of `gradient` are
  /// undefined, and undelivered gradients are in the residuals. An Error of the engine is returned
  /// by every later call; `gradient` must then live as long as the engine.
  Result<void> average(uint64_t step, std::span<float> gradient);

  /// The same per bucket, as soon as gradients are available: `submit` begins an exchange and
  /// returns while it runs. Every rank submits the same buckets in the same order, each parameter
  /// once per step, and calls wait() at the end of the step, after which all means are in place.
  /// Until then the buckets' memory must stay valid. submit returns the Error of the engine, or of
  /// an invalid bucket (exchange_order, invalid_argument: nothing was sent); wait() returns the
  /// first of all other Errors.
  Result<void> submit(uint64_t step, const Bucket& bucket);
  Result<void> wait();

  /// Changes settings from the next step on. Collective, between two steps. Residuals are kept. If
  /// ranks differ, or one cannot change (out of memory, an unknown spec), all keep their settings
  /// and get the same Error. If the new settings cannot keep residuals, these are sent first with
  /// the gradients of the next steps (10 if ranks send no reports); the step after that uses the
  /// new settings, or returns their Error and is averaged with the old ones. A parameter without a
  /// gradient keeps its residual and delays the change.
  /// Needs memory for both settings while it runs. Error `unsupported` with an aggregation server.
  Result<void> set(const SettingsChange& change);

  /// The state from which this rank continues bit for bit: residuals, codec state, flush. Call it
  /// between two steps, on every rank after the same step. docs/format/STATE.md.
  [[nodiscard]] Result<std::vector<uint8_t>> save() const;
  /// Restores this rank's saved state. Errors state_*: damaged, or from another rank, world, model,
  /// spec or version; under native_sum also from another `part`, because the position of an element
  /// decides the last bit of its sum. Nothing is changed then.
  Result<void> load(std::span<const uint8_t> state);

  /// Sends residuals with the gradients, an equal part in each of `steps` steps (1 to 65535),
  /// starting with the second step from now. One rank's call is enough.
  Result<void> flush(uint32_t steps = 10);
  /// JSON: strategy, reasons and costs of each parameter, with the keys of the C ABI.
  [[nodiscard]] std::string explain() const;
  /// JSON: counters since create, with the keys of the C ABI.
  [[nodiscard]] std::string stats() const;

 private:
  friend class Sharded;  // sets owner_turns
  struct Inner;
  using Values = std::span<const std::span<float>>;  // one span per parameter
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options,
                                                 const Values* values);
  explicit Session(std::unique_ptr<Inner> inner);
  std::unique_ptr<Inner> inner_;
};

}  // namespace laconic
