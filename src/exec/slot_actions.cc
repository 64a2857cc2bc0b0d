#include "exec/slot_actions.h"

#include "store/sequence_files.h"

namespace headstart::exec {
namespace {

Result<void> check_store(const EngineParts& e) {
  if (e.store != nullptr) return {};
  return Error{Code::kUnsupported, "slots are kept by the store; start without --no-cache"};
}

// All of the tokens, not as a prompt whose last one is computed.
store::Match match(EngineParts& e, const std::string& salt, std::span<const Token> tokens) {
  return e.store->match({e.fingerprint, e.numeric, e.slots.front()->kv->shape(), salt, tokens,
                         store::ReuseMode::kExact});
}

class Timed {
 public:
  explicit Timed(const Clock& clock) : clock_(clock), begin_s_(clock.now_s()) {}
  double ms() const { return (clock_.now_s() - begin_s_) * 1e3; }

 private:
  const Clock& clock_;
  const double begin_s_;
};

}  // namespace

Result<SlotMoved> save_slot(EngineParts& e, const Slot& slot, const std::filesystem::path& dir) {
  HS_RETURN_IF_ERROR(check_store(e));
  const Timed timed(e.clock);
  e.store->flush();
  const store::Match found = match(e, slot.salt, slot.tokens);
  std::vector<kv::ChunkPtr> chunks;
  SlotMoved moved;
  for (const store::MatchedChunk& m : found.chunks) {
    auto chunk = e.store->read(m.chunk.id);
    if (!chunk.ok()) break;  // evicted or damaged meanwhile; what follows is of no use without it
    chunks.push_back(*std::move(chunk));
    moved.n_token += m.n_use;
  }
  const store::Sequence sequence{
      e.fingerprint, slot.salt, {slot.tokens.begin(), slot.tokens.begin() + moved.n_token}};
  HS_ASSIGN_OR_RETURN(moved.n_byte, store::write_sequence(e.disk, dir, sequence, chunks));
  moved.ms = timed.ms();
  return moved;
}

Result<SlotMoved> restore_slot(EngineParts& e, Slot& slot, const std::filesystem::path& dir) {
  HS_RETURN_IF_ERROR(check_store(e));
  const Timed timed(e.clock);
  HS_ASSIGN_OR_RETURN(store::Sequence sequence, store::read_sequence(e.disk, dir));
  if (sequence.fingerprint != e.fingerprint) {
    return Error{Code::kUnsupported, dir.string() + " was saved by another model"};
  }
  HS_ASSIGN_OR_RETURN(const store::SequenceChunks saved, store::read_sequence_chunks(e.disk, dir));
  for (const kv::ChunkPtr& chunk : saved.chunks) {
    // A foreign file is harmless, as the store compares tokens, but would take room.
    if (chunk->header().meta.fingerprint != e.fingerprint) continue;
    HS_RETURN_IF_ERROR(e.store->take_in(chunk));
  }
  SlotMoved moved;
  moved.n_token = match(e, sequence.salt, sequence.tokens).n_token;
  moved.n_byte = saved.size_bytes;
  slot.tokens = std::move(sequence.tokens);
  slot.salt = std::move(sequence.salt);
  moved.ms = timed.ms();
  return moved;
}

Result<SlotMoved> erase_slot(EngineParts& e, Slot& slot) {
  const Timed timed(e.clock);
  SlotMoved moved;
  moved.n_token = static_cast<uint32_t>(slot.tokens.size());
  if (e.store != nullptr) {
    e.store->flush();
    for (const store::MatchedChunk& m : match(e, slot.salt, slot.tokens).chunks) {
      moved.n_byte += m.chunk.size_bytes;
      e.store->erase(m.chunk.id);
    }
  }
  slot.tokens.clear();
  slot.salt.clear();
  slot.kv->release(0);
  slot.n_token_resident = 0;
  moved.ms = timed.ms();
  return moved;
}

}  // namespace headstart::exec
