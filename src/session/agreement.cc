// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/agreement.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "base/hash.h"
#include "laconic/version.h"

namespace laconic::session {
namespace {

/// A rank's place, in an agreement card.
struct Seat {
  uint32_t rank;
  uint32_t world;
  uint32_t node_shard;
  uint32_t records;  // rank 0 writes a record
};
/// The fixed layout of an agreement card. Texts that do not fit end in their hash.
struct Card {
  std::array<char, 8> magic;
  Seat seat;
  uint32_t parameters;
  uint32_t window;
  uint32_t strategy;
  uint32_t sums;
  uint64_t elements;
  uint64_t agreement;
  uint64_t model_hash;
  uint64_t seed;
  uint64_t small_elements;
  uint64_t part;
  uint64_t scales_from;
  std::array<char, 32> version;
  std::array<char, 384> spec;
  std::array<char, 104> rules;
  std::array<char, 128> controls;
};
static_assert(sizeof(Card) <= kAgreementBytes);
constexpr std::array<char, 8> kCardMagic{'L', 'A', 'C', 'A', 'G', 'R', 'E', '6'};

struct FailureCard {
  std::array<char, 8> magic;
  int32_t code;
  std::array<char, 512> message;
  std::array<char, 128> hint;
  uint32_t rank;  // 1 + that of the job which failed; 0: the card's own
};
static_assert(sizeof(FailureCard) <= kAgreementBytes);
constexpr std::array<char, 8> kFailureMagic{'L', 'A', 'C', 'F', 'A', 'I', 'L', '2'};

constexpr const char* kSameCall = "give every rank the same call, file and LACONIC_* variables";

template <size_t N>
void put_text(std::array<char, N>& field, std::string_view text) {
  field.fill('\0');
  std::copy_n(text.data(), std::min(text.size(), N - 1), field.data());
}
/// One text field; other texts have other types.
template <size_t N>
void put_whole(std::array<char, N>& field, std::string_view text) {
  if (text.size() < N) return put_text(field, text);
  const std::string rest = "... #" + std::to_string(hash64(text));
  put_text(field, std::string(text.substr(0, N - 1 - rest.size())) + rest);
}
template <size_t N>
std::string text_of(const std::array<char, N>& field) {
  return {field.data(),
          static_cast<size_t>(std::find(field.begin(), field.end(), '\0') - field.begin())};
}

/// The Error of two ranks that differ. `names`: the numbers of ranks in messages; empty: their
/// places.
struct Differing {
  std::span<const uint32_t> names;

