// Proves order, bounds and cancelling of the queue, without HTTP. Gates of the fake completer
// decide who runs and when.
#include "server/request_queue.h"

#include <gtest/gtest.h>

#include <functional>

#include "server/fake_completer.h"

namespace headstart::server {
namespace {

using namespace std::chrono_literals;
using TicketPtr = std::unique_ptr<RequestQueue::Ticket>;

exec::CompletionRequest request(Token first) {
  exec::CompletionRequest r;
  r.tokens = {first};
  return r;
}

bool eventually(const std::function<bool()>& holds) {
  for (int i = 0; i < 10'000; ++i) {
    if (holds()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

std::string drain(RequestQueue::Ticket& ticket) {
  std::string text;
  while (!ticket.finished()) text += ticket.wait(10ms);
  return text;
}

class RequestQueueTest : public ::testing::Test {
 protected:
  RequestQueue make(const QueueLimits& limits) {
    return RequestQueue(
        limits, [this](const exec::CompletionRequest& r, double) { return model.complete(r); });
  }
  FakeCompleter model{/*held=*/true};
};

TEST_F(RequestQueueTest, HandsTextAndResultOver) {
  RequestQueue queue = make({});
  model.start.open();
  model.step.open();
  auto ticket = *queue.submit(request(1));
  EXPECT_EQ(drain(*ticket), "Hello");
  ASSERT_TRUE(ticket->result().ok());
  EXPECT_EQ(ticket->result()->text, "Hello");
}

TEST_F(RequestQueueTest, HandsTextOverBeforeTheEnd) {
  RequestQueue queue = make({});
  model.start.open();
  auto ticket = *queue.submit(request(1));
  EXPECT_EQ(ticket->wait(1ms), "");
  model.step.add(1);
  EXPECT_EQ(ticket->wait(10s), "Hel");
  EXPECT_FALSE(ticket->finished());
  model.step.add(1);
  EXPECT_EQ(ticket->wait(10s), "lo");
}

TEST_F(RequestQueueTest, RunsOneAtATimeInOrder) {
  RequestQueue queue = make({});
  std::vector<TicketPtr> tickets;
  for (Token i = 0; i < 20; ++i) tickets.push_back(*queue.submit(request(i)));
  model.step.open();
  model.start.open();
  for (auto& ticket : tickets) drain(*ticket);
  const auto seen = model.seen();
  ASSERT_EQ(seen.size(), 20u);
  for (Token i = 0; i < 20; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)].tokens[0], i);
  EXPECT_EQ(model.n_active_max(), 1);
}

TEST_F(RequestQueueTest, RunsAsManyAsAllowed) {
  RequestQueue queue = make({.n_running_max = 3});
  std::vector<TicketPtr> tickets;
  for (Token i = 0; i < 6; ++i) tickets.push_back(*queue.submit(request(i)));
  EXPECT_TRUE(eventually([&] { return model.n_active_max() == 3; }));
  model.step.open();
  model.start.open();
  for (auto& ticket : tickets) drain(*ticket);
  EXPECT_EQ(model.n_active_max(), 3);
}

TEST_F(RequestQueueTest, RefusesBeyondItsBound) {
  RequestQueue queue = make({.n_waiting_max = 2});
  auto a = *queue.submit(request(1)), b = *queue.submit(request(2)), c = *queue.submit(request(3));
  const auto refused = queue.submit(request(4));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, Code::kExhausted);
  model.step.open();
  model.start.add(1);
  drain(*a);
  EXPECT_TRUE(queue.submit(request(5)).ok());
}

TEST_F(RequestQueueTest, DroppingAWaitingTicketFreesItsPlace) {
  RequestQueue queue = make({.n_waiting_max = 1});
  auto running = *queue.submit(request(1));
  EXPECT_TRUE(eventually([&] { return queue.n_running() == 1; }));
  auto waiting = *queue.submit(request(2));
  EXPECT_FALSE(queue.submit(request(3)).ok());
  waiting.reset();
  auto next = *queue.submit(request(4));
  model.step.open();
  model.start.open();
  drain(*running);
  drain(*next);
  ASSERT_EQ(model.seen().size(), 2u);  // the dropped one never ran
  EXPECT_EQ(model.seen()[1].tokens[0], 4);
}

TEST_F(RequestQueueTest, DroppingARunningTicketCancelsThatOneOnly) {
  RequestQueue queue = make({});
  auto first = *queue.submit(request(1)), second = *queue.submit(request(2));
  EXPECT_TRUE(eventually([&] { return queue.n_running() == 1; }));
  first.reset();
  EXPECT_TRUE(eventually([&] { return model.n_cancelled() == 1; }));
  model.step.open();
  model.start.open();
  EXPECT_EQ(drain(*second), "Hello");
  EXPECT_EQ(model.n_cancelled(), 1);
}

TEST_F(RequestQueueTest, CancelsAClientThatDoesNotRead) {
  RequestQueue queue = make({.unread_bytes_max = 4});
  model.start.open();
  model.step.open();
  auto slow = *queue.submit(request(1));  // "Hel" fits, "lo" does not
  EXPECT_TRUE(eventually([&] { return model.n_cancelled() == 1; }));
  EXPECT_EQ(drain(*slow), "Hel");
  EXPECT_EQ(slow->result().error().code, Code::kCancelled);
}

TEST_F(RequestQueueTest, StopEndsEverything) {
  RequestQueue queue = make({});
  auto running = *queue.submit(request(1)), waiting = *queue.submit(request(2));
  EXPECT_TRUE(eventually([&] { return queue.n_running() == 1; }));
  queue.stop();
  drain(*running);
  drain(*waiting);
  EXPECT_EQ(running->result().error().code, Code::kCancelled);
  EXPECT_EQ(waiting->result().error().code, Code::kCancelled);
  EXPECT_EQ(queue.submit(request(3)).error().code, Code::kUnavailable);
  queue.join();
  EXPECT_EQ(model.seen().size(), 1u);
}

TEST_F(RequestQueueTest, TurnsExceptionsIntoErrors) {
  RequestQueue queue = make({});
  model.throws = true;
  model.start.open();
  auto ticket = *queue.submit(request(1));
  drain(*ticket);
  EXPECT_EQ(ticket->result().error().code, Code::kIo);
  model.throws = false;  // the worker lives
  model.step.open();
  EXPECT_EQ(drain(**queue.submit(request(2))), "Hello");
}

TEST_F(RequestQueueTest, MeasuresTheWait) {
  RequestQueue queue = make({});
  auto first = *queue.submit(request(1)), second = *queue.submit(request(2));
  EXPECT_TRUE(eventually([&] { return queue.n_running() == 1; }));
  std::this_thread::sleep_for(20ms);
  model.step.open();
  model.start.open();
  drain(*second);
  EXPECT_GE(second->queue_ms(), 15);
}

}  // namespace
}  // namespace headstart::server
