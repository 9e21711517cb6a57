// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "engines/rendezvous/folder_board.h"
#include "engines/rendezvous/posix.h"
#include "engines/rendezvous/tcp_board.h"
#include "support/place.h"

namespace laconic::rendezvous {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline in(milliseconds time) { return Clock::now() + time; }
constexpr auto kLong = seconds(100);  // nothing takes as long unless something is wrong
Deadline later() { return in(kLong); }

std::string text(const Result<std::string>& result) {
  return result ? *result
                : std::string(errc_name(result.error().code)) + ": " + result.error().message;
}

using test::Folder;
using test::free_port;

/// A peer that sends what it likes.
class Raw {
 public:
  explicit Raw(const std::string& port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(std::stoul(port)));
    connected_ = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  /// False: the other side has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  /// As much as can be sent without reading an answer.
  size_t press(std::string_view bytes, size_t most) {
    size_t sent = 0;
    while (sent < most) {
      pollfd room{fd_.get(), POLLOUT, 0};
      if (::poll(&room, 1, 200) <= 0) break;
      const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) break;
      sent += static_cast<size_t>(n);
    }
    return sent;
  }
  /// The connection ends, whatever comes before.
  bool is_closed() {
    const Deadline until = later();
    while (Clock::now() < until) {
      pollfd waiting{fd_.get(), POLLIN, 0};
      char bytes[4096];
      if (::poll(&waiting, 1, detail::milliseconds_to(until)) > 0 &&
          ::recv(fd_.get(), bytes, sizeof bytes, 0) <= 0)
        return true;
    }
    return false;
  }
  [[nodiscard]] bool connected() const { return connected_; }

 private:
  Fd fd_;
  bool connected_ = false;
};

class BoardLaw : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    where_ = GetParam() ? "tcp:127.0.0.1:" + free_port() : "file:" + folder_.path();
    for (uint32_t rank = 0; rank < 4; ++rank) {
      auto board = open(where_, rank, 4, later());
      ASSERT_TRUE(board) << board.error().message;
      boards_.push_back(*std::move(board));
    }
  }
  Folder folder_;
  std::string where_;
  std::vector<std::unique_ptr<Board>> boards_;
};

TEST_P(BoardLaw, FirstWriteWins) {
  EXPECT_EQ(text(boards_[1]->get("a", later())), "");
  EXPECT_EQ(text(boards_[1]->put("a", "one", later())), "one");
  EXPECT_EQ(text(boards_[2]->put("a", "two", later())), "one");
  for (const auto& board : boards_) EXPECT_EQ(text(board->get("a", later())), "one");
  const std::string large(kMaxValue, 'x'), binary("\0\1\377", 3), news(kMaxNews, 'n');
  EXPECT_EQ(text(boards_[0]->put("large", large, later())), large);
  EXPECT_EQ(text(boards_[3]->get("large", later())), large);
  EXPECT_EQ(text(boards_[3]->put("binary", binary, later())), binary);
  EXPECT_EQ(text(boards_[0]->get("binary", later())), binary);
  EXPECT_EQ(text(boards_[2]->put("news.x", news, later())), news);
  EXPECT_EQ(text(boards_[1]->get("news.x", later())), news);
}

TEST_P(BoardLaw, OneOfManyWritersWins) {
  for (int turn = 0; turn < 20; ++turn) {
    const std::string key = (turn % 2 == 0 ? "news." : "key.") + std::to_string(turn / 4);
    std::vector<std::string> won(4);
    std::vector<std::jthread> threads;
    for (size_t r = 0; r < 4; ++r) {
      threads.emplace_back([&, r] {
        won[r] = text(boards_[r]->put(key, std::string(900, static_cast<char>('a' + r)), later()));
      });
    }
    threads.clear();
    for (const std::string& value : won) EXPECT_EQ(value, won[0]);
    EXPECT_EQ(text(boards_[0]->get(key, later())), won[0]);
  }
}

