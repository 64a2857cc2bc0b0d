// exec/rope_tables.h: the rope tables of a model, shared by computing and loading.
//
//   threads  any at once; each reserves the positions that it reads
#pragma once

#include "kernels/rope.h"
#include "model/params.h"

namespace headstart::exec {

class RopeTables {
 public:
  explicit RopeTables(const model::ModelParams& params)
      : params_(params), full_(params.rope), windowed_(params.rope_windowed) {}

  const kernels::RopeTable& of(uint32_t layer) const {
    return params_.windowed[layer] ? windowed_ : full_;
  }
  // Makes positions below n_pos available in both tables.
  void reserve(uint32_t n_pos) {
    full_.reserve(n_pos);
    if (params_.n_window != 0) windowed_.reserve(n_pos);
  }

 private:
  const model::ModelParams& params_;
  kernels::RopeTable full_;
  kernels::RopeTable windowed_;
};

}  // namespace headstart::exec
