// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace qperf {

// Threads that live from one call to the next. Used by one caller at a time. Not usable in a
// process forked from the one that made it: threads do not survive a fork.
class ThreadPool {
 public:
  // task in [0, num_tasks), thread in [0, num_threads()).
  using Work = std::function<void(int64_t task, int thread)>;

  // num_threads counts the caller, so num_threads - 1 are started.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Do every task once; return when all are done, even if a thread has not woken up by then.
  // `work` must not throw.
  void run(int64_t num_tasks, const Work& work);

 private:
  // One call of run(). Its own object, so that a thread waking up late finds its tasks taken and
  // never touches those of the next call.
  struct Round {
    const Work* work;
    int64_t num_tasks;
    std::atomic<int64_t> next_task{0};
    std::atomic<int64_t> num_done{0};
  };

  void work_until_stopped(int thread);
  void take_tasks(Round& round, int thread);
  void stop();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable all_done_;
  std::atomic<uint64_t> num_rounds_{0};
  std::shared_ptr<Round> round_;  // guarded by mutex_; null once stopping
};

}  // namespace qperf
