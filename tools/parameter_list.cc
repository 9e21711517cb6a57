// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "parameter_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/quoted.h"
#include "files.h"
#include "json.h"

namespace laconic::tools {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 40U;  // of a parameter, as sessions have it
constexpr std::string_view kHint =
    "a path that ends in .json, of {\"name\": shape, ...} or of explain(); or "
    "name:elements,name:elements";

Error refused(std::string message) {
  return {Errc::invalid_argument, std::move(message), std::string(kHint)};
}

/// A product that is no more than kMostElements.
std::optional<uint64_t> times(uint64_t elements, uint64_t more) {
  if (more != 0 && elements > kMostElements / more) return {};
  return elements * more;
}

std::optional<uint64_t> whole(const Json& value) {
  if (!value.is_whole()) return {};
  return times(1, value.whole());
}

/// A number of elements, or a shape.
std::optional<uint64_t> elements_of(const Json& value) {
  if (!value.is_array()) return whole(value);
  std::optional<uint64_t> elements = 1;
  for (const auto& [_, size] : value.members()) {
    const auto more = whole(size);
    elements = more && elements ? times(*elements, *more) : std::nullopt;
  }
  return elements;
}

/// Lists in lists may be nested deeper than dump() can go.
std::string shown(const Json& size) {
  const bool flat = std::none_of(size.members().begin(), size.members().end(), [](const auto& x) {
    return x.value.is_array() || x.value.is_object();
  });
  return flat ? laconic::quoted(size.dump()) : "a list of lists or objects";
}

Result<std::vector<Parameter>> of_json(const Json& json) {
  std::vector<Parameter> parameters;
  const auto add = [&](const std::string& name, const Json& size) -> Result<void> {
    const auto elements = elements_of(size);
    if (!elements) {
      return refused(fmt::format("{} is {}, neither a number of elements up to 2^40 nor a shape",
                                 laconic::quoted(name), shown(size)));
    }
    parameters.push_back({name, *elements, 1});
    return {};
  };
  if (!json.is_object()) return refused("it is not an object");
  const Json& listed = json["parameters"];
  if (!listed.is_array() || listed.members().empty() ||
      !listed.members().front().value.is_object()) {
    for (const auto& [name, size] : json.members()) {
      if (auto added = add(name, size); !added) return std::move(added).error();
    }
    return parameters;
  }
  for (const auto& [_, entry] : listed.members()) {
    const Json* const elements = entry.find("elements");
    if (!entry["name"].is_text() || elements == nullptr)
      return refused("a parameter without \"name\" or \"elements\"");
    const auto added = add(entry["name"].text(), *elements);
    if (!added) return added.error();
  }
  return parameters;
}

Result<std::vector<Parameter>> of_file(const std::string& path) {
  const auto bytes = read_file(path);
  if (!bytes) return refused(bytes.error().message);
  const auto of_path = [&](const Error& error) {
    return refused(fmt::format("{}: {}", path, error.message));
  };
  const auto json = parse_json({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!json) return of_path(json.error());
  auto parameters = of_json(*json);
  if (!parameters) return of_path(parameters.error());
  return parameters;
}

Result<std::vector<Parameter>> of_list(std::string_view text) {
  std::vector<Parameter> parameters;
  for (bool more = true; more;) {
    const std::string_view item = text.substr(0, text.find(','));
    more = item.size() < text.size();
    if (more) text.remove_prefix(item.size() + 1);
    const std::size_t colon = item.rfind(':');
    const std::string_view size =
        colon == std::string_view::npos ? std::string_view() : item.substr(colon + 1);
    uint64_t elements = 0;
    const auto [end, status] = std::from_chars(size.data(), size.data() + size.size(), elements);
    if (size.empty() || colon == 0 || status != std::errc{} || end != size.data() + size.size() ||
        elements > kMostElements) {
      return refused(fmt::format("{} is not name:elements", laconic::quoted(item)));
    }
    parameters.push_back({std::string(item.substr(0, colon)), elements, 1});
  }
  return parameters;
}

}  // namespace

Result<std::vector<Parameter>> read_parameters(const std::string& text) {
  auto parameters = text.ends_with(".json") ? of_file(text) : of_list(text);
  if (!parameters) return parameters;
  std::unordered_set<std::string_view> names;
  for (const Parameter& p : *parameters) {
    if (!names.insert(p.name).second)
      return refused(fmt::format("two parameters are named {}", laconic::quoted(p.name)));
  }
  return parameters;
}

}  // namespace laconic::tools
