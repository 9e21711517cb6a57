// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A model's compressed communication on one rank: what users hold. Owns the model's assignment,
// everything that is remembered between steps, one exchange per bucket layout, and the counts of
// what happened.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "collective/exchange/exchange.h"
#include "feedback/store.h"
#include "laconic/thread_pool.h"

namespace laconic::session {

struct Stats {
  uint64_t exchanges = 0;
  uint64_t steps = 0;        ///< distinct step numbers seen
  uint64_t elements = 0;     ///< elements exchanged
  uint64_t dense_bytes = 0;  ///< what a float32 ring all-reduce would have sent
  uint64_t fallbacks =
      0;  ///< exchanges that went out uncompressed because a gradient was not finite
  uint64_t flushes = 0;
  uint64_t failures = 0;
  double encode_seconds = 0;  ///< begin to the first step
  double decode_seconds = 0;  ///< all later work of ours
  collective::Counters counters;
};

inline constexpr uint64_t kAgreementBytes = 768;
using AgreementCard = std::array<uint8_t, kAgreementBytes>;

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<collective::Parameter> parameters,
                                                 const collective::Options& options);
  ~Session();

  [[nodiscard]] const collective::Model& model() const noexcept { return *model_; }
  [[nodiscard]] feedback::Store& store() noexcept { return store_; }
  [[nodiscard]] const feedback::Store& store() const noexcept { return store_; }
  [[nodiscard]] const Stats& stats() const noexcept { return stats_; }
  [[nodiscard]] feedback::StateHeader state_header() const;

  /// What this rank tells the others before the first exchange: spec, sizes, version.
  [[nodiscard]] AgreementCard agreement_card() const;
  /// `cards`: all ranks', in rank order. The same sentence on every rank when they differ.
  [[nodiscard]] Result<void> check_agreement(Bytes cards) const;

  /// The exchange of a bucket, ready for next(). Fails only for arguments that make no exchange
  /// possible; local trouble after that is told to the other ranks by the exchange itself.
  Result<collective::Exchange*> begin(const collective::Bucket& bucket,
                                      const collective::Layout& layout);
  Result<uint32_t> next(collective::Exchange& exchange, std::span<transport::Step> batch);
  void abort(collective::Exchange& exchange);

 private:
  Session() = default;
  [[nodiscard]] Result<void> check_layout(const collective::Layout& layout) const;
  collective::Exchange& exchange_for(const collective::Layout& layout);

  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<collective::Model> model_;
  std::unique_ptr<pipeline::UnitCodec> codec_;
  feedback::Store store_;
  std::unique_ptr<collective::RankState> state_;
  std::vector<std::unique_ptr<collective::Exchange>> exchanges_;
  Stats stats_;
  collective::Exchange* running_ = nullptr;
  uint32_t sequence_ = 0;
  uint64_t last_step_ = ~uint64_t{0};
  bool first_next_ = false;
};

/// Runs one exchange to its end on an engine: the driver of C++ programs, tests and virtual
/// workers.
Result<void> drive(Session& session, const collective::Bucket& bucket,
                   const collective::Layout& layout, transport::Engine& engine);

}  // namespace laconic::session
