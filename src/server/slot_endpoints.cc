#include "server/slot_endpoints.h"

#include <algorithm>
#include <charconv>

#include "server/answer_json.h"
#include "server/json_fields.h"

namespace headstart::server {
namespace {

constexpr size_t kFileNameBytesMax = 128;

// A name within the folder and nothing else.
bool is_file_name(const std::string& name) {
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '.' ||
           c == '_' || c == '-';
  };
  return !name.empty() && name.size() <= kFileNameBytesMax && name.front() != '.' &&
         std::ranges::all_of(name, plain);
}

ApiError not_allowed() {
  ApiError error = unsupported_field("action", "needs a server started with --slot-save-path");
  error.status = 501;
  error.type = "not_supported_error";
  return error;
}

ApiError of_slot(const Error& error) {
  ApiError out = from_engine(error);
  if (error.code == Code::kNotFound) {
    out.status = 404;
    out.type = "invalid_request_error";
    out.message = error.message;
    out.code = "not_found";
  } else if (error.code == Code::kUnavailable) {
    out = unavailable("slot_busy", error.message);
  } else if (error.code == Code::kUnsupported || error.code == Code::kCorrupt) {
    out.status = 400;
    out.type = "invalid_request_error";
    out.message = error.message;
  }
  return out;
}

ApiResult<std::string> file_name(std::string_view body) {
  const auto root = parse_object(body);
  if (!root) return tl::unexpected(root.error());
  Fields fields(*root);
  std::string name = fields.text("filename", kFileNameBytesMax);
  if (fields.error()) return tl::unexpected(*fields.error());
  if (!is_file_name(name)) {
    return tl::unexpected(bad_field(
        "filename", "must be 1 to 128 letters, digits, '.', '_' or '-', and not begin with '.'"));
  }
  return name;
}

ApiResult<std::string> save_or_restore(Completer& model, uint32_t slot, bool save,
                                       std::string_view body, const std::filesystem::path& dir) {
  const auto name = file_name(body);
  if (!name) return tl::unexpected(name.error());
  const auto moved =
      save ? model.save_slot(slot, dir / *name) : model.restore_slot(slot, dir / *name);
  if (!moved.ok()) return tl::unexpected(of_slot(moved.error()));
  return dump({{"id_slot", slot},
               {"filename", *name},
               {save ? "n_saved" : "n_restored", moved->n_token},
               {save ? "n_written" : "n_read", moved->n_byte},
               {"timings", {{save ? "save_ms" : "restore_ms", moved->ms}}}});
}

}  // namespace

ApiResult<std::string> slots(const Completer& model, bool fail_without_idle) {
  const auto states = model.slots();
  const bool idle = std::ranges::any_of(states, [](const auto& s) { return !s.busy; });
  if (fail_without_idle && !idle) {
    return tl::unexpected(unavailable("no_slot", "a request runs in every slot"));
  }
  Json list = Json::array();
  for (const exec::SlotState& s : states) {
    list.push_back({{"id", s.id},
                    {"n_ctx", model.n_ctx()},
                    {"is_processing", s.busy},
                    {"n_past", s.n_token},
                    {"n_wanted", s.n_token_wanted}});
  }
  return dump(list);
}

ApiResult<std::string> slot_action(Completer& model, std::string_view id, std::string_view action,
                                   std::string_view body,
                                   const std::optional<std::filesystem::path>& save_dir) {
  uint32_t slot = 0;
  const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), slot);
  if (error != std::errc() || end != id.data() + id.size()) {
    return tl::unexpected(bad_field("id_slot", "must be the number of a slot"));
  }
  if (action == "save" || action == "restore") {
    if (!save_dir) return tl::unexpected(not_allowed());
    return save_or_restore(model, slot, action == "save", body, *save_dir);
  }
  if (action != "erase") {
    return tl::unexpected(bad_field("action", "must be save, restore or erase"));
  }
  const auto moved = model.erase_slot(slot);
  if (!moved.ok()) return tl::unexpected(of_slot(moved.error()));
  return dump({{"id_slot", slot}, {"n_erased", moved->n_token}});
}

}  // namespace headstart::server
