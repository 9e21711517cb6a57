// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/rendezvous/folder_board.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "engines/rendezvous/posix.h"
#include "laconic/bytes.h"

namespace laconic::rendezvous {

Result<std::string> FolderBoard::put(const std::string& key, const std::string& value,
                                     Deadline deadline) {
  if (!is_key(key) || !is_value(key, value)) return Errc::invalid_argument;
  const std::string path = folder_ + "/" + key;
  const Fd file(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file) return errno == EEXIST ? settled(key, deadline) : unusable(errno);
  std::string bytes(8, '\0');
  store(reinterpret_cast<uint8_t*>(bytes.data()), uint64_t{value.size()});
  bytes += value;
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return unusable(errno);
    done += static_cast<size_t>(n);
  }
  return value;
}

Result<std::string> FolderBoard::get(const std::string& key, Deadline) {
  if (!is_key(key)) return Errc::invalid_argument;
  // Does not block if a named pipe has the file's name.
  const Fd file(
      ::open((folder_ + "/" + key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) return errno == ENOENT ? Result<std::string>(std::string()) : unusable(errno);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return unusable(errno);
  if (!S_ISREG(facts.st_mode) || facts.st_size > static_cast<off_t>(8 + kMaxValue))
    return unusable(EINVAL);
  std::string bytes(static_cast<size_t>(facts.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(file.get(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  if (done < 8 || load<uint64_t>(reinterpret_cast<const uint8_t*>(bytes.data())) != done - 8)
    return std::string();
  std::string value = bytes.substr(8, done - 8);
  return is_value(key, value) ? Result<std::string>(std::move(value)) : unusable(EINVAL);
}

Result<std::string> FolderBoard::settled(const std::string& key, Deadline deadline) {
  for (;;) {
    auto there = get(key, deadline);
    if (!there || !there->empty()) return there;
    if (Clock::now() >= deadline) return unusable(EBUSY);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Error FolderBoard::unusable(int error) const {
  return {Errc::engine_failed,
          "cannot use the rendezvous folder " + folder_ + ": " + detail::reason(error),
          "use an empty folder that all ranks can write to"};
}

}  // namespace laconic::rendezvous
