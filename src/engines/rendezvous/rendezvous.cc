// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine/rendezvous.h"

#include <algorithm>
#include <charconv>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "engines/rendezvous/folder_board.h"
#include "engines/rendezvous/tcp_board.h"
#include "laconic/engine/names_of.h"

namespace laconic::rendezvous {

bool is_key(std::string_view key) noexcept {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  return !key.empty() && key.size() <= kMaxKey && key[0] != '.' &&
         std::all_of(key.begin(), key.end(), allowed);
}
bool is_value(std::string_view key, std::string_view value) noexcept {
  return !value.empty() && value.size() <= (key.starts_with(kNews) ? kMaxNews : kMaxValue);
}

Result<std::unique_ptr<Board>> open(std::string_view where, uint32_t rank, uint32_t world,
                                    Deadline deadline) {
  const auto misspelt = [&] {
    return Error{Errc::invalid_argument, "invalid rendezvous '" + std::string(where) + "'",
                 "file:FOLDER or tcp:HOST:PORT"};
  };
  if (where.starts_with("file:") && where.size() > 5)
    return std::unique_ptr<Board>(std::make_unique<FolderBoard>(std::string(where.substr(5))));
  const size_t colon = where.rfind(':');
  if (!where.starts_with("tcp:") || colon < 5) return misspelt();
  std::string host(where.substr(4, colon - 4)), port(where.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const bool digits =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (port.empty() || port.size() > 5 || !digits || std::stoul(port) < 1 ||
      std::stoul(port) > 65535)
    return misspelt();
  return TcpBoard::open(host, port, rank, world, deadline);
}

std::string write_news(const Error& error) {
  std::string text = std::to_string(static_cast<int32_t>(error.code)) + " " + error.message;
  text.resize(std::min(text.size(), kMaxNews));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, '?');
  return text;
}
Error read_news(std::string text, std::string hint) {
  const size_t blank = std::min(text.find(' '), text.size());
  int32_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + blank, number);
  const bool known = failed == std::errc() && end == text.data() + blank && blank < text.size() &&
                     number > 0 && errc_name(static_cast<Errc>(number)) != "unknown";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, '?');
  return {known ? static_cast<Errc>(number) : Errc::engine_failed,
          known ? text.substr(blank + 1) : std::move(text), std::move(hint)};
}

Result<void> meet(Board& board, uint32_t rank, uint32_t world, std::chrono::milliseconds timeout,
                  Deadline deadline) {
  const std::string news(kMeeting), hint = "restart all ranks with an empty folder or a free port";
  const auto soon = [] { return Clock::now() + std::chrono::seconds(2); };
  const auto tell = [&](Error own) -> Error {
    own.hint = hint;
    const auto told = board.put(news, write_news(own), soon());
    return told ? read_news(*told, hint) : own;
  };
  const auto key = [](uint32_t r) { return "rank." + std::to_string(r); };
  const std::string first = "laconic 1, a world of ";
  const auto world_on = [&](const std::string& card) -> std::string {  // digits, or nothing
    if (!card.starts_with(first)) return {};
    return card.substr(first.size(),
                       card.find_first_not_of("0123456789", first.size()) - first.size());
  };
  std::random_device random;
  const std::string own_world = std::to_string(world);
  const std::string card =
      first + own_world + ", " + std::to_string(random()) + "." + std::to_string(random());
  const auto mine = board.put(key(rank), card, std::min(deadline, soon()));
  if (!mine) return mine.error();
  if (*mine != card) {
    return tell({Errc::invalid_argument,
                 "rank " + std::to_string(rank) +
                     " joined twice: it was started twice, or another or an earlier job used this "
                     "rendezvous",
                 {}});
  }
  std::vector<uint32_t> missing;
  for (uint32_t r = 0; r < world; ++r) missing.push_back(r);
  for (auto pause = std::chrono::milliseconds(1);;
       pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    // Read news first: a rank that has all cards reads no more of them.
    auto bad = board.get(news, std::max(deadline, soon()));
    if (!bad) return bad.error();
    if (!bad->empty()) return read_news(*bad, hint);
    std::vector<uint32_t> still;
    for (const uint32_t r : missing) {
      auto there = board.get(key(r), std::max(deadline, soon()));
      if (!there) return there.error();
      if (there->empty()) {
        still.push_back(r);
      } else if (const std::string other = world_on(*there); other != own_world) {
        const std::string who = "rank " + std::to_string(r);
        return tell({Errc::ranks_disagree,
                     other.empty() ? who + " runs another version of Laconic"
                                   : who + " was started with world size " + other + ", rank " +
                                         std::to_string(rank) + " with " + own_world,
                     {}});
      }
    }
    missing = std::move(still);
    if (missing.empty()) return {};
    if (Clock::now() >= deadline) {
      return tell(
          {Errc::timed_out,
           names_of(missing) + " did not join within " + std::to_string(timeout.count()) + " ms",
           {}});
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace laconic::rendezvous
