// exec/kv_shape.h: the shape of a model's K,V. Here, because neither model/ nor kv/ knows the
// other.
#pragma once

#include "kv/chunk_format.h"
#include "model/params.h"

namespace headstart::exec {

inline kv::KvShape kv_shape_of(const model::ModelParams& params) {
  return {params.n_layer, params.n_head_kv, params.d_head_k, params.d_head_v};
}

}  // namespace headstart::exec
