// The subject of instructions_test.sh: multiplies rows of weights with a column.
//
//   row_products KERNEL TYPE ROWS
//
// KERNEL is a target of kernels/matvec.h ("neon", "neon dotprod", …) or "ggml". Runs that differ in
// ROWS alone differ in the instructions of the rows alone.
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "kernels/matvec.h"

namespace headstart::kernels {
namespace {

constexpr uint32_t kValues = 2048, kRowsMax = 8;

struct Type {
  std::string_view name;
  WeightType ours;
  ggml_type theirs;
};
constexpr Type kTypes[] = {
    {"Q4_0", WeightType::kQ4_0, GGML_TYPE_Q4_0}, {"Q4_1", WeightType::kQ4_1, GGML_TYPE_Q4_1},
    {"Q8_0", WeightType::kQ8_0, GGML_TYPE_Q8_0}, {"Q4_K", WeightType::kQ4_K, GGML_TYPE_Q4_K},
    {"Q5_K", WeightType::kQ5_K, GGML_TYPE_Q5_K}, {"Q6_K", WeightType::kQ6_K, GGML_TYPE_Q6_K},
};

struct Subject {
  WeightMatrix w;
  std::vector<float> x;
  std::vector<float> y;
};

void multiply_ours(const MatvecTarget& target, uint32_t n_row, Subject& s) {
  QuantizedColumns columns;
  quantize_columns(s.x.data(), kValues, 1, kValues, columns, target);
  matvec(s.w, 0, n_row, columns, s.y.data(), s.w.n_row);
}

void multiply_ggml(ggml_type type, uint32_t n_row, Subject& s) {
  const ggml_type_traits_cpu& traits = *ggml_get_type_traits_cpu(type);
  const ggml_type_traits_cpu& column = *ggml_get_type_traits_cpu(traits.vec_dot_type);
  std::vector<std::byte> x(ggml_row_size(traits.vec_dot_type, kValues));
  column.from_float(s.x.data(), x.data(), kValues);
  for (uint32_t r = 0; r < n_row; ++r)
    traits.vec_dot(kValues, &s.y[r], 0, s.w.data + r * s.w.row_bytes, 0, x.data(), 0, 1);
}

bool multiply(std::string_view kernel, const Type& type, uint32_t n_row, Subject& s) {
  if (kernel == "ggml") {
    multiply_ggml(type.theirs, n_row, s);
    return true;
  }
  for (const MatvecTarget* target : matvec_targets()) {
    if (kernel != name_of(*target)) continue;
    multiply_ours(*target, n_row, s);
    return true;
  }
  return false;
}

int run(std::string_view kernel, std::string_view type_name, uint32_t n_row) {
  for (const Type& type : kTypes) {
    if (type.name != type_name || n_row > kRowsMax) continue;
    const size_t row_size = row_bytes(type.ours, kValues);
    const std::vector<std::byte> bytes(kRowsMax * row_size, std::byte{0x31});
    Subject s = {{type.ours, bytes.data(), row_size, kRowsMax, kValues},
                 std::vector<float>(kValues, 0.5f),
                 std::vector<float>(kRowsMax)};
    if (!multiply(kernel, type, n_row, s)) break;
    std::printf("%g\n", static_cast<double>(s.y[0]));
    return EXIT_SUCCESS;
  }
  std::fprintf(stderr, "usage: row_products KERNEL TYPE ROWS\n");
  return EXIT_FAILURE;
}

}  // namespace
}  // namespace headstart::kernels

int main(int argc, char** argv) {
  if (argc != 4) return headstart::kernels::run("", "", 0);
  return headstart::kernels::run(argv[1], argv[2], static_cast<uint32_t>(std::atoi(argv[3])));
}
