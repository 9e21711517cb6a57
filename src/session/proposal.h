// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Proposal: new settings, between two steps. Every rank prepares them, sends its card to the
// others, successful or not, and ends with the cards of all ranks. New and current settings exist
// side by side until all ranks are ready; then they are swapped, which takes no memory and cannot
// fail.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "session/agreement.h"

namespace laconic::session {

class Session;

/// The settings to change; empty members are unchanged.
struct Change {
  std::optional<std::string_view> spec{};
  std::optional<std::span<const Rule>> rules{};
  std::optional<std::string_view> control{};
  std::optional<std::string_view> plan{};  ///< a strategy's name
  std::optional<std::string_view> down{};  ///< "": none
};

class Proposal {
 public:
  explicit Proposal(Session& session) noexcept : session_(&session) {}

  /// Allocates all memory of the new settings; current ones stay in force. Its Error is also in the
  /// card. Fails while exchanges run, with an aggregation server, and with residuals_left while
  /// residuals are not zero that the settings cannot keep.
  Result<void> prepare(const Change& change);
  /// Instead: this rank has no settings to prepare. `failure`: a failure_card().
  void refuse(const AgreementCard& failure);
  [[nodiscard]] const AgreementCard& card() const noexcept { return card_; }
  /// A change was prepared, or could not be, and has not been ended.
  [[nodiscard]] bool open() const noexcept { return open_; }
  /// Applies the settings if all ranks are ready for the same ones. Otherwise all continue as
  /// before, with the same Error; after residuals_left residuals are flushed, in a number of steps
  /// that follows from their size. `what`: as in check_failures.
  Result<void> end(Bytes cards, std::string_view what = {});

 private:
  [[nodiscard]] Result<std::unique_ptr<Active>> make(const Change& change) const;
  void put_in_force() noexcept;

  Session* session_;
  std::unique_ptr<Active> next_;
  AgreementCard card_{};
  bool open_ = false;
};

}  // namespace laconic::session