TEST_P(BoardLaw, BadKeysAndValuesAreRefused) {
  for (const std::string key : {"", ".a", "../a", "a/b", "a b", "\xC3\xA4"})
    EXPECT_EQ(text(boards_[0]->put(key, "x", later())), "invalid_argument: ") << key;
  EXPECT_EQ(text(boards_[0]->get("a/b", later())), "invalid_argument: ");
  EXPECT_EQ(text(boards_[0]->put(std::string(kMaxKey + 1, 'a'), "x", later())),
            "invalid_argument: ");
  EXPECT_EQ(text(boards_[0]->put("a", "", later())), "invalid_argument: ");
  EXPECT_EQ(text(boards_[0]->put("a", std::string(kMaxValue + 1, 'a'), later())),
            "invalid_argument: ");
  EXPECT_EQ(text(boards_[0]->put("news.a", std::string(kMaxNews + 1, 'a'), later())),
            "invalid_argument: ");
  EXPECT_EQ(text(boards_[0]->put(std::string(kMaxKey, 'a'), "x", later())), "x");
}

TEST_P(BoardLaw, RanksMeet) {
  std::vector<Result<void>> met(4, Errc::internal);
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < 4; ++r)
    threads.emplace_back([&, r] { met[r] = meet(*boards_[r], r, 4, kLong, later()); });
  threads.clear();
  for (const auto& one : met) EXPECT_TRUE(one) << one.error().message;
}

TEST_P(BoardLaw, ForeignCardIsRefused) {
  ASSERT_TRUE(boards_[1]->put("rank.1", std::string("laconic 1, a world of \n\0x", 25), later()));
  const auto met = meet(*boards_[0], 0, 4, kLong, later());
  ASSERT_FALSE(met);
  EXPECT_EQ(met.error().code, Errc::ranks_disagree);
  EXPECT_EQ(met.error().message, "rank 1 runs another version of Laconic");
}

INSTANTIATE_TEST_SUITE_P(Kinds, BoardLaw, testing::Bool(),
                         [](const auto& kind) { return std::string(kind.param ? "tcp" : "file"); });

// ---- folders ----

TEST(FolderBoard, InvalidFilesAreRefusedAndNeverAwaited) {
  const Folder folder;
  FolderBoard board(folder.path());
  const auto write = [&](const std::string& name, const std::string& bytes) {
    std::ofstream(folder.path() + "/" + name, std::ios::binary) << bytes;
  };
  const std::string cannot =
      "engine_failed: cannot use the rendezvous folder " + folder.path() + ": ";
  write("empty", "");
  write("begun", std::string("\x05\0\0\0\0\0\0\0abc", 11));
  write("too-long", std::string("\x02\0\0\0\0\0\0\0abc", 11));
  for (const char* name : {"empty", "begun", "too-long"}) {
    EXPECT_EQ(text(board.get(name, later())), "");
    EXPECT_EQ(text(board.put(name, "x", in(milliseconds(20)))), cannot + "Device or resource busy");
  }
  std::filesystem::create_directory(folder.path() + "/folder");
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  std::filesystem::create_symlink("/etc/passwd", folder.path() + "/link");
  write("huge", "");
  std::filesystem::resize_file(folder.path() + "/huge", uint64_t{1} << 40);
  for (const char* name : {"folder", "pipe", "link", "huge"})
    EXPECT_TRUE(text(board.get(name, later())).starts_with(cannot)) << name;
  FolderBoard nowhere(folder.path() + "/nowhere");
  EXPECT_TRUE(text(nowhere.put("a", "x", later())).ends_with("No such file or directory"));
}

// ---- TCP ----

/// A server of the test's own and a peer that knows the protocol.
class TcpServer : public testing::Test {
 protected:
  void listen(uint32_t world, milliseconds timeout = kLong) {
    auto server = detail::Server::listen("127.0.0.1", port_, world, timeout);
    ASSERT_TRUE(server) << server.error().message;
    server_ = *std::move(server);
  }
  std::unique_ptr<Board> client() {
    auto board = TcpBoard::open("127.0.0.1", port_, 1, 4, later());
    EXPECT_TRUE(board);
    return board ? *std::move(board) : nullptr;
  }
  const std::string port_ = free_port();
  std::unique_ptr<detail::Server> server_;
};

std::string frame(uint8_t kind, const std::string& key, const std::string& value) {
  return detail::encode(static_cast<detail::Kind>(kind), key, value);
}

