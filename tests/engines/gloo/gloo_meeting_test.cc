// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How ranks over Gloo find each other, and what they say when they do not.
#include <gloo/transport/tcp/device.h>

#include "gloo_ranks.h"

namespace laconic::test {
namespace {

// ---- meeting ----

std::vector<std::string> meet(uint32_t count, const std::function<GlooOptions(uint32_t)>& wanted) {
  Processes ranks(count, [&](uint32_t rank, const Stage& stage) {
    auto engine = GlooEngine::create(wanted(rank));
    stage.say(text(engine));
    if (engine) stage.await_go();  // no rank leaves while others still connect
  });
  std::vector<std::string> said;
  for (uint32_t r = 0; r < count; ++r) said.push_back(ranks.heard(r));
  return said;
}

TEST(GlooMeeting, MissingRanksAreNamed) {
  for (const bool tcp : {false, true}) {
    const Place place;
    const std::string where = tcp ? Place::port() : place.folder();
    const auto said = meet(2, [&](uint32_t r) { return options(r, 4, where, milliseconds(300)); });
    for (const auto& line : said)
      EXPECT_EQ(line, "timed_out: ranks 2 and 3 did not join within 300 ms");
  }
  const auto alone =
      meet(1, [](uint32_t) { return options(1, 2, Place::port(), milliseconds(100)); });
  EXPECT_TRUE(alone[0].starts_with("timed_out: rank 0 is not listening on 127.0.0.1:")) << alone[0];
}

TEST(GlooMeeting, DifferentWorldOnOneRankIsErrorOnAll) {
  for (const uint32_t wrong : {3U, 5U}) {
    const Place place;
    const std::string where = wrong == 3 ? Place::port() : place.folder();
    const auto said = meet(4, [&](uint32_t r) { return options(r, r == 2 ? wrong : 4, where); });
    for (const auto& line : said) {
      EXPECT_EQ(line, said[0]);
      EXPECT_TRUE(line.starts_with("ranks_disagree: rank ")) << line;
      EXPECT_TRUE(line.find("world size ") != std::string::npos) << line;
      EXPECT_TRUE(line.find("rank 2") != std::string::npos) << line;
    }
  }
}

TEST(GlooMeeting, FolderServesOneJob) {
  const Place place;
  const auto first = meet(2, [&](uint32_t r) { return options(r, 2, place.folder()); });
  EXPECT_EQ(first, (std::vector<std::string>{"ok", "ok"}));
  const auto second = meet(2, [&](uint32_t r) { return options(r, 2, place.folder()); });
  for (const auto& line : second) {
    EXPECT_TRUE(line.starts_with("invalid_argument: rank ")) << line;
    EXPECT_TRUE(line.find(" joined twice") != std::string::npos) << line;
  }
}

/// Ranks 0 and 1 of one job, and rank 1 of another: the second of a rank is refused, and the
/// waiting ranks receive an error.
TEST(GlooMeeting, TwoJobsInOneFolderAreRefused) {
  for (const bool tcp : {false, true}) {
    const Place place;
    const std::string where = tcp ? Place::port() : place.folder();
    const auto said = meet(3, [&](uint32_t i) { return options(i == 2 ? 1 : i, 3, where); });
    EXPECT_EQ(said[0],
              "invalid_argument: rank 1 joined twice: it was started twice, or another or an "
              "earlier job used "
              "this rendezvous");
    EXPECT_EQ(said[1], said[0]);
    EXPECT_EQ(said[2], said[0]);
  }
  const std::string where = Place::port();
  Processes ranks(2, [&](uint32_t, const Stage& stage) {
    auto engine = GlooEngine::create(options(0, 2, where, milliseconds(500)));
    stage.say(text(engine));
  });
  const std::string a = ranks.heard(0), b = ranks.heard(1);
  EXPECT_NE(a.find("rank 0 cannot listen on") != std::string::npos,
            b.find("rank 0 cannot listen on") != std::string::npos)
      << a << "; " << b;
}

TEST(GlooMeeting, BadOptionsAreNamed) {
  const auto said = [](const GlooOptions& wanted) { return text(GlooEngine::create(wanted)); };
  EXPECT_EQ(said({.rank = 2, .world = 2}), "invalid_argument: there is no rank 2 in a world of 2");
  EXPECT_EQ(said({.rank = 0, .world = 0}), "invalid_argument: there is no rank 0 in a world of 0");
  for (const char* where : {"", "file:", "tcp:", "tcp:host", "tcp:host:", "tcp::5", "tcp:host:0",
                            "tcp:host:65536", "tcp:host:1x", "folder"}) {
    EXPECT_EQ(said({.rank = 0, .world = 2, .rendezvous = where}),
              "invalid_argument: invalid rendezvous '" + std::string(where) + "'");
  }
  EXPECT_EQ(said({.rank = 0, .world = 2, .rendezvous = "file:/nowhere/at/all"}),
            "engine_failed: cannot use the rendezvous folder /nowhere/at/all: No such file or "
            "directory");
}

/// Connects, reports its address, and connects to no other rank. By its address it is the one that
/// has to.
void come_and_be_gone(uint32_t world, const std::string& where, const Stage& stage) {
  const uint32_t rank = world - 1;
  const auto deadline = Clock::now() + kLong;
  auto board = rendezvous::open(where, rank, world, deadline);
  if (!board || !rendezvous::meet(**board, rank, world, kLong, deadline)) return;
  ::gloo::transport::tcp::attr attributes("127.0.0.2");
  const auto device = ::gloo::transport::tcp::CreateDevice(attributes);
  const auto context = device->createContext(static_cast<int>(rank), static_cast<int>(world));
  context->setTimeout(kLong);
  std::string addresses;
  for (uint32_t peer = 0; peer < rank; ++peer) {
    for (const char byte : context->createPair(static_cast<int>(peer))->address().bytes())
      addresses += byte;
  }
  (void)(*board)->put("gloo." + std::to_string(rank), addresses, deadline);
  stage.await_go();
}

// Gloo waits for each connection five times as long as its timeout says. A machine that stands
// still for longer than the ranks have to connect is given more.
TEST(GlooMeeting, RankLostDuringMeetingIsNamedByOneDeadline) {
  std::string said[2];
  for (auto timeout = milliseconds(500); timeout < kLong; timeout *= 2) {
    const Place place;
    Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
      if (rank == 2) return come_and_be_gone(3, place.folder(), stage);
      stage.say(text(GlooEngine::create(options(rank, 3, place.folder(), timeout))));
    });
    for (uint32_t rank = 0; rank < 2; ++rank) said[rank] = ranks.heard(rank);
    if (said[0].find("Gloo cannot connect") != std::string::npos) break;
  }
  for (const auto& line : said) {
    EXPECT_TRUE(line.find(": rank 2 did not connect in time") != std::string::npos) << line;
  }
}

TEST(GlooMeeting, UnknownInterfaceIsErrorOnAllRanks) {
  const Place place;
  const auto said = meet(2, [&](uint32_t r) {
    auto wanted = options(r, 2, place.folder());
    if (r == 1) wanted.interface_ = "nonesuch0";
    return wanted;
  });
  for (const auto& line : said)
    EXPECT_TRUE(line.find("Gloo cannot connect rank 1: ") != std::string::npos) << line;
}

}  // namespace
}  // namespace laconic::test
