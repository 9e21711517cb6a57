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
  parts_.reserve(parts_.size() + more);
  done_.reserve(requests_.size() + more);
  statuses_.reserve(requests_.size() + more);
}

// ---- posting ----

void Transfers::exchange(Job& job, const Step& step, Kind kind, uint32_t peer, uint8_t* at,
                         uint64_t bytes) {
  if (bytes == 0) return;
  Part part{.job = &job,
            .kind = kind,
            .peer = static_cast<int>(peer),
            .tag = group_.tag_of(step),
            .at = at};
  const uint64_t call = group_.call_to(peer);
  if (bytes < call || (bytes == call && !step.short_sends)) return post(part, bytes);
  part.message = messages_.add(part.tag, at, bytes, call, step.short_sends);
  // How many parts are received in all, only what they hold will tell.
  const int ahead = kind == Kind::receive_short ? 1 : kCallsAhead;
  for (int i = 0; i < ahead; ++i) post_next(part);
}

void Transfers::exchange_all(Job& job, int tag, Kind kind, uint32_t peer,
                             detail::LargeSum::Range range, uint32_t* term) {
  Part part{.job = &job,
            .kind = kind,
            .peer = static_cast<int>(peer),
            .tag = tag,
            .at = range.at,
            .term = term};
  const uint64_t call = group_.call_to(peer);
  for (uint64_t done = 0; done < range.bytes && status_; done += call, part.at += call) {
    if (term != nullptr) ++*term;
    post(part, std::min(call, range.bytes - done));
  }
}

void Transfers::sum(Job& job, const Step& step) {
  const MPI_Datatype type = step.dtype == DType::f32   ? MPI_FLOAT
                            : step.dtype == DType::i32 ? MPI_UINT32_T  // it wraps
                                                       : MPI_UINT16_T;
  const uint64_t size = dtype_size(step.dtype), most = group_.options().largest_call / size;
  for (uint64_t done = 0; done < step.count && status_; done += most) {
    const auto count = static_cast<int>(std::min(most, step.count - done));
    MPI_Request* request = add({.job = &job, .kind = Kind::sum});
    status_.good(MPI_Iallreduce(MPI_IN_PLACE, step.recv + done * size, count, type,
                                group_.sum_of(step.dtype), group_.comm(), request),
                 doing(Kind::sum));
  }
}

/// The next part of the same message, if there is one.
void Transfers::post_next(Part part) {
  if (!status_) return;
  const auto next = messages_.next(part.message);
  if (!next) return;
  part.at = next->at;
  post(part, next->bytes);
}

void Transfers::post(Part part, uint64_t bytes) {
  part.bytes = bytes;
  MPI_Request* request = add(part);
  const int count = static_cast<int>(bytes);
  status_.good(
      part.kind == Kind::send
          ? MPI_Isend(part.at, count, MPI_BYTE, part.peer, part.tag, group_.comm(), request)
          : MPI_Irecv(part.at, count, MPI_BYTE, part.peer, part.tag, group_.comm(), request),
      doing(part.kind), part.peer);
}

MPI_Request* Transfers::add(const Part& part) {
  if (requests_.size() == requests_.capacity()) reserve(requests_.size() + 16);
  ++part.job->pending;
  parts_.push_back(part);
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
    const Part part = parts_[static_cast<size_t>(done_[static_cast<size_t>(i)])];
    const MPI_Status status = statuses_[static_cast<size_t>(i)];
    if (code == MPI_SUCCESS || status_.good(status.MPI_ERROR, doing(part.kind), part.peer))
      ended(part, status);
  }
  forget_ended();
  return true;
}

/// A part that has gone wrong stays pending: its job never ends.
void Transfers::ended(const Part& part, const MPI_Status& status) {
  bool last = false;
  if (part.kind == Kind::receive || part.kind == Kind::receive_short) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const auto arrived = static_cast<uint64_t>(bytes);
    if (part.kind == Kind::receive && arrived != part.bytes) {
      return status_.die(Error{Errc::exchange_order,
                               "mpi: rank " + std::to_string(part.peer) + " sent " +
                                   std::to_string(arrived) + " bytes, expected " +
                                   std::to_string(part.bytes),
                               "issue the same steps in the same order on all ranks"});
    }
    last = part.kind == Kind::receive_short && arrived < part.bytes;
  }
  if (part.message != CutMessages::kNone && messages_.ended(part.message, last)) post_next(part);
  --part.job->pending;
  if (part.term != nullptr) --*part.term;
}

void Transfers::forget_ended() {
  size_t kept = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    requests_[kept] = requests_[i];
    parts_[kept++] = parts_[i];
  }
  requests_.resize(kept);
  parts_.resize(kept);
}

std::string Transfers::peers(const Job& job, Kind one, Kind other) const {
  std::vector<uint32_t> list;
  for (const Part& part : parts_) {
    if (part.job->number <= job.number && (part.kind == one || part.kind == other))
      list.push_back(static_cast<uint32_t>(part.peer));
  }
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return names_of(list);
}

}  // namespace laconic::mpi
