// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by the parts of engine_table.h: running batches, and noting what is wrong.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine_table.h"
#include "laconic/engine.h"

namespace laconic::test {

using Memory = std::vector<uint8_t>;
using Found = std::optional<std::string>;  // what is wrong; nothing: as it should be

/// Runs batches and notes what is wrong. The engine's own failure ends the table.
class Table {
 public:
  Table(Engine& engine, const TableOptions& options) : engine_(engine), options_(options) {}

  [[nodiscard]] uint32_t me() const { return engine_.rank(); }
  [[nodiscard]] uint32_t world() const { return engine_.world(); }
  [[nodiscard]] EngineCaps caps() const { return engine_.caps(); }
  [[nodiscard]] const TableOptions& options() const { return options_; }
  [[nodiscard]] bool dead() const { return dead_; }
  TableOutcome& outcome() { return outcome_; }

  void begin(std::string name) {
    name_ = std::move(name);
    failed_ = false;
    ++outcome_.cases;
  }
  /// A case fails once.
  void check(const Found& wrong) {
    if (!wrong || failed_) return;
    failed_ = true;
    ++outcome_.failures;
    if (outcome_.first_failure.empty())
      outcome_.first_failure = name_ + ", rank " + std::to_string(me()) + ": " + *wrong;
  }
  Result<Ticket> start(std::span<const Step> batch) {
    auto ticket = engine_.start(batch);
    if (!ticket) died("start", ticket.error());
    return ticket;
  }
  bool wait(Ticket ticket) {
    const auto done = engine_.wait(ticket, std::chrono::steady_clock::now() + options_.timeout);
    if (!done) died("wait", done.error());
    return done.ok();
  }
  bool run(std::span<const Step> batch) {
    const auto ticket = start(batch);
    return ticket && wait(*ticket);
  }
  void died(const char* where, const Error& why) {
    dead_ = true;
    check(std::string(where) + " gave " + std::string(errc_name(why.code)) + ": " + why.message);
  }

 private:
  Engine& engine_;
  TableOptions options_;
  TableOutcome outcome_;
  std::string name_;
  bool failed_ = false;
  bool dead_ = false;
};

Found differs(const Memory& expected, const Memory& found, const std::string& what);
/// bound 0: bit for bit, but one NaN is as good as another.
Found differs(std::span<const float> expected, std::span<const float> found, double bound,
              const std::string& what);

/// Steps of every kind, alone and in batches, without a session.
void raw_steps(Table& table);

}  // namespace laconic::test