TEST_F(TcpServer, InvalidRequestsAreRefusedAndOthersServed) {
  listen(4);
  const auto good = client();
  EXPECT_EQ(text(good->put("a", "x", later())), "x");
  std::string huge = frame(1, "a", "b"), zeros = huge, no_key = huge;
  huge.replace(8, 4, "\xFF\xFF\xFF\xFF");
  zeros[6] = 1;
  no_key[5] = 0;
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, '\0'), std::string("LCN0"), huge,
        zeros, no_key, frame(0, "a", "b"), frame(3, "a", "b"), frame(4, "news.a", "b"),
        frame(5, "a", ""), frame(9, "a", "b"), frame(2, "a", "b"), frame(1, "a", ""),
        frame(1, "../a", "b"), frame(1, "news.a", std::string(kMaxNews + 1, 'x'))}) {
    Raw bad(port_);
    bad.send(bytes);
    EXPECT_TRUE(bad.is_closed());
    EXPECT_EQ(text(good->get("a", later())), "x");
    EXPECT_EQ(text(good->get("news.a", later())), "");
  }
}

TEST_F(TcpServer, SilentAndStalledClientsAreClosed) {
  listen(4, milliseconds(50));
  auto good = client();
  while (text(good->put("a", "x", later())) != "x") good = client();  // it came too late to speak
  Raw silent(port_), slow(port_);
  slow.send(frame(2, "a", "") + frame(1, "b", "y").substr(0, 7));
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(slow.is_closed());
  EXPECT_EQ(text(good->get("a", later())), "x") << "one that has spoken may be silent";
}

TEST_F(TcpServer, CrowdDoesNotBlockOthers) {
  listen(1);
  const auto good = client();
  EXPECT_EQ(text(good->put("a", "x", later())), "x");
  std::vector<Raw> crowd;
  for (int i = 0; i < 100; ++i) crowd.emplace_back(port_);
  EXPECT_TRUE(crowd.back().is_closed());
  EXPECT_EQ(text(good->get("a", later())), "x");
}

/// Unread answers do not accumulate.
TEST_F(TcpServer, ClientsThatReadNoAnswersAreThrottled) {
  listen(4);
  const auto good = client();
  EXPECT_EQ(text(good->put("large", std::string(kMaxValue, 'x'), later())).size(), kMaxValue);
  Raw greedy(port_);
  constexpr size_t kMost = size_t{64} << 20;
  std::string requests;
  while (requests.size() < 60'000) requests += frame(2, "large", "");
  EXPECT_LT(greedy.press(requests, kMost), kMost);
  EXPECT_EQ(text(good->get("large", later())).size(), kMaxValue);
}

TEST_F(TcpServer, ServerRefusesClientsAboveItsLimit) {
  listen(4);
  const auto good = client();
  std::string said;
  for (int i = 0; i < 70 && said.size() != 1; ++i) {
    said = text(good->put("k" + std::to_string(i), std::string(kMaxValue, 'x'), later()));
    if (said.size() != kMaxValue) break;
  }
  EXPECT_EQ(said, "engine_failed: the rendezvous at 127.0.0.1:" + port_ + " is full");
  EXPECT_EQ(text(good->get("k1", later())).size(), kMaxValue);
  for (int i = 0; i < 20; ++i) said = text(good->put("news." + std::to_string(i), "x", later()));
  EXPECT_TRUE(said.ends_with(" is full")) << said;
}

TEST_F(TcpServer, NewsOutlivesServer) {
  listen(4);
  const auto a = client(), b = client();
  EXPECT_EQ(text(b->get("x", later())), "");
  EXPECT_EQ(text(a->put("news.fault", "rank 2", later())), "rank 2");
  EXPECT_EQ(text(a->put("other", "x", later())), "x");
  server_.reset();
  EXPECT_EQ(text(b->get("news.fault", later())), "rank 2");
  EXPECT_EQ(text(b->put("news.fault", "rank 3", later())), "rank 2");
  const std::string gone =
      "peer_failed: rank 0, which hosts the rendezvous at 127.0.0.1:" + port_ + ", is gone";
  EXPECT_EQ(text(b->get("other", later())), gone);
  EXPECT_EQ(text(a->get("other", later())), gone);
}

/// A rank that connects after the others have given up receives the reason.
TEST_F(TcpServer, FailedMeetingIsReportedToLatecomers) {
  listen(3);
  const auto first = client();
  EXPECT_EQ(text(first->put(std::string(kMeeting), "63 rank 2 did not come", later())),
            "63 rank 2 did not come");
  std::jthread ends([&] { server_.reset(); });
  const auto second = client(), third = client();
  EXPECT_EQ(text(second->get(std::string(kMeeting), later())), "63 rank 2 did not come");
  EXPECT_EQ(text(third->get(std::string(kMeeting), later())), "63 rank 2 did not come");
}

/// Listens, and answers with `bytes` or not at all.
class Impostor {
 public:
  explicit Impostor(std::string bytes) : listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* at = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_.get(), at, size), 0);
    EXPECT_EQ(::getsockname(listener_.get(), at, &size), 0);
    EXPECT_EQ(::listen(listener_.get(), 5), 0);
    port_ = std::to_string(ntohs(address.sin_port));
    if (bytes.empty()) return;
    thread_ = std::jthread([this, said = std::move(bytes)] {
      const Fd peer(::accept(listener_.get(), nullptr, nullptr));
      char asked[100];
      (void)::recv(peer.get(), asked, sizeof asked, 0);
      (void)::send(peer.get(), said.data(), said.size(), MSG_NOSIGNAL);
      // Nonsense is found by itself, not by the end of the connection.
      if (!std::string_view("LCN1").starts_with(said))
        (void)::recv(peer.get(), asked, sizeof asked, 0);
    });
  }
  [[nodiscard]] const std::string& port() const { return port_; }

 private:
  std::string port_;
  Fd listener_;
  std::jthread thread_;
};

