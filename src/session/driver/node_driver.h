// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// NodeDriver: in front of a driver that exchanges one shard of a model with other nodes (decision
// 0055). It makes the node's mean of this rank's shard before an exchange begins, and collects the
// means of all shards after it has ended. Takes all its memory when it is made.
//
// Ranks of a node meet at places that follow from the order and sizes of whole buckets, the same on
// all of them: in(i) when piece i begins; out(i) when the window has no place for it beside later
// long ones, or at the end of the step. Shards differ in size, and so do their drivers' own places.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "session/driver/driver.h"
#include "session/driver/node_link.h"

namespace laconic::session {

class NodeDriver final : public Listener {
 public:
  /// Throws bad_alloc.
  NodeDriver(Session& session, Engine& inside, std::chrono::milliseconds timeout);
  /// Before anything else: the driver that has this as its listener.
  void stand_before(Driver& driver) noexcept { driver_ = &driver; }

  [[nodiscard]] NodeLink& link() noexcept { return link_; }
  /// Takes a bucket of whole parameters, back to back; the memory of `gradient` must stay valid
  /// until finish(). Null: this rank cannot bring it, for which how.trouble is the reason. Gives
  /// only the Error of a bucket of which nothing was sent; all others are finish()'s.
  Result<void> submit(uint64_t step, float* gradient, const collective::LayoutView& whole,
                      const Submission& how);
  /// Ends the step: all means are in place. The same Error on every rank of the node.
  Result<void> finish();
  [[nodiscard]] bool idle() const noexcept { return pieces_.empty(); }
  /// The node's engine may still use memory of this.
  [[nodiscard]] bool left_behind() const noexcept { return link_.broken().has_value(); }

  void ended(const Ending& ending) noexcept override;

 private:
  /// The unit of exchange: a bucket, or whole parameters of a bucket that is cut.
  struct Piece {
    float* gradient = nullptr;
    size_t begin = 0, end = 0;  // in order_
    uint64_t elements = 0;
    uint64_t at = 0, own = 0;  // of the shard
    uint32_t ended = 0;        // exchanges
    bool over = false, failed = false;
  };
  struct Memory {
    std::unique_ptr<float[]> shard;    // what the session exchanges
    std::unique_ptr<uint8_t[]> whole;  // a piece, by shard
    std::unique_ptr<uint8_t[]> terms;  // of the shard, by rank
  };
  struct Sides {
    explicit Sides(uint32_t ranks);
    std::vector<uint64_t> bytes, offsets;  // by rank
  };

  Result<void> check(const collective::LayoutView& whole) const;
  Piece& add(float* gradient, const collective::LayoutView& whole, size_t begin, size_t end);
  void submit(Piece& piece, uint64_t step, const Submission& how);
  void measure(const Piece& piece, uint64_t head);
  Result<void> in(const Piece& piece, uint64_t step);
  void pack(const Piece& piece, uint64_t step);
  Result<void> compare_heads();
  void add_up(const Piece& piece);
  void leave_long_ones();
  void leave();
  void out(const Piece& piece);
  Result<void> exchange(uint8_t* send, const Sides& sent, uint8_t* recv, const Sides& received);
  Result<void> meet(const Result<void>& done);
  [[nodiscard]] bool is_long(const Piece& piece) const noexcept;
  template <class Body>
  void for_ranges(const Piece& piece, uint32_t shard, const Body& body) const;

  Session* session_;
  Driver* driver_ = nullptr;
  NodeLink link_;
  uint64_t part_;  // bytes of a piece; 0: any number
  std::vector<Piece> pieces_;
  size_t left_ = 0;  // pieces that have left
  std::vector<uint32_t> order_;
  std::vector<bool> came_;  // by parameter
  std::vector<uint64_t> offsets_;
  Memory memory_;
  uint64_t filled_ = 0;  // elements of memory_.shard
  Sides by_shard_, by_rank_;
  std::vector<uint8_t> note_;
  std::optional<Error> over_;  // why the node's ranks have not met at the end of a step
};

}  // namespace laconic::session
