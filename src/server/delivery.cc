#include "server/delivery.h"

#include <cpp-httplib/httplib.h>

#include <string_view>
#include <utility>

#include "server/choice_stream.h"
#include "server/completion_response.h"

namespace headstart::server {
namespace {

using Steady = std::chrono::steady_clock;

// How often a waiting connection looks whether its client is still there, besides at each piece of
// text: shorter than any batch of a prefill.
constexpr std::chrono::milliseconds kLookInterval{10};
constexpr std::chrono::milliseconds kNoWait{0};
// An SSE comment: shows proxies and clients that a long prefill is alive.
constexpr std::string_view kPing = ": ping\n\n";

}  // namespace

Delivery::Delivery(std::vector<std::unique_ptr<RequestQueue::Ticket>> tickets, AnswerHead head,
                   DeliveryOptions options)
    : tickets_(std::move(tickets)), head_(std::move(head)), options_(std::move(options)) {}

ApiResult<std::optional<std::string>> Delivery::whole() const {
  std::vector<Answer> answers;
  for (const auto& ticket : tickets_) {
    while (!ticket->finished()) {
      ticket->wait(kLookInterval);
      for (const auto& t : tickets_) {  // what they hold is in the completions too
        t->wait(kNoWait);
        t->take_probs();
      }
      if (!options_.client_alive()) return std::nullopt;
      if (Steady::now() >= options_.deadline && !ticket->finished()) {
        return tl::unexpected(deadline_exceeded());
      }
    }
    const auto& result = ticket->result();
    if (!result.ok()) return tl::unexpected(options_.failure(result.error()));
    answers.push_back({&*result, ticket->queue_ms()});
  }
  return answer_body(head_, answers);
}

bool Delivery::stream(httplib::DataSink& sink) const {
  Steady::time_point written_at;
  const auto write = [&](std::string_view bytes) {
    if (bytes.empty()) return true;
    written_at = Steady::now();
    return sink.write(bytes.data(), bytes.size());
  };
  const auto fail = [&](const ApiError& error) {
    write(error_event(error));
    sink.done();
    return true;
  };
  if (!write(kPing)) return false;
  bool in_prompt = options_.progress;  // of the first choice, which prefills it
  ProgressPace pace(options_.progress_interval);
  ChoiceStreams choices(head_, tickets_.size());
  while (!choices.finished()) {
    bool waited = false;
    for (uint32_t i = 0; i < tickets_.size(); ++i) {
      if (choices.finished(i)) continue;
      RequestQueue::Ticket& ticket = *tickets_[i];
      // Choices run side by side or one after the other; one wait for all of them will do.
      const std::string text = ticket.wait(std::exchange(waited, true) ? kNoWait : kLookInterval);
      if (in_prompt && i == 0) {
        const auto due = pace.due(ticket.take_progress(), Steady::now());
        if (due && !write(choices.progress(i, *due))) return false;
        in_prompt = text.empty();
      }
      if (!write(choices.push(i, text, ticket.take_probs()))) return false;
      if (!ticket.finished()) continue;
      const auto& result = ticket.result();
      if (!result.ok()) return fail(options_.failure(result.error()));
      if (!write(choices.finish(i, {&*result, ticket.queue_ms()}, ticket.take_probs()))) {
        return false;
      }
    }
    if (!sink.is_writable()) return false;
    if (!choices.finished() && Steady::now() >= options_.deadline) {
      return fail(deadline_exceeded());
    }
    if (Steady::now() - written_at >= options_.ping_interval && !write(kPing)) return false;
  }
  sink.done();
  return true;
}

}  // namespace headstart::server
