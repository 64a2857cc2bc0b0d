// exec/slot_actions.h: what a slot held last, kept outside the store, brought back, forgotten.
//
// Slots own no K,V between requests: the store does. So a slot's contents are the chunks that the
// store finds for its tokens, and a restore is told by what the store finds afterwards.
//
//   threads  any; the slot is not busy and stays so meanwhile
#pragma once

#include <filesystem>

#include "exec/engine_parts.h"

namespace headstart::exec {

// Errors of all: as Engine::save_slot.
Result<SlotMoved> save_slot(EngineParts& engine, const Slot& slot,
                            const std::filesystem::path& dir);
Result<SlotMoved> restore_slot(EngineParts& engine, Slot& slot, const std::filesystem::path& dir);
Result<SlotMoved> erase_slot(EngineParts& engine, Slot& slot);

}  // namespace headstart::exec
