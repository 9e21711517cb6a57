// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The one file that includes nlohmann-json, whose templates cost seconds of compiling.
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "json.h"

namespace laconic::tools {
namespace {

using Library = nlohmann::json;

/// Builds a value from the parser's events, without recursion. A name that comes twice has its last
/// value.
class Builder final : public nlohmann::json_sax<Library> {
 public:
  [[nodiscard]] Json take() { return std::move(root_); }
  [[nodiscard]] std::string take_trouble() { return std::move(trouble_); }

  bool null() override { return put({}); }
  bool boolean(bool flag) override { return put(flag); }
  bool number_integer(number_integer_t number) override { return put(number); }
  bool number_unsigned(number_unsigned_t number) override { return put(number); }
  bool number_float(number_float_t number, const string_t&) override { return put(number); }
  bool string(string_t& text) override { return put(std::move(text)); }
  bool binary(binary_t&) override { return false; }  // there is none in JSON
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& name) override {
    name_ = std::move(name);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t, const std::string&, const Library::exception& error) override {
    trouble_ = error.what();
    return false;
  }

 private:
  Json& place(Json value) {
    if (open_.empty()) return root_ = std::move(value);
    Json& outer = *open_.back();
    if (outer.is_object()) return outer[name_] = std::move(value);
    outer.push_back(std::move(value));
    return outer.back();
  }
  bool put(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;  // stay where they are: only the innermost grows
  std::string name_, trouble_;
};

}  // namespace

Result<Json> parse_json(std::string_view text) {
  Builder builder;
  if (Library::sax_parse(text, &builder)) return builder.take();
  return Error{Errc::invalid_argument, builder.take_trouble(), {}};
}

}  // namespace laconic::tools
