// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The wire alone: the same batches with nothing to encode and nothing to decode. What is left of a
// call's time is the codec's (GRACE, Xu et al., ICDCS 2021, measures this bound for each method).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "laconic/engine.h"

namespace laconic::tools {

/// Hands everything on to an engine, and remembers which batches were begun and waited for.
class RecordedEngine final : public Engine {
 public:
  explicit RecordedEngine(Engine& engine) : engine_(engine) {}

  [[nodiscard]] uint32_t rank() const noexcept override { return engine_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_.caps(); }
  Result<void> run(std::span<const Step> batch) override { return engine_.run(batch); }
  Result<Ticket> start(std::span<const Step> batch) override;
  Result<void> wait(Ticket ticket, Deadline deadline) override;

  void forget() { events_.clear(); }
  /// Payload that this rank has sent to others since forget(), an all-reduce counted as a ring.
  [[nodiscard]] uint64_t sent_bytes() const;
  /// Takes memory for what has been recorded since forget().
  void prepare();
  /// The batches of the last prepare() with bytes of its own, in the same order.
  Result<void> replay(std::chrono::milliseconds timeout);

 private:
  struct Sizes {
    Step step;  ///< its spans point into the vectors
    std::vector<uint64_t> send_counts, send_offsets, recv_counts, recv_offsets;
    std::vector<Message> messages;
    std::vector<uint8_t> send, recv;
    explicit Sizes(const Step& of);
    void allocate();
  };
  /// The start of a batch, or without steps the wait for the one that was started as `batch`.
  struct Event {
    std::vector<std::unique_ptr<Sizes>> steps;
    uint64_t batch = 0;
  };

  Engine& engine_;
  std::vector<Event> events_, replayed_;
  uint32_t tag_ = 0;
};

}  // namespace laconic::tools
