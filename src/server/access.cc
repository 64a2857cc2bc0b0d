#include "server/access.h"

#include <arpa/inet.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>

namespace headstart::server {
namespace {

constexpr size_t kNameBytesMax = 253;  // of a DNS name
constexpr size_t kRequestedHeadersMax = 64;

// What clients in browsers send besides the headers that need no permission.
constexpr std::array<std::string_view, 12> kClientHeaders = {
    "accept",         "anthropic-version", "authorization", "cache-control",
    "content-type",   "last-event-id",     "openai-beta",   "openai-organization",
    "openai-project", "user-agent",        "x-api-key",     "x-requested-with"};
constexpr std::string_view kSdkPrefix = "x-stainless-";  // OpenAI's SDKs, many of them

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) { return lower(c); });
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_char(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || c == '-' || c == '.' || c == '_';
}
bool is_token_char(char c) { return is_name_char(c) && c != '.'; }

bool is_address(int family, const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return ::inet_pton(family, text.c_str(), bytes.data()) == 1;
}

bool is_address(const std::string& name) {
  return is_address(AF_INET, name) || is_address(AF_INET6, name);
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Empty, or a colon and a port.
bool is_port(std::string_view text) {
  if (text.empty()) return true;
  return text.front() == ':' && text.size() <= 6 &&
         std::all_of(text.begin() + 1, text.end(), is_digit);
}

// What follows "scheme://"; empty where the origin has another form ("null", say).
std::string_view authority_of(std::string_view origin) {
  const auto at = origin.find("://");
  if (at == std::string_view::npos || at == 0) return {};
  const std::string scheme = lower(origin.substr(0, at));
  const bool good =
      std::all_of(scheme.begin(), scheme.end(), [](char c) { return is_name_char(c) || c == '+'; });
  return good ? origin.substr(at + 3) : std::string_view();
}

ApiError unauthorized(bool presented) {
  ApiError error;
  error.status = 401;
  error.message = presented ? "this API key is not one of this server's"
                            : "this server wants an API key: send Authorization: Bearer KEY";
  error.code = "invalid_api_key";
  return error;
}

ApiError forbidden(const char* code, std::string message) {
  ApiError error;
  error.status = 403;
  error.message = std::move(message);
  error.type = "permission_error";
  error.code = code;
  return error;
}

}  // namespace

std::optional<std::string> host_name(std::string_view authority) {
  if (authority.size() > kNameBytesMax + 8) return std::nullopt;
  if (authority.starts_with('[')) {
    const auto end = authority.find(']');
    if (end == std::string_view::npos || !is_port(authority.substr(end + 1))) return std::nullopt;
    std::string address = lower(authority.substr(1, end - 1));
    if (!is_address(AF_INET6, address)) return std::nullopt;
    return address;
  }
  const auto colon = std::min(authority.find(':'), authority.size());
  if (!is_port(authority.substr(colon))) return std::nullopt;
  std::string name = lower(authority.substr(0, colon));
  if (name.size() > 1 && name.back() == '.') name.pop_back();
  if (name.empty() || !std::all_of(name.begin(), name.end(), is_name_char)) return std::nullopt;
  return name;
}

bool is_loopback(std::string_view name) {
  if (name == "localhost" || name.ends_with(".localhost") || name == "::1") return true;
  return name.starts_with("127.") && is_address(AF_INET, std::string(name));
}

std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kScheme = "bearer ";
  authorization = trimmed(authorization);
  if (lower(authorization.substr(0, kScheme.size())) != kScheme) return {};
  return trimmed(authorization.substr(kScheme.size()));
}

