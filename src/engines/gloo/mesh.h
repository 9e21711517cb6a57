// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// For GlooEngine: connections between all ranks, by one deadline.
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "laconic/engine.h"

namespace laconic::detail {

/// As Gloo connects them, with one deadline for all: Gloo waits for one connection after another,
/// for each of them up to five times the timeout of its context.
class GlooMesh final : public ::gloo::rendezvous::Context {
 public:
  using ::gloo::rendezvous::Context::Context;

  void connect(::gloo::rendezvous::Store& store,
               const std::shared_ptr<::gloo::transport::Device>& device, Deadline deadline) {
    auto transport = device->createContext(rank, size);
    transport->setTimeout(getTimeout());
    std::vector<char> own;
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      const auto address = transport->createPair(peer)->address().bytes();
      own.insert(own.end(), address.begin(), address.end());
    }
    store.set(std::to_string(rank), own);
    AtDeadline end(deadline, *transport);
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      try {
        auto theirs = store.get(std::to_string(peer));
        transport->getPair(peer)->connect(extractAddress(theirs, peer));
      } catch (const std::exception&) {
        if (!end.has_come()) throw;
        throw std::runtime_error("rank " + std::to_string(peer) + " did not connect in time");
      }
    }
    device_ = device;
    transportContext_ = std::move(transport);
  }

 private:
  /// Ends what is being connected.
  class AtDeadline {
   public:
    AtDeadline(Deadline deadline, ::gloo::transport::Context& transport)
        : deadline_(deadline), transport_(transport), thread_([this] { run(); }) {}
    ~AtDeadline() {
      {
        const std::lock_guard lock(mutex_);
        done_ = true;
      }
      changed_.notify_all();
      thread_.join();
    }
    AtDeadline(const AtDeadline&) = delete;
    AtDeadline& operator=(const AtDeadline&) = delete;
    [[nodiscard]] bool has_come() {
      const std::lock_guard lock(mutex_);
      return come_;
    }

   private:
    void run() {
      std::unique_lock lock(mutex_);
      if (changed_.wait_until(lock, deadline_, [this] { return done_; })) return;
      come_ = true;
      lock.unlock();
      try {  // a wait that times out ends all connections
        char byte = 0;
        (void)transport_.createUnboundBuffer(&byte, 1)->waitRecv(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
      }
    }
    Deadline deadline_;
    ::gloo::transport::Context& transport_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool done_ = false, come_ = false;
    std::thread thread_;  // last: it uses the others
  };
};

}  // namespace laconic::detail
