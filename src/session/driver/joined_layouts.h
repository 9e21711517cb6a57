// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which layouts of short parts were joined in this step and in the one before: the buffers of those
// that came in neither are freed.
#pragma once

#include <vector>

#include "session/session.h"

namespace laconic::session {

/// Takes all its memory when it is made.
class JoinedLayouts {
 public:
  explicit JoinedLayouts(size_t parameters);
  /// `session`: of which what has no place any more is freed.
  void add(const collective::LayoutView& layout, DType dtype, Session& session);
  void end_step(Session& session);
  /// The session has none of them any more.
  void clear() noexcept;

 private:
  /// Layouts in sequence; a step has every parameter once.
  struct Step {
    struct Entry {
      size_t begin, end;
      uint64_t elements;
      DType dtype;
    };
    std::vector<uint32_t> parameters;
    std::vector<uint64_t> offsets;
    std::vector<Entry> entries;

    [[nodiscard]] collective::LayoutView view(const Entry& entry) const;
    [[nodiscard]] bool has(const collective::LayoutView& layout, DType dtype) const;
    void clear() noexcept;
  };
  static bool same(const collective::LayoutView& a, const collective::LayoutView& b) noexcept;

  size_t room_;
  Step now_, before_, oldest_;
};

}  // namespace laconic::session
