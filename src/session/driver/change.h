// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Other settings for all ranks, at once or when residuals have gone out.
#pragma once

#include <optional>
#include <string_view>

#include "laconic/session.h"
#include "session/driver/agreement.h"
#include "session/driver/node_link.h"
#include "session/driver/window.h"

namespace laconic::session {

class SettingsOfAll {
 public:
  /// Throws bad_alloc.
  SettingsOfAll(Session& session, Window& window)
      : session_(&session), window_(&window), cards_(session.model().options().world) {}

  /// Ranks of a node change settings together; null: there are no others.
  void set_node(NodeLink* node) noexcept { node_ = node; }
  /// Name of the operation in error messages.
  void name(std::string_view what) noexcept { what_ = what; }
  /// See Driver::set.
  Result<bool> set(const SettingsChange& change, const Error* trouble);
  Result<bool> set_what_waits();
  [[nodiscard]] bool waits() const noexcept { return waiting_.has_value(); }

 private:
  Result<void> prepare(const SettingsChange& change);
  Result<bool> compare(Result<void> prepared);
  Result<bool> done(Result<bool> compared);

  Session* session_;
  Window* window_;
  Cards cards_;
  NodeLink* node_ = nullptr;
  std::string_view what_;
  std::optional<SettingsChange> waiting_;  // until residuals have gone out
};

}  // namespace laconic::session
