// server/slot_endpoints.h: llama-server's slot calls: GET /slots, POST /slots/ID?action=A.
//
// A restore tells the truth: n_restored is what the next request with that beginning will reuse.
//
//   threads  any at once
//   source   llama-server's README; fields and their names
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "server/api_error.h"
#include "server/completer.h"

namespace headstart::server {

// `fail_without_idle`: 503 where a request runs in every slot.
ApiResult<std::string> slots(const Completer& model, bool fail_without_idle);

// action: save, restore or erase. `body` names the file for the first two; `save_dir` is the folder
// that it is in, nothing where saving is not allowed.
ApiResult<std::string> slot_action(Completer& model, std::string_view id, std::string_view action,
                                   std::string_view body,
                                   const std::optional<std::filesystem::path>& save_dir);

}  // namespace headstart::server