  Error operator()(uint32_t a, uint32_t b, std::string_view what, const std::string& x,
                   const std::string& y) const {
    return Error{Errc::ranks_disagree,
                 "ranks disagree on " + std::string(what) + ": rank " + of(a) + " has " + x +
                     ", rank " + of(b) + " has " + y,
                 kSameCall};
  }
  [[nodiscard]] std::string of(uint32_t place) const {
    return std::to_string(names.empty() ? place : names[place]);
  }
};

Result<void> compare(uint32_t r, const Card& a, const Card& b, const Differing& differ) {
  const auto n = [](auto x) { return std::to_string(x); };
  const auto q = [](const std::string& s) { return "'" + s + "'"; };
  if (b.magic != kCardMagic || text_of(a.version) != text_of(b.version)) {
    return differ(0, r, "the version of laconic", text_of(a.version),
                  b.magic == kCardMagic ? text_of(b.version) : "?");
  }
  if (text_of(a.spec) != text_of(b.spec))
    return differ(0, r, "the spec", q(text_of(a.spec)), q(text_of(b.spec)));
  if (text_of(a.rules) != text_of(b.rules))
    return differ(0, r, "the rules", q(text_of(a.rules)), q(text_of(b.rules)));
  if (text_of(a.controls) != text_of(b.controls))
    return differ(0, r, "the control", q(text_of(a.controls)), q(text_of(b.controls)));
  if (a.seat.records != b.seat.records) {
    const auto has = [](const Card& card) { return card.seat.records != 0 ? "one" : "none"; };
    return differ(0, r, "a record", has(a), has(b));
  }
  if (a.seat.node_shard != b.seat.node_shard)
    return differ(0, r, "the place in their nodes", n(a.seat.node_shard), n(b.seat.node_shard));
  if (a.seat.world != b.seat.world)
    return differ(0, r, "the number of ranks", n(a.seat.world), n(b.seat.world));
  if (b.seat.rank != r) return differ(r, r, "its own rank", n(r), n(b.seat.rank));
  if (a.parameters != b.parameters || a.elements != b.elements) {
    return differ(0, r, "the model",
                  n(a.parameters) + " parameters with " + n(a.elements) + " elements",
                  n(b.parameters) + " parameters with " + n(b.elements) + " elements");
  }
  if (a.model_hash != b.model_hash) {
    return differ(0, r, "the model", "model " + n(a.model_hash),
                  "model " + n(b.model_hash) + " (names or shapes)");
  }
  if (a.seed != b.seed) return differ(0, r, "the seed", n(a.seed), n(b.seed));
  if (a.small_elements != b.small_elements) {
    return differ(0, r, "small_elements", n(a.small_elements), n(b.small_elements));
  }
  if (a.window != b.window) return differ(0, r, "the window", n(a.window), n(b.window));
  if (a.part != b.part) return differ(0, r, "part", n(a.part), n(b.part));
  if (a.strategy != b.strategy) {
    const auto name = [](const Card& card) {
      return std::string(
          collective::strategy_name(static_cast<collective::StrategyKind>(card.strategy)));
    };
    return differ(0, r, "the strategy", name(a), name(b));
  }
  if (a.sums != b.sums) {
    return differ(0, r, "what their engines can add (bits of f32, f16, bf16, i32)", n(a.sums),
                  n(b.sums));
  }
  if (a.agreement != b.agreement) {
    return differ(0, r, "how the model is cut into units", n(a.agreement), n(b.agreement));
  }
  return {};
}

/// "embed* from 4096=topk; *.bias=none".
std::string listed(std::span<const Rule> rules) {
  std::string text;
  for (const Rule& rule : rules) {
    const std::string from = std::to_string(rule.min_elements);
    const std::string to = std::to_string(rule.max_elements);
    const bool least = rule.min_elements != Rule().min_elements;
    const bool most = rule.max_elements != Rule().max_elements;
    text += concat({text.empty() ? "" : "; ", rule.match, least ? " from " : "", least ? from : "",
                    most ? " to " : "", most ? to : "", "=", rule.spec});
  }
  return text;
}

/// "dc2; embed*=aimd": the call's, and what rules have in its place.
std::string controls_of(const Steering* steering, std::span<const Rule> rules) {
  if (steering == nullptr) return "fixed";
  const std::string call = steering->agreed_control(0);
  std::string text = call;
  for (uint32_t c = 1; c <= rules.size(); ++c) {
    const std::string own = steering->agreed_control(c);
    if (own != call) text += "; " + rules[c - 1].match + "=" + own;
  }
  return text;
}

/// A rank's own trouble comes before what others have seen of it, and both before what passes.
uint32_t hearsay_of(Errc code) noexcept {
  if (code == Errc::residuals_left) return 2;
  return code == Errc::peer_failed || code == Errc::timed_out ? 1 : 0;
}

}  // namespace

AgreementCard failure_card(const Error& why, std::optional<uint32_t> rank) noexcept {
  FailureCard card{};
  card.magic = kFailureMagic;
  card.code = static_cast<int32_t>(why.code);
  put_text(card.message, why.message);
  put_text(card.hint, why.hint);
  card.rank = rank ? 1 + *rank : 0;
  AgreementCard bytes{};
  std::memcpy(bytes.data(), &card, sizeof card);
  return bytes;
}

std::optional<Failure> first_failure(Bytes cards, uint64_t stride) {
  std::optional<Failure> first;
  uint32_t same = 0, hearsay = 0;
  const auto world = static_cast<uint32_t>(cards.size() / stride);
  for (uint32_t r = 0; r < world; ++r) {
    const auto card = load<FailureCard>(cards.data() + r * stride);
    if (card.magic != kFailureMagic) continue;
    const auto lead = load<FailureCard>(cards.data());
    same += card.code == lead.code && card.message == lead.message && card.hint == lead.hint;
    const auto claimed = static_cast<Errc>(card.code);
    const uint32_t heard = hearsay_of(claimed);
    if (first && heard >= hearsay) continue;
    hearsay = heard;
    const bool known = claimed != Errc::ok && errc_name(claimed) != "unknown";
    first = {card.rank == 0 ? r : card.rank - 1,
             {known ? claimed : Errc::peer_failed, text_of(card.message), text_of(card.hint)}};
  }
  if (first) first->everybody = same == world;
  return first;
}

Result<void> check_failures(Bytes cards, std::string_view what) {
  auto failure = first_failure(cards);
  if (!failure) return {};
  Error& why = failure->why;
  const std::string rank = "rank " + std::to_string(failure->rank);
  if (what.empty() || why.code == Errc::residuals_left)
    return Error{why.code, rank + ": " + why.message, std::move(why.hint)};
  if (failure->everybody) return std::move(why);
  const std::string hint = why.hint.empty() ? "" : " (" + why.hint + ")";
  return Error{Errc::ranks_disagree, concat({rank, " could not ", what, ": ", why.message, hint}),
               kSameCall};
}

AgreementCard agreement_card(const Active& mine) {
  const collective::Model& model = mine.model;
  const collective::Options& options = model.options();
  const EngineCaps& caps = options.caps;
  Card card{};
  card.magic = kCardMagic;
  card.seat.rank = options.rank;
  card.seat.world = options.world;
  card.parameters = static_cast<uint32_t>(model.parameters().size());
  for (const auto& p : model.whole()) card.elements += p.count();
  card.agreement = model.agreement();
  card.model_hash = model.model_hash();
  card.seed = options.seed;
  card.small_elements = options.small_elements;
  card.window = options.window;
  card.seat.records = mine.asked.records ? 1U : 0U;
  card.seat.node_shard = options.node_shard;
  card.part = options.part;
  card.scales_from = caps.scales_from;
  card.strategy = static_cast<uint32_t>(model.choice().strategy);
  card.sums = caps.sums | (caps.short_sends ? 1U << 31 : 0U) | (caps.aggregates ? 1U << 30 : 0U);
  put_text(card.version, LACONIC_VERSION_STRING);
  const Spec* const down = collective::down_of(model, 0);
  put_whole(card.spec, down == nullptr
                           ? model.spec().canonical()
                           : concat({model.spec().canonical(), " with down=", down->canonical()}));
  put_whole(card.rules, listed(mine.asked.rules));
  put_whole(card.controls,
            controls_of(mine.steering ? &*mine.steering : nullptr, mine.asked.rules));
  AgreementCard bytes{};
  std::memcpy(bytes.data(), &card, sizeof card);
  return bytes;
}

Result<void> check_agreement(Active& mine, Bytes cards) {
  const uint32_t world = mine.model.options().world;
  if (cards.size() != world * kAgreementBytes) {
    return Error{Errc::ranks_disagree,
                 "agreement: expected " + std::to_string(world * kAgreementBytes) +
                     " bytes of cards, found " + std::to_string(cards.size()),
                 "gather every rank's card, in rank order"};
  }
  const auto first = load<Card>(cards.data());
  if (first.magic != kCardMagic)
    return Error{Errc::ranks_disagree, "rank 0 runs another version of laconic",
                 "install the same version on every rank"};
  uint64_t scales_from = 0;
  for (uint32_t r = 0; r < world; ++r) {
    const auto card = load<Card>(cards.data() + r * kAgreementBytes);
    if (auto same = compare(r, first, card, {}); !same) return same;
    scales_from = std::max(scales_from, card.scales_from);
  }
  mine.model.agree_on_scaling(scales_from);
  return {};
}

Result<void> check_node(Bytes cards, std::span<const uint32_t> names) {
  const Differing differ{names};
  auto first = load<Card>(cards.data());
  const uint32_t node = std::exchange(first.seat.rank, 0);
  first.seat.node_shard = 0;
  for (uint32_t r = 0; r < cards.size() / kAgreementBytes; ++r) {
    auto card = load<Card>(cards.data() + r * kAgreementBytes);
    card.seat.node_shard = 0;
    const uint32_t theirs = std::exchange(card.seat.rank, r);
    if (auto same = compare(r, first, card, differ); !same) return same;
    if (theirs != node)
      return differ(0, r, "which node they are", std::to_string(node), std::to_string(theirs));
  }
  return {};
}

bool cards_agree(Bytes cards, uint32_t world) noexcept {
  constexpr size_t kRankAt = offsetof(Card, seat) + offsetof(Seat, rank);
  if (cards.size() != world * kAgreementBytes) return false;
  AgreementCard first{};
  for (uint32_t r = 0; r < world; ++r) {
    auto card = load<AgreementCard>(cards.data() + r * kAgreementBytes);
    const auto rank = load<uint32_t>(card.data() + kRankAt);
    std::memset(card.data() + kRankAt, 0, sizeof rank);
    if (r == 0) first = card;
    if (rank != r || card != first) return false;
  }
  return load<Card>(first.data()).magic == kCardMagic;
}

}  // namespace laconic::session
