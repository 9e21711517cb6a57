// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// For GlooEngine: what concerns the thread that Gloo has for its connections.
#pragma once

#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace laconic::detail {

/// Gloo writes to sockets without MSG_NOSIGNAL: no SIGPIPE in this thread, nor in those that it
/// starts, for as long as this lives.
class NoSigpipe {
 public:
  NoSigpipe() noexcept {
    sigset_t pending;
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    const timespec at_once{};
    while (!was_pending_ && ::sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_, before_;
  bool was_pending_;
};

/// Threads that `create` begins do not take a core from a thread that has one. Gloo's thread has
/// nothing to do while another one sends, and looks for the lock until its time slice is over: on
/// a core that both share, 3 ms a message.
template <class Create>
auto with_batch_threads(const Create& create) {
  struct Policy {
    bool usual = ::sched_getscheduler(0) == SCHED_OTHER;
    sched_param none{};
    Policy() {
      if (usual) (void)::sched_setscheduler(0, SCHED_BATCH, &none);
    }
    ~Policy() {
      if (usual) (void)::sched_setscheduler(0, SCHED_OTHER, &none);
    }
  };
  const Policy while_they_begin;
  return create();
}

/// Makes a call on Gloo's own thread, once or more often, after a request. While a thread writes to
/// a connection it holds a lock, for which Gloo's thread spins; if the writer loses its core
/// meanwhile, it spins for a time slice.
class InGloosThread final : public ::gloo::transport::tcp::Handler {
 public:
  InGloosThread(const std::shared_ptr<::gloo::transport::Device>& device,
                std::function<void()> call)
      : device_(std::static_pointer_cast<::gloo::transport::tcp::Device>(device)),
        call_(std::move(call)),
        asked_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (asked_ < 0) throw std::runtime_error(std::strerror(errno));
    device_->registerDescriptor(asked_, EPOLLIN, this);
  }
  ~InGloosThread() override {
    device_->unregisterDescriptor(asked_, this);
    (void)pause();  // whatever the last call has done is seen from here on
    ::close(asked_);
  }
  InGloosThread(const InGloosThread&) = delete;
  InGloosThread& operator=(const InGloosThread&) = delete;

  void ask() noexcept { (void)::eventfd_write(asked_, 1); }
  /// No call is made as long as this is held. For who closes connections: that waits for Gloo's
  /// thread, and holds the lock for which a call may wait.
  [[nodiscard]] std::unique_lock<std::mutex> pause() { return std::unique_lock(calling_); }

  void handleEvents(int) override {
    const std::unique_lock lock(calling_, std::try_to_lock);
    if (!lock) return;  // it is asked again
    eventfd_t times = 0;
    (void)::eventfd_read(asked_, &times);
    call_();
  }

 private:
  std::shared_ptr<::gloo::transport::tcp::Device> device_;
  std::function<void()> call_;
  const int asked_;
  std::mutex calling_;
};

}  // namespace laconic::detail
