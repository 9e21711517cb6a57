// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Any bytes give a datagram or a fault. What is accepted is what our writer makes of its fields,
// but for the tag.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "aggregation/protocol/enrolment.h"

namespace {

using namespace laconic;
using namespace laconic::aggregation::protocol;

constexpr SipKey kKey{1, 2};

void require(bool condition) {
  if (!condition) std::abort();
}

void headers_again(Bytes datagram) {
  UpHeader up;
  if (parse_up(datagram, &up) == DatagramFault::none) {
    std::array<uint8_t, kUpHeaderBytes> again;
    write_up(up, kKey, 3, datagram.subspan(kUpHeaderBytes), again.data());
    require(std::equal(again.begin(), again.end() - kTagBytes, datagram.begin()));
    std::vector<uint8_t> sound(datagram.begin(), datagram.end());
    std::copy(again.begin(), again.end(), sound.begin());
    require(tag_is_right(sound, kUpHeaderBytes, kKey, 3));
  }
  DownHeader down;
  if (parse_down(datagram, &down) == DatagramFault::none) {
    std::array<uint8_t, kDownHeaderBytes> again;
    write_down(down, kKey, 3, datagram.subspan(kDownHeaderBytes), again.data());
    require(std::equal(again.begin(), again.end() - kTagBytes, datagram.begin()));
  }
}

// Bytes that no field names are not compared: messages may carry some.
void messages_again(Bytes datagram) {
  std::array<uint8_t, kMaxEnrolmentBytes> again;
  Applicant who;
  bool tagged = false;
  if (parse_hello(datagram, &who, &tagged) == DatagramFault::none) {
    const SipKey key{};
    require(write_hello(who, tagged ? &key : nullptr, again.data()) == datagram.size());
    const auto compared = static_cast<std::ptrdiff_t>(datagram.size() - (tagged ? kTagBytes : 0));
    require(std::equal(datagram.begin(), datagram.begin() + compared, again.begin()));
  }
  Enrolment e, e2;
  if (parse_enrolment(datagram, &e) == DatagramFault::none) {
    const uint64_t bytes = write_enrolment(e, kKey, again.data());
    require(bytes == datagram.size() && bytes <= kMaxEnrolmentBytes);
    require(parse_enrolment(Bytes(again).first(bytes), &e2) == DatagramFault::none);
    require(e2.from == e.from && e2.settings == e.settings && e2.ack == e.ack && e2.kept == e.kept);
    require(e2.wants_group == e.wants_group);
    require(message_tag_is_right(Bytes(again).first(bytes), kKey));
    if (judge_settings(e.settings) == Reason::none) {
      require(e.settings.slot_bytes() <= kMaxDatagramPayload);
      require(largest_code(e.settings) * e.settings.world < 1U << e.settings.lane_bits);
    }
  }
  Challenge challenge;
  if (parse_challenge(datagram, &challenge) == DatagramFault::none) {
    require(datagram.size() == kHelloBytes);
    (void)message_tag_is_right(datagram, kKey);
  }
  Welcome welcome;
  if (parse_welcome(datagram, &welcome) == DatagramFault::none) {
    require(datagram.size() == kHelloBytes);
    require(!welcome.group.exists() || is_multicast(welcome.group));
    Welcome same;
    require(write_welcome(welcome, kKey, again.data()) == kHelloBytes);
    require(parse_welcome(Bytes(again).first(kHelloBytes), &same) == DatagramFault::none);
    require(same == welcome);
  }
  Refusal refusal;
  if (parse_refusal(datagram, &refusal) == DatagramFault::none) {
    require(!reason_text(refusal.reason).empty());
  }
  uint32_t job = 0;
  (void)parse_stranger(datagram, &job);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headers_again({data, size});
  messages_again({data, size});
  return 0;
}
