// server/choice_stream.h: one choice's text as it comes, to the events of a stream.
//
// A chat's text is parsed again with each piece: what it then holds more of content, reasoning or
// arguments is sent. Nothing that was sent is ever taken back; a parser that changes its mind is
// waited for.
//
// Of a tool call the first delta carries index, id, type, name and empty arguments, later ones the
// index and a piece of the arguments, which are JSON text. A name is sent once it cannot grow.
//
//   threads  one owner
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_json.h"
#include "server/prompt_progress.h"

namespace headstart::server {

class ChoiceStream {
 public:
  // `head` must outlive this.
  ChoiceStream(const AnswerHead& head, uint32_t index) : head_(head), index_(index) {}

  // The events of more text and of the probabilities that came with it; maybe none yet. The first
  // of a chat carries the role.
  std::string push(std::string_view text, std::vector<model::TokenProbs> probs);
  // How far the prompt is, in a chunk that carries nothing else; before any text only.
  std::string progress(const PromptProgress& progress);
  // The rest and the finish reason. `totals`: this is the stream's last choice and no usage
  // follows, so its last event carries them; else empty.
  std::string finish(const exec::Completion& completion, std::span<const Answer> totals);

 private:
  enum class TextEnd : uint8_t { kOpen, kCut, kWhole };  // more comes, cut short, ended by itself

  std::string begin();
  std::string send(Json content);
  std::string send_delta(const model::ChatMessage& message, bool whole);
  std::string send_calls(const model::ChatMessage& message, bool whole);
  std::string push_chat(TextEnd end);
  Json take_logprobs();

  const AnswerHead& head_;
  const uint32_t index_;
  bool begun_ = false;
  std::string text_;                      // all of it; chats with a parser only
  model::ChatMessage sent_;               // what the client has
  std::vector<model::TokenProbs> probs_;  // not sent yet
  size_t n_text_byte_ = 0;                // of the tokens whose probabilities were sent
};

// All choices of a call, whose events mix as they come, and the stream's end.
class ChoiceStreams {
 public:
  ChoiceStreams(const AnswerHead& head, size_t n_choice);

  bool finished() const { return n_open_ == 0; }
  bool finished(uint32_t i) const { return answers_[i].completion != nullptr; }
  std::string push(uint32_t i, std::string_view text, std::vector<model::TokenProbs> probs);
  std::string progress(uint32_t i, const PromptProgress& progress) {
    return streams_[i].progress(progress);
  }
  // The answer's completion must outlive this. After the last choice's events come the usage where
  // it is asked for, and [DONE].
  std::string finish(uint32_t i, const Answer& answer, std::vector<model::TokenProbs> probs);

 private:
  const AnswerHead& head_;
  std::vector<ChoiceStream> streams_;
  std::vector<Answer> answers_;
  size_t n_open_;
};

}  // namespace headstart::server
