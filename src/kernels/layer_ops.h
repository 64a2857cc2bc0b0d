// kernels/layer_ops.h: what a layer does besides multiplying and attending, a row at a time.
//
//   shapes   outermost first
//   threads  pure
#pragma once

#include <cstddef>
#include <cstdint>

namespace headstart::kernels {

// Of the gate in a gated feed-forward part.
enum class Activation : uint8_t {
  kSilu,      // x / (1 + e^-x)
  kGeluTanh,  // x / 2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))
};

// out = x / sqrt(mean(x²) + eps) · weight, all [n]; out may be x
void rms_norm(const float* x, const float* weight, size_t n, float eps, float* out);
// out = activation(gate) · up, all [n]; out may be either
void gate(Activation activation, const float* gate, const float* up, size_t n, float* out);
// y += x
void add(const float* x, size_t n, float* y);
void scale(float factor, size_t n, float* x);
// x = cap · tanh(x / cap)
void soft_cap(float cap, size_t n, float* x);

}  // namespace headstart::kernels
