#include "server/schema_check.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace headstart::server {
namespace {

class SchemaCheck {
 public:
  explicit SchemaCheck(const Json& root) : root_(root) {}

  // Empty, or what is wrong.
  std::string check() {
    std::string wrong = check_value(root_, 0);
    for (size_t i = 0; wrong.empty() && i < refs_.size(); ++i) {
      wrong = check_chain(*refs_[i]);
      if (wrong.empty() && !walk(*refs_[i])) wrong = "branches through too many references";
    }
    return wrong;
  }

 private:
  std::string check_value(const Json& value, size_t depth) {
    if (!value.is_structured()) return {};
    if (depth > kSchemaDepthMax) return "is nested too deeply";
    if (value.is_object()) {
      if (auto wrong = check_object(value); !wrong.empty()) return wrong;
    }
    for (const auto& child : value) {
      if (auto wrong = check_value(child, depth + 1); !wrong.empty()) return wrong;
    }
    return {};
  }

  std::string check_object(const Json& object) {
    if (object.size() > kSchemaPropertiesMax) return "has an object with too many properties";
    for (const auto& [name, value] : object.items()) {
      if (name.size() > kSchemaNameBytesMax) return "has a property with too long a name";
      if ((name == "$ref" || name == "pattern") && value.is_string() &&
          value.get_ref<const std::string&>().size() > kSchemaTextBytesMax) {
        return "has too long a '" + name + "'";
      }
    }
    if (const auto ref = object.find("$ref"); ref != object.end() && ref->is_string()) {
      refs_.push_back(&object);
      if (refs_.size() > kSchemaRefsMax) return "has too many references";
    }
    return {};
  }

  // What an object's $ref names; null where it names nothing here, which the converter refuses.
  const Json* target(const Json& object) const {
    const auto ref = object.find("$ref");
    if (ref == object.end() || !ref->is_string()) return nullptr;
    const std::string& text = ref->get_ref<const std::string&>();
    if (!text.starts_with("#/")) return nullptr;
    const Json* at = &root_;
    for (size_t begin = 2; begin <= text.size();) {
      const size_t end = std::min(text.find('/', begin), text.size());
      at = step(*at, text.substr(begin, end - begin));
      if (!at) return nullptr;
      begin = end + 1;
    }
    return at;
  }

  static const Json* step(const Json& at, const std::string& name) {
    if (at.is_object()) {
      const auto it = at.find(name);
      return it == at.end() ? nullptr : &*it;
    }
    if (!at.is_array() || name.empty() || name.size() > 6 ||
        name.find_first_not_of("0123456789") != std::string::npos) {
      return nullptr;
    }
    const size_t i = std::stoul(name);
    return i < at.size() ? &at[i] : nullptr;
  }

  // References that only refer on must end somewhere.
  std::string check_chain(const Json& object) const {
    const Json* at = &object;
    for (size_t n = 0; n <= refs_.size(); ++n) {
      at = at->is_object() ? target(*at) : nullptr;
      if (!at) return {};
    }
    return "has a reference that refers to itself";
  }

  // Goes where the converter goes to find out what types a reference allows: through every way
  // that meets no target twice, of which there can be as many as there are orders.
  bool walk(const Json& value) {
    constexpr size_t kStepsMax = 1'000'000;
    if (++n_step_ > kStepsMax) return false;
    if (!value.is_object()) return true;
    if (const Json* to = target(value)) {
      if (std::find(on_way_.begin(), on_way_.end(), to) != on_way_.end()) return true;
      on_way_.push_back(to);
      const bool good = walk(*to);
      on_way_.pop_back();
      return good;
    }
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      const auto branches = value.find(name);
      if (branches == value.end() || !branches->is_array()) continue;
      for (const Json& branch : *branches) {
        if (!walk(branch)) return false;
      }
    }
    return true;
  }

  const Json& root_;
  std::vector<const Json*> refs_;  // the objects that hold them
  std::vector<const Json*> on_way_;
  size_t n_step_ = 0;
};

}  // namespace

std::optional<ApiError> check_schema(const Json& schema, const std::string& param) {
  if (!schema.is_object() && !schema.is_boolean()) {
    return bad_field(param, "must be a JSON schema: an object");
  }
  const std::string wrong = SchemaCheck(schema).check();
  if (!wrong.empty()) return bad_field(param, "is a schema that " + wrong);
  if (dump(schema).size() > kSchemaBytesMax) {
    return bad_field(param,
                     "is a schema of more than " + std::to_string(kSchemaBytesMax) + " bytes");
  }
  return std::nullopt;
}

}  // namespace headstart::server
