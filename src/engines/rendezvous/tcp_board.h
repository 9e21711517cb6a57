// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A TCP port of rank 0 as the place where a group keeps its values.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "engines/rendezvous/posix.h"
#include "engines/rendezvous/tcp_protocol.h"
#include "engines/rendezvous/tcp_server.h"
#include "laconic/engine/rendezvous.h"

namespace laconic::rendezvous {

/// Client of the values that rank 0 stores.
class TcpBoard final : public Board {
 public:
  static Result<std::unique_ptr<Board>> open(const std::string& host, const std::string& port,
                                             uint32_t rank, uint32_t world, Deadline deadline);

  Result<std::string> put(const std::string& key, const std::string& value,
                          Deadline deadline) override;
  Result<std::string> get(const std::string& key, Deadline deadline) override;
  [[nodiscard]] bool kept_by_rank_0() const noexcept override { return true; }

 private:
  explicit TcpBoard(std::string where) : where_(std::move(where)) {}

  /// Retries until rank 0 listens.
  Result<void> connect(const std::string& host, const std::string& port, Deadline deadline);

  Result<std::string> ask(detail::Kind kind, const std::string& key, const std::string& value,
                          Deadline deadline);

  bool send(std::string* out);

  /// Reads all available data; false at the end of the stream.
  bool drain();

  void receive(int events, Deadline deadline);

  /// Closes the connection for good: a late answer would be taken for that of another request.
  void lose(Errc code, const std::string& why);

  std::string where_;
  std::mutex mutex_;
  std::unique_ptr<detail::Server> server_;
  Fd fd_;
  std::string in_;
  std::map<std::string, std::string> news_;
  Error lost_{Errc::engine_failed, {}, {}};
};

}  // namespace laconic::rendezvous
