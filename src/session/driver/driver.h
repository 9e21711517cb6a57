// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Driver: maps a program's buckets to a session's exchanges. It cuts long buckets into parts, joins
// short ones (joining.h), and drives the exchanges over an engine (window.h). Takes all its memory
// when it is made.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/staging.h"
#include "laconic/session.h"
#include "session/driver/change.h"
#include "session/driver/joined_layouts.h"
#include "session/driver/joining.h"
#include "session/driver/turns.h"
#include "session/driver/window.h"

namespace laconic::session {

/// The end of an exchange.
struct Ending {
  std::span<const uint64_t> tokens;  ///< of its buckets
  std::span<const uint32_t> parts;   ///< exchanges that each of them takes in all
  const Error* why = nullptr;        ///< null: the means are where the gradients were
};

/// Whom a program has stand in front of a driver: see Front.
class Listener : public Front {
 public:
  virtual void ended(const Ending&) noexcept = 0;
};

/// How a bucket is submitted.
struct Submission {
  uint64_t token = 0;              ///< names it in Ending
  const Error* trouble = nullptr;  ///< this rank cannot bring it; its buffer may be null
  bool joins = true;               ///< it may wait for others of its step and travel with them
  bool cuts = true;                ///< it may be cut
};

/// Memory where a session's buckets are.
class LoadMemory {
 public:
  /// `gpu`: null for the host, whose memory is taken here. Not zeroed. Throws bad_alloc.
  void size(const device::Staging* gpu, uint64_t bytes);
  /// A GPU's is taken by the first call.
  Result<void> reserve();
  [[nodiscard]] uint8_t* at() const noexcept { return gpu_ != nullptr ? there_.at() : here_.get(); }
  /// Between two places of such memory. `from`: null for zeros.
  Result<void> copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const;

 private:
  const device::Staging* gpu_ = nullptr;
  uint64_t bytes_ = 0;
  std::unique_ptr<uint8_t[]> here_;
  device::Memory there_;
};

class Driver {
 public:
  /// A batch of the engine's that takes longer than `timeout` has failed. Throws bad_alloc.
  Driver(Session& session, Engine& engine, std::chrono::milliseconds timeout,
         Listener* listener = nullptr);

  /// Submits a bucket, whose memory must stay valid until its exchanges have ended; every rank
  /// submits the same buckets in the same order. Returns the Error of the engine, or of an exchange
  /// that could not begin; Errors of exchanges are passed to the listener and returned by finish().
  Result<void> submit(const collective::Bucket& bucket, const collective::LayoutView& whole,
                      const Submission& how = {});
  /// Ends what was submitted, in order, and not the step: more buckets of it may follow. Gives the
  /// first Error since the last finish().
  Result<void> drain();
  /// The same at the end of a step, which OwnerTurns::pull() is where owners have turns. Gives the
  /// Error once.
  Result<void> finish();

  /// With Options::owner_turns: turns and pull, after the buckets of a step.
  [[nodiscard]] OwnerTurns& turns() noexcept { return turns_; }
  /// Undoes what was submitted and has not ended: it goes into the residuals, and from now on all
  /// that is submitted.
  void break_off(const Error& why);
  /// Frees the buffers of a bucket that will not come back, between the same two on every rank.
  void release(const collective::LayoutView& whole, DType dtype);

  /// All ranks together, between two steps: see laconic::Session::set. `trouble`: this rank has no
  /// change to make, and why. False: residuals go out first, and set_what_waits() takes it.
  Result<bool> set(const SettingsChange& change, const Error* trouble = nullptr);
  /// Before the first bucket of a step, on all ranks in the same one. True: other settings are in
  /// force. With an Error nothing waits any more.
  Result<bool> set_what_waits();
  [[nodiscard]] bool waits_to_set() const noexcept { return change_.waits(); }
  /// The other ranks of this rank's node, whose drivers exchange other shards.
  void set_node(NodeLink* node) noexcept { change_.set_node(node); }
  /// Name of the operation in errors of set().
  void name_set(std::string_view what) { change_.name(what); }

  /// The rule by which buckets are joined.
  [[nodiscard]] const Joining& joining() const noexcept { return joining_; }
  /// Nothing waits or is in flight.
  [[nodiscard]] bool idle() const { return joining_.empty() && session_->in_flight() == 0; }
  /// The engine may still use memory of this driver or the session's.
  [[nodiscard]] bool left_behind() const noexcept { return window_.left_behind(); }

 private:
  struct LoadedPart {
    uint8_t* buffer = nullptr;
    uint64_t elements = 0;
    uint32_t parameters = 0, index = 0;
  };
  /// The buckets of an exchange.
  struct Load {
    std::array<LoadedPart, kMostJoined> pieces{};
    std::array<uint64_t, kMostJoined> tokens{};
    std::array<uint32_t, kMostJoined> parts{};
    uint32_t count = 0;
    bool taken = false;
    DType dtype = DType::f32;
    uint64_t step = 0;
    std::optional<Error> trouble;  // of the first piece that did not come
    LoadMemory memory;             // of several pieces, back to back

    void give_back() noexcept;
  };

  [[nodiscard]] bool fits(const collective::LayoutView& whole) const noexcept;
  collective::LayoutView part_of(const collective::LayoutView& whole, size_t begin, size_t end);
  Result<void> submit_part(const collective::Bucket& bucket, const collective::LayoutView& layout,
                           const Submission& how, uint32_t parts);
  void add(Load& load, const collective::Bucket& bucket, const collective::LayoutView& layout,
           const Submission& how, uint32_t parts);
  Result<void> send();
  Result<void> send_together(uint32_t number);
  Result<void> send_apart(uint32_t number);
  template <class Body>
  void over_pieces(const Load& load, Body&& body);
  void ended(uint32_t number, const Error* why);
  uint32_t take_load();
  void take_settings();

  Session* session_;
  Listener* listener_;
  Window window_;
  Joining joining_;
  JoinedLayouts layouts_;
  SettingsOfAll change_;
  OwnerTurns turns_;
  std::vector<Load> loads_;  // of exchanges in flight or parked; one waits, one is for a moment
  uint32_t waiting_ = 0;
  // Parameters of waiting buckets, or of a part of a bucket, contiguous.
  std::vector<uint32_t> parameters_;
  std::vector<uint64_t> offsets_, part_offsets_;
  uint64_t elements_ = 0;
  // Means that did not come back from joined memory: what follows tells the other ranks.
  std::optional<Error> lost_;
};

/// For each entry of `layouts`, in order, the number of the exchange that carries it, were they the
/// buckets of a step. Throws bad_alloc.
void number_exchanges(Joining joining, std::span<const JoiningPart> buckets, bool joins,
                      std::span<uint32_t> exchange_of);

}  // namespace laconic::session
