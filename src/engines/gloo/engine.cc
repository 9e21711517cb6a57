// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <gloo/config.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "batches.h"
#include "fault.h"
#include "group.h"
#include "laconic/engine/gloo.h"
#include "laconic/engine/names_of.h"
#include "ring.h"

namespace laconic {
namespace {

using gloo::Clock;
constexpr auto kGlance = std::chrono::milliseconds(50);
constexpr std::chrono::milliseconds kGrace{250};

}  // namespace

struct GlooEngine::Parts {
  explicit Parts(const GlooOptions& options) : group(options) {}
  ~Parts() { group.end_posts(); }

  gloo::Group group;
  gloo::Fault fault{group};
  gloo::Ring ring{group};
  gloo::Batches batches{group, fault, ring};
  std::atomic<bool> started = false;
  std::atomic<std::thread::id> thread{};  // that executes
};

GlooEngine::GlooEngine(const GlooOptions& options) : parts_(std::make_unique<Parts>(options)) {}

Result<std::unique_ptr<GlooEngine>> GlooEngine::create(const GlooOptions& options) {
  if (options.world < 1 || options.rank >= options.world) {
    return Error{Errc::invalid_argument,
                 "there is no rank " + std::to_string(options.rank) + " in a world of " +
                     std::to_string(options.world),
                 {}};
  }
  try {
    std::unique_ptr<GlooEngine> engine(new GlooEngine(options));
    if (options.world > 1) {
      Parts& parts = *engine->parts_;
      auto met = parts.group.meet([&ring = parts.ring] { ring.open(); },
                                  [&batches = parts.batches] { batches.post_what_has_begun(); });
      if (!met) return met.error();
    }
    return engine;
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "out of memory", {}};
  } catch (const std::exception& e) {
    return Error{Errc::engine_failed, std::string("Gloo: ") + e.what(), {}};
  }
}

std::string GlooEngine::library() {
  return "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." + std::to_string(GLOO_VERSION_MINOR) +
         "." + std::to_string(GLOO_VERSION_PATCH);
}

GlooEngine::~GlooEngine() {
  gloo::Group& group = parts_->group;
  if (group.connected() && !parts_->fault.known()) {
    if (parts_->batches.all_executed()) {
      group.part();
    } else {
      parts_->fault.fail(
          {Errc::peer_failed, "rank " + std::to_string(rank()) + " ended during a batch", {}});
    }
  }
  group.tear_down();  // whatever is being executed returns
  stop();
}

uint32_t GlooEngine::rank() const noexcept { return parts_->group.rank(); }
uint32_t GlooEngine::world() const noexcept { return parts_->group.world(); }
EngineCaps GlooEngine::caps() const noexcept { return {kAllSums, true, 0}; }

Result<void> GlooEngine::run(std::span<const Step> batch) {
  // The base's thread executes; any other caller waits for it as for any batch.
  std::atomic<std::thread::id>& thread = parts_->thread;
  if (parts_->started &&
      (thread.load() == std::thread::id() || thread.load() == std::this_thread::get_id())) {
    thread = std::this_thread::get_id();
    return parts_->batches.execute(batch);
  }
  auto ticket = start(batch);
  if (!ticket) return ticket.error();
  return wait(*ticket, Deadline::max());
}

Result<Ticket> GlooEngine::start(std::span<const Step> batch) {
  parts_->started = true;
  auto ticket = Engine::start(batch);
  if (!ticket) return ticket;
  if (parts_->group.connected()) parts_->batches.begin(ticket->number, batch);
  return ticket;
}

Result<void> GlooEngine::wait(Ticket ticket, Deadline deadline) {
  gloo::Group& group = parts_->group;
  gloo::Fault& fault = parts_->fault;
  const Deadline begin = Clock::now();
  // Before the end, so that all ranks have said where they wait when the first one asks.
  const Deadline sign = begin + (deadline - begin) / 4 * 3;
  bool signed_ = false;
  for (;;) {
    auto done = Engine::wait(ticket, std::min(deadline, Clock::now() + kGlance));
    if (done || done.error().code != Errc::timed_out || !group.connected()) return done;
    if (fault.known()) return after_fault(ticket);
    const Deadline now = Clock::now();
    if (now >= deadline) {
      fault.fail(
          late(ticket, std::chrono::duration_cast<std::chrono::milliseconds>(deadline - begin)));
    } else if (fault.glance()) {
      fault.fail({Errc::peer_failed, {}, {}});
    } else if (!signed_ && now >= sign) {
      signed_ = true;
      group.sign(ticket.number);
    }
  }
}

/// Who did not come to the batch, of those whom it needs.
Error GlooEngine::late(Ticket ticket, std::chrono::milliseconds waited) {
  // Those who are about to say where they wait have a moment for it.
  const Deadline until = Clock::now() + std::min(waited / 4, kGrace);
  const auto absent =
      parts_->group.unsigned_by(parts_->batches.needed_by(ticket.number), ticket.number, until);
  return {Errc::timed_out,
          (absent.empty() ? "a batch did not complete" : names_of(absent) + " did not answer") +
              " within " + std::to_string(waited.count()) + " ms",
          gloo::hint()};
}

/// The batch may have been complete all the same.
Result<void> GlooEngine::after_fault(Ticket ticket) {
  const auto done = Engine::wait(ticket, Clock::now() + std::chrono::seconds(5));
  if (done) return done;
  Error known = *parts_->fault.known();
  if (parts_->batches.executing()) known.code = Errc::timed_out;  // its memory is still in use
  return known;
}

}  // namespace laconic
