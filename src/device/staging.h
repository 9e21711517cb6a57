// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <span>

#include "device/program.h"

namespace laconic::device {

/// Copies between a GPU's memory and the host's, of any kind, through a pinned buffer. Every call
/// waits until it is done. May be shared by threads.
class Staging {
 public:
  struct Piece {
    void* host = nullptr;
    void* there = nullptr;
    uint64_t bytes = 0;
  };
  static constexpr uint64_t kBuffer = uint64_t{1} << 20U;

  /// `buffer`: bytes of the pinned one.
  static Result<std::unique_ptr<Staging>> create(std::shared_ptr<const Program> program,
                                                 uint64_t buffer = kBuffer);
  [[nodiscard]] const std::shared_ptr<const Program>& program() const noexcept { return program_; }
  [[nodiscard]] const GpuRef& gpu() const noexcept { return program_->gpu(); }

  Result<void> down(std::span<const Piece> pieces) const { return run(pieces, true); }
  Result<void> up(std::span<const Piece> pieces) const { return run(pieces, false); }
  Result<void> down(void* host, const void* there, uint64_t bytes) const {
    const Piece piece{host, const_cast<void*>(there), bytes};
    return down({&piece, 1});
  }
  Result<void> up(void* there, const void* host, uint64_t bytes) const {
    const Piece piece{const_cast<void*>(host), there, bytes};
    return up({&piece, 1});
  }
  /// Inside the GPU's memory.
  Result<void> copy(void* to, const void* from, uint64_t bytes) const;
  Result<void> clear(void* there, uint64_t bytes) const;

 private:
  Staging(std::shared_ptr<const Program> program, Memory buffer, Stream stream)
      : program_(std::move(program)), buffer_(std::move(buffer)), stream_(std::move(stream)) {}
  Result<void> run(std::span<const Piece> pieces, bool down) const;

  std::shared_ptr<const Program> program_;
  mutable std::mutex mutex_;  // guards buffer_
  Memory buffer_;
  Stream stream_;  // ends first: it waits
};

}  // namespace laconic::device
