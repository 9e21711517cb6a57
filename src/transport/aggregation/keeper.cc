// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "transport/aggregation/keeper.h"

#include <system_error>

namespace laconic::transport::aggregation {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100}, kSoon{5};  // between looks; while a link registers
constexpr milliseconds kIdle{200};            // behind a call, before it is kept

}  // namespace

Result<std::unique_ptr<Keeper>> Keeper::create(std::unique_ptr<UdpWorker> worker,
                                               Clock::duration patience) {
  std::unique_ptr<Keeper> keeper(new Keeper(std::move(worker), patience));
  try {
    keeper->thread_ = std::thread([self = keeper.get()] { self->run(); });
  } catch (const std::system_error&) {
    return Error{Errc::out_of_memory, "the links to aggregation servers cannot have a thread",
                 "raise ulimit -u"};
  }
  return keeper;
}

Keeper::~Keeper() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(stopping_);
    stop_ = true;
  }
  stops_.notify_one();
  thread_.join();
}

void Keeper::run() {
  std::unique_lock lock(stopping_);
  milliseconds pause = kLook;
  while (!stops_.wait_for(lock, pause, [this] { return stop_; })) {
    pause = keep() ? kSoon : kLook;
  }
}

bool Keeper::keep() {
  if (wanted_.load() != 0) return false;
  const std::unique_lock lock(guard_, std::try_to_lock);
  if (!lock) return false;  // a call is under way
  const auto idle = Clock::now() - used_;
  return idle >= kIdle && idle < patience_ && worker_->keep();
}

}  // namespace laconic::transport::aggregation
