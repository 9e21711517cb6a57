// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A batch of steps as NCCL calls over one piece of memory, with what is copied in and out.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic::engines::nccl {

/// The first two areas are copied to the GPU, the last two back: one copy each.
enum class Area : uint8_t { sent, summed, received };
struct AreaOffset {
  Area area = Area::sent;
  uint64_t offset = 0;
};

enum class CallKind : uint8_t { all_reduce, all_gather, send, recv };
struct Call {
  CallKind kind = CallKind::all_reduce;
  DType dtype = DType::u8;
  uint32_t peer = 0;   // send, recv
  uint64_t count = 0;  // lanes or bytes; all_gather: of one rank
  AreaOffset from{};   // all but recv
  AreaOffset to{};     // all but send
};

/// Reused: after the largest batch nothing is allocated.
class BatchPlan {
 public:
  /// `exchange_order` for steps that no engine could execute, `unsupported` for other lanes than
  /// those of `caps`.
  Result<void> make(std::span<const Step> batch, uint32_t rank, uint32_t world, EngineCaps caps);

  [[nodiscard]] std::span<const Call> calls() const noexcept { return calls_; }
  [[nodiscard]] uint64_t bytes() const noexcept {
    return begin(Area::received) + size(Area::received);
  }
  /// All that is copied to the GPU, from 0 on.
  [[nodiscard]] uint64_t bytes_in() const noexcept { return begin(Area::received); }
  /// All that is copied back begins here, and goes to the end.
  [[nodiscard]] uint64_t out_begin() const noexcept { return begin(Area::summed); }
  [[nodiscard]] uint64_t at(AreaOffset place) const noexcept {
    return begin(place.area) + place.offset;
  }

  void copy_in(uint8_t* memory) const noexcept;
  void copy_out(const uint8_t* memory) const noexcept;
  /// A rank's bytes for itself, which do not travel.
  void copy_own() const noexcept;

 private:
  struct Copy {
    uint8_t* host;
    uint64_t bytes;
    AreaOffset place;
  };
  struct Own {
    const uint8_t* from;
    uint8_t* to;
    uint64_t bytes;
  };

  Result<void> add(const Step& step, uint32_t rank, uint32_t world, EngineCaps caps);
  Result<void> add_sum(const Step& step, EngineCaps caps);
  void add_gather(const Step& step, uint32_t rank, uint32_t world);
  void add_all_to_all(const Step& step, uint32_t rank, uint32_t world);
  Result<void> add_messages(const Step& step, uint32_t rank, uint32_t world);
  void send(const uint8_t* from, uint64_t bytes, uint32_t peer);
  void receive(uint8_t* to, uint64_t bytes, uint32_t peer);

  AreaOffset take(Area area, uint64_t bytes);
  [[nodiscard]] uint64_t size(Area a) const noexcept { return sizes_[static_cast<size_t>(a)]; }
  [[nodiscard]] uint64_t begin(Area area) const noexcept;

  std::array<uint64_t, 3> sizes_{};
  std::vector<Call> calls_;
  std::vector<Copy> in_, out_;
  std::vector<Own> own_;
};

}  // namespace laconic::engines::nccl
