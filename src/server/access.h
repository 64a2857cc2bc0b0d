// server/access.h: who may call what, decided from the head of a request before anything else.
//
//   with keys      every call but the public ones presents one, as `Authorization: Bearer KEY` or
//                  as `X-Api-Key: KEY`; browsers send neither by themselves
//   without keys   whoever reaches the server may use it, but no page of another site in a browser
//                  on this machine: the Host header must be an address or a known name (else a name
//                  of the attacker's could point here: DNS rebinding), and so must the Origin
//   CORS           pages of allowed origins may read answers
//
// A principal is the key that was presented; its chunks have salts that no other principal has.
//
//   threads  immutable once made; judge() is pure
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api_error.h"
#include "server/api_keys.h"

namespace headstart::server {

struct AccessOptions {
  std::vector<std::string> api_keys = {};
  // "scheme://host[:port]", or "*" for every page; none: the pages of this machine.
  std::vector<std::string> cors_origins = {};
  std::vector<std::string> hosts = {};  // names of this server beside localhost and any IP address
};

// What of a request's head decides; a header that is absent is empty.
struct CallHead {
  std::string_view method = {}, path = {};
  std::string_view host = {}, origin = {};
  std::string_view authorization = {}, x_api_key = {};
  std::string_view cors_headers = {};  // Access-Control-Request-Headers
};

struct Verdict {
  std::optional<ApiError> refusal;
  bool preflight = false;                                    // answered by its headers alone
  std::vector<std::pair<const char*, std::string>> headers;  // of the answer, refused or not
};

class Access {
 public:
  // `public_paths` need neither key nor host; their texts must outlive this. Errors:
  // kInvalidArgument.
  static Result<Access> open(const AccessOptions& options,
                             std::vector<std::string_view> public_paths);

  Verdict judge(const CallHead& call) const;
  // The store's salt of an admitted call whose body says `client_salt`.
  std::string salt(const CallHead& call, std::string_view client_salt) const;

 private:
  std::optional<Digest> principal(const CallHead& call) const;
  std::optional<ApiError> refuse_keyless(const CallHead& call) const;
  bool knows_host(std::string_view host) const;
  bool allows_origin(std::string_view origin) const;
  void add_cors(const CallHead& call, Verdict& verdict) const;

  ApiKeys keys_;
  std::vector<std::string> origins_, hosts_;  // in lower case
  bool any_origin_ = false;
  std::vector<std::string_view> public_paths_;
};

// The name or address of a Host header or an authority, in lower case, without port and brackets;
// nothing where it is none.
std::optional<std::string> host_name(std::string_view authority);
// Names and addresses that only this machine reaches.
bool is_loopback(std::string_view name);
// The key in an Authorization header; empty: none.
std::string_view bearer_key(std::string_view authorization);
// The requested headers that a page may send, as one list.
std::string allowed_headers(std::string_view requested);

}  // namespace headstart::server
