// server/delivery.h: how the text of queued requests reaches the client of one call.
//
// Waits for what the tickets bring, looks whether the client is still there, keeps the call's
// deadline, and writes either one body or a stream of server-sent events with pings in its pauses.
//
//   threads  one owner: the call's connection
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer_json.h"
#include "server/api_error.h"
#include "server/request_queue.h"

namespace httplib {
class DataSink;
}

namespace headstart::server {

struct DeliveryOptions {
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  bool progress = false;  // streams tell how far the prompt is
  std::chrono::milliseconds progress_interval{0};
  std::chrono::milliseconds ping_interval{0};
  std::function<bool()> client_alive;
  // What the client of a request that failed is told.
  std::function<ApiError(const Error&)> failure;
};

class Delivery {
 public:
  // One ticket for each choice. Dropping this cancels what still runs.
  Delivery(std::vector<std::unique_ptr<RequestQueue::Ticket>> tickets, AnswerHead head,
           DeliveryOptions options);

  // The body of the whole answer. Nothing: the client has left.
  ApiResult<std::optional<std::string>> whole() const;
  // Writes all events. False: the client has left.
  bool stream(httplib::DataSink& sink) const;

 private:
  const std::vector<std::unique_ptr<RequestQueue::Ticket>> tickets_;
  const AnswerHead head_;
  const DeliveryOptions options_;
};

}  // namespace headstart::server
