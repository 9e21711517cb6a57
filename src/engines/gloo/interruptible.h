// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// For GlooEngine: waits of Gloo that can be ended.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace laconic::detail {

/// Buffers whose waits can all be interrupted at once, permanently. Gloo itself does not wake waits
/// for started transfers when its connection ends.
class GlooWaits final : public ::gloo::transport::Context {
 public:
  explicit GlooWaits(std::shared_ptr<::gloo::Context> real)
      : Context(real->rank, real->size), real_(std::move(real)) {}
  std::unique_ptr<::gloo::transport::UnboundBuffer> createUnboundBuffer(void* at,
                                                                        size_t bytes) override {
    return std::make_unique<Wait>(this, real_->createUnboundBuffer(at, bytes));
  }
  std::unique_ptr<::gloo::transport::Pair>& getPair(int peer) override {
    return real_->getPair(peer);
  }
  std::unique_ptr<::gloo::transport::Pair>& createPair(int) override {
    throw std::logic_error("all pairs exist");
  }
  void break_off() noexcept {
    const std::lock_guard lock(mutex_);
    broken_off_ = true;
    for (Wait* buffer = first_; buffer != nullptr; buffer = buffer->next_) buffer->abort();
  }

 private:
  class Wait final : public ::gloo::transport::UnboundBuffer {
   public:
    Wait(GlooWaits* waits, std::unique_ptr<::gloo::transport::UnboundBuffer> real)
        : UnboundBuffer(real->ptr, real->size), waits_(waits), real_(std::move(real)) {
      const std::lock_guard lock(waits_->mutex_);
      next_ = std::exchange(waits_->first_, this);
      if (next_ != nullptr) next_->before_ = this;
      if (waits_->broken_off_) abort();
    }
    ~Wait() override {
      const std::lock_guard lock(waits_->mutex_);
      (before_ != nullptr ? before_->next_ : waits_->first_) = next_;
      if (next_ != nullptr) next_->before_ = before_;
    }
    bool waitRecv(int* rank, std::chrono::milliseconds timeout) override {
      return checked(real_->waitRecv(rank, timeout));
    }
    bool waitSend(int* rank, std::chrono::milliseconds timeout) override {
      return checked(real_->waitSend(rank, timeout));
    }
    void abortWaitRecv() override { real_->abortWaitRecv(); }
    void abortWaitSend() override { real_->abortWaitSend(); }
    void send(int to, uint64_t slot, size_t offset, size_t bytes) override {
      real_->send(to, slot, offset, bytes);
    }
    void recv(int from, uint64_t slot, size_t offset, size_t bytes) override {
      real_->recv(from, slot, offset, bytes);
    }
    void recv(std::vector<int> from, uint64_t slot, size_t offset, size_t bytes) override {
      real_->recv(std::move(from), slot, offset, bytes);
    }

   private:
    friend class GlooWaits;
    static bool checked(bool done) {
      if (!done) throw std::runtime_error("the group has ended");
      return done;
    }
    void abort() noexcept {
      real_->abortWaitRecv();
      real_->abortWaitSend();
    }
    GlooWaits* waits_;
    std::unique_ptr<::gloo::transport::UnboundBuffer> real_;
    Wait *next_ = nullptr, *before_ = nullptr;
  };

  std::shared_ptr<::gloo::Context> real_;
  std::mutex mutex_;
  Wait* first_ = nullptr;
  bool broken_off_ = false;
};

/// The context of Gloo's collectives.
class GlooInterruptible final : public ::gloo::Context {
 public:
  explicit GlooInterruptible(const std::shared_ptr<::gloo::Context>& real)
      : Context(real->rank, real->size) {
    auto waits = std::make_shared<GlooWaits>(real);
    waits_ = waits.get();
    transportContext_ = std::move(waits);
  }
  void break_off() noexcept { waits_->break_off(); }

 private:
  GlooWaits* waits_;
};

}  // namespace laconic::detail
