// Threads for calls that may wait, and what becomes of those calls where there are no threads.
#include "net/verbs/thread_pool.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <future>

namespace weft::net {
namespace {

// While it lives, no thread of the standard library can be made: its stack fits no address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t endless;
    EXPECT_EQ(pthread_attr_init(&endless), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&endless, size_t{1} << 47), 0);
    EXPECT_EQ(pthread_setattr_default_np(&endless), 0);
    pthread_attr_destroy(&endless);
  }
  ~NoMoreThreads() {
    EXPECT_EQ(pthread_setattr_default_np(&before_), 0);
    pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_;
};

TEST(ThreadPool, DoesWhatItIsGivenWhereNoThreadCanBeMade) {
  ThreadPool pool(2);
  bool is_done = false;
  {
    const NoMoreThreads none;
    pool.Submit([&] { is_done = true; });
  }
  EXPECT_TRUE(is_done);
  std::promise<void> later;
  pool.Submit([&] { later.set_value(); });
  later.get_future().wait();
}

TEST(ThreadPool, GoesOnWithTheThreadsThatItHasWhereNoOtherCanBeMade) {
  bool is_done = false;
  {
    ThreadPool pool(2);
    std::promise<void> begun, goes_on;
    pool.Submit([&] {
      begun.set_value();
      goes_on.get_future().wait();
    });
    begun.get_future().wait();
    const NoMoreThreads none;
    pool.Submit([&] { is_done = true; });  // does not wait for the first
    goes_on.set_value();
  }
  EXPECT_TRUE(is_done);
}

}  // namespace
}  // namespace weft::net
