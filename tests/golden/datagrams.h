// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Contents of the golden datagrams: every type, sound and broken.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "aggregation/protocol/enrolment.h"

namespace laconic::golden {

namespace protocol = aggregation::protocol;

struct DatagramCase {
  std::string name;
  std::string layout;  ///< up, down, hello, challenge, enrol, welcome, refusal, stranger
  std::vector<uint8_t> bytes;
  uint64_t epoch = 0;
  uint64_t era = 0;
};

inline constexpr uint64_t kGoldenJob = 0x1122334455667788U, kGoldenEpoch = 0x99AABBCCDDEEFF01U;
inline constexpr uint64_t kGoldenNonce = 0x0F1E2D3C4B5A6978U;
/// 239.7.4.2:7420 and [ff12::742]:7421.
inline constexpr protocol::Group kGoldenGroup{
    {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 239, 7, 4, 2}, 7420};
inline constexpr protocol::Group kGoldenGroup6{
    {0xFF, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x07, 0x42}, 7421};
inline constexpr protocol::Applicant kGoldenApplicant{kGoldenJob, 0xCAFEBABE12345678U, 3, 2};

inline protocol::Token golden_token() {
  protocol::Token token;
  for (std::size_t i = 0; i < token.size(); ++i) token[i] = static_cast<uint8_t>(i);
  return token;
}

inline std::vector<uint8_t> golden_payload(std::size_t size) {
  std::vector<uint8_t> payload(size);
  for (std::size_t i = 0; i < size; ++i) payload[i] = static_cast<uint8_t>(7 * i + 3);
  return payload;
}

inline protocol::JobSettings golden_settings() {
  protocol::JobSettings s;
  s.world = 4;
  s.needed = 3;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = 64;
  s.values = 256;
  s.lanes = 1024;
  s.deadline_us = 20000;
  s.timeout_ms = 30000;
  s.spec = 0x0123456789ABCDEFU;
  s.table = {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30};
  return s;
}

inline DatagramCase golden_up(std::string name, const protocol::UpHeader& h, uint64_t era,
                              std::size_t payload_size) {
  const auto payload = golden_payload(payload_size);
  DatagramCase c{std::move(name), "up", std::vector<uint8_t>(protocol::kUpHeaderBytes),
                 kGoldenEpoch, era};
  const auto key = protocol::job_key(golden_token(), kGoldenJob, kGoldenEpoch);
  protocol::write_up(h, key, era, payload, c.bytes.data());
  c.bytes.insert(c.bytes.end(), payload.begin(), payload.end());
  return c;
}

inline DatagramCase golden_down(std::string name, const protocol::DownHeader& h, uint64_t era,
                                std::size_t payload_size) {
  const auto payload = golden_payload(payload_size);
  DatagramCase c{std::move(name), "down", std::vector<uint8_t>(protocol::kDownHeaderBytes),
                 kGoldenEpoch, era};
  const auto key = protocol::job_key(golden_token(), kGoldenJob, kGoldenEpoch);
  protocol::write_down(h, key, era, payload, c.bytes.data());
  c.bytes.insert(c.bytes.end(), payload.begin(), payload.end());
  return c;
}

inline std::vector<DatagramCase> golden_registration() {
  const protocol::Token token = golden_token();
  const protocol::SipKey challenge = protocol::challenge_key(token, kGoldenApplicant);
  const protocol::SipKey enrol =
      protocol::enrolment_key(token, kGoldenApplicant, kGoldenEpoch, kGoldenNonce);
  const protocol::SipKey job = protocol::job_key(token, kGoldenJob, kGoldenEpoch);
  std::vector<DatagramCase> cases;
  std::array<uint8_t, protocol::kMaxEnrolmentBytes> out{};
  const auto add = [&](const char* name, const char* layout, uint64_t bytes) {
    cases.push_back({name,
                     layout,
                     {out.begin(), out.begin() + static_cast<std::ptrdiff_t>(bytes)},
                     kGoldenEpoch,
                     0});
  };
  add("hello", "hello", protocol::write_hello(kGoldenApplicant, nullptr, out.data()));
  const protocol::SipKey hello = protocol::hello_key(token);
  add("hello_tagged", "hello", protocol::write_hello(kGoldenApplicant, &hello, out.data()));
  add("challenge", "challenge",
      protocol::write_challenge({kGoldenApplicant, false, kGoldenEpoch, kGoldenNonce}, challenge,
                                out.data()));
  add("challenge_pad", "challenge",
      protocol::write_challenge({kGoldenApplicant, true, kGoldenEpoch, kGoldenNonce}, challenge,
                                out.data()));
  protocol::Enrolment e;
  e.from = kGoldenApplicant;
  e.epoch = kGoldenEpoch;
  e.nonce = kGoldenNonce;
  e.settings = golden_settings();
  e.ack = 0x100000010U;
  e.kept = 0xFFFFFFF8U;
  const std::array<uint8_t, 8> held{0x05, 0, 0, 0, 0, 0, 0, 0x80};
  e.held = held;
  add("enrol", "enrol", protocol::write_enrolment(e, enrol, out.data()));
  e.wants_group = true;
  add("enrol_group", "enrol", protocol::write_enrolment(e, enrol, out.data()));
  add("welcome", "welcome",
      protocol::write_welcome({kGoldenApplicant, 4, true, kGoldenEpoch}, job, out.data()));
  add("welcome_incomplete", "welcome",
      protocol::write_welcome({kGoldenApplicant, 3, false, kGoldenEpoch}, job, out.data()));
  add("welcome_group", "welcome",
      protocol::write_welcome({kGoldenApplicant, 4, true, kGoldenEpoch, kGoldenGroup}, job,
                              out.data()));
  add("welcome_group6", "welcome",
      protocol::write_welcome({kGoldenApplicant, 2, false, kGoldenEpoch, kGoldenGroup6}, job,
                              out.data()));
  add("refusal", "refusal",
      protocol::write_refusal({kGoldenApplicant, protocol::Reason::world, 4, 5}, challenge,
                              out.data()));
  protocol::write_stranger(static_cast<uint32_t>(kGoldenJob), out.data());
  add("stranger", "stranger", protocol::kUpHeaderBytes);
  return cases;
}

inline std::vector<DatagramCase> golden_steady() {
  using protocol::DatagramType;
  const auto job = static_cast<uint32_t>(kGoldenJob);
  const auto epoch = static_cast<uint16_t>(kGoldenEpoch);
  const protocol::UpHeader up{
      DatagramType::data, protocol::kFirst, job, 7, 0xDEADBEEF, epoch, 5, 0x3C00, 2};
  protocol::UpHeader bare = up;
  bare.flags = 0;
  bare.norm = 0;
  protocol::UpHeader empty = up, full = up, values = up, hears = up, tries = bare;
  hears.flags = protocol::kFirst | protocol::kGroup;
  tries.type = DatagramType::ack;
  tries.flags = protocol::kTry;
  empty.flags = protocol::kEmpty | protocol::kTrouble;
  full.flags = protocol::kFull;
  values.flags = protocol::kValues;
  const protocol::DownHeader down{
      DatagramType::result, 0, job, 7, 0xDEADBEEF, epoch, 5, 0x3C00, 2, 3, 0xD};
  protocol::DownHeader held = down, nothing = down, status = down, failed = down, several = down;
  held.type = DatagramType::held;
  held.ahead = 2;
  nothing.flags = protocol::kEmpty;
  nothing.added = 0;
  status = {DatagramType::status, 0, job, 7, 0, epoch, 0, 0, 0, 0, 0};
  failed = {DatagramType::failed, 0, job, 7, 0, epoch, 0, 0, 3, 11, 0};
  several = {DatagramType::failed, 0, job, 7, 0, epoch, 0, 0, 3, 11, 0x28};
  const auto typed = [](auto header, DatagramType type) {
    header.type = type;
    return header;
  };
  return {golden_up("data", up, 0, 16),
          golden_up("data_later_era", up, 1, 16),
          golden_up("data_empty", empty, 0, 0),
          golden_up("data_values", values, 0, 20),
          golden_up("data_full_tag", full, 0, 13),
          golden_up("data_group", hears, 0, 16),
          golden_up("ack_try", tries, 0, 0),
          golden_up("pull", typed(bare, DatagramType::pull), 0, 0),
          golden_up("ack", typed(bare, DatagramType::ack), 0, 0),
          golden_up("leave", typed(bare, DatagramType::leave), 0, 0),
          golden_down("result", down, 0, 32),
          golden_down("result_of_nothing", nothing, 0, 0),
          golden_down("held", held, 0, 32),
          golden_down("status", status, 0, 0),
          golden_down("open", typed(status, DatagramType::open), 0, 0),
          golden_down("fetch", typed(status, DatagramType::fetch), 0, 0),
          golden_down("failed", failed, 0, 0),
          golden_down("failed_several", several, 0, 0)};
}

/// A sound one with one byte changed, or with another length.
inline std::vector<DatagramCase> golden_broken() {
  std::vector<DatagramCase> cases;
  const auto steady = golden_steady(), registration = golden_registration();
  const auto take = [&](const std::string& name) {
    for (const auto* list : {&steady, &registration}) {
      for (const DatagramCase& c : *list) {
        if (c.name == name) return c;
      }
    }
    return DatagramCase{};
  };
  const auto change = [&](const char* of, const char* how, std::size_t at, uint8_t value) {
    DatagramCase c = take(of);
    c.name = std::string("bad-") + of + "-" + how;
    c.bytes[at] = value;
    cases.push_back(std::move(c));
  };
  const auto resize = [&](const char* of, const char* how, std::size_t size) {
    DatagramCase c = take(of);
    c.name = std::string("bad-") + of + "-" + how;
    c.bytes.resize(size);
    cases.push_back(std::move(c));
  };
  change("data", "magic", 0, 0x4D);
  change("data", "version", 2, 0x26);
  change("data", "type", 2, 0x1B);
  change("data", "flag", 3, 0x20);
  change("data", "worker", 22, 64);
  change("data", "zero", 23, 1);
  change("data", "granule", 8, 8);
  change("data", "tag", 31, 0xFF);
  change("data", "empty_with_payload", 3, protocol::kEmpty);
  change("data_full_tag", "payload", 32, 0xFF);
  change("data_group", "try", 3, protocol::kGroup | protocol::kTry);
  change("pull", "try", 3, protocol::kTry);
  change("pull", "norm", 20, 1);
  change("pull", "flag", 3, protocol::kTrouble);
  change("result", "bitmap", 24, 0xF);
  change("result", "added", 22, 4);
  change("result", "added_0", 22, 0);
  change("result", "group", 3, protocol::kGroup);
  change("status", "bitmap", 24, 1);
  change("failed_several", "worker", 22, 4);
  change("failed_several", "beyond", 22, 64);
  change("failed_several", "reason", 23, 12);
  change("welcome_group", "unicast", 52, 10);
  {
    DatagramCase c = take("welcome_group");
    c.name = "bad-welcome_group-port";
    c.bytes[30] = c.bytes[31] = 0;
    cases.push_back(std::move(c));
  }
  change("welcome_group", "address", 53, 8);
  change("welcome_group6", "unicast", 40, 0xFE);
  change("enrol", "job", 4, 1);
  change("enrol", "flag", 3, protocol::kTry);
  change("enrol", "ring", 68, 60);
  change("enrol", "tag", 130, 1);
  change("challenge", "tag", 40, 1);
  change("hello", "padding", 60, 1);
  change("hello_tagged", "padding", 55, 1);
  change("hello_tagged", "tag", 60, 1);
  change("refusal", "reason", 29, 0);
  resize("data", "cut_to_start", 7);
  resize("data", "cut_to_header", 31);
  resize("data", "cut_payload", 47);
  resize("data", "no_payload", 32);
  resize("ack", "payload", 33);
  resize("result", "cut_to_header", 39);
  resize("hello", "short", 63);
  resize("enrol", "short", 143);
  resize("stranger", "long", 33);
  return cases;
}

inline std::vector<DatagramCase> golden_datagrams() {
  auto cases = golden_registration();
  for (auto& list : {golden_steady(), golden_broken()}) {
    cases.insert(cases.end(), list.begin(), list.end());
  }
  return cases;
}

/// The result of a reader: a fault, or whether the tag is right.
inline std::string verdict_of(const DatagramCase& c) {
  const protocol::Token token = golden_token();
  const protocol::SipKey job = protocol::job_key(token, kGoldenJob, c.epoch);
  const auto say = [&](protocol::DatagramFault fault, auto tag) -> std::string {
    if (fault != protocol::DatagramFault::none)
      return std::string(protocol::datagram_fault_name(fault));
    return tag() ? "sound" : "tag";
  };
  const auto message = [&](const protocol::SipKey& key) {
    return [&c, key] { return protocol::message_tag_is_right(c.bytes, key); };
  };
  const protocol::SipKey challenge = protocol::challenge_key(token, kGoldenApplicant);
  if (c.layout == "up") {
    protocol::UpHeader h;
    return say(protocol::parse_up(c.bytes, &h), [&] {
      return protocol::tag_is_right(c.bytes, protocol::kUpHeaderBytes, job, c.era);
    });
  }
  if (c.layout == "down") {
    protocol::DownHeader h;
    return say(protocol::parse_down(c.bytes, &h), [&] {
      return protocol::tag_is_right(c.bytes, protocol::kDownHeaderBytes, job, c.era);
    });
  }
  if (c.layout == "hello") {
    protocol::Applicant who;
    bool tagged = false;
    const auto fault = protocol::parse_hello(c.bytes, &who, &tagged);
    return say(fault, [&] { return !tagged || message(protocol::hello_key(token))(); });
  }
  if (c.layout == "challenge") {
    protocol::Challenge x;
    return say(protocol::parse_challenge(c.bytes, &x), message(challenge));
  }
  if (c.layout == "enrol") {
    protocol::Enrolment e;
    const auto fault = protocol::parse_enrolment(c.bytes, &e);
    return say(fault, message(protocol::enrolment_key(token, e.from, e.epoch, e.nonce)));
  }
  if (c.layout == "welcome") {
    protocol::Welcome w;
    return say(protocol::parse_welcome(c.bytes, &w), message(job));
  }
  if (c.layout == "refusal") {
    protocol::Refusal r;
    return say(protocol::parse_refusal(c.bytes, &r), message(challenge));
  }
  uint32_t number = 0;
  return say(protocol::parse_stranger(c.bytes, &number), [] { return true; });
}

}  // namespace laconic::golden
