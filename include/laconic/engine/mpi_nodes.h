// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The two engines of an MPI job whose hosts have several ranks each: for SessionOptions::inside.
// docs/guide/clusters.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "laconic/engine/mpi.h"

namespace laconic {

/// The ranks of a host are a node if there are at least two hosts with as many ranks each, at least
/// two; then inside() is over this rank's node, and across() over the ranks that have its place in
/// their nodes. Otherwise there is one level: across() is the whole job, inside() is null, and
/// why() says why. A host is a kernel with one network: two containers on a machine are two.
///
///   laconic::MpiNodes nodes(&argc, &argv);
///   laconic::SessionOptions options;
///   options.inside = nodes.inside();
///   auto session = laconic::Session::create("3lc", parameters, nodes.across(), options);
class MpiNodes {
 public:
  /// All processes of the job; initialises and finalises MPI as MpiEngine does. MpiOptions::host
  /// names this rank's node in place of what it finds. Failures are reported by status(), and by
  /// Session::create.
  MpiNodes(int* argc, char*** argv, MpiOptions options = {});
  /// The processes of a communicator; MPI must be initialised. Collective.
  explicit MpiNodes(MPI_Comm communicator, MpiOptions options = {});
  ~MpiNodes();
  MpiNodes(const MpiNodes&) = delete;
  MpiNodes& operator=(const MpiNodes&) = delete;

  /// Success, or why no engine can be used.
  [[nodiscard]] Result<void> status() const;
  [[nodiscard]] Engine& across() const noexcept { return across_ ? *across_ : *job_; }
  [[nodiscard]] Engine* inside() const noexcept { return inside_.get(); }
  /// Why there is one level; empty: there are two.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }
  /// The number of nodes; 1: there is one level.
  [[nodiscard]] uint32_t count() const noexcept { return across_ ? across_->world() : 1; }

 private:
  void divide(MPI_Comm communicator, MpiOptions options);

  std::unique_ptr<MpiEngine> job_;  // first: it finalises MPI
  std::unique_ptr<MpiEngine> across_, inside_;
  std::string why_;
  Result<void> status_;
};

}  // namespace laconic
