// base/result.h: a value or the Error that stands in its place.
//
//   Result<Model> open(...);
//   HS_ASSIGN_OR_RETURN(auto model, open(...));   // hands the error to the caller
//   HS_RETURN_IF_ERROR(store.put(...));
//
// Expected failures are values; broken invariants abort through base/check.h.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace headstart {

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                    // NOLINT: a value is a result
  Result(Error error) : value_(tl::unexpect, std::move(error)) {}  // NOLINT: so is an error

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return checked(), *value_; }
  const T& operator*() const& { return checked(), *value_; }
  T&& operator*() && { return checked(), *std::move(value_); }
  T* operator->() { return checked(), &*value_; }
  const T* operator->() const { return checked(), &*value_; }

  const Error& error() const {
    HS_CHECK(!ok(), "error() of a result that holds a value");
    return value_.error();
  }

 private:
  void checked() const { HS_CHECK(ok(), value_.error().message.c_str()); }
  tl::expected<T, Error> value_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : value_(tl::unexpect, std::move(error)) {}  // NOLINT: an error is a result

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    HS_CHECK(!ok(), "error() of a result that holds a value");
    return value_.error();
  }

 private:
  tl::expected<void, Error> value_;
};

}  // namespace headstart

#define HS_CONCAT_(a, b) a##b
#define HS_CONCAT(a, b) HS_CONCAT_(a, b)
#define HS_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (auto hs_result_ = (expr); !hs_result_.ok()) return hs_result_.error(); \
  } while (0)
#define HS_ASSIGN_OR_RETURN(lhs, expr)                                                       \
  auto HS_CONCAT(hs_result_, __LINE__) = (expr);                                             \
  if (!HS_CONCAT(hs_result_, __LINE__).ok()) return HS_CONCAT(hs_result_, __LINE__).error(); \
  lhs = *std::move(HS_CONCAT(hs_result_, __LINE__))
