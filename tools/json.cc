// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "json.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/json_text.h"

namespace laconic::tools {

Json::Json() noexcept = default;
Json::Json(Kind kind) noexcept : kind_(kind) {}
Json::Json(bool negative, uint64_t number) noexcept
    : kind_(negative ? Kind::negative : Kind::whole), whole_(number) {}
Json::Json(bool flag) noexcept : kind_(Kind::flag), whole_(flag ? 1 : 0) {}
Json::Json(double number) noexcept : kind_(Kind::real), real_(number) {}
Json::Json(std::string text) noexcept : kind_(Kind::text), text_(std::move(text)) {}
Json::Json(std::initializer_list<Member> members) : kind_(Kind::object), members_(members) {}

Json Json::array(std::initializer_list<Json> items) {
  Json all(Kind::array);
  for (const Json& item : items) all.push_back(item);
  return all;
}

Json Json::object() { return Json(Kind::object); }

Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;

/// Without recursion: a file may be nested deeper than a stack is.
Json::~Json() {
  std::vector<Member> rest = std::move(members_);
  while (!rest.empty()) {
    std::vector<Member> inner = std::move(rest.back().value.members_);
    rest.pop_back();
    std::move(inner.begin(), inner.end(), std::back_inserter(rest));
  }
}

double Json::number() const noexcept {
  if (kind_ == Kind::negative) return static_cast<double>(static_cast<int64_t>(whole_));
  return kind_ == Kind::whole ? static_cast<double>(whole_) : real_;
}

const Json* Json::find(std::string_view name) const noexcept {
  if (!is_object()) return nullptr;
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& member) { return member.name == name; });
  return found == members_.end() ? nullptr : &found->value;
}

const Json& Json::operator[](std::string_view name) const noexcept {
  static const Json kNothing;
  const Json* const found = find(name);
  return found == nullptr ? kNothing : *found;
}

Json& Json::operator[](std::string_view name) {
  if (is_null()) kind_ = Kind::object;
  if (const Json* const found = find(name)) return const_cast<Json&>(*found);
  return members_.emplace_back(Member{std::string(name), {}}).value;
}

void Json::push_back(Json item) {
  if (is_null()) kind_ = Kind::array;
  members_.push_back({{}, std::move(item)});
}

Json& Json::back() noexcept { return members_.back().value; }

void Json::update(const Json& other) {
  for (const Member& member : other.members_) (*this)[member.name] = member.value;
}

std::string Json::dump() const { return dump(kJsonCompact); }

std::string Json::dump(const JsonStyle& style) const {
  JsonText text(style);
  write(text);
  return text.take();
}

void Json::write(JsonText& to) const {
  switch (kind_) {
    case Kind::null:
      to.null();
      break;
    case Kind::flag:
      to.value(flag());
      break;
    case Kind::whole:
      to.value(whole_);
      break;
    case Kind::negative:
      to.value(static_cast<int64_t>(whole_));
      break;
    case Kind::real:
      to.value(real_);
      break;
    case Kind::text:
      to.value(text_);
      break;
    case Kind::array:
      to.open('[');
      for (const Member& item : members_) item.value.write(to);
      to.close(']');
      break;
    case Kind::object:
      to.open('{');
      for (const Member& member : members_) member.value.write(to.key(member.name));
      to.close('}');
  }
}

}  // namespace laconic::tools
