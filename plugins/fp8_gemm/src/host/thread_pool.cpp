// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace qperf {
namespace {

// Calls follow each other within microseconds while a model step runs; waking a sleeping thread
// costs more than that. Longer waits leave the core to others.
constexpr auto kSpin = std::chrono::microseconds(30);
constexpr int kPausesPerClockRead = 16;

template <typename Condition>
bool spin_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int pause = 0; pause < kPausesPerClockRead; ++pause) {
      if (condition()) return true;
#if defined(__x86_64__)
      _mm_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < end);
  return condition();
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  try {
    for (int thread = 1; thread < num_threads; ++thread)
      workers_.emplace_back([this, thread] { work_until_stopped(thread); });
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    round_ = nullptr;
    ++num_rounds_;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t num_tasks, const Work& work) {
  if (workers_.empty() || num_tasks <= 1) {
    for (int64_t task = 0; task < num_tasks; ++task) work(task, 0);
    return;
  }
  const auto round = std::make_shared<Round>();
  round->work = &work;
  round->num_tasks = num_tasks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    round_ = round;
    ++num_rounds_;
  }
  wake_.notify_all();
  take_tasks(*round, 0);
  const auto is_done = [&] { return round->num_done.load() == num_tasks; };
  if (spin_until(is_done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  all_done_.wait(lock, is_done);
}

void ThreadPool::take_tasks(Round& round, int thread) {
  for (int64_t task = round.next_task++; task < round.num_tasks; task = round.next_task++) {
    (*round.work)(task, thread);
    if (++round.num_done == round.num_tasks) {
      // The caller may be between its check and its sleep: it holds the mutex there.
      { const std::lock_guard<std::mutex> lock(mutex_); }
      all_done_.notify_one();
    }
  }
}

void ThreadPool::work_until_stopped(int thread) {
  uint64_t num_seen = 0;
  while (true) {
    const auto is_new = [&] { return num_rounds_.load() != num_seen; };
    const bool is_awake = spin_until(is_new);
    std::unique_lock<std::mutex> lock(mutex_);
    if (!is_awake) wake_.wait(lock, is_new);
    num_seen = num_rounds_;
    const std::shared_ptr<Round> round = round_;
    lock.unlock();
    if (round == nullptr) return;
    take_tasks(*round, thread);
  }
}

}  // namespace qperf
