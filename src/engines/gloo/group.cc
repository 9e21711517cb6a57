// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <thread>
#include <utility>

#include "laconic/engine/names_of.h"
#include "mesh.h"

namespace laconic::gloo {
namespace {

constexpr uint64_t kFarewell = kSlots | uint64_t{1} << 48;

std::string news_of_meeting() { return std::string(rendezvous::kMeeting); }
std::string place(uint32_t rank, uint64_t batch) {
  return "waits." + std::to_string(rank) + "." + std::to_string(batch);
}

/// The key-value store through which Gloo connects ranks.
class Store final : public ::gloo::rendezvous::Store {
 public:
  Store(rendezvous::Board* board, Deadline deadline) : board_(board), deadline_(deadline) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    checked(board_->put(name(key), std::string(data.begin(), data.end()), deadline_));
  }
  std::vector<char> get(const std::string& key) override {
    for (;;) {
      const std::string value = checked(board_->get(name(key), deadline_));
      if (!value.empty()) return {value.begin(), value.end()};
      const std::string news = checked(board_->get(news_of_meeting(), deadline_));
      if (!news.empty()) throw std::runtime_error(rendezvous::read_news(news, {}).message);
      if (Clock::now() >= deadline_) throw std::runtime_error("a rank did not connect in time");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) (void)get(key);
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    wait(keys);
  }

 private:
  static std::string name(const std::string& key) {
    std::string safe = "gloo." + key;
    for (char& c : safe) c = rendezvous::is_key({&c, 1}) || c == '.' ? c : '_';
    return safe;
  }
  static std::string checked(Result<std::string> result) {
    if (!result) throw std::runtime_error(result.error().message);
    return *std::move(result);
  }
  rendezvous::Board* board_;
  Deadline deadline_;
};

}  // namespace

// ---- the beginning ----

Result<void> Group::meet(const std::function<void()>& prepare, std::function<void()> post) {
  const auto timeout = std::clamp<std::chrono::milliseconds>(
      options_.timeout, std::chrono::milliseconds(1), std::chrono::hours(24 * 30));
  const Deadline deadline = Clock::now() + timeout;
  auto board = rendezvous::open(options_.rendezvous, rank(), world(), deadline);
  if (!board) return board.error();
  board_ = *std::move(board);
  if (auto met = rendezvous::meet(*board_, rank(), world(), timeout, deadline); !met) return met;
  try {
    connect(deadline, prepare, std::move(post));
  } catch (const std::exception& e) {
    const Error own{Errc::engine_failed,
                    "Gloo cannot connect rank " + std::to_string(rank()) + ": " + e.what(),
                    "check that the ranks can reach each other over this network interface"};
    const auto told = board_->put(news_of_meeting(), rendezvous::write_news(own), soon());
    return told ? rendezvous::read_news(*told, own.hint) : own;
  }
  return {};
}

void Group::connect(Deadline deadline, const std::function<void()>& prepare,
                    std::function<void()> post) {
  const detail::NoSigpipe guard;
  ::gloo::transport::tcp::attr attributes;
  attributes.iface = options_.interface_;
  auto device =
      detail::with_batch_threads([&] { return ::gloo::transport::tcp::CreateDevice(attributes); });
  auto context =
      std::make_shared<detail::GlooMesh>(static_cast<int>(rank()), static_cast<int>(world()));
  // The last rank to come leaves a moment for this.
  const Deadline end = std::max(deadline, Clock::now() + std::chrono::seconds(1));
  context->setTimeout(std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()));
  Store store(board_.get(), end);
  context->connect(store, device, end);
  prepare();
  farewells_.resize(world());
  watches_.resize(world());
  for (uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) continue;
    watches_[peer] = context->createUnboundBuffer(&farewells_[peer], 1);
    watches_[peer]->recv(static_cast<int>(peer), kFarewell);
  }
  batches_ = std::make_shared<detail::GlooInterruptible>(context);
  posts_ = std::make_unique<detail::InGloosThread>(device, std::move(post));
  context_ = std::move(context);
}

// ---- who waits ----

void Group::sign(uint64_t batch) { (void)board_->put(place(rank(), batch), "1", soon()); }

std::vector<uint32_t> Group::unsigned_by(const std::vector<bool>& needed, uint64_t batch,
                                         Deadline until) {
  for (std::vector<uint32_t> absent;; absent.clear()) {
    for (uint32_t peer = 0; peer < needed.size(); ++peer) {
      if (!needed[peer] || peer == rank()) continue;
      const auto there = board_->get(place(peer, batch), soon());
      if (there && there->empty()) absent.push_back(peer);
    }
    if (absent.size() < 2 || Clock::now() >= until) return absent;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// ---- who is gone ----

/// A wait that was interrupted before it began returns at once.
bool Group::is_gone(uint32_t peer) noexcept {
  if (watches_[peer] == nullptr) return false;
  try {
    watches_[peer]->abortWaitRecv();
    (void)watches_[peer]->waitRecv(nullptr, kForever);
    return false;
  } catch (...) {
    return true;
  }
}

bool Group::somebody_is_gone() noexcept {
  for (uint32_t peer = 0; peer < world(); ++peer) {
    if (is_gone(peer)) return true;
  }
  return false;
}

bool Group::takes_more(uint32_t peer) noexcept {
  if (peer == rank()) return true;
  try {
    const auto no_posts = posts_->pause();
    char byte = 0;
    context_->createUnboundBuffer(&byte, 1)->recv(static_cast<int>(peer), kFarewell + 1);
    return true;
  } catch (...) {
    return false;
  }
}

std::string Group::who_is_gone(const char* said) {
  std::vector<uint32_t> gone, ended;
  for (uint32_t peer = 0; peer < world(); ++peer) {
    if (is_gone(peer)) gone.push_back(peer);
  }
  // Gloo wakes the waits for a broken connection one by one, the watch perhaps last, but under the
  // lock that takes_more needs.
  const bool unclear = gone.empty();
  for (uint32_t peer = 0; unclear && peer < world(); ++peer) {
    if (!takes_more(peer)) (is_gone(peer) ? gone : ended).push_back(peer);
  }
  if (!gone.empty()) return names_of(gone) + (gone.size() == 1 ? " is gone" : " are gone");
  if (!ended.empty())
    return names_of(ended) + (ended.size() == 1 ? " has" : " have") + " ended before the others";
  return std::string("Gloo failed: ") + said;
}

// ---- the end ----

void Group::part() noexcept {
  const detail::NoSigpipe guard;
  const Deadline until = Clock::now() + std::chrono::seconds(1);
  try {
    char byte = 1;
    std::vector<Buffer> sent;
    for (uint32_t peer = 0; peer < world(); ++peer) {
      if (peer == rank()) continue;
      try {
        Buffer buffer = context_->createUnboundBuffer(&byte, 1);
        buffer->send(static_cast<int>(peer), kFarewell);
        sent.push_back(std::move(buffer));
      } catch (const std::exception&) {  // it has ended already
      }
    }
    for (const Buffer& buffer : sent) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      (void)buffer->waitSend(std::max(left, std::chrono::milliseconds(1)));
    }
  } catch (...) {
  }
}

void Group::tear_down() noexcept {
  if (posts_ == nullptr) return;
  try {
    const auto no_posts = posts_->pause();
    char byte = 0;
    (void)context_->createUnboundBuffer(&byte, 1)->waitRecv(std::chrono::milliseconds(1));
  } catch (...) {
  }
  batches_->break_off();
}

}  // namespace laconic::gloo
