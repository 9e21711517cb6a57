// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/saved_state.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <string_view>

#include "base/hash.h"

namespace laconic::session {
namespace {

constexpr std::array<char, 8> kMagic{'L', 'A', 'C', 'S', 'T', 'A', 'T', 'E'};

/// The head of a state; the spec's text follows, then the entries, then the checksum.
struct Head {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t rank;
  uint32_t world;
  uint32_t entries;
  uint64_t model_hash;
  uint64_t agreement;
  uint64_t part;
  uint32_t spec_bytes;
  uint16_t node_shards;  // 0: the model is whole
  uint16_t node_shard;
};
static_assert(sizeof(Head) == 56);

/// Before each entry's name and values.
struct EntryHead {
  uint64_t count;
  uint32_t name_bytes;
  uint32_t reserved;
};
static_assert(sizeof(EntryHead) == 16);

Error corrupt(std::string what) {
  return {Errc::state_corrupt, "state: " + std::move(what), "use an older checkpoint"};
}

/// The settings that determine the position of an element in a sum of the engine.
uint64_t part_of(const Session& session) {
  return session.model().layout_matters() ? session.model().options().part : 0;
}

void put(std::vector<uint8_t>& out, const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  out.insert(out.end(), from, from + bytes);
}

/// Takes bytes from the front, never more than there are.
class Reader {
 public:
  explicit Reader(Bytes bytes) : bytes_(bytes) {}
  /// Empty if there are fewer; of 0 bytes, too.
  Bytes take(uint64_t bytes) {
    if (bytes > bytes_.size()) {
      short_ = true;
      return {};
    }
    const Bytes taken = bytes_.first(bytes);
    bytes_ = bytes_.subspan(bytes);
    return taken;
  }
  template <class T>
  T take() {
    const Bytes bytes = take(sizeof(T));
    return bytes.empty() ? T{} : load<T>(bytes.data());
  }
  [[nodiscard]] bool ran_short() const { return short_; }
  [[nodiscard]] bool at_end() const { return bytes_.empty(); }

 private:
  Bytes bytes_;
  bool short_ = false;
};

std::string_view text_of(Bytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<void> check_head(const Session& session, const Head& head, std::string_view spec) {
  auto fits = feedback::accepts(
      session.active().state_header(),
      {head.version, head.rank, head.world, head.model_hash, head.agreement, std::string(spec),
       std::max<uint32_t>(head.node_shards, 1), head.node_shard});
  if (!fits) return fits;
  if (head.part == part_of(session) || session.model().alone()) return {};
  return Error{Errc::state_spec,
               "state: expected one saved with part=" + std::to_string(part_of(session)) +
                   ", found part=" + std::to_string(head.part),
               "the engine sums parts: another part size would change the last bits of its sums"};
}

/// Whether the next entry is another one than this, which an older release did not save.
bool lacks(Reader reader, const feedback::Store::Entry& entry) {
  if (entry.kind != feedback::StateKind::codec_state || !entry.name.ends_with(feedback::kMayLack))
    return false;
  const auto head = reader.take<EntryHead>();
  return text_of(reader.take(head.name_bytes)) != entry.name;
}

/// The values of an entry, whose name and size are known.
Result<Bytes> read_entry(Reader& reader, const feedback::Store::Entry& entry) {
  const auto head = reader.take<EntryHead>();
  const auto name = text_of(reader.take(head.name_bytes));
  if (name != entry.name) return corrupt("expected " + entry.name);
  const Bytes values = reader.take(entry.values.size_bytes());
  if (reader.ran_short()) return corrupt("it ends inside " + entry.name);
  if (head.reserved != 0) return corrupt("the reserved bytes of " + entry.name + " are not 0");
  if (auto fits = feedback::check_values(entry, values.data(), head.count); !fits)
    return std::move(fits).error();
  return values;
}

Result<uint32_t> load_checked(Session& session, Bytes state) {
  const auto& entries = session.active().store.entries();
  if (state.size() < sizeof(Head) + sizeof(uint64_t)) return corrupt("it is too short");
  const Bytes body = state.first(state.size() - sizeof(uint64_t));
  Reader reader(body);
  const auto head = reader.take<Head>();
  if (head.magic != kMagic) return corrupt("the bytes are not a saved state");
  if (hash64(body) != load<uint64_t>(body.data() + body.size()))
    return corrupt("its checksum is wrong");
  const auto spec = text_of(reader.take(head.spec_bytes));
  if (head.node_shards == 1 || head.node_shard >= std::max<uint32_t>(head.node_shards, 1))
    return corrupt("it is of no shard of a node");
  if (auto fits = check_head(session, head, spec); !fits) return std::move(fits).error();
  if (session.model().alone())
    return head.version;  // a release that compressed alone has saved residuals
  if (auto moved = session.active().store.to_host(); !moved) return std::move(moved).error();
  std::vector<Bytes> values;
  uint32_t lacking = 0;
  for (const auto& entry : entries) {
    if (lacks(reader, entry)) {
      values.emplace_back();
      ++lacking;
      continue;
    }
    auto read = read_entry(reader, entry);
    if (!read) return std::move(read).error();
    values.push_back(*read);
  }
  if (!reader.at_end()) return corrupt("unexpected data after the end");
  if (head.entries + lacking != entries.size())
    return corrupt("expected " + std::to_string(entries.size()) + " entries");
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& into = entries[i].values;
    if (!values[i].empty())
      std::memcpy(into.data(), values[i].data(), values[i].size());
    else
      std::fill(into.begin(), into.end(), 0.0F);
  }
  return head.version;
}

}  // namespace

Error in_flight_error() noexcept {
  try {
    return {Errc::exchange_order, "state: exchanges are in flight",
            "save and load between two steps: call wait() first"};
  } catch (const std::bad_alloc&) {
    return {Errc::exchange_order, {}, {}};
  }
}

Result<std::vector<uint8_t>> save_state(const Session& session, uint32_t version) {
  try {
    if (session.in_flight() != 0) return in_flight_error();
    const auto header = session.active().state_header();
    const auto& entries = session.active().store.entries();
    if (auto read = session.active().store.read(); !read) return std::move(read).error();
    const bool sharded = header.node_shards > 1;
    const Head head{kMagic,
                    sharded ? header.version : version,
                    header.rank,
                    header.world,
                    static_cast<uint32_t>(entries.size()),
                    header.model_hash,
                    header.agreement,
                    part_of(session),
                    static_cast<uint32_t>(header.spec.size()),
                    static_cast<uint16_t>(sharded ? header.node_shards : 0),
                    static_cast<uint16_t>(header.node_shard)};
    std::vector<uint8_t> out;
    uint64_t bytes = sizeof head + header.spec.size() + sizeof(uint64_t);
    for (const auto& entry : entries)
      bytes += sizeof(EntryHead) + entry.name.size() + entry.values.size_bytes();
    out.reserve(bytes);
    put(out, &head, sizeof head);
    put(out, header.spec.data(), header.spec.size());
    for (const auto& entry : entries) {
      const EntryHead each{entry.values.size(), static_cast<uint32_t>(entry.name.size()), 0};
      put(out, &each, sizeof each);
      put(out, entry.name.data(), entry.name.size());
      put(out, entry.values.data(), entry.values.size_bytes());
    }
    const uint64_t checksum = hash64(out);
    put(out, &checksum, sizeof checksum);
    return out;
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "out of memory", {}};
  }
}

Result<uint32_t> load_state(Session& session, Bytes state) {
  try {
    if (session.in_flight() != 0) return in_flight_error();
    return load_checked(session, state);
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "out of memory", {}};
  }
}

}  // namespace laconic::session
