// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// JSON as a value, cheap to include: base/json_text.h writes it, and what reads it is in one file.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "laconic/error.h"

namespace laconic {
struct JsonStyle;
class JsonText;
}  // namespace laconic

namespace laconic::tools {

/// Null, a boolean, a number, a text, an array or an object, whose members stay in their order.
/// Asked for what it is not, it answers with nothing: null, 0, "", false.
class Json {
 public:
  struct Member;

  Json() noexcept;  ///< null
  Json(std::nullptr_t) noexcept : Json() {}
  Json(bool flag) noexcept;
  Json(double number) noexcept;
  Json(std::string text) noexcept;
  Json(std::string_view text) : Json(std::string(text)) {}
  Json(const char* text) : Json(std::string(text)) {}
  template <std::integral T>
  Json(T number) noexcept
      : Json(std::is_signed_v<T> && number < 0, static_cast<uint64_t>(number)) {}
  template <class T>
  Json(const std::vector<T>& items) : Json(array()) {
    for (const T& item : items) push_back(item);
  }
  /// An object.
  Json(std::initializer_list<Member> members);
  static Json array(std::initializer_list<Json> items = {});
  static Json object();

  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  [[nodiscard]] bool is_null() const noexcept { return kind_ == Kind::null; }
  [[nodiscard]] bool is_flag() const noexcept { return kind_ == Kind::flag; }
  [[nodiscard]] bool is_text() const noexcept { return kind_ == Kind::text; }
  /// 0 to 2^64 - 1, written without fraction and exponent.
  [[nodiscard]] bool is_whole() const noexcept { return kind_ == Kind::whole; }
  [[nodiscard]] bool is_array() const noexcept { return kind_ == Kind::array; }
  [[nodiscard]] bool is_object() const noexcept { return kind_ == Kind::object; }

  [[nodiscard]] bool flag() const noexcept { return kind_ == Kind::flag && whole_ != 0; }
  [[nodiscard]] double number() const noexcept;
  [[nodiscard]] uint64_t whole() const noexcept { return is_whole() ? whole_ : 0; }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

  /// Members of an object; items of an array, which have no names.
  [[nodiscard]] const std::vector<Member>& members() const noexcept { return members_; }
  [[nodiscard]] const Json* find(std::string_view name) const noexcept;
  [[nodiscard]] const Json& operator[](std::string_view name) const noexcept;
  [[nodiscard]] const Json& operator[](const char* name) const noexcept {
    return (*this)[std::string_view(name)];
  }
  /// The member of that name, new if there is none. Null becomes an object.
  Json& operator[](std::string_view name);
  Json& operator[](const char* name) { return (*this)[std::string_view(name)]; }
  /// Null becomes an array.
  void push_back(Json item);
  /// The last item; there has to be one.
  [[nodiscard]] Json& back() noexcept;
  /// All members of another object, over those of the same names.
  void update(const Json& other);

  [[nodiscard]] std::string dump() const;  ///< compact
  [[nodiscard]] std::string dump(const JsonStyle& style) const;

 private:
  enum class Kind : uint8_t { null, flag, whole, negative, real, text, array, object };
  explicit Json(Kind kind) noexcept;
  Json(bool negative, uint64_t number) noexcept;
  void write(JsonText& to) const;

  Kind kind_ = Kind::null;
  uint64_t whole_ = 0;  ///< of a negative number, its two's complement; a flag
  double real_ = 0;
  std::string text_;
  std::vector<Member> members_;
};

struct Json::Member {
  std::string name;
  Json value;
};

/// Parses one value and nothing after it; invalid_argument has the reason and position. Accepts any
/// bytes and any depth.
Result<Json> parse_json(std::string_view text);

}  // namespace laconic::tools
