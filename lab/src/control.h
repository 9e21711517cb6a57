// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How a running COMMAND talks to the lab: one line to the socket named by LACONIC_LAB_CONTROL, one
// JSON line back.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "event_loop.h"
#include "process.h"

namespace laconic::lab {

class ControlServer {
 public:
  struct Answer {
    std::string line;
    std::vector<int> descriptors;  ///< open files that go with it; they stay open here
  };

  /// Answers one request line. The answer is sent when the change has been made.
  using Handler = std::function<Answer(std::string_view line)>;

  ControlServer(EventLoop& loop, Handler handler) : loop_(loop), handler_(std::move(handler)) {}

  /// Listens on `folder`/laconic-lab.sock for the COMMANDs of a host.
  Result<void> listen_in(const std::string& folder);

 private:
  void accept_on(int listener);
  void read_from(int fd);
  void close_connection(int fd);

  EventLoop& loop_;
  Handler handler_;
  std::vector<Fd> listeners_;
  struct Connection {
    Fd fd;
    std::string pending;
  };
  std::map<int, Connection> connections_;
};

struct ControlReply {
  std::string line;
  std::vector<Fd> descriptors;
};

/// The client: sends `line` to the lab that we run in. `option` is what needs one.
Result<ControlReply> ask_lab(const std::string& option, std::string_view line);

}  // namespace laconic::lab
