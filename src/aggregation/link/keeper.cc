// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/keeper.h"

#include <unistd.h>

#include <system_error>

namespace laconic::aggregation {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100}, kSoon{5};  // between looks; while a link registers
constexpr milliseconds kIdle{200};            // after a call, before the links are kept alive

}  // namespace

Result<std::unique_ptr<Keeper>> Keeper::create(std::unique_ptr<UdpWorker> worker,
                                               Clock::duration timeout) {
  std::unique_ptr<Keeper> keeper(new Keeper(std::move(worker), timeout));
  try {
    keeper->process_ = ::getpid();
    keeper->thread_->thread = std::thread([self = keeper.get()] { self->run(); });
  } catch (const std::system_error&) {
    return Error{Errc::out_of_memory, "cannot start the thread for aggregation servers",
                 "raise ulimit -u"};
  }
  return keeper;
}

bool Keeper::forked() const noexcept { return ::getpid() != process_; }

Keeper::~Keeper() {
  if (!thread_->thread.joinable()) return;
  if (forked()) {
    (void)thread_.release();  // it would wait for a thread that waits in the parent
    return;
  }
  {
    const std::scoped_lock lock(thread_->stopping);
    thread_->stop = true;
  }
  thread_->stops.notify_one();
  thread_->thread.join();
}

LinkStats Keeper::close(Clock::time_point deadline) {
  if (forked()) return {};
  return use([deadline](UdpWorker& worker) {
    worker.close(deadline);
    return worker.stats();
  });
}

void Keeper::run() {
  std::unique_lock lock(thread_->stopping);
  milliseconds pause = kLook;
  while (!thread_->stops.wait_for(lock, pause, [this] { return thread_->stop; })) {
    pause = keep() ? kSoon : kLook;
  }
}

bool Keeper::keep() {
  if (wanted_.load() != 0) return false;
  const std::unique_lock lock(guard_, std::try_to_lock);
  if (!lock) return false;  // a call is under way
  const auto idle = Clock::now() - used_;
  return idle >= kIdle && idle < timeout_ && worker_->keep();
}

}  // namespace laconic::aggregation
