// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "transfers.h"

#include <algorithm>

#include "laconic/dtype.h"
#include "laconic/engine/names_of.h"

namespace laconic::mpi {
namespace {

/// Calls of a message that are posted ahead.
constexpr int kCallsAhead = 8;

const char* doing(Kind kind) {
  return kind == Kind::sum    ? "MPI_Iallreduce"
         : kind == Kind::send ? "sending to"
                              : "receiving from";
}

}  // namespace

void Transfers::reserve(uint64_t more) {
  requests_.reserve(requests_.size() + more);
  posted_.reserve(posted_.size() + more);
  done_.reserve(requests_.size() + more);
  statuses_.reserve(requests_.size() + more);
}

// ---- posting ----

void Transfers::exchange(Started& started, const Step& step, Kind kind, uint32_t peer, uint8_t* at,
                         uint64_t bytes) {
  if (bytes == 0) return;
  Posted posted{.started = &started,
                .kind = kind,
                .peer = static_cast<int>(peer),
                .tag = group_.tag_of(step),
                .at = at};
  const uint64_t call = group_.call_to(peer);
  if (bytes < call || (bytes == call && !step.short_sends)) return post(posted, bytes);
  posted.message = messages_.add(posted.tag, at, bytes, call, step.short_sends);
  // How many parts are received in all, only what they hold will tell.
  const int ahead = kind == Kind::receive_short ? 1 : kCallsAhead;
  for (int i = 0; i < ahead; ++i) post_next(posted);
}

void Transfers::exchange_all(Started& started, int tag, Kind kind, uint32_t peer,
                             detail::LargeSum::Extent range, uint32_t* term) {
  Posted posted{.started = &started,
                .kind = kind,
                .peer = static_cast<int>(peer),
                .tag = tag,
                .at = range.at,
                .term = term};
  const uint64_t call = group_.call_to(peer);
  for (uint64_t done = 0; done < range.bytes && status_; done += call, posted.at += call) {
    if (term != nullptr) ++*term;
    post(posted, std::min(call, range.bytes - done));
  }
}

void Transfers::sum(Started& started, const Step& step) {
  const MPI_Datatype type = step.dtype == DType::f32   ? MPI_FLOAT
                            : step.dtype == DType::i32 ? MPI_UINT32_T  // it wraps
                                                       : MPI_UINT16_T;
  const uint64_t size = dtype_size(step.dtype), most = group_.options().largest_call / size;
  for (uint64_t done = 0; done < step.count && status_; done += most) {
    const auto count = static_cast<int>(std::min(most, step.count - done));
    MPI_Request* request = add({.started = &started, .kind = Kind::sum});
    status_.good(MPI_Iallreduce(MPI_IN_PLACE, step.recv + done * size, count, type,
                                group_.sum_of(step.dtype), group_.comm(), request),
                 doing(Kind::sum));
  }
}

/// The next part of the same message, if there is one.
void Transfers::post_next(Posted posted) {
  if (!status_) return;
  const auto next = messages_.next(posted.message);
  if (!next) return;
  posted.at = next->at;
  post(posted, next->bytes);
}

void Transfers::post(Posted posted, uint64_t bytes) {
  posted.bytes = bytes;
  MPI_Request* request = add(posted);
  const int count = static_cast<int>(bytes);
  status_.good(
      posted.kind == Kind::send
          ? MPI_Isend(posted.at, count, MPI_BYTE, posted.peer, posted.tag, group_.comm(), request)
          : MPI_Irecv(posted.at, count, MPI_BYTE, posted.peer, posted.tag, group_.comm(), request),
      doing(posted.kind), posted.peer);
}

MPI_Request* Transfers::add(const Posted& posted) {
  if (requests_.size() == requests_.capacity()) reserve(requests_.size() + 16);
  ++posted.started->pending;
  posted_.push_back(posted);
  requests_.push_back(MPI_REQUEST_NULL);
  return &requests_.back();
}

// ---- ending ----

bool Transfers::progress() {
  if (requests_.empty()) return false;
  const auto count = static_cast<int>(requests_.size());
  done_.resize(requests_.size());
  statuses_.resize(requests_.size());
  int ended_now = 0;
  const int code =
      MPI_Testsome(count, requests_.data(), &ended_now, done_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return status_.good(code, "MPI_Testsome");
  if (ended_now == MPI_UNDEFINED || ended_now == 0) return false;
  for (int i = 0; i < ended_now && status_; ++i) {
    const Posted posted = posted_[static_cast<size_t>(done_[static_cast<size_t>(i)])];
    const MPI_Status status = statuses_[static_cast<size_t>(i)];
    if (code == MPI_SUCCESS || status_.good(status.MPI_ERROR, doing(posted.kind), posted.peer))
      ended(posted, status);
  }
  forget_ended();
  return true;
}

/// A part that has gone wrong stays pending: its job never ends.
void Transfers::ended(const Posted& posted, const MPI_Status& status) {
  bool last = false;
  if (posted.kind == Kind::receive || posted.kind == Kind::receive_short) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const auto arrived = static_cast<uint64_t>(bytes);
    if (posted.kind == Kind::receive && arrived != posted.bytes) {
      return status_.die(Error{Errc::exchange_order,
                               "mpi: rank " + std::to_string(posted.peer) + " sent " +
                                   std::to_string(arrived) + " bytes, expected " +
                                   std::to_string(posted.bytes),
                               "issue the same steps in the same order on all ranks"});
    }
    last = posted.kind == Kind::receive_short && arrived < posted.bytes;
  }
  if (posted.message != CutMessages::kNone && messages_.ended(posted.message, last))
    post_next(posted);
  --posted.started->pending;
  if (posted.term != nullptr) --*posted.term;
}

void Transfers::forget_ended() {
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    posted_[kept++] = posted_[i];
  }
  requests_.resize(kept);
  posted_.resize(kept);
}

std::string Transfers::peers(const Started& started, Kind one, Kind other) const {
  std::vector<uint32_t> list;
  for (const Posted& posted : posted_) {
    if (posted.started->number <= started.number && (posted.kind == one || posted.kind == other))
      list.push_back(static_cast<uint32_t>(posted.peer));
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return names_of(list);
}

}  // namespace laconic::mpi
