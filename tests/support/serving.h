// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An aggregation server in a thread of the test.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "aggregation/io/udp_server.h"

namespace laconic::test {

class Serving {
 public:
  using Io = net::Io;

  explicit Serving(const std::string& bind = "127.0.0.1:0", uint64_t secret = 1,
                   const aggregation::protocol::Token& token = {}, bool full_tags = false)
      : Serving(settings_of(bind, token, full_tags), secret) {}
  explicit Serving(Io io, const std::string& bind = "127.0.0.1:0", uint64_t secret = 1,
                   const std::string& multicast = "",
                   const aggregation::protocol::Token& token = {})
      : Serving(settings_of(bind, token, false, io, multicast), secret) {}
  Serving(aggregation::UdpServerSettings settings, uint64_t secret) {
    store(settings.server.secret.data(), secret);
    store(settings.server.secret.data() + 16, secret << 20U);
    auto opened = aggregation::UdpServer::open(settings);
    if (!opened) {
      ADD_FAILURE() << opened.error().message;
      return;
    }
    server_ = std::move(*opened);
    address_ = server_->address();
    thread_ = std::thread([this] { server_->run(stop_); });
  }
  ~Serving() { end(); }
  void end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
    server_.reset();
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  static aggregation::UdpServerSettings settings_of(const std::string& bind,
                                                    const aggregation::protocol::Token& token,
                                                    bool full_tags, Io io = Io::gso,
                                                    const std::string& multicast = "") {
    aggregation::UdpServerSettings settings;
    settings.bind = bind;
    settings.io = io;
    settings.multicast = multicast;
    settings.server.token = token;
    settings.server.full_tags = full_tags;
    return settings;
  }

  std::unique_ptr<aggregation::UdpServer> server_;
  std::string address_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace laconic::test
