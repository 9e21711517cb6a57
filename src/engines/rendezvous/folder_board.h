// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A folder that all ranks see as the place where a group keeps its values.
#pragma once

#include <string>
#include <utility>

#include "laconic/engine/rendezvous.h"

namespace laconic::rendezvous {

/// A file per key. Incomplete files do not count.
class FolderBoard final : public Board {
 public:
  explicit FolderBoard(std::string folder) : folder_(std::move(folder)) {}

  Result<std::string> put(const std::string& key, const std::string& value,
                          Deadline deadline) override;

  Result<std::string> get(const std::string& key, Deadline) override;

  [[nodiscard]] bool kept_by_rank_0() const noexcept override { return false; }

 private:
  /// Another rank has the key, and may still be writing.
  Result<std::string> settled(const std::string& key, Deadline deadline);
  [[nodiscard]] Error unusable(int error) const;

  std::string folder_;
};

}  // namespace laconic::rendezvous
