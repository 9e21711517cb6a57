// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An engine of your own: processes that are connected by sockets. Only move() has to be written;
// sums, gathers and exchanges are made of it. Four ranks learn a linear map from data of their own.
#include <fcntl.h>
#include <laconic/random.h>
#include <laconic/session.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <vector>

namespace {

class SocketEngine final : public laconic::MessageEngine {
 public:
  /// sockets: one to each rank, that of this rank unused; they do not block.
  SocketEngine(uint32_t rank, std::vector<int> sockets)
      : rank_(rank), sockets_(std::move(sockets)) {}
  ~SocketEngine() override {
    for (const int s : sockets_) shutdown(s, SHUT_RDWR);  // ends a move() that still waits
    stop();
    for (const int s : sockets_) close(s);
  }
  [[nodiscard]] uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] uint32_t world() const noexcept override {
    return static_cast<uint32_t>(sockets_.size());
  }

 protected:
  laconic::Result<void> move(std::span<const laconic::Message> messages, uint32_t) override {
    std::vector<laconic::Message> left(messages.begin(), messages.end());
    for (;;) {
      std::vector<pollfd> waiting;
      for (laconic::Message& m : left) {
        const int s = sockets_[m.peer];
        if (!step(send(s, m.send, m.send_bytes, MSG_NOSIGNAL), &m.send, &m.send_bytes) ||
            !step(recv(s, m.recv, m.recv_room, 0), &m.recv, &m.recv_room)) {
          return laconic::Error{laconic::Errc::peer_failed,
                                "rank " + std::to_string(m.peer) + " is gone", "restart the job"};
        }
        const int events = (m.send_bytes != 0 ? POLLOUT : 0) | (m.recv_room != 0 ? POLLIN : 0);
        if (events != 0) waiting.push_back({s, static_cast<int16_t>(events), 0});
      }
      if (waiting.empty()) return {};
      poll(waiting.data(), waiting.size(), -1);
    }
  }

 private:
  /// One end of a message has moved on; false: the peer is gone.
  template <class Pointer>
  static bool step(ssize_t moved, Pointer* at, uint64_t* left) {
    if (*left == 0) return true;
    if (moved < 0) return errno == EAGAIN || errno == EINTR;
    *at += moved;
    *left -= static_cast<uint64_t>(moved);
    return moved > 0;
  }

  uint32_t rank_;
  std::vector<int> sockets_;
};

constexpr uint32_t kRanks = 4;
constexpr uint64_t kIn = 64, kOut = 128, kSteps = 200, kSamples = 8;

int fail(const laconic::Error& error) {
  std::fprintf(stderr, "%s (%s)\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

/// From -1 to 1, the same on every machine.
float noise(uint64_t stream, uint64_t i) {
  const uint32_t word = laconic::philox({2026, 7}, i / 4, stream)[i % 4];
  return static_cast<float>(word >> 8) / 8388608.0F - 1.0F;
}
float wanted(uint64_t weight) { return noise(1, weight); }

/// d/dw of mean |w x - wanted x|² / 2 over this rank's samples of a step.
void add_gradient(const std::vector<float>& w, uint64_t sample, std::vector<float>* gradient) {
  for (uint64_t o = 0; o < kOut; ++o) {
    float error = 0;
    for (uint64_t i = 0; i < kIn; ++i)
      error += (w[o * kIn + i] - wanted(o * kIn + i)) * noise(0, sample * kIn + i);
    for (uint64_t i = 0; i < kIn; ++i)
      (*gradient)[o * kIn + i] += error * noise(0, sample * kIn + i) / kSamples;
  }
}

int train(laconic::Engine& engine) {
  auto session = laconic::Session::create("3lc", {{"w", kOut, kIn}}, engine);
  if (!session) return fail(session.error());
  std::vector<float> w(kOut * kIn), gradient(w.size());
  for (uint64_t step = 0; step < kSteps; ++step) {
    gradient.assign(w.size(), 0.0F);
    for (uint64_t s = 0; s < kSamples; ++s)
      add_gradient(w, (step * kSamples + s) * kRanks + engine.rank(), &gradient);
    if (auto done = (*session)->average(step, gradient); !done) return fail(done.error());
    for (uint64_t i = 0; i < w.size(); ++i) w[i] -= 0.1F * gradient[i];
  }
  double distance = 0, size = 0;
  for (uint64_t i = 0; i < w.size(); ++i) {
    distance += std::pow(double{w[i]} - double{wanted(i)}, 2);
    size += std::pow(double{wanted(i)}, 2);
  }
  const double part = std::sqrt(distance / size);
  if (engine.rank() == 0)
    std::printf("%.4f of the way is left\n%s\n", part, (*session)->stats().c_str());
  return part < 0.05 ? 0 : 1;
}

}  // namespace

int main() {
  int ends[kRanks][kRanks] = {};
  for (uint32_t a = 0; a < kRanks; ++a) {
    for (uint32_t b = a; b < kRanks; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) return 1;
      ends[a][b] = pair[0];
      ends[b][a] = pair[1];
    }
  }
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (fork() != 0) continue;
    for (uint32_t other = 0; other < kRanks;
         ++other) {  // a peer's end is seen only if all close it
      for (uint32_t peer = 0; other != rank && peer < kRanks; ++peer) close(ends[other][peer]);
    }
    SocketEngine engine(rank, {ends[rank], ends[rank] + kRanks});
    return train(engine);
  }
  for (const auto& row : ends) {
    for (const int end : row) close(end);
  }
  int bad = 0, status = 0;
  while (wait(&status) > 0) bad += status != 0;
  return bad;
}