TEST(TcpBoard, SilentAndInvalidServersAreLeft) {
  const auto asked = [](const std::string& answer) {
    const Impostor impostor(answer);
    auto board = TcpBoard::open("127.0.0.1", impostor.port(), 1, 2, later());
    EXPECT_TRUE(board);
    const std::string said =
        text((*board)->get("a", in(answer.empty() ? milliseconds(30) : kLong)));
    EXPECT_EQ(text((*board)->get("a", later())), said) << "for good";
    return said.substr(0, said.find(':')) + said.substr(said.rfind(','));
  };
  EXPECT_EQ(asked({}), "timed_out, does not answer");
  const std::string nonsense = "peer_failed, does not speak this protocol";
  EXPECT_EQ(asked("HTTP/1.1 400"), nonsense);
  EXPECT_EQ(asked(frame(3, "b", "x")), nonsense) << "an answer to another question";
  EXPECT_EQ(asked(frame(2, "a", "")), nonsense);
  EXPECT_EQ(asked(frame(4, "news.a", "")), nonsense);
  EXPECT_EQ(asked("LCN1"), "peer_failed, is gone");
}

TEST(TcpBoard, ParserIsTotal) {
  std::mt19937 random(7);
  const std::string valid =
      frame(1, "rank.3", "value") + frame(2, "x", "") + frame(4, "news.a", "b");
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string bytes = valid.substr(random() % 3, random() % valid.size());
    for (unsigned i = random() % 4; i > 0 && !bytes.empty(); --i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    detail::Frame found;
    for (size_t before = bytes.size() + 1; bytes.size() < before;) {
      before = bytes.size();
      if (detail::take(&bytes, &found) != detail::Taken::frame) break;
      EXPECT_TRUE(is_key(found.key));
      EXPECT_LE(found.value.size(), kMaxValue);
      EXPECT_LT(bytes.size(), before);
    }
  }
}

TEST(News, AnyNewsIsRead) {
  const auto read = [](const std::string& bytes) {
    const Error e = read_news(bytes, "hint");
    return std::string(errc_name(e.code)) + ": " + e.message;
  };
  EXPECT_EQ(read(write_news({Errc::peer_failed, "rank 2 is gone", {}})),
            "peer_failed: rank 2 is gone");
  EXPECT_EQ(read(write_news({Errc::timed_out, "a\nb\tc", {}})), "timed_out: a?b?c");
  EXPECT_EQ(read("hello"), "engine_failed: hello");
  EXPECT_EQ(read(""), "engine_failed: ");
  EXPECT_EQ(read("61"), "engine_failed: 61");
  EXPECT_EQ(read("x61 y"), "engine_failed: x61 y");
  EXPECT_EQ(read("0 ok"), "engine_failed: 0 ok");
  EXPECT_EQ(read("9999999999999 x"), "engine_failed: 9999999999999 x");
  EXPECT_EQ(read("61\x1B[31m red"), "engine_failed: 61?[31m red");
  EXPECT_LE(write_news({Errc::timed_out, std::string(5000, 'x'), {}}).size(), kMaxNews);
}

}  // namespace
}  // namespace laconic::rendezvous
