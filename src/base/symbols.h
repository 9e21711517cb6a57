// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A library that is opened at run time, and the texts that come from it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "base/concat.h"

namespace laconic {

/// A library's symbols; remembers the first that is missing. The library stays open until the
/// process ends: it may have threads of its own.
class Symbols {
 public:
  /// `library`: a path, or a name for the loader.
  explicit Symbols(const std::string& library)
      : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)), library_(library) {
    if (handle_ == nullptr) {
      const char* const reason = dlerror();
      why_ = reason != nullptr ? reason : library + " cannot be opened";
    }
  }

  template <class F>
  void optional(const char* name, F*& to) {
    if (handle_ != nullptr) to = reinterpret_cast<F*>(dlsym(handle_, name));
  }
  template <class F>
  void required(const char* name, F*& to) {
    optional(name, to);
    if (to == nullptr && why_.empty()) why_ = concat({library_, " has no ", name});
  }

  [[nodiscard]] bool complete() const { return why_.empty(); }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  void* handle_;
  std::string library_;
  std::string why_;
};

/// Without line breaks, and without a full stop at the end.
inline std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}  // namespace laconic
