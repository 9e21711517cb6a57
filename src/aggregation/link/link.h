// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A worker's side of one aggregation server, by the rules of docs/format/DATAGRAM.md.
//
// A granule is a block of integers that travels in one datagram, numbered over all exchanges of a
// job. A worker sends its contribution to a granule; the server adds those of all workers and
// answers with the result, the sum and a bitmap of the workers in it. A pull is a header alone that
// asks for a result. A worker has all results below its ack; all workers have all results below the
// server's floor. An epoch is the job on one start of the server: after another start the server
// has lost its sums, so workers keep results until the floor has passed them, and it fetches them.
//
// The link registers with the server, keeps a window of granules in flight, decides what is sent
// again and when, and keeps results. It has no I/O, no clock and no thread, and allocates nothing
// after construction except for the text of an error.
#pragma once

#include <cstdint>
#include <memory>

#include "aggregation/link/failure.h"
#include "aggregation/link/granule.h"
#include "aggregation/link/hearing.h"
#include "aggregation/link/registration.h"
#include "aggregation/link/results.h"
#include "aggregation/link/settings.h"
#include "aggregation/link/silence.h"
#include "aggregation/link/window.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/sender.h"
#include "laconic/error.h"

namespace laconic::aggregation {

class Link {
 public:
  explicit Link(LinkSettings settings);

  /// Begins to register. joined() follows, when all workers are there, or error().
  void connect(Time now) noexcept;
  [[nodiscard]] bool joined() const noexcept {
    return registration_.ever_joined() && !hearing_.on_trial();
  }

  /// Begins an exchange of `count` granules, out[0], out[stride], ...: after joined(), and after
  /// the one before is done. All workers begin the same ones. The memory is used until done().
  void begin(Time now, const Outgoing* out, Incoming* in, uint64_t count, uint64_t stride) noexcept;
  [[nodiscard]] bool done() const noexcept { return results_.done(); }

  /// Says that this worker wants nothing more. closed() follows when all workers have all results;
  /// until then the link has to be driven, because others may need what it keeps.
  void close(Time now) noexcept;
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  /// Between exchanges, several times a second: a worker that may have results which others lack
  /// asks for the floor, and so learns that the server was started again. Nothing closes there
  /// before all workers are back, and this one may be waiting for the others elsewhere.
  void keep(Time now) noexcept;
  /// Registers again, or waits for a result.
  [[nodiscard]] bool waits() const noexcept;

  void receive(Time now, Bytes datagram) noexcept { take(now, datagram, false); }
  /// The group to which the server sends results: the link's driver listens there and passes on
  /// what comes from the server's address. An unreachable group costs only the test.
  [[nodiscard]] const protocol::Group& group() const noexcept { return hearing_.group(); }
  void receive_from_group(Time now, Bytes datagram) noexcept { take(now, datagram, true); }
  [[nodiscard]] bool hears_group() const noexcept { return hearing_.hears(); }
  /// Sends what is due. `sender` is flushed before the link is called again: payloads are the
  /// caller's of begin(), or results that the link keeps.
  void send(Time now, Sender& sender) noexcept;
  /// When to call send(), if nothing is received before.
  [[nodiscard]] Time wake(Time now) const noexcept;

  /// The link is of no use any more.
  [[nodiscard]] bool failed() const noexcept { return failure_.exists(); }
  /// Without memory for words the code alone.
  [[nodiscard]] Error error() const noexcept { return error_of(failure_, settings_->server); }
  /// The worker that a failure is about; -1: none.
  [[nodiscard]] int blamed() const noexcept { return failure_.blamed; }
  /// The error at a deadline: `what` is incomplete, or the server does not answer.
  [[nodiscard]] Error late(const char* what) const;
  [[nodiscard]] LinkStats stats() const noexcept;

 private:
  void take(Time now, Bytes datagram, bool by_group) noexcept;
  bool take_down(Time now, Bytes datagram, bool by_group) noexcept;
  bool take_result(Time now, uint64_t number, const protocol::DownHeader& h, Bytes payload,
                   bool by_group) noexcept;
  void become_member(Time now) noexcept;
  void leave(Time now, Uplink& uplink) noexcept;
  void fail(const Failure& failure) noexcept;

  std::unique_ptr<const LinkSettings> settings_;  // the parts below point to them
  Registration registration_;
  Hearing hearing_;
  Results results_;
  Window window_;
  Silence silence_;
  LinkStats stats_;
  Failure failure_;
  bool closing_ = false, closed_ = false;
  bool ack_due_ = false, floor_due_ = false;
  Time leave_at_ = kNever, keep_at_ = 0;
};

}  // namespace laconic::aggregation
