// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An engine of the caller's, as a table of callbacks.
#pragma once

#include "capi/boundary.h"
#include "laconic/engine.h"

namespace laconic::capi {

class TableEngine final : public Engine {
 public:
  TableEngine(const laconic_engine_table& table, const EngineCaps& caps) noexcept
      : table_(table), caps_(caps) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return table_.rank; }
  [[nodiscard]] uint32_t world() const noexcept override { return table_.world; }
  [[nodiscard]] EngineCaps caps() const noexcept override { return caps_; }
  Result<void> run(std::span<const Step> batch) override;
  Result<Ticket> start(std::span<const Step> batch) override;
  Result<void> wait(Ticket ticket, Deadline deadline) override;

  void settle(Ticket ticket) noexcept;
  [[nodiscard]] double completed() const noexcept;
  [[nodiscard]] std::chrono::milliseconds timeout() const noexcept;

 private:
  laconic_engine_table table_;
  EngineCaps caps_;
};

/// Reads the caller's table. Returns 0, or the code of what is wrong.
int32_t read_table(const laconic_engine_table* theirs, laconic_engine_table* table);
/// A code that is not of a failure of docs/format/ERRORS.md is internal.
Error to_error(const laconic_failure& failure);

}  // namespace laconic::capi
