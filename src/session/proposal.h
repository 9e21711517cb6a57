// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Other settings, between two steps: every rank prepares, tells the others its card, whether it
// could or not, and ends with the cards of all. What comes stands beside what is in force until all
// ranks have it; then the two change places, which takes no memory and cannot fail.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "session/agreement.h"

namespace laconic::session {

class Session;

/// What is to change; what is not given stays.
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

  /// Takes all memory that the settings need beside those in force, which stay. Its Error is in the
  /// card, too. Refused while exchanges run, by an aggregation server, and while residuals are not
  /// zero for which the settings have no place: residuals_left.
  Result<void> prepare(const Change& change);
  /// Instead: this rank has no settings to prepare, and why.
  void refuse(const Error& why);
  [[nodiscard]] const AgreementCard& card() const noexcept { return card_; }
  /// A change was prepared, or could not be, and has not been ended.
  [[nodiscard]] bool open() const noexcept { return open_; }
  /// Where all ranks are ready for the same, it is in force from now on. Otherwise all go on as
  /// before, with one Error; behind residuals_left they are flushed, in as many steps as they are
  /// larger than the gradients. `what`: as of check_failures.
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
