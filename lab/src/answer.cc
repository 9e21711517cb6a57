// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "answer.h"

#include "base/json_reader.h"

namespace laconic::lab {
namespace {

Error read_error(JsonReader& json) {
  Error error{Errc::engine_failed, {}, {}};
  json.object([&](std::string_view key) {
    if (key == "code") {
      error.code = static_cast<Errc>(json.whole());
    } else if (key == "message") {
      error.message = json.text();
    } else if (key == "hint") {
      error.hint = json.text();
    } else {
      json.skip();
    }
  });
  return error;
}

}  // namespace

Result<std::vector<int>> read_answer(std::string_view line) {
  const Error not_understood{Errc::engine_failed, "the lab's answer is not understood", {}};
  bool ok = false;
  std::vector<int> cores;
  Error error = not_understood;
  JsonReader json(line);
  json.object([&](std::string_view key) {
    if (key == "ok") {
      ok = json.flag();
    } else if (key == "cores") {
      json.array([&] { cores.push_back(static_cast<int>(json.whole())); });
    } else if (key == "error") {
      error = read_error(json);
    } else {
      json.skip();
    }
  });
  json.end();
  if (!json.ok()) return not_understood;
  if (!ok) return error;
  return cores;
}

}  // namespace laconic::lab