std::string allowed_headers(std::string_view requested) {
  std::string out;
  for (size_t n = 0; !requested.empty() && n < kRequestedHeadersMax; ++n) {
    const auto comma = std::min(requested.find(','), requested.size());
    const std::string name = lower(trimmed(requested.substr(0, comma)));
    requested.remove_prefix(std::min(comma + 1, requested.size()));
    const bool of_sdk =
        name.starts_with(kSdkPrefix) && std::all_of(name.begin(), name.end(), is_token_char);
    const auto* known = std::find(kClientHeaders.begin(), kClientHeaders.end(), name);
    if (!of_sdk && known == kClientHeaders.end()) continue;
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

Result<Access> Access::open(const AccessOptions& options,
                            std::vector<std::string_view> public_paths) {
  Access out;
  HS_ASSIGN_OR_RETURN(out.keys_, ApiKeys::of(options.api_keys));
  for (const std::string& origin : options.cors_origins) {
    if (origin == "*") {
      out.any_origin_ = true;
    } else if (host_name(authority_of(origin))) {
      out.origins_.push_back(lower(origin));
    } else {
      return Error{Code::kInvalidArgument,
                   "the CORS origin '" + origin +
                       "' is neither * nor scheme://host[:port], without a path after it"};
    }
  }
  for (const std::string& host : options.hosts) {
    const auto name = host_name(is_address(AF_INET6, host) ? "[" + host + "]" : host);
    if (!name) return Error{Code::kInvalidArgument, "'" + host + "' is no name of a host"};
    out.hosts_.push_back(*name);
  }
  out.public_paths_ = std::move(public_paths);
  return out;
}

Verdict Access::judge(const CallHead& call) const {
  Verdict out;
  add_cors(call, out);
  out.preflight = call.method == "OPTIONS";
  const bool reads = call.method == "GET" || call.method == "HEAD";
  const bool open_to_all = reads && std::find(public_paths_.begin(), public_paths_.end(),
                                              call.path) != public_paths_.end();
  if (out.preflight || open_to_all) return out;
  if (keys_.empty()) {
    out.refusal = refuse_keyless(call);
  } else if (!principal(call)) {
    out.refusal = unauthorized(!call.authorization.empty() || !call.x_api_key.empty());
    out.headers.emplace_back("WWW-Authenticate", "Bearer");
  }
  return out;
}

std::string Access::salt(const CallHead& call, std::string_view client_salt) const {
  const auto who = keys_.empty() ? std::nullopt : principal(call);
  return who ? salt_of(*who, client_salt) : std::string(client_salt);
}

// Clients behind a proxy may carry its Authorization and their own X-Api-Key: either will do.
std::optional<Digest> Access::principal(const CallHead& call) const {
  const auto of_bearer = keys_.find(bearer_key(call.authorization));
  const auto of_header = keys_.find(trimmed(call.x_api_key));
  return of_bearer ? of_bearer : of_header;
}

std::optional<ApiError> Access::refuse_keyless(const CallHead& call) const {
  // No browser leaves the Host out.
  if (!call.host.empty() && !knows_host(call.host)) {
    return forbidden("host_not_allowed",
                     "the Host header names a host that this server does not know: start it with "
                     "--allowed-host NAME, or with an API key");
  }
  const std::string authority = lower(authority_of(call.origin));
  const bool same_origin = !authority.empty() && authority == lower(call.host);
  if (!call.origin.empty() && !same_origin && !allows_origin(call.origin)) {
    return forbidden("origin_not_allowed",
                     "pages of this origin may not use this server: start it with --cors-origin "
                     "ORIGIN, or with an API key");
  }
  return std::nullopt;
}

bool Access::knows_host(std::string_view host) const {
  const auto name = host_name(host);
  if (!name) return false;
  return is_loopback(*name) || is_address(*name) ||
         std::find(hosts_.begin(), hosts_.end(), *name) != hosts_.end();
}

bool Access::allows_origin(std::string_view origin) const {
  if (any_origin_) return true;
  if (!origins_.empty()) {
    return std::find(origins_.begin(), origins_.end(), lower(origin)) != origins_.end();
  }
  const auto name = host_name(authority_of(origin));
  return name && is_loopback(*name);
}

void Access::add_cors(const CallHead& call, Verdict& verdict) const {
  auto& headers = verdict.headers;
  if (!any_origin_) headers.emplace_back("Vary", "Origin");
  if (call.origin.empty() || !allows_origin(call.origin)) return;
  headers.emplace_back("Access-Control-Allow-Origin", any_origin_ ? "*" : std::string(call.origin));
  headers.emplace_back("Access-Control-Expose-Headers", "Retry-After, WWW-Authenticate");
  // Only what the operator has named is trusted with a browser's cookies and certificates.
  if (!any_origin_ && !origins_.empty()) {
    headers.emplace_back("Access-Control-Allow-Credentials", "true");
  }
  if (call.method != "OPTIONS") return;
  headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
  headers.emplace_back("Access-Control-Max-Age", "600");
  const std::string allowed = allowed_headers(call.cors_headers);
  if (!allowed.empty()) headers.emplace_back("Access-Control-Allow-Headers", allowed);
}

}  // namespace headstart::server
